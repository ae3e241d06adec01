"""Multi-head attention: weights that sum to one, and are the ones that are used."""

import pytest
import torch
from torch import Tensor, nn

from mtkit.model import attention as module
from mtkit.model.attention import MultiHeadAttention


def slow_attention(q_BHTE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, may_attend: Tensor) -> Tensor:
    """softmax(q k / sqrt(E)) v for each sentence, head and query by itself; rows_BTD, heads side by side."""
    B, H, T, E = q_BHTE.shape
    rows = torch.zeros(B, T, H * E, dtype=q_BHTE.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                seen = may_attend[b, t].nonzero().flatten()
                scores = torch.stack([q_BHTE[b, h, t] @ k_BHSE[b, h, s] for s in seen]) / E**0.5
                mixed = sum(p * v_BHSE[b, h, s] for p, s in zip(scores.softmax(0), seen, strict=True))
                rows[b, t, h * E : (h + 1) * E] = mixed
    return rows


def without_output_map(d_model: int, heads: int, dropout: float = 0.0) -> MultiHeadAttention:
    """An attention whose last linear map changes nothing."""
    attention = MultiHeadAttention(d_model, heads, dropout).double()
    with torch.no_grad():
        attention.output.weight.copy_(torch.eye(d_model))
        attention.output.bias.zero_()
    return attention


@pytest.mark.parametrize("few", [0, 128])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_equals_a_slow_loop(dtype: torch.dtype, training: bool, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fused kernel; for few positions and in low precision, where gradients are wanted, written out."""
    monkeypatch.setattr(module, "_FEW", few)
    torch.manual_seed(1)
    with torch.set_grad_enabled(training):
        attention = without_output_map(12, 3).to(dtype)
        x_BTD, y_BSD = torch.randn(2, 5, 12).to(dtype), torch.randn(2, 5, 12).to(dtype)
        q, (k, v) = attention.queries(x_BTD), attention.keys_values(y_BSD)
        real_BS = torch.tensor([[True] * 5, [True, True, False, True, False]])
        masks = (real_BS[:, None, None, :], False), (None, True)
        seen = real_BS[:, None].expand(2, 5, 5), torch.ones(2, 5, 5).tril().bool()
        for (mask, causal), may_attend in zip(masks, seen, strict=True):
            mixed = attention(q, k, v, mask, causal).double()
            expected = slow_attention(q.double(), k.double(), v.double(), may_attend)
            torch.testing.assert_close(mixed, expected, rtol=0, atol=0.02 if dtype == torch.bfloat16 else 1e-12)


def test_gradients_are_the_same_written_out_and_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(12, 3, 0.0).double()
    real_B11S = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()[:, None, None, :]
    x_BTD, toward_BTD = torch.randn(2, 5, 12).double(), torch.randn(2, 5, 12).double()
    found = []
    for few in (0, 25):
        monkeypatch.setattr(module, "_FEW", few)
        for mask, causal in ((real_B11S, False), (None, True)):
            attention.zero_grad()
            x = x_BTD.clone().requires_grad_()
            attention(*attention.queries_keys_values(x), mask, causal).backward(toward_BTD)
            found.append([x.grad, *(weight.grad for weight in attention.parameters())])
    torch.testing.assert_close(found[:2], found[2:])


def test_maps_are_stacked_in_the_order_queries_keys_values() -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 2, 0.0)
    x_BTD = torch.randn(2, 3, 8)
    whole = nn.functional.linear(x_BTD, attention.input.weight, attention.input.bias)
    together = attention.queries_keys_values(x_BTD)
    for part, expected in zip(together, whole.chunk(3, -1), strict=True):
        torch.testing.assert_close(part.transpose(1, 2).flatten(2), expected)
    for part, expected in zip((attention.queries(x_BTD), *attention.keys_values(x_BTD)), together, strict=True):
        torch.testing.assert_close(part, expected)


def test_weights_sum_to_one_and_are_those_used() -> None:
    """With the unit vectors as values, what comes out of a head is its weights."""
    torch.manual_seed(1)
    attention = without_output_map(8, 2).float()
    q, k = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 4, 4)
    v = torch.eye(4).expand(3, 2, 4, 4)
    real_B11S = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]]).bool()[:, None, None, :]
    for mask in (None, real_B11S):
        weights_BHTS = attention.weights(q, k, mask)
        torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(3, 2, 5))
        used = attention(q, k, v, mask, causal=False).unflatten(-1, (2, 4)).transpose(1, 2)
        torch.testing.assert_close(weights_BHTS, used)
    assert (weights_BHTS.masked_select(~real_B11S) == 0).all()


def test_low_precision_is_raised_for_the_attention_itself() -> None:
    """Under autocast the maps run in bfloat16, softmax and sums in float32."""
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 2, 0.0)
    x_BTD = torch.randn(2, 6, 8)
    exact = attention(*attention.queries_keys_values(x_BTD), None, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        parts = attention.queries_keys_values(x_BTD)
        rough = attention(*parts, None, causal=True)
    assert {part.dtype for part in parts} == {rough.dtype} == {torch.bfloat16}
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_acts_in_training_alone(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(1)
    attention = without_output_map(8, 2, dropout=0.5).to(dtype).train(training)
    parts = attention.queries_keys_values(torch.randn(2, 6, 8).to(dtype))
    expected = slow_attention(*(part.double() for part in parts), torch.ones(2, 6, 6).bool())
    draws = torch.stack([attention(*parts, None, causal=False) for _ in range(400)]).double()
    assert torch.allclose(draws[0], expected, atol=0.02) != training
    torch.testing.assert_close(draws.mean(0), expected, rtol=0, atol=0.15)
