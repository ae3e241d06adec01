"""Memory-mapped shards to padded tensors.

Shapes: B pairs, S longest source, T longest target, both with EOS.
"""

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue

import numpy as np
import torch
from torch import Tensor

from mtkit.data.resegment import HeldShard
from mtkit.data.shards import Shard
from mtkit.ids import BOS, EOS, PAD


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
        empty = np.empty(0, dtype=np.int64)
        self.source_lengths = np.concatenate([empty, *(shard.source_lengths for shard in self.shards)]) + 1
        self.target_lengths = np.concatenate([empty, *(shard.target_lengths for shard in self.shards)]) + 1

    def __len__(self) -> int:
        return int(self.starts[-1])

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
            shard = self.shards[home]
            if side == "source":
                ids, offsets = shard.source_ids, shard.source_offsets
            else:
                ids, offsets = shard.target_ids, shard.target_offsets
            bare = lengths[here] - 1
            # Cell k of the flattened rows reads ids[offset of its row + column], all rows at once.
            first = offsets[indices[here] - self.starts[home]].astype(np.int64)
            columns = np.arange(bare.sum()) - np.repeat(np.cumsum(bare) - bare, bare)
            rows[np.repeat(here, bare), columns] = ids[np.repeat(first, bare) + columns]
        rows[np.arange(len(indices)), lengths - 1] = EOS
        return rows


def prefetch(data: PairData, batches: Sequence[np.ndarray], ahead: int = 4) -> Generator[Batch]:
    """Collate batches in a background thread, a few ahead of the consumer, in order.

    Closing the iterator ends the thread; an error in the thread is raised here.
    """
    queue: Queue[Batch | BaseException | None] = Queue(ahead)
    closed = threading.Event()

    def put(item: Batch | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                queue.put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for indices in batches:
                if not put(data.collate(indices)):
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True, name="collate")
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        while True:
            try:
                queue.get_nowait()
            except Empty:
                break
        thread.join()
