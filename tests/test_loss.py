"""The chunked loss against F.cross_entropy on all logits, and against finite differences."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.model import linear
from mtkit.model.kernels import available
from mtkit.model.linear import is_quicker
from mtkit.training import loss
from mtkit.training.loss import CHUNK, projected_nll


def problem(rows: int, width: int = 12, vocab: int = 31, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden_ND and weight_VD, in double precision and wanting gradients, and targets_N."""
    generator = torch.Generator().manual_seed(seed)
    hidden_ND = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    weight_VD = torch.randn(vocab, width, generator=generator, dtype=torch.float64)
    targets_N = torch.randint(vocab, (rows,), generator=generator)
    return hidden_ND.requires_grad_(), weight_VD.requires_grad_(), targets_N


def in_words(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, smoothing: float) -> float:
    """The formula of the docstring, number by number."""
    total = 0.0
    for hidden_D, target in zip(hidden_ND, targets_N, strict=True):
        log_p_V = (weight_VD @ hidden_D).log_softmax(0)
        total -= float((1 - smoothing) * log_p_V[target] + smoothing * log_p_V.mean())
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("rows", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 100])
def test_equals_cross_entropy_on_all_logits(rows: int, smoothing: float) -> None:
    hidden_ND, weight_VD, targets_N = problem(rows)
    smoothed, plain = projected_nll(hidden_ND, weight_VD, targets_N, smoothing)
    (3 * smoothed).backward()
    ours = hidden_ND.grad, weight_VD.grad
    hidden_ND.grad = weight_VD.grad = None
    logits_NV = hidden_ND @ weight_VD.t()
    expected = F.cross_entropy(logits_NV, targets_N, reduction="sum", label_smoothing=smoothing)
    (3 * expected).backward()
    torch.testing.assert_close(smoothed, expected)
    torch.testing.assert_close(plain, F.cross_entropy(logits_NV, targets_N, reduction="sum"))
    torch.testing.assert_close(ours, (hidden_ND.grad, weight_VD.grad))


def test_equals_cross_entropy_by_onednns_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough for them, in float32; where this torch has none, its own are tested again."""
    monkeypatch.setattr(linear, "processor_suits", lambda: available("product"))
    hidden_ND, weight_VD, targets_N = problem(CHUNK + 200, width=128, vocab=400)
    hidden_ND, weight_VD = ((0.1 * one.detach()).float().requires_grad_() for one in (hidden_ND, weight_VD))
    assert is_quicker(hidden_ND[:CHUNK], 400) == available("product")
    smoothed, plain = projected_nll(hidden_ND, weight_VD, targets_N, 0.1)
    ours = torch.autograd.grad(smoothed, (hidden_ND, weight_VD))
    logits_NV = hidden_ND @ weight_VD.t()
    expected = F.cross_entropy(logits_NV, targets_N, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(smoothed, expected)
    torch.testing.assert_close(plain, F.cross_entropy(logits_NV, targets_N, reduction="sum"))
    torch.testing.assert_close(ours, torch.autograd.grad(expected, (hidden_ND, weight_VD)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_formula_as_stated(smoothing: float) -> None:
    hidden_ND, weight_VD, targets_N = (one.detach() for one in problem(7))
    smoothed, plain = projected_nll(hidden_ND, weight_VD, targets_N, smoothing)
    assert smoothed.item() == pytest.approx(in_words(hidden_ND, weight_VD, targets_N, smoothing))
    assert plain.item() == pytest.approx(in_words(hidden_ND, weight_VD, targets_N, 0.0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_equal_finite_differences(monkeypatch: pytest.MonkeyPatch, smoothing: float) -> None:
    monkeypatch.setattr(loss, "CHUNK", 3)
    hidden_ND, weight_VD, targets_N = problem(7, width=5, vocab=6)
    assert torch.autograd.gradcheck(
        lambda hidden, weight: projected_nll(hidden, weight, targets_N, smoothing)[0], (hidden_ND, weight_VD)
    )


def test_by_hand() -> None:
    """Two ids, logits 0 and ln 3: probabilities 1/4 and 3/4."""
    hidden_ND, weight_VD = torch.ones(1, 1), torch.tensor([[0.0], [math.log(3)]])
    smoothed, plain = projected_nll(hidden_ND, weight_VD, torch.tensor([1]), 0.2)
    assert plain.item() == pytest.approx(0.2876821)
    assert smoothed.item() == pytest.approx(0.8 * 0.2876821 + 0.1 * (0.2876821 + 1.3862944))


def test_only_the_smoothed_loss_has_gradients() -> None:
    smoothed, plain = projected_nll(*problem(3), 0.1)
    assert smoothed.requires_grad
    assert not plain.requires_grad


def test_without_gradients() -> None:
    hidden_ND, weight_VD, targets_N = problem(5)
    expected = projected_nll(hidden_ND, weight_VD, targets_N, 0.1)
    with torch.inference_mode():
        torch.testing.assert_close(projected_nll(hidden_ND, weight_VD, targets_N, 0.1), expected)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_one_side_may_be_frozen(frozen: str) -> None:
    hidden_ND, weight_VD, targets_N = problem(5)
    still = hidden_ND if frozen == "hidden" else weight_VD
    still.requires_grad_(False)
    projected_nll(hidden_ND, weight_VD, targets_N, 0.1)[0].backward()
    assert still.grad is None
    assert (weight_VD if frozen == "hidden" else hidden_ND).grad is not None


def test_huge_logits_stay_finite() -> None:
    hidden_ND, weight_VD, targets_N = problem(5)
    large = (hidden_ND.detach().float() * 1e4).requires_grad_()
    smoothed, _ = projected_nll(large, weight_VD.detach().float(), targets_N, 0.1)
    smoothed.backward()
    assert torch.isfinite(smoothed)
    assert large.grad is not None
    assert torch.isfinite(large.grad).all()


def test_autocast_does_not_touch_the_loss() -> None:
    hidden_ND, weight_VD, targets_N = (one.detach() for one in problem(5))
    hidden_ND, weight_VD = hidden_ND.float(), weight_VD.float()
    expected = projected_nll(hidden_ND, weight_VD, targets_N, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert projected_nll(hidden_ND, weight_VD, targets_N, 0.1) == expected


def test_gradients_come_back_in_the_dtype_of_the_hidden_states() -> None:
    hidden_ND, weight_VD, targets_N = problem(5)
    low = hidden_ND.detach().bfloat16().requires_grad_()
    projected_nll(low, weight_VD.detach().float(), targets_N, 0.1)[0].backward()
    assert low.grad is not None
    assert low.grad.dtype == torch.bfloat16


def test_products_may_be_in_low_precision() -> None:
    """In bfloat16: the sums to 1 %, gradients to 3 % of their largest number."""
    hidden_ND, weight_VD, targets_N = problem(CHUNK + 50, width=64, vocab=200)
    results = []
    for low in (None, torch.bfloat16):
        hidden, weight = (one.detach().float().mul_(0.3).requires_grad_() for one in (hidden_ND, weight_VD))
        smoothed, plain = projected_nll(hidden, weight, targets_N, 0.1, low)
        smoothed.backward()
        assert {smoothed.dtype, plain.dtype} == {torch.float32}
        results.append((smoothed.detach(), plain, hidden.grad, weight.grad))
    for exact, rough in zip(*results, strict=True):
        assert not torch.equal(exact, rough)
        scale = exact.abs().max()
        torch.testing.assert_close(rough / scale, exact / scale, rtol=0, atol=0.01 if exact.dim() == 0 else 0.03)
