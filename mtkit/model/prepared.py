"""A Transformer prepared for decoding on a CPU: the same function as `Transformer.start` and `step`, faster.

What it does differently, and why:

- Every matrix is packed or quantized (kernels.py), queries, keys and values in one product. In int8 the maps of a
  pre-norm model know the range of their inputs beforehand (ranges.py).
- The keys and values of a step's self-attention lie together, step after step, in buffers with room to grow: adding a
  step is one contiguous write, and one query against few keys is cheaper written out over all rows at once than as many
  small matrix products.
- Reordering moves only rows that change their place; search keeps hypotheses in place where it can.
- A batch without padding has no mask.

The tests hold it to `Transformer`, which stays the readable form and the one for training and other devices.

Shapes: B sentences, S source length, K rows a sentence, N = B * K rows, T steps, C room for steps, D d_model, H heads,
E head width, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.ids import PAD
from mtkit.model.attention import MultiHeadAttention
from mtkit.model.kernels import (
    Int8Wide,
    LinearMap,
    Packed,
    Plain,
    Precision,
    Rows,
    available,
    direct_calls,
    onto,
    prepare,
    quantize,
)
from mtkit.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from mtkit.model.one_query import Seen, attend_source, attend_steps
from mtkit.model.positions import Positions, Rotary
from mtkit.model.prepared_state import Past, PreparedState, fresh, joined
from mtkit.model.ranges import Affine, attention_maps, feed_forward_maps
from mtkit.model.transformer import Transformer
from mtkit.runtime import give_back_freed

# Source tokens that are encoded at once: what an encoder layer makes of so many stays in the processor's cache. Of 256
# sentences of 16 tokens and width 128 it takes 0.92 of the time, and at width 512 a process holds 10 to 25 MB less.
_PIECE = 1 << 10


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

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of x (..., D), each (..., H, E)."""
        q, k, v = self.input(x).view(*x.shape[:-1], 3, self.heads, -1).unbind(-3)
        return q, k, v


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
            q, k, v = (part.transpose(1, 2) for part in self.maps.queries_keys_values(y_BSD))
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
            q, k, v = self.maps.queries_keys_values(y_ND)
            if isinstance(positions, Rotary):
                if state.first_N is None:
                    q = positions.rotate(q[:, :, None], state.length).squeeze(2)
                    k = positions.rotate(k[:, :, None], state.length).squeeze(2)
                else:
                    places_N = state.length - state.first_N
                    q, k = positions.rotate_each(q, places_N), positions.rotate_each(k, places_N)
            if state.length == 0:  # the one key there is has all the weight
                state.past[index].begin(k, v)
                return onto(x_ND, self.maps.output, v.flatten(1))
            seen = state.past[index].append(k, v, state.length)
            return onto(x_ND, self.maps.output, attend_steps(q, seen, state.begun_TN1))

        def look_up(x_ND: Tensor, y_ND: Tensor) -> Tensor:
            q_ND = self.cross_maps.queries(y_ND)
            mixed_ND, weights_BHKS = attend_source(q_ND, state.cross[index], state.mask)
            if record:
                state.attention_NS = weights_BHKS.mean(1).flatten(0, 1)
            return onto(x_ND, self.cross_maps.output, mixed_ND)

        x_ND = self.cross_frame(self.self_frame(x_ND, attend), look_up)
        return self.block_frame(x_ND, self.block)


