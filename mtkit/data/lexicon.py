"""Which target tokens translate which source token: IBM model 1 over shards (Brown et al. 1993, section 4.1).

    P(f | e) = prod_j 1 / (S + 1) sum_{i = 0 .. S} t(f_j | e_i)

for a source e of S tokens with the empty word e_0 before them. EM shares each target token out among the source tokens
of its sentence in proportion to t, and makes t from the sums:

    c(f | e) = sum over pairs, j, i of t(f_j | e_i) / sum_i' t(f_j | e_i')        t(f | e) = c(f | e) / sum_f' c(f' | e)

It starts from equal t for all tokens that stand in one pair. The likelihood has no other maximum than the global one,
so the start matters little, and a few iterations are enough to tell words apart.

Memory is bounded: pairs stream from the memory-mapped shards in blocks, and the table of t has at most `ENTRIES`
entries; where more couples of tokens meet, the rarest are left out (as in lossy counting, Manku and Motwani 2002).

PAD's id stands for the empty word, since no sentence holds it.

Shapes: P pairs, S and T tokens of all their sources and targets end to end, C couples (a source token, the empty word
included, and a target token of one pair), E entries of the table.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mtkit.data.shards import Shard
from mtkit.ids import PAD

ENTRIES = 16_000_000
"""Most entries of the table; each takes 24 bytes, and about as much again while it is made."""
_COUPLES = 2_000_000  # in a block, or those of one pair


@dataclass(frozen=True, slots=True)
class Lexicon:
    """t(f | e) for the couples that were counted: `keys_E` = e * target_size + f, ascending, with `t_E`.

    `counts_V` says how often each target token stood in the pairs.
    """

    keys_E: np.ndarray
    t_E: np.ndarray
    counts_V: np.ndarray
    source_size: int

    @property
    def target_size(self) -> int:
        """Entries of the target vocabulary."""
        return len(self.counts_V)

    def best(self, k: int) -> list[np.ndarray]:
        """The k likeliest target ids of each source id, likeliest first, the lower id among equals."""
        starts = np.searchsorted(self.keys_E, np.arange(self.source_size + 1) * self.target_size)
        found = []
        for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            order = np.argsort(-self.t_E[first:end], kind="stable")[:k]
            found.append(self.keys_E[first:end][order] % self.target_size)
        found[PAD] = found[PAD][:0]
        return found

    def frequent(self, count: int) -> np.ndarray:
        """The `count` target ids that stood in the pairs most often, the lower id among equals."""
        order = np.argsort(-self.counts_V, kind="stable")[:count]
        return order[self.counts_V[order] > 0]


@dataclass(frozen=True, slots=True)
class _Block:
    """Pairs in memory: ids end to end, and how many of them each pair has, never 0."""

    source_ids_S: np.ndarray
    source_lengths_P: np.ndarray
    target_ids_T: np.ndarray
    target_lengths_P: np.ndarray

    def keys(self, target_size: int) -> tuple[np.ndarray, np.ndarray]:
        """The key of each of the C couples, and where those of each target token begin; a pair's own lie together."""
        # Each source with the empty word before it.
        wide_P = self.source_lengths_P + 1
        begins_P = np.cumsum(wide_P) - wide_P
        source_ids = np.full(wide_P.sum(), PAD, np.int64)
        own = np.ones(len(source_ids), bool)
        own[begins_P] = False
        source_ids[own] = self.source_ids_S
        couples_T = np.repeat(wide_P, self.target_lengths_P)
        firsts_T = np.cumsum(couples_T) - couples_T
        # Couple c of a target token reads its pair's source at c - first couple of the token.
        shift_T = np.repeat(begins_P, self.target_lengths_P) - firsts_T
        places_C = np.arange(couples_T.sum()) + np.repeat(shift_T, couples_T)
        return source_ids[places_C] * target_size + np.repeat(self.target_ids_T, couples_T), firsts_T


