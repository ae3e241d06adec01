"""What a prepared model (prepared.py) remembers while it decodes: buffers that one step after another is written into.

Shapes: B sentences, S source length, N rows, M of them, T steps, C room for steps, H heads, E head width.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.model.one_query import Seen

_ROOM = 40  # steps that a buffer grows by
_ROOM_JOINED = 8  # steps that one has room for to which sentences come at their ends: soon there are fewer of them
_LARGE = 1 << 22  # bytes


@dataclass(slots=True)
class Past:
    """Keys and values of one layer's self-attention, for steps 0 .. T - 1 of C."""

    keys_CNHE: Tensor
    values_CNHE: Tensor

    def begin(self, k_BHE: Tensor, v_BHE: Tensor) -> None:
        """Fill step 0, the same for all rows of a sentence (mutates the buffers)."""
        for buffer_CNHE, step_BHE in ((self.keys_CNHE, k_BHE), (self.values_CNHE, v_BHE)):
            buffer_CNHE[0].unflatten(0, (len(step_BHE), -1)).copy_(step_BHE[:, None])

    def append(self, k_NHE: Tensor, v_NHE: Tensor, length: int) -> Seen:
        """Add step `length` (mutates the buffers); returns keys and values of all steps so far."""
        if length == len(self.keys_CNHE):
            self.keys_CNHE, self.values_CNHE = _grown(self.keys_CNHE), _grown(self.values_CNHE)
        self.keys_CNHE[length], self.values_CNHE[length] = k_NHE, v_NHE
        return Seen(self.keys_CNHE[: length + 1], self.values_CNHE[: length + 1])

    def move(self, to_M: Tensor, from_M: Tensor, length: int) -> None:
        """Overwrite rows `to_M` by rows `from_M` (mutates the buffers)."""
        for buffer_CNHE in (self.keys_CNHE, self.values_CNHE):
            used_TNHE = _in_large_pieces(buffer_CNHE[:length])
            used_TNHE.index_copy_(1, to_M, used_TNHE.index_select(1, from_M))

    def keep(self, rows_N: Tensor, length: int) -> None:
        """Keep these rows, in this order (mutates the buffers)."""
        self.keys_CNHE = _kept(self.keys_CNHE, rows_N, length)
        self.values_CNHE = _kept(self.values_CNHE, rows_N, length)


def _in_large_pieces(buffer_CNHE: Tensor) -> Tensor:
    """The same memory as the largest numbers that torch knows, where they fit: it copies rows number by number."""
    return buffer_CNHE if buffer_CNHE.shape[3] % 4 else buffer_CNHE.view(torch.complex128)


def _kept(buffer_CNHE: Tensor, rows_N: Tensor, length: int) -> Tensor:
    """The buffer with these rows alone, in the same memory, which has room for more steps of fewer rows."""
    used_TNHE = buffer_CNHE[:length].index_select(1, rows_N)
    size = used_TNHE[0].numel()
    room = buffer_CNHE.numel() // size
    if room < length:
        return _grown(used_TNHE)
    kept_CNHE = buffer_CNHE.view(-1)[: room * size].view(room, *used_TNHE.shape[1:])
    kept_CNHE[:length] = used_TNHE
    return kept_CNHE


def fresh(shape: tuple[int, ...]) -> Tensor:
    """Memory for a batch; a large block is the system's own: only what is written is held, and nothing afterwards.

    In the memory that the allocator keeps such a block seldom fits the hole that the last one left, and it grows.
    """
    size = 4 * math.prod(shape)
    if size < _LARGE:
        return torch.empty(shape)
    block = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.float32).view(shape)


def _grown(buffer_CNHE: Tensor) -> Tensor:
    """The buffer with room for more steps at its end."""
    steps = len(buffer_CNHE)
    grown = buffer_CNHE.new_empty(steps + _ROOM, *buffer_CNHE.shape[1:])
    grown[:steps] = buffer_CNHE
    return grown


