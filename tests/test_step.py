"""The update: what it adds up, what its randomness depends on, and what it refuses."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch_model import build, framed, random_rows

from mtkit.data.loader import Batch
from mtkit.ids import BOS, EOS, PAD
from mtkit.model.transformer import Transformer
from mtkit.ranks import Ranks
from mtkit.sections.training import Optimizer
from mtkit.training import step as step_module
from mtkit.training.optimizer import make_optimizer, set_rate
from mtkit.training.step import StepReport, StepSettings, batch_loss, train_step

SETTINGS = StepSettings(seed=1, rank=0, label_smoothing=0.1, clip_norm=None, dtype=None)
CPU = torch.device("cpu")
ROWS = list(
    zip(random_rows([5, 1, 9, 3, 4, 6, 2, 8], 50, 1), random_rows([4, 6, 2, 8, 1, 9, 5, 3], 50, 2), strict=True)
)


def batch(rows: Sequence[tuple[list[int], list[int]]], widen: int = 0) -> Batch:
    """Pairs of rows as a batch, with some more columns of padding than needed."""
    sources, targets = [source for source, _ in rows], [target for _, target in rows]
    source_BS, target_in_BT, target_out_BT = (
        torch.nn.functional.pad(ids, (0, widen), value=PAD)
        for ids in (framed(sources), framed(targets, start=True), framed(targets))
    )
    return Batch(source_BS, target_in_BT, target_out_BT, sum(map(len, sources)) + len(rows), _tokens(rows))


def _tokens(rows: Sequence[tuple[list[int], list[int]]]) -> int:
    return sum(len(target) + 1 for _, target in rows)


class Update:
    """A model that is ready for updates."""

    def __init__(self, rate: float = 0.0, scaler: torch.amp.GradScaler | None = None, **section: object) -> None:
        self.model = build(**section).train()
        self.optimizer = make_optimizer(Optimizer(), self.model.parameters(), CPU)
        set_rate(self.optimizer, rate)
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)

    def __call__(self, batches: Sequence[Batch], step: int = 1, settings: StepSettings = SETTINGS) -> StepReport:
        return train_step(self.model, self.model, self.optimizer, self.scaler, batches, step, settings)

    def gradients(self) -> dict[str, Tensor]:
        return {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}

    def everything(self) -> list[Tensor]:
        """Weights and optimizer state, copied."""
        state = [value for part in self.optimizer.state.values() for value in part.values()]
        return [tensor.detach().clone() for tensor in [*self.model.parameters(), *state]]


def assert_gradients_close(one: Update, other: Update, tolerance: float) -> None:
    gradients = one.gradients()
    assert gradients.keys() == other.gradients().keys() == dict(one.model.named_parameters()).keys()
    for name, gradient in other.gradients().items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cuts", [[2, 4, 6], [1, 7], [3]])
def test_accumulated_batches_equal_one_batch(cuts: list[int]) -> None:
    """4 x 1 = 1 x 4, though the parts differ in tokens and in padding: the loss is divided once, by all tokens."""
    parts = [ROWS[begin:end] for begin, end in zip([0, *cuts], [*cuts, 8], strict=True)]
    together, apart = Update(), Update()
    whole = together([batch(ROWS)])
    pieces = apart([batch(part) for part in parts])
    assert_gradients_close(apart, together, 1e-6)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.nll == pytest.approx(whole.nll, rel=1e-6)
    assert pieces.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)
    assert pieces.target_tokens == whole.target_tokens == _tokens(ROWS)
    assert pieces.source_tokens == whole.source_tokens == sum(len(source) + 1 for source, _ in ROWS)


def test_ranks_exchange_gradients_once_an_update_however_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the counts beside them once; of a model in pieces, the last pass alone exchanges."""
    exchanged: list[int] = []
    lasts: list[bool] = []

    class Counting(Ranks):
        def total(self, values: Tensor) -> Tensor:
            exchanged.append(values.numel())
            return values

    monkeypatch.setattr(step_module, "prepare_pass", lambda model, last: lasts.append(last))
    update = Update()
    parts = [batch(ROWS[:1]), batch(ROWS[1:6]), batch(ROWS[6:])]
    whole = (update.model, update.model, update.optimizer, update.scaler)
    train_step(*whole, parts, 1, SETTINGS, _tokens(ROWS), Counting(world=2))
    assert len(exchanged) == 2
    assert exchanged[0] == sum(weight.numel() for weight in update.model.parameters())
    assert lasts == [False, False, True]


