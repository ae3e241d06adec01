"""One update: forward and backward over one or more batches, then one move of the optimizer."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mtkit.data.loader import Batch
from mtkit.errors import TrainingError
from mtkit.fsdp import is_shared_out, prepare_pass
from mtkit.ids import BOS, EOS, PAD
from mtkit.model.packing import Packings
from mtkit.model.transformer import Transformer
from mtkit.ranks import ALONE, Ranks
from mtkit.runtime import autocast, is_out_of_memory, key_seed
from mtkit.training.loss import matrix, projected_nll
from mtkit.training.memory import halves, room_for_update
from mtkit.training.optimizer import clip_gradient, global_norm
from mtkit.training.regularize import drop_words, symmetric_divergence


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update saw. Losses are sums over `target_tokens`, in nats."""

    loss: float
    nll: float
    target_tokens: int
    source_tokens: int
    cells: int
    """Places of both sides that were computed: padding as well, of which packed batches have none."""
    gradient_norm: float
    applied: bool
    halvings: int = 0
    """Batches, of all ranks, that were cut in halves because memory ran out."""


def unwatched(phase: str) -> AbstractContextManager[None]:
    """Nobody takes the time of this phase."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What an update needs besides model, optimizer and data."""

    seed: int
    rank: int
    label_smoothing: float
    clip_norm: float | None
    dtype: torch.dtype | None
    word_dropout: float = 0.0
    r_drop: float = 0.0
    packing: bool = False
    gradient_checkpointing: bool = False
    max_nll: float = math.inf
    """A mean negative log-likelihood above this, in nats a token, counts as a number gone bad."""
    watch: Callable[[str], AbstractContextManager[None]] = unwatched
    """Entered with "forward" and "backward" around the two; `mtkit bench train` takes their time."""


def batch_loss(model: nn.Module, output: nn.Linear, batch: Batch, settings: StepSettings) -> tuple[Tensor, Tensor]:
    """Sums of the smoothed and the plain loss of one batch; only real target positions meet the `output` layer."""
    return _nll(*_hidden(model, output, batch, settings), output, settings)


def training_loss(model: nn.Module, output: nn.Linear, batch: Batch, settings: StepSettings) -> tuple[Tensor, Tensor]:
    """`batch_loss` with word dropout and R-Drop, where the settings ask for them.

    R-Drop (Liang et al. 2021, equation 4) is -log p1 - log p2 + alpha / 2 * (KL(p1|p2) + KL(p2|p1)) for two passes that
    differ in what is dropped. Here it is half of that, mean loss + alpha / 4 * (KL + KL), so that losses, gradient
    norms and rates mean what they mean without it.
    """
    if settings.r_drop == 0:
        return batch_loss(model, output, drop_words(batch, settings.word_dropout), settings)
    passes = [_hidden(model, output, drop_words(batch, settings.word_dropout), settings) for _ in range(2)]
    one, other = (_nll(hidden_ND, targets_N, output, settings) for hidden_ND, targets_N in passes)
    divergence = symmetric_divergence(passes[0][0], passes[1][0], matrix(output), settings.dtype)
    return (one[0] + other[0]) / 2 + settings.r_drop / 4 * divergence, (one[1] + other[1]) / 2


def _hidden(model: nn.Module, output: nn.Linear, batch: Batch, settings: StepSettings) -> tuple[Tensor, Tensor]:
    """Hidden states_ND at the real target positions, ready for the `matrix` of the output layer, and targets_N."""
    with autocast(settings.dtype, batch.source_BS.device):
        packings = Packings.of(batch.source_BS, batch.target_out_BT) if settings.packing else None
        hidden: Tensor = model(batch.source_BS, batch.target_in_BT, packings, settings.gradient_checkpointing)
    places_N = packings.target.places_P if packings else (batch.target_out_BT != PAD).flatten().nonzero().squeeze(1)
    hidden_ND = hidden if packings else hidden.flatten(0, 1).index_select(0, places_N)
    if output.bias is not None:
        hidden_ND = torch.cat((hidden_ND, torch.ones_like(hidden_ND[:, :1])), 1)
    return hidden_ND, batch.target_out_BT.flatten().index_select(0, places_N)


def _nll(hidden_ND: Tensor, targets_N: Tensor, output: nn.Linear, settings: StepSettings) -> tuple[Tensor, Tensor]:
    return projected_nll(hidden_ND, matrix(output), targets_N, settings.label_smoothing, settings.dtype)


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one rank's batches have added up to. `halvings` counts the batches that were cut because memory ran out."""

    loss: Tensor
    nll: Tensor
    halvings: int


def _nothing() -> Batch:
    """A pair without a target: its loss and its gradients are zero."""
    source_BS, target_in_BT, target_out_BT = (torch.tensor([[one]]) for one in (EOS, BOS, PAD))
    return Batch(source_BS, target_in_BT, target_out_BT, 0, 0)


