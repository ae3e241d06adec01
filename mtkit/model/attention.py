"""Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2).

Shapes: B sentences, T query positions, S key positions, D d_model, H heads, E = D / H; P and Q real positions of all
sentences together, where a batch is packed.
Masks are boolean and True means "may attend".
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.model.dropout import Dropout
from mtkit.model.linear import Linear, linear
from mtkit.model.packing import Packing, Packings

LOW_PRECISION = (torch.bfloat16, torch.float16)

Rotate = Callable[[Tensor, int], Tensor]

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

    def _project(self, x_BTD: Tensor, first: int, last: int) -> Tensor:
        rows = slice(first * self.d_model, last * self.d_model)
        return linear(x_BTD, self.input.weight[rows], self.input.bias[rows])

    def _heads(self, projected_BTW: Tensor) -> tuple[Tensor, ...]:
        """As many parts_BHTE as the width holds d_model."""
        parts = projected_BTW.split(self.d_model, -1)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)

    def queries(self, x_BTD: Tensor) -> Tensor:
        """Queries_BHTE of the rows that ask."""
        return self._heads(self._project(x_BTD, 0, 1))[0]

    def keys_values(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys_BHSE and values_BHSE of the rows that answer."""
        keys, values = self._heads(self._project(x_BSD, 1, 3))
        return keys, values

    def queries_keys_values(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All three for self-attention, as `queries` and `keys_values` give them."""
        queries, keys, values = self._heads(self._project(x_BTD, 0, 3))
        return queries, keys, values

    def forward(
        self,
        q_BHTE: Tensor,
        k_BHSE: Tensor,
        v_BHSE: Tensor,
        mask: Tensor | None,
        causal: bool,
        record: list[Tensor] | None = None,
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
        return self.output(self._mixed(q_BHTE, k_BHSE, v_BHSE, mask, causal))

    def packed_self(self, x_PD: Tensor, packing: Packing, causal: bool, rotate: Rotate) -> Tensor:
        """Self-attention over rows_PD without padding, from projections to output; `rotate` as of Positions."""
        return self.output(self._packed_self(self._project(x_PD, 0, 3), packing, causal, rotate))

    def packed_cross(self, x_PD: Tensor, memory_QD: Tensor, packings: Packings) -> Tensor:
        """Attention of the target side's rows_PD over the memory_QD, which has its order; both without padding."""
        queries_PD, both_QW = self._project(x_PD, 0, 1), self._project(memory_QD, 1, 3)
        return self.output(self._packed_cross(queries_PD, both_QW, packings))

    def _packed_self(self, all_PW: Tensor, packing: Packing, causal: bool, rotate: Rotate) -> Tensor:
        mixed = []
        sizes = [group.sentences * group.queries for group in packing.groups]
        for group, rows in zip(packing.groups, all_PW.split(sizes), strict=True):
            q, k, v = self._heads(rows.unflatten(0, (group.sentences, group.queries)))
            mixed.append(self._mixed(rotate(q, 0), rotate(k, 0), v, None, causal).flatten(0, 1))
        return torch.cat(mixed)

    def _packed_cross(self, queries_PD: Tensor, both_QW: Tensor, packings: Packings) -> Tensor:
        mixed = []
        asking = queries_PD.split([group.sentences * group.queries for group in packings.cross])
        answering = both_QW.split([group.sentences * group.keys for group in packings.cross])
        for group, ask, answer in zip(packings.cross, asking, answering, strict=True):
            [q] = self._heads(ask.unflatten(0, (group.sentences, group.queries)))
            k, v = self._heads(answer.unflatten(0, (group.sentences, group.keys)))
            mixed.append(self._mixed(q, k, v, None, causal=False).flatten(0, 1))
        return torch.cat(mixed)

    def _mixed(self, q_BHTE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """The values, weighted and summed, the heads side by side: mixed_BTD."""
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
        return mixed_BHTE.transpose(1, 2).flatten(2)

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


def compile_without_groups(model: nn.Module) -> None:
    """Let torch.compile leave out what goes by groups, or it would compile anew for every other batch (mutates model).

    Done here and not where these methods are defined, as it has torch load its compiler.
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for name in ("_packed_self", "_packed_cross"):
                setattr(module, name, torch.compiler.disable(getattr(module, name)))
