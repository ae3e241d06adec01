"""Encoder and decoder layers (Vaswani et al. 2017, section 3.1), post-norm as in the paper or pre-norm.

Shapes: B sentences, S source length, T target length, D d_model, H heads, E head width; N = B * K rows in decoding.
With a packing, x_BSD and x_NTD are rows of the real positions alone, x_PD.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.model.attention import MultiHeadAttention
from mtkit.model.dropout import Dropout
from mtkit.model.linear import Linear
from mtkit.model.packing import Packing, Packings
from mtkit.model.positions import Positions
from mtkit.model.state import LayerCache
from mtkit.sections.model import Model

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, the same at every position (equation 2)."""

    def __init__(self, section: Model) -> None:
        super().__init__()
        self.inner = Linear(section.d_model, section.d_ff)
        self.outer = Linear(section.d_ff, section.d_model)
        self.dropout = Dropout(section.activation_dropout)
        self.activation = ACTIVATIONS[section.activation]

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD after the block."""
        return self.outer(self.dropout(self.activation(self.inner(x_BTD))))


class Residual(nn.Module):
    """The frame of every block: LayerNorm(x + Dropout(block(x))), or x + Dropout(block(LayerNorm(x))) for pre-norm."""

    def __init__(self, section: Model) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(section.d_model)
        self.dropout = Dropout(section.dropout)
        self.pre = section.norm == "pre"

    def forward(self, x_BTD: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """x_BTD after `block` in its frame."""
        if self.pre:
            return x_BTD + self.dropout(block(self.norm(x_BTD)))
        return self.norm(x_BTD + self.dropout(block(x_BTD)))


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, section: Model) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(section.d_model, section.heads, section.attention_dropout)
        self.self_frame = Residual(section)
        self.feed_forward = FeedForward(section)
        self.feed_forward_frame = Residual(section)

    def forward(
        self,
        x_BSD: Tensor,
        mask_B11S: Tensor | None,
        positions: Positions,
        heads: list[Tensor] | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """x_BSD after the layer; the mask is True where the source is real.

        The attention weights_BHSS are appended to `heads` where it is given.
        """

        def attend(y_BSD: Tensor) -> Tensor:
            if packing is not None:
                return self.self_attention.packed_self(y_BSD, packing, causal=False, rotate=positions.rotate)
            q, k, v = self.self_attention.queries_keys_values(y_BSD)
            q, k = positions.rotate(q, 0), positions.rotate(k, 0)
            return self.self_attention(q, k, v, mask_B11S, causal=False, record=heads)

        x_BSD = self.self_frame(x_BSD, attend)
        return self.feed_forward_frame(x_BSD, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention over the target, attention over the source, then feed-forward."""

    def __init__(self, section: Model) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(section.d_model, section.heads, section.attention_dropout)
        self.self_frame = Residual(section)
        self.cross_attention = MultiHeadAttention(section.d_model, section.heads, section.attention_dropout)
        self.cross_frame = Residual(section)
        self.feed_forward = FeedForward(section)
        self.feed_forward_frame = Residual(section)

    def forward(
        self,
        x_NTD: Tensor,
        cross: Tensor | tuple[Tensor, Tensor],
        mask_B11S: Tensor | None,
        positions: Positions,
        past: LayerCache | None = None,
        start: int = 0,
        record: list[Tensor] | None = None,
        heads: list[Tensor] | None = None,
        packings: Packings | None = None,
    ) -> Tensor:
        """x_NTD after the layer.

        `cross` is the encoder's memory_BSD, or this layer's cross keys and values_BHSE where they are made from it once
        for many calls; one entry a sentence. N may be a multiple of B, the rows of a sentence adjacent. With `past`, x
        is one step (T = 1) at position `start`, and the cache grows by it. With `packings` the memory's rows have the
        order of the target side's sentences.
        The cross-attention weights_NTS, averaged over the heads, are appended to `record` where it is given; those
        of every head, first the weights_NHTT of self-attention and then the weights_NHTS of cross-attention (N = B), to
        `heads`.
        """

        def attend(y_NTD: Tensor) -> Tensor:
            if packings is not None:
                return self.self_attention.packed_self(y_NTD, packings.target, causal=True, rotate=positions.rotate)
            q, k, v = self.self_attention.queries_keys_values(y_NTD)
            q, k = positions.rotate(q, start), positions.rotate(k, start)
            if past is not None:
                k, v = past.append(k, v)
            return self.self_attention(q, k, v, None, causal=past is None, record=heads)

        def look_up(y_NTD: Tensor) -> Tensor:
            if packings is not None:
                assert isinstance(cross, Tensor)
                return self.cross_attention.packed_cross(y_NTD, cross, packings)
            keys_values = cross if isinstance(cross, tuple) else self.cross_attention.keys_values(cross)
            # Cross-attention knows no target positions, so the rows of a sentence line up on the query axis.
            q_BHQE = self.cross_attention.queries(y_NTD.reshape(keys_values[0].shape[0], -1, y_NTD.shape[-1]))
            if record is not None:
                weights_BQS = self.cross_attention.weights(q_BHQE, keys_values[0], mask_B11S).mean(1)
                record.append(weights_BQS.reshape(*y_NTD.shape[:2], -1))
            attended_BQD = self.cross_attention(q_BHQE, *keys_values, mask_B11S, causal=False, record=heads)
            return attended_BQD.view(y_NTD.shape)

        x_NTD = self.self_frame(x_NTD, attend)
        x_NTD = self.cross_frame(x_NTD, look_up)
        return self.feed_forward_frame(x_NTD, self.feed_forward)