def add_gradients(
    model: nn.Module,
    core: Transformer,
    scaler: torch.amp.GradScaler,
    batches: Sequence[Batch],
    target_tokens: int,
    step: int,
    settings: StepSettings,
) -> Gradients:
    """Forward and backward over this rank's batches, from no gradient on (mutates the gradients).

    Where memory runs out, the batch, and all as large, are cut in halves, and the update begins again: losses are sums,
    so that the gradient is the same. Raises TrainingError when a single pair does not fit, or when the model is shared
    out: the other ranks wait for this one's next piece, and cannot begin again.
    """
    device = core.output.weight.device
    parts, halvings = list(batches), 0
    while True:
        core.zero_grad(set_to_none=True)
        torch.manual_seed(key_seed(settings.seed, "step", step, settings.rank))
        loss, nll = torch.zeros((), device=device), torch.zeros((), device=device)
        for place, part in enumerate(parts, 1):
            prepare_pass(core, last=place == len(parts))
            sums = _add_gradient(model, core, scaler, part, target_tokens, settings)
            if sums is None:
                break
            loss += sums[0]
            nll += sums[1]
        else:
            return Gradients(loss, nll, halvings)
        if is_shared_out(core):
            raise TrainingError(
                f"step {step}: out of memory with a batch of {part.cells} cells, which training.parallel: fsdp cannot "
                "cut in halves; the checkpoints are as they were",
                "train with a smaller batching.max_tokens and a larger training.accumulate, or in more processes",
            )
        core.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if len(part.source_BS) == 1:
            raise TrainingError(
                f"step {step}: out of memory with a single pair, of {part.source_tokens} source and {part.kept} "
                "target tokens; the checkpoints are as they were",
                "lower filters.max_length or the size of the model, or free memory on the device",
            )
        # A batch larger than one that does not fit will not fit either.
        cut = [len(one.source_BS) > 1 and one.cells >= part.cells for one in parts]
        halvings += sum(cut)
        parts = [piece for one, large in zip(parts, cut, strict=True) for piece in (halves(one) if large else [one])]


def _add_gradient(
    model: nn.Module,
    core: Transformer,
    scaler: torch.amp.GradScaler,
    batch: Batch,
    target_tokens: int,
    settings: StepSettings,
) -> tuple[Tensor, Tensor] | None:
    """The sums of both losses; None when memory has run out, and the gradients are useless."""
    try:
        with settings.watch("forward"):
            smoothed, plain = training_loss(model, core.output, batch.to(core.output.weight.device), settings)
        with settings.watch("backward"):
            scaler.scale(smoothed / target_tokens).backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return smoothed.detach(), plain.detach()


def exchange_gradients(parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
    """Put the sum of all ranks' gradients in place of each rank's own; a rank without a batch adds nothing.

    A weight that took no part, in a layer that LayerDrop has skipped, has the gradient zero, on one rank as on many.
    """
    for weight in parameters:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    if ranks.world == 1:
        return
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    flat = ranks.total(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = flat.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)])


def train_step(
    model: nn.Module,
    core: Transformer,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: Sequence[Batch],
    step: int,
    settings: StepSettings,
    target_tokens: int | None = None,
    ranks: Ranks = ALONE,
) -> StepReport:
    """One update on `batches` together: the gradient is that of the mean loss over all `target_tokens`.

    Those are by default the target tokens of the batches; with several ranks, of the batches of all of them: gradients
    are exchanged once, after the last batch. The report counts all ranks, and is the same on each.

    `core` holds the weights; `model` is what is called, `core` itself or its compiled form. Dropout depends on
    (seed, step, rank) alone. When loss or gradient is not finite, or the loss exceeds `max_nll`, nothing moves and
    `applied` is False. Mutates weights, optimizer, scaler and torch's random state.
    """
    parameters = [weight for weight in core.parameters() if weight.requires_grad]
    device = parameters[0].device
    target_tokens = target_tokens or sum(batch.kept for batch in batches)
    shared_out = is_shared_out(core)
    # Ranks that share out the model make equally many passes, if need be with nothing to learn.
    passes = ranks.largest(len(batches)) if shared_out else len(batches)
    padded = [*batches, *[_nothing()] * (passes - len(batches))]
    own = add_gradients(model, core, scaler, padded, target_tokens, step, settings)
    if not batches:
        scaler.scale(torch.zeros((), device=device))  # the scaler takes shape by its first use
    # Pieces of gradients have been exchanged where they came up, in the last backward pass.
    with room_for_update(step):
        exchange_gradients(parameters, ALONE if shared_out else ranks)
    scaler.unscale_(optimizer)
    norm = global_norm(parameters)
    if shared_out:
        norm = ranks.total(norm.square()).sqrt()
    # Rank 0's norm counts for all, so that no rounding tells their weights apart.
    shared = norm if ranks.leads else torch.zeros_like(norm)
    source = sum(batch.source_tokens for batch in batches)
    cells = source + sum(batch.kept for batch in batches) if settings.packing else sum(batch.cells for batch in batches)
    counts = [source, cells, own.halvings]
    sums = ranks.total(torch.stack((shared, own.loss, own.nll, *torch.tensor(counts, dtype=norm.dtype, device=device))))
    norm = sums[0]
    norm_value, loss, nll, all_source, all_cells, halvings = sums.tolist()
    sound = math.isfinite(norm_value) and math.isfinite(loss) and nll <= settings.max_nll * target_tokens
    if sound and settings.clip_norm is not None:
        clip_gradient(parameters, norm, settings.clip_norm)
    if sound:
        with room_for_update(step):
            scaler.step(optimizer)
    scaler.update()
    return StepReport(
        loss=loss,
        nll=nll,
        target_tokens=target_tokens,
        source_tokens=int(all_source),
        cells=int(all_cells),
        gradient_norm=norm_value,
        applied=sound,
        halvings=int(halvings),
    )
