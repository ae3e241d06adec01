"""What a prepared model (prepared.py) remembers while it decodes.

Keys and values of the steps so far lie step after step, each with those of all layers: a batch writes to the front of
its memory alone, as far as it gets, and what the next batch finds there has been touched before. Fresh memory costs a
narrow model 8 % of its time: the system clears it page by page, and the processor's cache with it.

Shapes: B sentences, S source length, N rows, M of them, T steps, C room for steps, L layers, H heads, E head width, P
steps, layers, keys and values in turn, X numbers of a row.
"""

import math
import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.model.one_query import Seen

_ROOM = 40  # steps that a buffer grows by
_ROOM_JOINED = 8  # steps that one has room for to which sentences come at their ends: soon there are fewer of them
_LARGE = 1 << 20  # numbers
_AT_ONCE = 1 << 16  # numbers that are moved at once: they stay in the processor's cache


class Memory:
    """Blocks of float32 for the buffers of one batch after the other, each block in use once at a time.

    A block is the system's own: only what is written to is held. In the memory that the allocator keeps, such a block
    seldom fits the hole that the last one left, and it grows.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def block(self, size: int) -> Tensor:
        """At least `size` numbers, to be given back."""
        if size < _LARGE:
            return torch.empty(size)
        try:
            block = self._free.pop()  # which no other thread can get now
            if len(block) >= size:
                return block
            del block  # before there is a larger one
        except IndexError:
            pass
        return _mapped(size)

    def give_back(self, block: Tensor) -> None:
        """Keep a block for the next batch; the allocator keeps a small one."""
        if len(block) >= _LARGE:
            self._free.append(block)


def _mapped(size: int) -> Tensor:
    """Memory from the system, half as much again: the next batch may be a little larger, and it costs nothing until it
    is written to.
    """
    # Private: a process that is forked later has to have its own.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    block = mmap.mmap(-1, 6 * size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.float32)


class Past:
    """Keys and values of the self-attention of L layers, for steps 0 .. T - 1 of C."""

    def __init__(self, buffer_CL2NHE: Tensor) -> None:
        self.buffer_CL2NHE = buffer_CL2NHE

    @classmethod
    def begin(cls, memory: Memory, room: int, shape: tuple[int, int, int, int]) -> "Past":
        """Room for so many steps at least; `shape` is (L, N, H, E). Its memory goes back when this one is gone."""
        layers, *rest = shape
        step = 2 * math.prod(shape)
        block = memory.block(room * step)
        past = cls(block[: len(block) // step * step].view(-1, layers, 2, *rest))
        weakref.finalize(past, memory.give_back, block).atexit = False
        return past

    def append(self, layer: int, kv_B2HE: Tensor, length: int) -> Seen:
        """Add step `length` of a layer (mutates the buffer); returns keys and values of all its steps so far.

        There may be one row for all rows of a sentence.
        """
        if length == len(self.buffer_CL2NHE):
            self.buffer_CL2NHE = _grown(self.buffer_CL2NHE)
        step_2NHE = self.buffer_CL2NHE[length, layer]
        kv_2BHE = kv_B2HE.transpose(0, 1)
        if kv_2BHE.shape[1] == step_2NHE.shape[1]:
            step_2NHE.copy_(kv_2BHE)
        else:
            step_2NHE.unflatten(1, (kv_2BHE.shape[1], -1)).copy_(kv_2BHE[:, :, None])
        keys_TNHE, values_TNHE = self.buffer_CL2NHE[: length + 1, layer].unbind(1)
        return Seen(keys_TNHE, values_TNHE)

    def move(self, to_M: Tensor, from_M: Tensor, length: int) -> None:
        """Overwrite rows `to_M` by rows `from_M` (mutates the buffer)."""
        used_PNX = _in_large_pieces(self.buffer_CL2NHE[:length].flatten(0, 2).flatten(2))
        used_PNX.index_copy_(1, to_M, used_PNX.index_select(1, from_M))

    def keep(self, rows_N: Tensor, length: int) -> None:
        """Keep these rows, in this order (mutates the buffer); there is room for more steps of fewer rows then."""
        before = self.buffer_CL2NHE
        _, layers, _, rows, heads, width = before.shape
        if len(rows_N) > rows:
            self.buffer_CL2NHE = _grown(before[:length].index_select(3, rows_N))
            return
        step = 2 * layers * len(rows_N) * heads * width
        room = before.numel() // step
        after = before.view(-1)[: room * step].view(room, layers, 2, len(rows_N), heads, width)
        # What is written never reaches what is still to be read.
        steps = max(1, _AT_ONCE // step)
        for first in range(0, length, steps):
            some = slice(first, min(first + steps, length))
            after[some] = before[some].index_select(3, rows_N)
        self.buffer_CL2NHE = after

    def settle(self, length: int) -> "Past":
        """A copy without room for more steps."""
        return Past(self.buffer_CL2NHE[:length].clone())


def _in_large_pieces(buffer_PNX: Tensor) -> Tensor:
    """The same memory as the largest numbers that torch knows, where they fit: it copies rows number by number."""
    return buffer_PNX if buffer_PNX.shape[2] % 4 else buffer_PNX.view(torch.complex128)


def _grown(buffer_CL2NHE: Tensor) -> Tensor:
    """The buffer with room for more steps at its end."""
    steps = len(buffer_CL2NHE)
    grown = buffer_CL2NHE.new_empty(steps + _ROOM, *buffer_CL2NHE.shape[1:])
    grown[:steps] = buffer_CL2NHE
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
    past: Past
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
        self.past = self.past.settle(self.length)

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order, as `protocol.State.select` (mutates the state)."""
        rows = self.past.buffer_CL2NHE.shape[3]
        sentences_B = rows_N[:: self.per_source] // self.per_source
        before = rows // self.per_source
        if len(sentences_B) == before and torch.equal(sentences_B, torch.arange(before)):
            to_M = (rows_N != torch.arange(rows)).nonzero().squeeze(1)
            if len(to_M):
                self.past.move(to_M, rows_N[to_M], self.length)
            return
        self.past.keep(rows_N, self.length)
        if self.first_N is not None:
            self.first_N = self.first_N[rows_N]
        for index, seen in enumerate(self.cross):
            self.cross[index] = Seen(seen.keys.index_select(0, sentences_B), seen.values.index_select(0, sentences_B))
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sentences_B)


