"""The layers of a Transformer prepared for decoding on a CPU (prepared.py).

Shapes: B sentences, S source length, K rows a sentence, N = B * K rows, T steps, D d_model, H heads, E head width, V
vocabulary, U of it.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.model.attention import MultiHeadAttention
from mtkit.model.kernels import Precision, Rows, onto, prepare
from mtkit.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from mtkit.model.one_query import attend_source, attend_steps
from mtkit.model.positions import Positions, Rotary
from mtkit.model.prepared_state import PreparedState
from mtkit.model.ranges import Affine, attention_maps, feed_forward_maps


class Embedding:
    """Rows of a table, scaled; the table in float32, or in int8 with a scale a row."""

    def __init__(self, table_VD: Tensor, factor: float, scale_V: Tensor | None) -> None:
        self.table_VD = table_VD
        self.factor = factor
        self.scale_V = None if scale_V is None else scale_V * factor

    def __call__(self, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, self.table_VD) if self.scale_V is None else self.table_VD[ids]
        return rows * (self.factor if self.scale_V is None else self.scale_V[ids][..., None])

    def rows(self, ids_U: Tensor) -> "Embedding":
        """The embedding whose row i is row `ids_U[i]` of this one."""
        few = copy.copy(self)
        few.table_VD = self.table_VD[ids_U]
        few.scale_V = None if self.scale_V is None else self.scale_V[ids_U]
        return few


class Norm:
    """LayerNorm; `bare`: without its scale and shift."""

    def __init__(self, norm: nn.LayerNorm, bare: bool = False) -> None:
        self.shape = norm.normalized_shape
        self.scale = None if bare else norm.weight
        self.shift = None if bare else norm.bias
        self.eps = norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        # As layer_norm, without a call in between.
        return torch.native_layer_norm(x, self.shape, self.scale, self.shift, self.eps)[0]


class Frame:
    """Residual connection and LayerNorm around a block, as `layers.Residual` without dropout."""

    def __init__(self, residual: Residual, bare: bool = False) -> None:
        self.norm = Norm(residual.norm, bare)
        self.pre = residual.pre

    def __call__(self, x: Tensor, block: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """`block(x, y)` is x plus what it makes of y; x is of no use afterwards (see `kernels.onto`)."""
        return block(x, self.norm(x)) if self.pre else self.norm(block(x, x))


class Block:
    """The feed-forward block; `norm`: what comes before it, where its scale and shift are to be in the block."""

    def __init__(self, block: FeedForward, precision: Precision, norm: nn.LayerNorm | None, rows: Rows) -> None:
        relu = block.activation is F.relu
        self.activation: Callable[[Tensor], Tensor] | None = torch.relu_ if relu else block.activation
        if norm is not None and relu:
            self.inner, self.outer = feed_forward_maps(norm, block.inner, block.outer, rows)
            self.activation = None
            return
        self.inner = (
            prepare(block.inner.weight, block.inner.bias, precision, rows=rows)
            if norm is None
            else Affine.after(norm, block.inner.weight, block.inner.bias).prepared(rows)
        )
        self.outer = prepare(block.outer.weight, block.outer.bias, precision, nonnegative=relu, rows=rows)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """x plus the block of y."""
        h = self.inner(y)
        return onto(x, self.outer, h if self.activation is None else self.activation(h))


def _queries_scaled(attention: MultiHeadAttention) -> tuple[Tensor, Tensor]:
    """Weight and bias of the map to queries, keys and values; queries get the factor 1 / sqrt(E) of the scores."""
    weight, bias = attention.input.weight.detach().clone(), attention.input.bias.detach().clone()
    factor = (attention.d_model // attention.heads) ** -0.5
    weight[: attention.d_model] *= factor
    bias[: attention.d_model] *= factor
    return weight, bias


class SelfMaps:
    """The linear maps of a self-attention: queries, keys and values at once, and the output; `norm` as of `Block`."""

    def __init__(
        self, attention: MultiHeadAttention, precision: Precision, norm: nn.LayerNorm | None, rows: Rows
    ) -> None:
        self.heads = attention.heads
        weight, bias = _queries_scaled(attention)
        if norm is not None:
            self.input, self.output = attention_maps(norm, weight, bias, attention.output, (rows, rows))
        else:
            self.input = prepare(weight, bias, precision, rows=rows)
            self.output = prepare(attention.output.weight, attention.output.bias, precision, rows=rows)

    def queries_keys_values(self, x: Tensor) -> Tensor:
        """Of x (..., D), as (..., 3, H, E)."""
        return self.input(x).view(*x.shape[:-1], 3, self.heads, -1)


class CrossMaps:
    """The linear maps of a cross-attention; keys and values are made once a sentence.

    `norms`: those before the queries and at the encoder's end, where their scales and shifts are to be in the maps.
    """

    def __init__(
        self, attention: MultiHeadAttention, precision: Precision, norms: tuple[nn.LayerNorm, nn.LayerNorm] | None
    ) -> None:
        d_model = attention.d_model
        weight, bias = _queries_scaled(attention)
        self.heads = attention.heads
        if norms is not None:
            own, memory = norms
            self.queries = Affine.after(own, weight[:d_model], bias[:d_model]).prepared("few")
            self._keys_values, self.output = attention_maps(
                memory, weight[d_model:], bias[d_model:], attention.output, ("many", "few")
            )
        else:
            self.queries = prepare(weight[:d_model], bias[:d_model], precision, rows="few")
            self._keys_values = prepare(weight[d_model:], bias[d_model:], precision)
            self.output = prepare(attention.output.weight, attention.output.bias, precision, rows="few")

    def keys_values(self, memory_BSD: Tensor, into_2BHSE: Tensor) -> None:
        """Write keys and values `into_2BHSE`."""
        both_BS2HE = self._keys_values(memory_BSD).unflatten(-1, (2, self.heads, -1))
        into_2BHSE.copy_(both_BS2HE.permute(2, 0, 3, 1, 4))


class PreparedEncoderLayer:
    """As `layers.EncoderLayer`. `moved`: its norms have their scale and shift in the maps behind them (ranges.py)."""

    def __init__(self, layer: EncoderLayer, precision: Precision, moved: bool) -> None:
        self.maps = SelfMaps(layer.self_attention, precision, layer.self_frame.norm if moved else None, "many")
        self.self_frame = Frame(layer.self_frame, bare=moved)
        self.block = Block(layer.feed_forward, precision, layer.feed_forward_frame.norm if moved else None, "many")
        self.block_frame = Frame(layer.feed_forward_frame, bare=moved)

    def __call__(self, x_BSD: Tensor, mask_B11S: Tensor | None, positions: Positions) -> Tensor:
        """x_BSD after the layer."""

        def attend(x_BSD: Tensor, y_BSD: Tensor) -> Tensor:
            q, k, v = self.maps.queries_keys_values(y_BSD).transpose(1, 3).unbind(2)
            q, k = positions.rotate(q, 0), positions.rotate(k, 0)
            mixed_BHSE = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B11S, scale=1.0)
            return onto(x_BSD, self.maps.output, mixed_BHSE.transpose(1, 2).flatten(2))

        return self.block_frame(self.self_frame(x_BSD, attend), self.block)


class PreparedDecoderLayer:
    """As `layers.DecoderLayer`, one step at a time. `memory_norm`: the encoder's last norm, where scale and shift of it
    and of the layer's own have moved into the maps behind them; else None.
    """

    def __init__(self, layer: DecoderLayer, precision: Precision, memory_norm: nn.LayerNorm | None) -> None:
        moved = memory_norm is not None
        norms = None if memory_norm is None else (layer.cross_frame.norm, memory_norm)
        self.maps = SelfMaps(layer.self_attention, precision, layer.self_frame.norm if moved else None, "few")
        self.self_frame = Frame(layer.self_frame, bare=moved)
        self.cross_maps = CrossMaps(layer.cross_attention, precision, norms)
        self.cross_frame = Frame(layer.cross_frame, bare=moved)
        self.block = Block(layer.feed_forward, precision, layer.feed_forward_frame.norm if moved else None, "few")
        self.block_frame = Frame(layer.feed_forward_frame, bare=moved)

    def __call__(self, x_ND: Tensor, index: int, state: PreparedState, positions: Positions, record: bool) -> Tensor:
        """x_ND after this layer, the state's number `index`; notes the attention where `record`. Mutates the state."""

        def attend(x_ND: Tensor, y_ND: Tensor) -> Tensor:
            qkv_N3HE = self.maps.queries_keys_values(y_ND)
            if isinstance(positions, Rotary):
                _rotate_(qkv_N3HE[:, :2].flatten(1, 2), positions, state)
            seen = state.past.append(index, qkv_N3HE[:, 1:], state.length)
            if state.length == 0:  # the one key there is has all the weight
                return onto(x_ND, self.maps.output, qkv_N3HE[:, 2].flatten(1))
            return onto(x_ND, self.maps.output, attend_steps(qkv_N3HE[:, 0], seen, state.begun_TN1))

        def look_up(x_ND: Tensor, y_ND: Tensor) -> Tensor:
            q_ND = self.cross_maps.queries(y_ND)
            mixed_ND, weights_BHKS = attend_source(q_ND, state.cross[index], state.mask)
            if record:
                state.attention_NS = weights_BHKS.mean(1).flatten(0, 1)
            return onto(x_ND, self.cross_maps.output, mixed_ND)

        x_ND = self.cross_frame(self.self_frame(x_ND, attend), look_up)
        return self.block_frame(x_ND, self.block)


def _rotate_(x_NHE: Tensor, positions: Rotary, state: PreparedState) -> None:
    """Turn each row by the place of its present step."""
    if state.first_N is None:
        x_NHE.copy_(positions.rotate(x_NHE[:, :, None], state.length).squeeze(2))
    else:
        x_NHE.copy_(positions.rotate_each(x_NHE, state.length - state.first_N))
