"""Dropout: its rate, its scale, its gradient, and nothing at all in evaluation."""

import pytest
import torch

from mtkit.model.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_drops_at_the_rate_and_scales_the_rest(rate: float) -> None:
    torch.manual_seed(1)
    x = torch.rand(300, 1001) + 1
    y = Dropout(rate)(x)
    zeros = (y == 0).double().mean().item()
    assert zeros == pytest.approx(rate, abs=5 * (rate * (1 - rate) / x.numel()) ** 0.5 + 2**-17)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - rate), rtol=1e-4, atol=0)
    assert y.mean().item() == pytest.approx(x.mean().item(), rel=0.02)


def test_the_scale_belongs_to_the_rate_as_rounded() -> None:
    """0.1 is 6554 of 65536 levels, so what is kept grows by 65536 / 58982: the expectation is exact."""
    torch.manual_seed(1)
    y = Dropout(0.1)(torch.ones(10_000))
    assert set(y.unique().tolist()) == {0.0, torch.tensor(65536 / 58982).item()}


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (7, 3), (2, 3, 5), (0,)])
def test_any_number_of_numbers(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    draws = torch.stack([Dropout(0.5)(torch.ones(shape)) for _ in range(200)])
    assert draws.shape == (200, *shape)
    assert ((draws == 0) | (draws == 2)).all()
    # Eight standard deviations to either side.
    assert ((draws.mean(0) > 0.4) & (draws.mean(0) < 1.6)).all()


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(1)
    dropped = (Dropout(0.5)(torch.ones(4000, 64)) == 0).double() - 0.5
    together = dropped.T @ dropped / 4000 / 0.25 - torch.eye(64)
    assert together.abs().max() < 0.1
    later = (dropped[1:] * dropped[:-1]).mean(0) / 0.25
    assert later.abs().max() < 0.1


def test_the_gradient_is_the_mask() -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 7, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, y)


def test_evaluation_and_rate_zero_change_nothing() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_bf16_stays_bf16() -> None:
    y = Dropout(0.5)(torch.ones(100, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert set(y.unique().tolist()) == {0.0, 2.0}


def test_the_seed_decides() -> None:
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x), first)
    assert not torch.equal(Dropout(0.5)(x), first)