class PreparedTransformer:
    """Implements `search.protocol.SearchModel` for a `Transformer`, of which it keeps no large tensor."""

    def __init__(
        self,
        model: Transformer,
        precision: Precision = "float32",
        narrowing: bool = False,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`narrowing`: `narrowed` will be asked for, which wants the output matrix by rows.

        In int8 that matrix is multiplied by a kernel that is slower by a sixth, and shared with the embedding where the
        model ties them. Otherwise only a model that does not tie them has to keep a copy for it.

        `weights`: those of a model that has none yet, by name; each is asked for when its turn comes, and the model
        gives it up again (mutates the model, which is of no use afterwards).
        """
        self.vocab_size = model.vocab_size
        self.precision = precision
        self.source_positions, self.target_positions = model.source_positions, model.target_positions
        turns = _Turns(model, weights)
        encoder: Iterable[EncoderLayer] = turns.of(model.encoder)
        decoder: Iterable[DecoderLayer] = turns.of(model.decoder)
        memory_norm = None
        if precision == "int8" and available("int8") and isinstance(model.encoder_norm, nn.LayerNorm):  # pre-norm
            memory_norm = model.encoder_norm
        moved = memory_norm is not None
        self.encoder = [PreparedEncoderLayer(layer, precision, moved) for layer in encoder]
        turns.fill(model.encoder_norm)
        self.decoder = [PreparedDecoderLayer(layer, precision, memory_norm) for layer in decoder]
        turns.fill_rest()
        self.encoder_norm = _last_norm(model.encoder_norm, moved)
        self.decoder_norm = _last_norm(model.decoder_norm, moved and not narrowing)
        self.target_embedding, self.output = _vocabulary(model, precision, narrowing, moved and not narrowing)
        self._rows_VD = _rows(model, self.target_embedding) if narrowing and precision != "int8" else None
        self.source_embedding = self.target_embedding
        if model.source_embedding is not model.target_embedding:
            self.source_embedding = _embedding(model.source_embedding.weight, model.scale, precision)

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> PreparedState:
        """See SearchModel."""
        real_BS = source_BS != PAD
        mask_B11S = None
        if not bool(real_BS.all()):
            mask_B11S = torch.zeros(source_BS.shape).masked_fill_(~real_BS, -math.inf)[:, None, None, :]
        heads, width = self.decoder[0].maps.heads, self.target_embedding.table_VD.shape[1]
        cross = self._cross(source_BS, real_BS.sum(1).tolist(), mask_B11S, (heads, width // heads))
        # Most translations end within these steps; those that do not have room once the others have left.
        room = source_BS.shape[1] * 9 // 8 + 12
        shape = (len(self.decoder), 2, room, len(source_BS) * per_source, heads, width // heads)
        return PreparedState(
            per_source=per_source,
            cross=cross,
            mask=mask_B11S,
            past=[Past(*keys_values) for keys_values in fresh(shape)],
            record_attention=attention,
        )

    def _cross(
        self, source_BS: Tensor, lengths: Sequence[int], mask_B11S: Tensor | None, head: tuple[int, int]
    ) -> list[Seen]:
        """Keys and values of the source for each layer, 0 in the padding; the sentences are encoded piece by piece.

        `lengths` are those of the sources, `head` the number and width of the heads.
        """
        sentences, length = source_BS.shape
        layers = [(layer.cross_maps, torch.empty(2, sentences, head[0], length, head[1])) for layer in self.decoder]
        rows = -(-sentences // -(-source_BS.numel() // _PIECE))
        with direct_calls():
            for first in range(0, sentences, rows):
                piece = slice(first, first + rows)
                most = max(lengths[piece])
                mask = None if mask_B11S is None else mask_B11S[piece, ..., :most]
                memory_BSD = self._encoded(source_BS[piece, :most], mask)
                for maps, whole_2BHSE in layers:
                    maps.keys_values(memory_BSD, whole_2BHSE[:, piece, :, :most])
                    whole_2BHSE[:, piece, :, most:] = 0
        return [Seen(*whole_2BHSE) for _, whole_2BHSE in layers]

    def _encoded(self, source_BS: Tensor, mask_B11S: Tensor | None) -> Tensor:
        """The encoder's output for these sentences, memory_BSD."""
        x_BSD = self.source_positions.embed(self.source_embedding(source_BS), 0)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask_B11S, self.source_positions)
        return self.encoder_norm(x_BSD)

    def step(self, ids_N: Tensor, state: PreparedState) -> Tensor:
        """See SearchModel."""
        if state.length == 0 and state.per_source > 1:
            # All rows of a sentence begin alike, with BOS: one of them says it all.
            logits_BV = self._step(ids_N[:: state.per_source], state)
            if state.attention_NS is not None:
                state.attention_NS = state.attention_NS.repeat_interleave(state.per_source, 0)
            return logits_BV.repeat_interleave(state.per_source, 0)
        return self._step(ids_N, state)

    def _step(self, ids_N: Tensor, state: PreparedState) -> Tensor:
        with direct_calls():
            return self._logits(ids_N, state)

    def _logits(self, ids_N: Tensor, state: PreparedState) -> Tensor:
        x_ND = self.target_embedding(ids_N)
        if state.first_N is None:
            x_ND = self.target_positions.embed(x_ND[:, None], state.length).squeeze(1)
        else:
            x_ND = self.target_positions.embed_each(x_ND, state.length - state.first_N)
        state.begun_TN1 = state.begun()
        last = len(self.decoder) - 1
        for index, layer in enumerate(self.decoder):
            record = state.record_attention and index == last
            x_ND = layer(x_ND, index, state, self.target_positions, record)
        state.length += 1
        return self.output(self.decoder_norm(x_ND))

    def settle(self, state: PreparedState) -> None:
        """See search.tails.JoiningModel."""
        state.settle()

    def joined(self, states: Sequence[PreparedState]) -> PreparedState:
        """See search.tails.JoiningModel."""
        return joined(states)

    def narrowed(self, ids_U: Tensor) -> "PreparedTransformer":
        """This model over a part of its target vocabulary: its id i is `ids_U[i]` of this one's.

        It shares all but the rows of the target embedding and of the output map. The four special ids must keep their
        numbers.
        """
        few = copy.copy(self)
        few.vocab_size = len(ids_U)
        few.target_embedding = self.target_embedding.rows(ids_U)
        if isinstance(self.output, Int8Wide):
            few.output = self.output.rows(ids_U)
        else:
            assert isinstance(self.output, Plain | Packed)
            assert self._rows_VD is not None, "prepared without narrowing"
            bias_V = self.output.bias_O
            few.output = prepare(self._rows_VD[ids_U], None if bias_V is None else bias_V[ids_U], self.precision)
        return few


