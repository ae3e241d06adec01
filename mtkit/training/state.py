"""What training is made of: the numbers that a resumed run continues from, and the objects that learn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from mtkit.average import rank
from mtkit.checkpoint import build_model, set_weights, weights_of
from mtkit.errors import ModelError, UsageError
from mtkit.fsdp import is_shared_out, piece_like, share_out, whole
from mtkit.initial import InitialModel, initial_model
from mtkit.model.attention import compile_without_groups
from mtkit.model.transformer import Transformer
from mtkit.ranks import ALONE, Ranks
from mtkit.recipe import Recipe
from mtkit.runtime import autocast_dtype, key_seed
from mtkit.sections.data import Batching
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.bad_numbers import LossTrack, largest_nll
from mtkit.training.finetune import freeze, starting_weights, trained
from mtkit.training.log import Window
from mtkit.training.optimizer import MovingAverage, make_optimizer
from mtkit.training.step import StepSettings


@dataclass(slots=True)
class TrainState:
    """Where training stands. `batch` is the next batch of `block` of `epoch`; `validations` holds a row of scores each.

    `max_tokens` is the batches' token budget, as it was measured for `batching.max_tokens: auto`; 0 for a number there.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    block: int = 0
    bad_steps: int = 0
    skipped_steps: int = 0
    halved_batches: int = 0
    processes: int = 1
    max_tokens: int = 0
    seconds: float = 0.0
    target_tokens: int = 0
    validations: list[dict[str, Any]] = field(default_factory=list)
    window: Window = field(default_factory=Window)
    losses: LossTrack = field(default_factory=LossTrack)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that `as_dict` gave."""
        parts = {"window": Window(**values["window"]), "losses": LossTrack(**values["losses"])}
        return cls(**{**values, **parts})

    def scores_at(self, step: int) -> dict[str, Any]:
        """The row of the validation after update `step`; empty when there was none."""
        return next((row for row in self.validations if row["step"] == step), {})

    def best_step(self, metric: str) -> int | None:
        """The step of the best validation by `metric`, the earliest of equals; None before the first."""
        best = max(self.validations, key=lambda row: rank(row, metric), default=None)
        return None if best is None else int(best["step"])

    def validations_since_best(self, metric: str) -> int:
        """How many validations in a row have brought no new best."""
        best = self.best_step(metric)
        return 0 if best is None else sum(row["step"] > best for row in self.validations)


@dataclass(slots=True)
class Learner:
    """The objects that change during training, and what they were made from.

    `core` holds the weights; `model` is what a step calls: `core`, or its compiled form. `batching` is the recipe's,
    with the number that was measured for `max_tokens: auto`.
    """

    recipe: Recipe
    tokenizers: Tokenizers
    device: torch.device
    core: Transformer
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: MovingAverage | None
    settings: StepSettings
    batching: Batching
    initial: InitialModel | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All weights, in the order of their names."""
        return list(self.core.parameters())

    @contextmanager
    def translating(self) -> Iterator["Learner"]:
        """The learner in evaluation mode, with the weights to translate with; afterwards all is as it was before.

        Where ranks share out the model, it is another learner, which has a whole one on each rank; all ask together.
        """
        if is_shared_out(self.core):
            model = build_model(self.recipe, self.tokenizers).to(self.device).eval()
            weights = {name: whole(weight) for name, weight in self.translation_weights().items()}
            set_weights(model, weights, self.recipe.run_dir)
            yield replace(self, core=model, model=model, average=None)
            return
        if self.average is not None:
            self.average.swap()
        self.core.eval()
        try:
            yield self
        finally:
            self.core.train()
            if self.average is not None:
                self.average.swap()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides the weights to translate with: optimizer state, and the weights that learn.

        The latter only where a moving average is kept; call while the average is not swapped in. They, and those of
        `translation_weights`, are in pieces where the model is.
        """
        names = list(weights_of(self.core))
        tensors = {}
        for name, weight in zip(names, self.parameters, strict=True):
            for key, value in self.optimizer.state.get(weight, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        if self.average is not None:
            tensors |= {f"weights.{name}": weight for name, weight in weights_of(self.core).items()}
        return tensors

    def translation_weights(self) -> dict[str, Tensor]:
        """The weights to translate with: the moving average where one is kept."""
        if self.average is None:
            return weights_of(self.core)
        return dict(zip(weights_of(self.core), self.average.averages, strict=True))

    def restore(self, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], scaler: dict[str, Any]) -> None:
        """Take over what a checkpoint holds, whole or in pieces (mutates everything); no rank waits for another.

        Raises ModelError where it does not fit.
        """
        average = self.average
        learning = weights if average is None else _part(tensors, "weights.")
        own = weights_of(self.core)
        pieces = {name: piece_like(value, own[name]) if name in own else value for name, value in learning.items()}
        set_weights(self.core, pieces, self.recipe.run_dir)
        if average is not None:
            if weights.keys() != weights_of(self.core).keys():
                raise ModelError(
                    f"{self.recipe.run_dir}: the checkpoint's moving average does not fit the model",
                    "take another checkpoint, or start anew with --fresh",
                )
            average.averages = [piece_like(weights[name].to(self.device), own[name]).clone() for name in own]
        states = _part(tensors, "optimizer.")
        for name, weight in zip(weights_of(self.core), self.parameters, strict=True):
            for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
                value = states.get(f"{key}.{name}")
                if value is None:
                    continue
                # The step counter of a fused optimizer lives beside the weights, and is a single number.
                beside = value.to(weight.device).clone()
                self.optimizer.state[weight][key] = beside if key == "step" else piece_like(beside, weight)
        if scaler:
            self.scaler.load_state_dict(scaler)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def make_learner(recipe: Recipe, tokenizers: Tokenizers, device: torch.device, ranks: Ranks = ALONE) -> Learner:
    """A fresh model on `device` with its optimizer; the initial weights depend on the recipe's seed alone, or are those
    of `training.initialize_from`. With `training.parallel: fsdp` the ranks, if they are several, share it out.

    Raises UsageError when the device cannot do the recipe's precision, ModelError when there is no initial model, and
    RecipeError when it does not fit the recipe or nothing is left to train.
    """
    training = recipe.training
    if training.precision == "fp16" and device.type == "cpu":
        raise UsageError("training.precision: fp16 is for GPUs; a CPU has no fast fp16", "use bf16, auto or fp32")
    torch.manual_seed(key_seed(training.seed, "init"))
    core = build_model(recipe, tokenizers)
    initial = initial_model(recipe)
    if initial is not None:
        set_weights(core, starting_weights(core, initial, training.seed), initial.weights)
    freeze(core, training.freeze)
    if training.parallel == "fsdp" and ranks.world > 1:
        share_out(core, [*core.encoder, *core.decoder], device)
    core = core.to(device).train()
    dtype = autocast_dtype(training.precision, device)
    if training.compile:
        compile_without_groups(core)
    return Learner(
        recipe=recipe,
        tokenizers=tokenizers,
        device=device,
        core=core,
        model=torch.compile(core, dynamic=True) if training.compile else core,  # type: ignore[arg-type]
        optimizer=make_optimizer(
            recipe.optimizer,
            trained(core),
            device,
            matrices=[
                weight for part in (core.encoder, core.decoder) for weight in part.parameters() if weight.ndim == 2
            ],
            dtype=torch.bfloat16 if dtype == torch.bfloat16 else torch.float32,
        ),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        average=None if training.ema_decay is None else MovingAverage(list(core.parameters()), training.ema_decay),
        settings=StepSettings(
            seed=training.seed,
            rank=ranks.rank,
            label_smoothing=training.label_smoothing,
            clip_norm=recipe.optimizer.clip_norm,
            dtype=dtype,
            word_dropout=training.word_dropout,
            r_drop=training.r_drop,
            packing=training.packing,
            gradient_checkpointing=training.gradient_checkpointing,
            max_nll=largest_nll(tokenizers.target.size),
        ),
        batching=recipe.batching,
        initial=initial,
    )
