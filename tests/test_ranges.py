"""Maps rewritten for int8 with known ranges: the same function, and ranges that hold."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.model import kernels, ranges
from mtkit.model.kernels import Int8Fixed, Range, available, normalised_range, prepare_int8
from mtkit.model.ranges import Affine, attention_maps, feed_forward_maps

D, FF, ROWS = 64, 96, 200

needs_kernels = pytest.mark.skipif(not available("int8"), reason="this torch has no int8 kernels")


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def norm() -> nn.LayerNorm:
    """With a scale and shift that differ much between columns, as trained ones do."""
    norm = nn.LayerNorm(D)
    norm.weight.data = numbers(D, seed=1).exp()
    norm.bias.data = numbers(D, seed=2)
    return norm


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """The maps without int8, and the ranges that were stated, in turn."""
    stated: list[Range] = []

    def as_it_is(
        weight_OI: Tensor, bias_O: Tensor | None, within: Range, relu: bool = False, rows: str = "many"
    ) -> object:
        stated.append(within)

        def linear(x: Tensor) -> Tensor:
            assert float(x.max()) <= within.limit
            assert float(x.min()) >= (-within.limit if within.signed else 0)
            y = F.linear(x, weight_OI, bias_O)
            return y.relu() if relu else y

        return linear

    monkeypatch.setattr(ranges, "prepare_int8", as_it_is)
    return stated


def bare(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, None, None, norm.eps)


@torch.no_grad()
def test_a_map_behind_a_norm_is_the_same(norm: nn.LayerNorm, exact: list[Range]) -> None:
    linear, x = nn.Linear(D, 40), 3 * numbers(ROWS, D, seed=3) + 1
    for bias in (linear.bias, None):
        moved = Affine.after(norm, linear.weight, bias).prepared("many")
        torch.testing.assert_close(moved(bare(norm, x)), F.linear(norm(x), linear.weight, bias), rtol=1e-4, atol=1e-4)
    assert exact == [normalised_range(D)] * 2


@torch.no_grad()
@pytest.mark.parametrize("queries", [0, D])
def test_the_maps_of_attention_are_the_same(queries: int, norm: nn.LayerNorm, exact: list[Range]) -> None:
    """With and without queries; means of values are what the output map gets."""
    inner, outer, x = nn.Linear(D, queries + 2 * D), nn.Linear(D, D), numbers(ROWS, D, seed=3)
    first, second = attention_maps(norm, inner.weight, inner.bias, outer, ("many", "many"))
    wanted, found = inner(norm(x)), first(bare(norm, x))
    torch.testing.assert_close(found[:, :-D], wanted[:, :-D], rtol=1e-4, atol=1e-4)
    weights = numbers(ROWS, ROWS, seed=4).mul(3).softmax(-1)
    torch.testing.assert_close(second(weights @ found[:, -D:]), outer(weights @ wanted[:, -D:]), rtol=1e-4, atol=1e-4)
    assert exact[-1] == normalised_range(D)
    assert Range(1.0) in exact


@torch.no_grad()
def test_the_maps_of_the_feed_forward_block_are_the_same(norm: nn.LayerNorm, exact: list[Range]) -> None:
    inner, outer, x = nn.Linear(D, FF), nn.Linear(FF, D), numbers(ROWS, D, seed=3)
    inner.weight.data[3] = 0  # a unit that no input moves
    first, second = feed_forward_maps(norm, inner, outer, "many")
    torch.testing.assert_close(second(first(bare(norm, x))), outer(inner(norm(x)).relu()), rtol=1e-4, atol=1e-4)
    assert Range(1.0, signed=False) in exact


@needs_kernels
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("within", [Range(1.0), Range(5.0), Range(1.0, signed=False)])
def test_a_fixed_range_gives_the_product_within_its_steps(within: Range, relu: bool) -> None:
    weight, bias = numbers(40, D, seed=1), numbers(40, seed=2)
    # As it comes: most are far from the limit, some at it. Without VNNI sums of two at the limit would be cut off.
    x = (numbers(ROWS, D, seed=3) * within.limit / 5).clamp(-within.limit, within.limit)
    x = x if within.signed else x.abs()
    wanted = F.linear(x, weight, bias)
    wanted = wanted.relu() if relu else wanted
    layer = prepare_int8(weight, bias, within, relu)
    assert isinstance(layer, Int8Fixed)
    step_x = within.limit / (100 if within.signed else 201)  # of processors without VNNI; others have less
    step_weight = float(weight.abs().max()) / 127
    # Rounding to steps adds a variance of step^2 / 12 to each of the D factors on either side.
    variance = D * (step_x**2 * weight.square().mean() + step_weight**2 * x.square().mean()) / 12
    assert float((layer(x) - wanted).square().mean()) < 1.2 * float(variance)
    alone = torch.cat([layer(row[None]) for row in x[:9]])
    assert torch.equal(layer(x)[:9], alone), "a row does not know its neighbours"


def test_no_normalised_row_leaves_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most that one number of a row of width D can be is sqrt(D - 1); wide rows are held to what is likely."""
    spike = torch.zeros(1, 17)
    spike[0, 5] = 1e4
    for levels, wide in ((127, 10.0), (63, 8.0)):
        monkeypatch.setattr(kernels, "_levels", lambda levels=levels: levels)
        limit = normalised_range(17).limit
        torch.testing.assert_close(F.layer_norm(spike, (17,)).max(), torch.tensor(limit))
        assert normalised_range(512).limit == wide


@needs_kernels
def test_the_bias_is_added_as_it_is() -> None:
    weight, bias, x = numbers(40, D, seed=1), numbers(40, seed=2), numbers(9, D, seed=3).clamp(-1, 1)
    one, other = prepare_int8(weight, bias, Range(1.0))(x), prepare_int8(weight, None, Range(1.0))(x)
    torch.testing.assert_close(one, other + bias)