def test_the_gradient_is_that_of_the_mean_loss_over_real_tokens() -> None:
    update = Update()
    report = update([batch(ROWS)])
    twin = build()
    logits = twin.logits(twin(framed([s for s, _ in ROWS]), framed([t for _, t in ROWS], start=True)))
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), framed([t for _, t in ROWS]).flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    loss.backward()
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(update.gradients()[name], weight.grad, rtol=0, atol=1e-6)
    assert report.loss / report.target_tokens == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("share", ["all", "none"])
def test_an_output_bias_takes_part_in_loss_and_gradient(share: str) -> None:
    """The oracle is F.cross_entropy on the model's own logits, which are projection and bias."""
    update = Update(output_bias=True, share_embeddings=share)
    bias = update.model.output.bias
    with torch.no_grad():
        bias.normal_(generator=torch.Generator().manual_seed(5))
    report = update([batch(ROWS)])
    rows = batch(ROWS)
    real_BT = rows.target_out_BT != PAD
    logits_NV = update.model.logits(update.model(rows.source_BS, rows.target_in_BT))[real_BT]
    plain_NV = logits_NV - bias
    torch.testing.assert_close(
        plain_NV, update.model(rows.source_BS, rows.target_in_BT)[real_BT] @ update.model.output.weight.t()
    )
    loss = torch.nn.functional.cross_entropy(logits_NV, rows.target_out_BT[real_BT], label_smoothing=0.1)
    assert report.loss / report.target_tokens == pytest.approx(loss.item(), rel=1e-5)
    gradients = update.gradients()
    wanted = torch.autograd.grad(loss, [bias, update.model.output.weight])
    torch.testing.assert_close(gradients["output.bias"], wanted[0], rtol=0, atol=1e-6)
    weight = "output.weight" if share == "none" else "target_embedding.weight"
    torch.testing.assert_close(gradients[weight], wanted[1], rtol=0, atol=1e-6)
    assert wanted[0].abs().max() > 1e-3


def test_padding_adds_cells_and_nothing_else() -> None:
    narrow, wide = Update(), Update()
    reports = narrow([batch(ROWS)]), wide([batch(ROWS, widen=3)])
    assert_gradients_close(wide, narrow, 1e-6)
    assert [report.cells for report in reports] == [8 * (10 + 10), 8 * (13 + 13)]
    assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-6)


def test_loss_and_nll_are_sums_and_differ_by_the_smoothing() -> None:
    model = build()
    with torch.no_grad():
        sharp = batch_loss(model, model.output, batch(ROWS), dataclasses.replace(SETTINGS, label_smoothing=0.0))
        smooth = batch_loss(model, model.output, batch(ROWS), SETTINGS)
        halves = [batch_loss(model, model.output, batch(part), SETTINGS)[0] for part in (ROWS[:3], ROWS[3:])]
    assert sharp[0] == sharp[1] == smooth[1]
    assert smooth[0] != smooth[1]
    assert sum(halves).item() == pytest.approx(smooth[0].item(), rel=1e-6)


def test_clipping_limits_the_gradient_and_reports_the_norm_before() -> None:
    free, clipped = Update(), Update()
    norm = free([batch(ROWS)]).gradient_norm
    report = clipped([batch(ROWS)], settings=dataclasses.replace(SETTINGS, clip_norm=norm / 4))
    assert report.gradient_norm == pytest.approx(norm)
    for name, gradient in free.gradients().items():
        torch.testing.assert_close(clipped.gradients()[name], gradient / 4, rtol=1e-4, atol=1e-7)