def learn(
    shards: Iterable[Shard],
    sizes: tuple[int, int],
    iterations: int = 5,
    max_pairs: int = 1_000_000,
    entries: int = ENTRIES,
    tick: Callable[[int], object] = lambda pairs: None,
) -> Lexicon:
    """The lexicon of the pairs of these shards after so many iterations of EM.

    `sizes` are the entries of the source and the target vocabulary. Of more than `max_pairs` pairs every so manieth is
    taken. `tick` is called with a number of pairs, once for each of the iterations + 1 readings of a block.
    """
    shards = list(shards)
    stride = max(1, -(-sum(map(len, shards)) // max_pairs))
    target_size = sizes[1]

    def blocks() -> Iterator[_Block]:
        for block in _blocks(shards, stride):
            yield block
            tick(len(block.source_lengths_P))

    keys_E, counts_V = _couples(blocks(), target_size, entries)
    t_E = np.ones(len(keys_E))
    starts = np.searchsorted(keys_E, np.arange(sizes[0] + 1) * target_size)
    for _ in range(iterations if len(keys_E) else 0):
        sums_E = np.zeros(len(keys_E))
        for block in blocks():
            _add_expected(block, keys_E, t_E, sums_E, target_size)
        totals = np.diff(np.concatenate(([0.0], np.cumsum(sums_E)))[starts])
        t_E = sums_E / np.repeat(np.maximum(totals, np.finfo(float).tiny), np.diff(starts))
    return Lexicon(keys_E, t_E, counts_V, sizes[0])


def _add_expected(block: _Block, keys_E: np.ndarray, t_E: np.ndarray, sums_E: np.ndarray, target_size: int) -> None:
    """Add the expected counts of a block to `sums_E` (mutates it)."""
    keys_C, firsts_T = block.keys(target_size)
    places_C = np.searchsorted(keys_E, keys_C)
    places_C[places_C == len(keys_E)] = 0
    t_C = np.where(keys_E[places_C] == keys_C, t_E[places_C], 0.0)
    totals_T = np.add.reduceat(t_C, firsts_T)
    couples_T = np.diff(firsts_T, append=len(keys_C))
    # A target token whose couples were all left out has nothing to share out.
    t_C /= np.repeat(np.where(totals_T > 0, totals_T, 1.0), couples_T)
    np.add.at(sums_E, places_C, t_C)


def _couples(blocks: Iterable[_Block], target_size: int, entries: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the couples that meet, at most `entries` of them, and the counts of target tokens."""
    assert entries > 0
    counts_V = np.zeros(target_size, np.int64)
    table = np.zeros(0, np.int64), np.zeros(0, np.int64)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for block in blocks:
        counts_V += np.bincount(block.target_ids_T, minlength=target_size)
        waiting.append(np.unique(block.keys(target_size)[0], return_counts=True))
        if sum(len(keys) for keys, _ in waiting) > entries // 2:
            table, waiting = _merged([table, *waiting], entries), []
    return _merged([table, *waiting], entries)[0], counts_V


def _merged(tables: list[tuple[np.ndarray, np.ndarray]], entries: int) -> tuple[np.ndarray, np.ndarray]:
    """One table of all, keys ascending, without the rarest where it has more than `entries` entries."""
    keys = np.concatenate([keys for keys, _ in tables])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], np.concatenate([counts for _, counts in tables])[order]
    if not len(keys):
        return keys, counts
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    keys, counts = keys[firsts], np.add.reduceat(counts, firsts)
    if len(keys) > entries:
        # Of the counts at the border none stay, so that which ones do does not depend on their order.
        border = np.partition(counts, len(counts) - entries - 1)[len(counts) - entries - 1]
        kept = counts > border
        keys, counts = keys[kept], counts[kept]
    return keys, counts


def _blocks(shards: Iterable[Shard], stride: int) -> Iterator[_Block]:
    """Every stride-th pair of the shards, in order, in blocks of about `_COUPLES` couples."""
    skipped = 0
    for shard in shards:
        chosen = np.arange(skipped, len(shard), stride)
        skipped = (skipped - len(shard)) % stride
        ends = np.cumsum((shard.source_lengths[chosen] + 1) * shard.target_lengths[chosen])
        first = 0
        while first < len(chosen):
            before = ends[first - 1] if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + _COUPLES, side="right")))
            pairs = chosen[first:end]
            source = _rows(shard.source_ids, shard.source_offsets, shard.source_lengths, pairs)
            target = _rows(shard.target_ids, shard.target_offsets, shard.target_lengths, pairs)
            yield _Block(*source, *target)
            first = end
        shard.release()


def _rows(
    ids: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of these pairs end to end, read into memory, and their lengths."""
    lengths_P = lengths[pairs]
    shift_P = offsets[pairs].astype(np.int64) - (np.cumsum(lengths_P) - lengths_P)
    return ids[np.arange(lengths_P.sum()) + np.repeat(shift_P, lengths_P)].astype(np.int64), lengths_P
