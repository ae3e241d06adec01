"""Memory-mapped shards to padded tensors.

Shapes: B pairs, S longest source, T longest target, both with EOS.
"""

import functools
import itertools
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mtkit.data.shards import HeldShard, Shard
from mtkit.ids import BOS, EOS, PAD

T = TypeVar("T")

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """One padded batch. `kept` counts the real target positions, EOS included: what the loss is summed over."""

    source_BS: Tensor
    target_in_BT: Tensor
    target_out_BT: Tensor
    source_tokens: int
    kept: int

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        if device.type == "cpu":
            return self
        moved = (
            self.source_BS.to(device, non_blocking=True),
            self.target_in_BT.to(device, non_blocking=True),
            self.target_out_BT.to(device, non_blocking=True),
        )
        return Batch(*moved, self.source_tokens, self.kept)

    @property
    def cells(self) -> int:
        """Cells of both sides, padding included."""
        return self.source_BS.numel() + self.target_out_BT.numel()


class PairData:
    """Shards laid end to end, as one sequence of pairs."""

    def __init__(self, shards: Sequence[Shard | HeldShard]) -> None:
        self.shards = list(shards)
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """Source tokens of every pair, with EOS."""
        return np.concatenate([_NONE, *(shard.source_lengths for shard in self.shards)]) + 1

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """Target tokens of every pair, with EOS."""
        return np.concatenate([_NONE, *(shard.target_lengths for shard in self.shards)]) + 1

    def hold(self, stretches: np.ndarray) -> "PairData":
        """The pairs of some stretches, rows of (first pair, pairs), in their order, read into memory.

        Nothing else stays there: the pages of the shards' files are let go.
        """
        rows = [(home, place, first, count) for place, (home, first, count) in enumerate(self._at_home(stretches))]
        held: dict[str, list[np.ndarray]] = {}
        for side in ("source", "target"):
            ids: list[np.ndarray] = [_NONE] * len(rows)
            lengths: list[np.ndarray] = [_NONE] * len(rows)
            for home, inner in itertools.groupby(sorted(rows), key=lambda row: row[0]):
                shard = self.shards[home]
                all_ids, offsets = _side(shard, side)
                for _, place, first, count in inner:
                    edges = offsets[first : first + count + 1].astype(np.int64)
                    ids[place] = np.array(all_ids[edges[0] : edges[-1]])
                    lengths[place] = np.diff(edges)
                if isinstance(shard, Shard):
                    shard.release()
            flat = np.concatenate(lengths)
            held[side] = [np.concatenate(ids), np.concatenate(([0], np.cumsum(flat))), flat]
        return PairData([HeldShard(*held["source"], *held["target"])])

    def _at_home(self, stretches: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """The stretches as (shard, first pair in it, pairs), those that reach over several shards cut."""
        for begin, count in stretches.tolist():
            while count:
                home = int(np.searchsorted(self.starts, begin, side="right")) - 1
                here = min(count, int(self.starts[home + 1]) - begin)
                yield home, begin - int(self.starts[home]), here
                begin, count = begin + here, count - here

    def collate(self, indices: np.ndarray) -> Batch:
        """Pairs as tensors: source = ids + EOS, target_in = BOS + ids, target_out = ids + EOS, padded with PAD."""
        source = self._rows(indices, "source")
        target_out = self._rows(indices, "target")
        target_in = np.roll(target_out, 1, axis=1)
        target_in[:, 0] = BOS
        target_in[target_in == EOS] = PAD
        source_tokens = int(self.source_lengths[indices].sum())
        kept = int(self.target_lengths[indices].sum())
        return Batch(
            torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out), source_tokens, kept
        )

    def _rows(self, indices: np.ndarray, side: str) -> np.ndarray:
        lengths = (self.source_lengths if side == "source" else self.target_lengths)[indices]
        rows = np.full((len(indices), int(lengths.max())), PAD, dtype=np.int64)
        homes = np.searchsorted(self.starts, indices, side="right") - 1
        for home in np.unique(homes):
            here = np.flatnonzero(homes == home)
            ids, offsets = _side(self.shards[home], side)
            bare = lengths[here] - 1
            # Cell k of the flattened rows reads ids[offset of its row + column], all rows at once.
            first = offsets[indices[here] - self.starts[home]].astype(np.int64)
            columns = np.arange(bare.sum()) - np.repeat(np.cumsum(bare) - bare, bare)
            rows[np.repeat(here, bare), columns] = ids[np.repeat(first, bare) + columns]
        rows[np.arange(len(indices)), lengths - 1] = EOS
        return rows


def _side(shard: Shard | HeldShard, side: str) -> tuple[np.ndarray, np.ndarray]:
    """All ids of a side, and where each pair's begin."""
    if side == "source":
        return shard.source_ids, shard.source_offsets
    return shard.target_ids, shard.target_offsets


def prefetch(items: Iterator[T], ahead: int = 4) -> Generator[T]:
    """The same items in order, made in a background thread a few ahead of the consumer.

    Closing the iterator ends the thread and closes `items`; an error in the thread is raised here.
    """
    queue: Queue[tuple[T] | BaseException | None] = Queue(ahead)
    closed = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                queue.put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item,)):
                    break
            else:
                put(None)
            if isinstance(items, Generator):
                items.close()
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True, name="collate")
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        closed.set()
        while True:
            try:
                queue.get_nowait()
            except Empty:
                break
        thread.join()
