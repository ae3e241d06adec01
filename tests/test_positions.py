"""Position encodings: values by hand, distances, and what each one can tell apart."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch_model import TINY, build, framed, random_rows, slow_sinusoids

from mtkit.errors import ModelError
from mtkit.model.positions import Rotary, make_positions, rotations, sinusoids
from mtkit.sections.model import Model

NAMES = get_args(Model.model_fields["positions"].annotation)
CPU = torch.device("cpu")


def positions(name: str, **options: object) -> torch.nn.Module:
    return make_positions(Model.model_validate({**TINY, "positions": name, **options}))


def test_sinusoids_by_hand() -> None:
    table = sinusoids(64, 4, CPU)
    assert table[0].tolist() == [0, 1, 0, 1]
    assert table[1].tolist() == pytest.approx([0.8414710, 0.5403023, 0.0099998, 0.9999500], abs=1e-7)
    assert table[50].tolist() == pytest.approx([-0.2623749, 0.9649660, 0.4794255, 0.8775826], abs=1e-7)


def test_sinusoids_are_exact_to_float32_far_out() -> None:
    assert torch.equal(sinusoids(4096, 16, CPU)[4000:], slow_sinusoids(4096, 16)[4000:].float())


@pytest.mark.parametrize("name", NAMES)
def test_a_start_is_a_shift(name: str) -> None:
    """Columns from position 5 on are those that a longer sequence has there."""
    encoding = positions(name)
    x_BTD, x_BHTE = torch.randn(2, 9, 32), torch.randn(2, 4, 9, 8)
    assert torch.equal(encoding.embed(x_BTD, 0)[:, 5:], encoding.embed(x_BTD[:, 5:], 5))
    assert torch.equal(encoding.rotate(x_BHTE, 0)[:, :, 5:], encoding.rotate(x_BHTE[:, :, 5:], 5))


@pytest.mark.parametrize("name", NAMES)
def test_only_absolute_encodings_add_and_only_relative_ones_turn(name: str) -> None:
    encoding = positions(name)
    x_BTD, x_BHTE = torch.randn(1, 3, 32), torch.randn(1, 4, 3, 8)
    assert torch.equal(encoding.embed(x_BTD, 1), x_BTD) == (name in ("none", "rotary"))
    assert torch.equal(encoding.rotate(x_BHTE, 1), x_BHTE) == (name != "rotary")


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    x_BHTE = torch.randn(2, 3, 70, 6, dtype=torch.float64)
    t, i = torch.arange(70, dtype=torch.float64), torch.arange(3, dtype=torch.float64)
    angles = t[:, None] * 10000.0 ** (-2 * i / 6)
    turned = torch.complex(x_BHTE[..., :3], x_BHTE[..., 3:]) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(Rotary().rotate(x_BHTE, 0), expected, rtol=0, atol=1e-6)


def test_rotary_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    rotary = Rotary()

    def score(at: int, to: int) -> Tensor:
        return (rotary.rotate(q, at) * rotary.rotate(k, to)).sum()

    for distance in (0, 1, 7, -3):
        scores = torch.stack([score(at, at + distance) for at in (3, 4, 20, 500)])
        torch.testing.assert_close(scores, scores[:1].expand(4), rtol=0, atol=1e-4)
    assert (score(3, 4) - score(3, 10)).abs() > 1e-3


def test_rotary_keeps_length_and_dtype() -> None:
    x_BHTE = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    turned = Rotary().rotate(x_BHTE, 11)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float().norm(dim=-1), x_BHTE.float().norm(dim=-1), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_order_of_the_source_matters_unless_there_are_no_positions(name: str) -> None:
    model = build(positions=name)
    row = random_rows([5], 50, 1)[0]
    target = framed(random_rows([4], 50, 2), start=True)
    with torch.no_grad():
        hidden, turned_round = model(framed([row]), target), model(framed([row[::-1]]), target)
    assert torch.allclose(hidden, turned_round, atol=1e-5) == (name == "none")


def test_learned_positions_are_trained_one_by_one() -> None:
    model = build(positions="learned", max_positions=12)
    model(framed(random_rows([4], 50, 1)), framed(random_rows([7], 50, 2), start=True)).square().sum().backward()
    for table, used in ((model.source_positions.table, 5), (model.target_positions.table, 8)):
        assert table.weight.grad is not None
        assert table.weight.grad.abs().sum(1).bool().tolist() == [True] * used + [False] * (12 - used)


def test_learned_positions_end_with_an_error_that_names_the_limit() -> None:
    model = build(positions="learned", max_positions=8)
    model.encode(framed(random_rows([7], 50, 1)))
    with pytest.raises(ModelError, match=r"9 tokens.*8 positions") as caught:
        model.encode(framed(random_rows([8], 50, 1)))
    assert "max_positions" in str(caught.value.hint)


@pytest.mark.parametrize("name", NAMES)
def test_tables_made_while_translating_serve_training(name: str) -> None:
    """Validation decodes in inference mode, and made the longer rotary tables first; the next update then failed."""
    sinusoids.cache_clear()
    rotations.cache_clear()
    model = build(positions=name)
    ids = framed(random_rows([5], 50, 1))
    with torch.inference_mode():
        model(ids, ids)
    model(ids, ids).sum().backward()


def test_angles_by_hand() -> None:
    cos, sin = rotations(64, 4, CPU)
    assert cos[3].tolist() == pytest.approx([math.cos(3), math.cos(0.03)] * 2, abs=1e-7)
    assert sin[3].tolist() == pytest.approx([math.sin(3), math.sin(0.03)] * 2, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_each_row_at_a_position_of_its_own(name: str) -> None:
    """As the row would have alone."""
    encoding = positions(name, max_positions=80)
    places_N = torch.tensor([0, 5, 79, 5])
    x_ND, q_NHE = torch.randn(4, 32), torch.randn(4, 4, 8)
    for row, place in enumerate(places_N.tolist()):
        alone_D = encoding.embed(x_ND[row][None, None], place)[0, 0]
        torch.testing.assert_close(encoding.embed_each(x_ND, places_N)[row], alone_D)
        alone_HE = encoding.rotate(q_NHE[row][None, :, None], place)[0, :, 0]
        torch.testing.assert_close(encoding.rotate_each(q_NHE, places_N)[row], alone_HE)
    if name == "learned":
        with pytest.raises(ModelError, match="a sentence of 81 tokens"):
            encoding.embed_each(x_ND, places_N + 1)