def test_randomness_depends_on_seed_step_and_rank_alone() -> None:
    """An update that a resumed run repeats drops the same numbers, whatever was drawn before."""
    update = Update(dropout=0.3)

    def loss(seed: int = 1, step: int = 7, rank: int = 0) -> float:
        torch.rand(5)
        return update([batch(ROWS)], step, dataclasses.replace(SETTINGS, seed=seed, rank=rank)).loss

    first = loss()
    assert loss() == first
    others = [loss(seed=2), loss(step=8), loss(rank=1)]
    assert len({first, *others}) == 4


@pytest.mark.parametrize("fault", ["loss", "gradient"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_number_changes_nothing(fault: str, value: float) -> None:
    update = Update(rate=0.1)
    assert update([batch(ROWS)]).applied
    before = update.everything()
    if fault == "gradient":
        hook = update.model.decoder[0].feed_forward.inner.bias.register_hook(lambda gradient: gradient + value)
    else:
        norm = update.model.decoder[1].feed_forward_frame.norm
        hook = norm.register_forward_hook(lambda module, args, output: output * value)
    report = update([batch(ROWS)], settings=dataclasses.replace(SETTINGS, clip_norm=1.0))
    hook.remove()
    assert not report.applied
    assert not math.isfinite(report.gradient_norm)
    assert math.isfinite(report.loss) == (fault == "gradient")
    assert all(torch.equal(one, other) for one, other in zip(before, update.everything(), strict=True))
    assert update([batch(ROWS)]).applied
    assert not torch.equal(before[0], update.everything()[0])


def test_the_scaler_changes_no_gradient_and_backs_off_after_a_bad_one() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plain, scaled = Update(rate=0.1), Update(rate=0.1, scaler=scaler)
    settings = dataclasses.replace(SETTINGS, clip_norm=0.5)
    assert plain([batch(ROWS)], settings=settings).gradient_norm == pytest.approx(
        scaled([batch(ROWS)], settings=settings).gradient_norm, rel=1e-5
    )
    assert_gradients_close(scaled, plain, 1e-6)
    before = scaled.everything()
    hook = scaled.model.decoder[0].feed_forward.inner.bias.register_hook(lambda gradient: gradient * math.inf)
    assert not scaled([batch(ROWS)]).applied
    hook.remove()
    assert scaler.get_scale() == 2.0**9
    assert all(torch.equal(one, other) for one, other in zip(before, scaled.everything(), strict=True))
    assert scaled([batch(ROWS)]).applied


def test_bf16_is_close_to_fp32() -> None:
    """The loss to 1 %, the gradient's direction to a cosine of 0.99."""
    exact, rough = Update(norm="pre"), Update(norm="pre")
    reports = exact([batch(ROWS)]), rough([batch(ROWS)], settings=dataclasses.replace(SETTINGS, dtype=torch.bfloat16))
    assert reports[1].loss == pytest.approx(reports[0].loss, rel=0.01)
    assert reports[1].loss != reports[0].loss
    flat = [torch.cat([gradient.flatten() for gradient in update.gradients().values()]) for update in (exact, rough)]
    assert torch.nn.functional.cosine_similarity(*flat, dim=0) > 0.99
    assert {weight.dtype for weight in rough.model.parameters()} == {torch.float32}


def greedy(model: Transformer, sources: list[list[int]], steps: int) -> list[list[int]]:
    """The likeliest continuation of each source, up to EOS."""
    state = model.start(framed(sources), 1)
    ids_N = torch.full((len(sources),), BOS)
    columns = []
    for _ in range(steps):
        ids_N = model.step(ids_N, state).argmax(-1)
        columns.append(ids_N)
    rows = torch.stack(columns, 1).tolist()
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_tiny_model_learns_eight_pairs_by_heart(positions: str) -> None:
    update = Update(rate=0.003, positions=positions, norm="pre")
    settings = dataclasses.replace(SETTINGS, label_smoothing=0.0, clip_norm=1.0)
    for step in range(1, 121):
        report = update([batch(ROWS)], step, settings)
    assert report.nll / report.target_tokens < 0.1
    with torch.inference_mode():
        update.model.eval()
        assert greedy(update.model, [source for source, _ in ROWS], 12) == [target for _, target in ROWS]