class _Turns:
    """Gives a model's layers their weights, one layer after the other, where it has none yet."""

    def __init__(self, model: Transformer, weights: Mapping[str, Tensor] | None) -> None:
        self.weights = weights
        self.rest = dict(model.named_parameters())
        self.names = {weight: name for name, weight in self.rest.items()}

    def of(self, layers: nn.Module) -> Iterator[Any]:
        """The layers in order, each with its weights until the next one is asked for; vectors stay."""
        for layer in layers.children():
            own = {self.names[weight]: weight for weight in layer.parameters()}
            self._fill(own)
            yield layer
            for name, weight in own.items():
                if self.weights is not None and weight.dim() > 1:
                    weight.data = weight.new_empty(0)
                del self.rest[name]

    def fill(self, module: nn.Module) -> None:
        """Give a module its weights."""
        own = {self.names[weight]: weight for weight in module.parameters()}
        self._fill(own)
        for name in own:
            del self.rest[name]

    def fill_rest(self) -> None:
        """Give the weights to what has none yet."""
        if self.weights is not None:
            # What the layers left is in pieces, and the tables of the vocabulary, which come now, are large.
            give_back_freed()
        self._fill(self.rest)

    def _fill(self, own: Mapping[str, nn.Parameter]) -> None:
        if self.weights is not None:
            for name, weight in own.items():
                weight.data = self.weights[name]


def _last_norm(norm: nn.Module, moved: bool) -> Callable[[Tensor], Tensor]:
    """The norm at the end of encoder or decoder; without scale and shift where they have moved. Post-norm has none."""
    return Norm(norm, bare=moved) if isinstance(norm, nn.LayerNorm) else norm


def _embedding(table_VD: Tensor, factor: float, precision: Precision) -> Embedding:
    """The embedding with this table, its rows multiplied by `factor`."""
    if precision == "int8":
        quantized_VD, scale_V = quantize(table_VD.detach())
        return Embedding(quantized_VD, factor, scale_V)
    return Embedding(table_VD.detach().clone(), factor, None)


def _rows(model: Transformer, embedding: Embedding) -> Tensor:
    """The output matrix by rows: the table of the embedding where they are tied, else a copy."""
    tied = model.output.weight is model.target_embedding.weight
    return embedding.table_VD if tied else model.output.weight.detach().clone()


def _vocabulary(model: Transformer, precision: Precision, narrowing: bool, moved: bool) -> tuple[Embedding, LinearMap]:
    """The target embedding and the output map, with the scale and shift of the norm before it where they have `moved`.

    See `PreparedTransformer`.
    """
    embedding = _embedding(model.target_embedding.weight, model.scale, precision)
    weight, bias = model.output.weight, model.output.bias
    if moved:
        assert isinstance(model.decoder_norm, nn.LayerNorm)
        return embedding, Affine.after(model.decoder_norm, weight, bias).prepared("few")
    if precision == "int8" and narrowing and weight is model.target_embedding.weight:
        assert embedding.scale_V is not None
        bias_V = None if bias is None else bias.detach().clone()
        return embedding, Int8Wide(embedding.table_VD, embedding.scale_V / model.scale, bias_V)
    return embedding, prepare(weight, bias, precision, "rows" if narrowing else "whole", rows="few")