@dataclass(slots=True)
class PreparedState:
    """What decoding remembers: as `state.DecoderState`, in other layouts.

    `cross` holds keys and values_BHSE, and `mask` is mask_B11S, 0 or -inf; None where there is no padding. `first_N` is
    the step at which each row began, None where that is 0 for all: what `past` holds of the steps before means nothing,
    and `begun_TN1` masks it.
    """

    per_source: int
    cross: list[Seen]
    mask: Tensor | None
    past: list[Past]
    record_attention: bool
    length: int = 0
    attention_NS: Tensor | None = None
    first_N: Tensor | None = None
    begun_TN1: Tensor | None = None

    def begun(self) -> Tensor | None:
        """0 or -inf, as mask_TN1, for each step up to the present one and each row, by whether it had begun."""
        if self.first_N is None:
            return None
        before_TN = torch.arange(self.length + 1)[:, None] < self.first_N
        return torch.zeros(before_TN.shape).masked_fill_(before_TN, -math.inf)[..., None]

    def settle(self) -> None:
        """Give up the room that was kept for rows that have left (mutates the state)."""
        for past in self.past:
            past.keys_CNHE = past.keys_CNHE[: self.length].clone()
            past.values_CNHE = past.values_CNHE[: self.length].clone()

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order, as `protocol.State.select` (mutates the state)."""
        rows = self.past[0].keys_CNHE.shape[1]
        sentences_B = rows_N[:: self.per_source] // self.per_source
        before = rows // self.per_source
        if len(sentences_B) == before and torch.equal(sentences_B, torch.arange(before)):
            to_M = (rows_N != torch.arange(rows)).nonzero().squeeze(1)
            if len(to_M):
                from_M = rows_N[to_M]
                for past in self.past:
                    past.move(to_M, from_M, self.length)
            return
        for past in self.past:
            past.keep(rows_N, self.length)
        if self.first_N is not None:
            self.first_N = self.first_N[rows_N]
        for index, seen in enumerate(self.cross):
            self.cross[index] = Seen(seen.keys.index_select(0, sentences_B), seen.values.index_select(0, sentences_B))
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sentences_B)


def _stacked(several: Sequence[Tensor], length: int, room: int) -> Tensor:
    """Tensors of different lengths as one of `length`, side by side in dimension 1, each at its end, 0 before.

    There is `room` for more behind, which holds anything.
    """
    rows = [one.shape[1] for one in several]
    whole = several[0].new_empty(length + room, sum(rows), *several[0].shape[2:])
    whole[:length].fill_(0)
    for one, part in zip(several, whole.split(rows, 1), strict=True):
        part[length - len(one) : length] = one
    return whole


def _mask_of(state: PreparedState) -> Tensor:
    """The mask_B11S of a state, also where there is no padding."""
    sentences, _, length, _ = state.cross[0].keys.shape
    return torch.zeros(sentences, 1, 1, length) if state.mask is None else state.mask


def _padded(several: Sequence[Tensor], length: int) -> Tensor:
    """Tensors BHSE of different S as one of `length`, with 0 behind, one after the other."""
    return torch.cat([F.pad(one, (0, 0, 0, length - one.shape[2])) for one in several])


def joined(states: Sequence[PreparedState]) -> PreparedState:
    """One state for the rows of all, in order; each state has one row a sentence, and all its rows have begun at once.

    Every row's last step is the last of all, so that the next one is next for all. Uses the states up, layer by layer,
    so that what they hold is not there twice.
    """
    length = max(state.length for state in states)
    width = max(state.cross[0].keys.shape[2] for state in states)
    rows = [len(state.cross[0].keys) for state in states]
    masks = [_mask_of(state) for state in states]
    mask_N11S = torch.cat([F.pad(mask, (0, width - mask.shape[3]), value=-math.inf) for mask in masks])
    cross: list[Seen] = []
    past: list[Past] = []
    while states[0].past:
        seen = [state.cross.pop(0) for state in states]
        cross.append(Seen(_padded([one.keys for one in seen], width), _padded([one.values for one in seen], width)))
        del seen
        own = [(state.past.pop(0), state.length) for state in states]
        keys_CNHE = _stacked([one.keys_CNHE[:steps] for one, steps in own], length, _ROOM_JOINED)
        values_CNHE = _stacked([one.values_CNHE[:steps] for one, steps in own], length, _ROOM_JOINED)
        past.append(Past(keys_CNHE, values_CNHE))
    return PreparedState(
        per_source=1,
        cross=cross,
        mask=mask_N11S,
        past=past,
        record_attention=False,
        length=length,
        first_N=torch.cat(
            [torch.full((count,), length - state.length) for state, count in zip(states, rows, strict=True)]
        ),
    )
