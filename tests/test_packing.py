"""Training on real tokens alone: the same losses and gradients, and no padding to compute."""

import dataclasses
import statistics

import pytest
import torch
from test_model import choices
from test_step import ROWS, SETTINGS, Update, assert_gradients_close, batch
from torch import Tensor, nn
from torch_model import build

from mtkit.ids import PAD
from mtkit.model.packing import Group, Packings
from mtkit.training.step import StepReport, StepSettings, add_gradients, train_step

PACKED = dataclasses.replace(SETTINGS, packing=True)
TOKENS = sum(len(source) + 1 for source, _ in ROWS), sum(len(target) + 1 for _, target in ROWS)


def exact(widen: int = 0, settings: StepSettings = SETTINGS, **section: object) -> tuple[Update, StepReport]:
    """A model in float64 after one update, and what that reports."""
    update = Update(**section)
    update.model.double()
    return update, update([batch(ROWS, widen)], settings=settings)


def assert_same(one: tuple[Update, StepReport], other: tuple[Update, StepReport]) -> None:
    """Of a packed update and a padded one."""
    assert_gradients_close(one[0], other[0], 1e-12)
    packed = dataclasses.replace(one[1], cells=other[1].cells)
    assert dataclasses.asdict(packed) == pytest.approx(dataclasses.asdict(other[1]), rel=1e-12)
    assert one[1].cells == sum(TOKENS) < other[1].cells, "what is not computed is no padding"


def ids(lengths: list[int], width: int) -> Tensor:
    """Row b holds 10 b + 10, 10 b + 11, ... on its left, padding on its right."""
    return torch.tensor([[10 * b + 10 + t if t < n else PAD for t in range(width)] for b, n in enumerate(lengths)])


def test_sentences_of_equal_shape_lie_side_by_side() -> None:
    source_BS, target_BT = ids([2, 3, 2, 3, 1], 4), ids([1, 2, 2, 1, 2], 2)
    packings = Packings.of(source_BS, target_BT)
    sources, targets = (
        side.pack(rows[..., None]).squeeze(1)
        for side, rows in ((packings.source, source_BS), (packings.target, target_BT))
    )
    assert sources.tolist() == [50, 10, 11, 30, 31, 20, 21, 22, 40, 41, 42]
    assert packings.source.groups == (Group(1, 1, 1), Group(2, 2, 2), Group(2, 3, 3))
    assert targets.tolist() == [10, 40, 50, 51, 30, 31, 20, 21]
    assert packings.target.groups == (Group(2, 1, 1), Group(3, 2, 2))
    assert sources[packings.memory_P].tolist() == [10, 11, 40, 41, 42, 50, 30, 31, 20, 21, 22]
    assert packings.cross == (Group(1, 1, 2), Group(1, 1, 3), Group(1, 2, 1), Group(1, 2, 2), Group(1, 2, 3))


@pytest.mark.parametrize("norm", choices("norm"))
@pytest.mark.parametrize("positions", choices("positions"))
def test_packed_equals_padded(positions: str, norm: str) -> None:
    """Loss, its sum without smoothing, and the gradient of every weight."""
    section = {"positions": positions, "norm": norm}
    assert_same(exact(settings=PACKED, **section), exact(**section))


def test_packed_equals_padded_with_r_drop_and_word_dropout() -> None:
    """Words are dropped before the packing, so that both see the same ones, and the two passes differ."""
    extra = {"r_drop": 2.0, "word_dropout": 0.3}
    packed = exact(settings=dataclasses.replace(PACKED, **extra))
    assert_same(packed, exact(settings=dataclasses.replace(SETTINGS, **extra)))
    assert packed[1].loss != pytest.approx(exact()[1].loss, rel=1e-3)


def test_wider_padding_adds_nothing() -> None:
    assert_same(exact(3, settings=PACKED), exact())


def rows_seen(settings: StepSettings) -> dict[str, int]:
    """How many rows each linear map and each LayerNorm of the model sees, for a batch with much padding."""
    update, seen = Update(norm="pre"), {}

    def note(name: str) -> None:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            seen[name] = output.shape[:-1].numel()

        update.model.get_submodule(name).register_forward_hook(hook)

    for name, module in update.model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            note(name)
    update([batch(ROWS, widen=5)], settings=settings)
    return seen


def test_no_map_and_no_norm_sees_padding() -> None:
    packed, padded = rows_seen(PACKED), rows_seen(SETTINGS)
    assert packed.keys() == padded.keys()
    sides = {"encoder": TOKENS[0], "decoder": TOKENS[1]}
    assert packed == {name: sides[name[:7]] for name in packed}
    assert min(padded.values()) > max(packed.values())


def test_packed_bf16_is_close_to_padded_bf16() -> None:
    reports, flat = [], []
    for settings in (PACKED, SETTINGS):
        update = Update(norm="pre")
        reports.append(update([batch(ROWS)], settings=dataclasses.replace(settings, dtype=torch.bfloat16)))
        flat.append(torch.cat([gradient.flatten() for gradient in update.gradients().values()]))
    assert reports[0].loss == pytest.approx(reports[1].loss, rel=2e-3)
    assert torch.nn.functional.cosine_similarity(*flat, dim=0) > 0.999


def test_a_batch_without_a_target_changes_nothing() -> None:
    """Ranks that share out a model give one to a rank that has no batch left."""
    for settings in (PACKED, SETTINGS):
        update = Update()
        nothing = dataclasses.replace(
            batch(ROWS[:1]), target_in_BT=torch.tensor([[2]]), target_out_BT=torch.tensor([[PAD]]), kept=0
        )
        add_gradients(update.model, update.model, update.scaler, [nothing], 10, 1, settings)
        assert all(gradient.abs().max() == 0 for gradient in update.gradients().values())


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_has_the_same_distribution(option: str) -> None:
    """Other bits, as rows have other places; so means over many draws must agree within their errors, and spreads."""
    model = build(**{option: 0.3}).train()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.0), torch.amp.GradScaler("cpu", enabled=False)
    losses = {
        packing: [
            train_step(
                model, model, optimizer, scaler, [batch(ROWS)], step, dataclasses.replace(SETTINGS, packing=packing)
            ).nll
            for step in range(packing * 1000, packing * 1000 + 60)
        ]
        for packing in (False, True)
    }
    spreads = [statistics.stdev(losses[packing]) for packing in (False, True)]
    difference = statistics.mean(losses[True]) - statistics.mean(losses[False])
    assert abs(difference) < 4 * (sum(spread**2 for spread in spreads) / 60) ** 0.5
    assert 0.5 < spreads[1] / spreads[0] < 2
    assert len(set(losses[True])) > 50