def _mask_of(state: PreparedState) -> Tensor:
    """The mask_B11S of a state, also where there is no padding."""
    sentences, _, length, _ = state.cross[0].keys.shape
    return torch.zeros(sentences, 1, 1, length) if state.mask is None else state.mask


def _padded(several: Sequence[Tensor], length: int) -> Tensor:
    """Tensors BHSE of different S as one of `length`, with 0 behind, one after the other."""
    return torch.cat([F.pad(one, (0, 0, 0, length - one.shape[2])) for one in several])


def _stacked(several: Sequence[PreparedState], length: int) -> Past:
    """What the states remember of their steps, side by side, each at the end of `length` steps, 0 before.

    Uses it up, so that it is not there twice for long.
    """
    shapes = [state.past.buffer_CL2NHE.shape for state in several]
    _, layers, _, _, heads, width = shapes[0]
    rows = [shape[3] for shape in shapes]
    whole = torch.empty(length + _ROOM_JOINED, layers, 2, sum(rows), heads, width)
    whole[:length].fill_(0)
    for state, part in zip(several, whole.split(rows, 3), strict=True):
        part[length - state.length : length] = state.past.buffer_CL2NHE[: state.length]
        state.past = Past(torch.empty(0))
    return Past(whole)


def joined(states: Sequence[PreparedState]) -> PreparedState:
    """One state for the rows of all, in order; each state has one row a sentence, and all its rows have begun at once.

    Every row's last step is the last of all, so that the next one is next for all. Uses the states up, layer by layer
    and state by state, so that what they hold is not there twice.
    """
    length = max(state.length for state in states)
    width = max(state.cross[0].keys.shape[2] for state in states)
    rows = [len(state.cross[0].keys) for state in states]
    masks = [_mask_of(state) for state in states]
    mask_N11S = torch.cat([F.pad(mask, (0, width - mask.shape[3]), value=-math.inf) for mask in masks])
    cross: list[Seen] = []
    while states[0].cross:
        seen = [state.cross.pop(0) for state in states]
        cross.append(Seen(_padded([one.keys for one in seen], width), _padded([one.values for one in seen], width)))
        del seen
    return PreparedState(
        per_source=1,
        cross=cross,
        mask=mask_N11S,
        past=_stacked(states, length),
        record_attention=False,
        length=length,
        first_N=torch.cat(
            [torch.full((count,), length - state.length) for state, count in zip(states, rows, strict=True)]
        ),
    )
