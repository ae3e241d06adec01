"""The linear map of training is F.linear, with its gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.model import linear as module
from mtkit.model.kernels import available, product
from mtkit.model.linear import Linear, is_quicker, linear, processor_suits

SHAPES = [(1, 24), (70, 24), (3, 5, 24), (2, 3, 5, 24)]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products by oneDNN too."""
    monkeypatch.setattr(module, "_WORTH_A_KERNEL", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what oneDNN was given; it is used whatever the processor."""
    if not available("product"):
        pytest.skip("this torch has no such kernel")
    monkeypatch.setattr(module, "processor_suits", lambda: True)
    seen: list[tuple[int, ...]] = []

    def watched(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        seen.append(tuple(x.shape))
        return product(x, weight_OI, bias_O)

    monkeypatch.setattr(module, "product", watched)
    return seen


def leaf(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torchs_own(any_size: None, calls: list, shape: tuple[int, ...], biased: bool) -> None:
    x, weight, bias = leaf(*shape, seed=1), leaf(36, 24, seed=2), leaf(36, seed=3) if biased else None
    toward = leaf(*shape[:-1], 36, seed=4).detach()
    leaves = [one for one in (x, weight, bias) if one is not None]
    found = []
    for function in (linear, F.linear):
        y = function(x, weight, bias)
        found.append((y, *torch.autograd.grad(y, leaves, toward)))
    torch.testing.assert_close(found[0], found[1])
    assert calls == [shape, (toward.numel() // 36, 36)]


def test_takes_rows_of_a_matrix_and_of_a_transposed_input(any_size: None, calls: list) -> None:
    """As attention does, of its stacked matrix; what is around need not lie in one piece."""
    stacked, bias = leaf(72, 24, seed=1), leaf(72, seed=2)
    x = leaf(24, 7, seed=3)
    found = []
    for function in (linear, F.linear):
        y = function(x.t(), stacked[24:72], bias[24:72])
        found.append((y, *torch.autograd.grad(y.t().square().mean(), (x, stacked, bias))))
    torch.testing.assert_close(found[0], found[1])
    assert calls


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient(any_size: None, calls: list, frozen: str) -> None:
    parts = {"x": leaf(7, 24, seed=1), "weight": leaf(36, 24, seed=2), "bias": leaf(36, seed=3)}
    parts[frozen].requires_grad_(False)
    linear(*parts.values()).square().sum().backward()
    assert [name for name, one in parts.items() if one.grad is None] == [frozen]
    assert calls


def test_a_layer_has_the_same_result_every_time(any_size: None, calls: list) -> None:
    """Resuming exactly rests on it."""
    layer, x = Linear(24, 36), leaf(70, 24, seed=1)
    results = []
    for _ in range(3):
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        results.append((y, layer.weight.grad, layer.bias.grad))
    assert all(torch.equal(one, other) for row in results[1:] for one, other in zip(row, results[0], strict=True))
    assert calls


def test_torchs_own_is_left_where_it_belongs(any_size: None, calls: list) -> None:
    """Without gradients, under autocast, in double precision, and where the kernel is missing."""
    layer, x = Linear(24, 36), leaf(7, 24, seed=1)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    layer.double()(x.double()).sum().backward()
    assert calls == []


def test_small_products_are_not_worth_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for suits in (True, False):
        monkeypatch.setattr(module, "processor_suits", lambda suits=suits: suits)
        assert not is_quicker(torch.zeros(30, 64), 64)
        assert is_quicker(torch.zeros(4000, 128), 128) == suits


@pytest.mark.parametrize(("capability", "suits"), [("AVX2", False), ("DEFAULT", False), ("AVX512", True)])
def test_the_processor_decides(capability: str, suits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert processor_suits.__wrapped__() == (suits and available("product"))
