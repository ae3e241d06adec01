"""A Transformer prepared for decoding on a CPU: the same function as `Transformer.start` and `step`, faster.

What it does differently, and why:

- Every matrix is packed or quantized (kernels.py), queries, keys and values in one product. In int8 the maps of a
  pre-norm model know the range of their inputs beforehand (ranges.py).
- The keys and values of a step's self-attention lie together, step after step, in memory that one batch after the
  other uses: adding a step is one contiguous write, and one query against few keys is cheaper written out over all rows
  at once than as many small matrix products.
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
from torch import Tensor, nn

from mtkit.ids import PAD
from mtkit.model.kernels import (
    Int8Wide,
    LinearMap,
    Packed,
    Plain,
    Precision,
    available,
    direct_calls,
    prepare,
    quantize,
)
from mtkit.model.layers import DecoderLayer, EncoderLayer
from mtkit.model.one_query import Seen
from mtkit.model.prepared_layers import Embedding, Norm, PreparedDecoderLayer, PreparedEncoderLayer
from mtkit.model.prepared_state import Memory, Past, PreparedState, joined
from mtkit.model.ranges import Affine
from mtkit.model.transformer import Transformer
from mtkit.runtime import give_back_freed

# Source tokens that are encoded at once: what an encoder layer makes of so many stays in the processor's cache. Of 256
# sentences of 16 tokens and width 128 it takes 0.92 of the time, and at width 512 a process holds 10 to 25 MB less.
_PIECE = 1 << 10


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
        self._memory = Memory()
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
        lengths = real_BS.sum(1).tolist()
        mask_B11S = None
        if min(lengths) < source_BS.shape[1]:
            mask_B11S = torch.zeros(source_BS.shape).masked_fill_(~real_BS, -math.inf)[:, None, None, :]
        heads, width = self.decoder[0].maps.heads, self.target_embedding.table_VD.shape[1]
        cross = self._cross(source_BS, lengths, mask_B11S, (heads, width // heads))
        # Most translations end within these steps; those that do not have room once the others have left.
        room = source_BS.shape[1] * 9 // 8 + 12
        shape = (len(self.decoder), len(source_BS) * per_source, heads, width // heads)
        return PreparedState(
            per_source=per_source,
            cross=cross,
            mask=mask_B11S,
            past=Past.begin(self._memory, room, shape),
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
