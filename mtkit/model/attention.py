"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

Shapes: B sentences, T query positions, S key positions, D d_model, H heads, E = D / H. With a packing, rows_BTD are
rows_PD: those of the real positions alone.
Masks are boolean and True means "may attend".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.model.dropout import Dropout
from mtkit.model.linear import Linear, linear
from mtkit.model.packing import Packing

LOW_PRECISION = (torch.bfloat16, torch.float16)

# Positions of queries times those of keys up to which weights_BHTS are small beside what else a layer keeps.
_FEW = 128 * 128


class MultiHeadAttention(nn.Module):
    """softmax(Q K^T / sqrt(E)) V for each head, between linear maps. Nobody else splits heads.

    The maps of queries, keys and values are stacked in one matrix, in this order, so that self-attention needs one
    product for all three.
    """

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.d_model = d_model
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.input = Linear(d_model, 3 * d_model)
        self.output = Linear(d_model, d_model)

    def _project(self, x_BTD: Tensor, first: int, last: int, packing: Packing | None) -> list[Tensor]:
        rows = slice(first * self.d_model, last * self.d_model)
        projected = linear(x_BTD, self.input.weight[rows], self.input.bias[rows])
        if packing is not None:
            projected = packing.unpack(projected)
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected.split(self.d_model, -1)]

    def queries(self, x_BTD: Tensor, packing: Packing | None = None) -> Tensor:
        """Queries_BHTE of the rows that ask."""
        return self._project(x_BTD, 0, 1, packing)[0]

    def keys_values(self, x_BSD: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """Keys_BHSE and values_BHSE of the rows that answer."""
        keys, values = self._project(x_BSD, 1, 3, packing)
        return keys, values

    def queries_keys_values(self, x_BTD: Tensor, packing: Packing | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """All three for self-attention, as `queries` and `keys_values` give them."""
        queries, keys, values = self._project(x_BTD, 0, 3, packing)
        return queries, keys, values

    def forward(
        self,
        q_BHTE: Tensor,
        k_BHSE: Tensor,
        v_BHSE: Tensor,
        mask: Tensor | None,
        causal: bool,
        record: list[Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """The attended rows_BTD. `mask` broadcasts to B, H, T, S; `causal` hides later positions (T must equal S).

        The weights_BHTS, as they are without dropout, are appended to `record` where it is given.

        On a CPU, training writes the attention out where torch's fused kernel is slower: its backward pass takes
        several times as long in low precision, and up to twice as long for sentences. The softmax is never in low
        precision.
        """
        if record is not None:
            visible = torch.ones(q_BHTE.shape[2], k_BHSE.shape[2], dtype=torch.bool, device=q_BHTE.device).tril()
            record.append(self.weights(q_BHTE, k_BHSE, visible if causal else mask))
        if torch.is_grad_enabled() and _is_quicker_written_out(q_BHTE, k_BHSE):
            if causal:
                mask = torch.ones(q_BHTE.shape[2], k_BHSE.shape[2], dtype=torch.bool).tril()
            weights_BHTS = self.dropout(self.weights(q_BHTE, k_BHSE, mask))
            mixed_BHTE = weights_BHTS.to(v_BHSE.dtype) @ v_BHSE
        else:
            dropout = self.dropout.rate if self.training else 0.0
            with torch.autocast(q_BHTE.device.type, enabled=False):
                mixed_BHTE = F.scaled_dot_product_attention(
                    q_BHTE, k_BHSE, v_BHSE, attn_mask=mask, dropout_p=dropout, is_causal=causal
                )
        mixed_BTD = mixed_BHTE.transpose(1, 2).flatten(2)
        return self.output(mixed_BTD if packing is None else packing.pack(mixed_BTD))

    def weights(self, q_BHTE: Tensor, k_BHSE: Tensor, mask: Tensor | None) -> Tensor:
        """The attention weights_BHTS that `forward` applies, for alignments and coverage."""
        scores_BHTS = q_BHTE @ k_BHSE.transpose(-1, -2)
        if scores_BHTS.dtype in LOW_PRECISION:
            scores_BHTS = scores_BHTS.float()
        scores_BHTS = scores_BHTS * q_BHTE.shape[-1] ** -0.5
        if mask is not None:
            scores_BHTS = scores_BHTS + torch.zeros_like(mask, dtype=scores_BHTS.dtype).masked_fill(~mask, -torch.inf)
        return scores_BHTS.softmax(-1)


def _is_quicker_written_out(q_BHTE: Tensor, k_BHSE: Tensor) -> bool:
    """Whether products and softmax, one after the other, beat torch's fused kernel in forward and backward together."""
    if q_BHTE.device.type != "cpu":
        return False
    return q_BHTE.dtype in LOW_PRECISION or q_BHTE.shape[2] * k_BHSE.shape[2] <= _FEW
