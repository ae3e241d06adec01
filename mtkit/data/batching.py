"""Which pairs go into which batch: a pure function of lengths, budget, seed and epoch.

Pairs are shuffled, cut into pools, and ordered within a pool so that neighbours are alike on both sides; batches are
runs of neighbours under the token budget, and come out in shuffled order. Corpora that are too large to be planned at
once are cut into stretches of neighbours; every epoch shuffles these and deals them out into blocks, which are planned
one after another.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from mtkit.sections.data import Batching


def plan(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batching: Batching, seed: int, epoch: int, block: int = 0
) -> list[np.ndarray]:
    """Batches of one epoch, or of one block of it, as arrays of indices into the lengths; each index occurs once.

    Lengths are in tokens with EOS. A batch of R pairs fills at most `max_tokens` cells on either side:
    R * longest <= max_tokens; a pair that exceeds it all by itself is a batch. Equal arguments give equal batches on
    every machine.
    """
    rng = np.random.default_rng([seed, epoch, 1, block] if block else [seed, epoch, 1])
    order = rng.permutation(len(source_lengths))
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), batching.pool_size):
        pool = order[begin : begin + batching.pool_size]
        alike = pool[_alike(source_lengths[pool], target_lengths[pool], batching.budget)]
        batches += _cut(alike, np.maximum(source_lengths[alike], target_lengths[alike]), batching)
    shuffled = rng.permutation(len(batches))
    return [batches[index] for index in shuffled]


def _alike(source: np.ndarray, target: np.ndarray, max_tokens: int) -> np.ndarray:
    """An order in which neighbours have similar lengths on both sides.

    Bands of similar target length, each sorted by source length, in turn upwards and downwards so that the seam
    between two bands is smooth on the source side as well. As many bands as batches in a band keep both sides alike.
    """
    by_target = np.lexsort((source, target))
    batches = np.maximum(source, target).sum() / max_tokens
    bands = max(1, round(math.sqrt(batches)))
    runs = np.array_split(by_target, bands)
    for index, run in enumerate(runs):
        inner = np.lexsort((target[run], source[run]))
        runs[index] = run[inner if index % 2 == 0 else inner[::-1]]
    return np.concatenate(runs)


def _cut(indices: np.ndarray, longer: np.ndarray, batching: Batching) -> list[np.ndarray]:
    """Consecutive runs of `indices`, each as long as the budget allows."""
    batches = []
    begin, budget = 0, batching.budget
    while begin < len(indices):
        most = budget if batching.max_sentences is None else batching.max_sentences
        most = min(most, max(1, budget // int(longer[begin])))
        longest = np.maximum.accumulate(longer[begin : begin + most])
        fits = longest * np.arange(1, len(longest) + 1) <= budget
        rows = max(1, int(fits.sum()))
        batches.append(indices[begin : begin + rows])
        begin += rows
    return batches


def epoch_indices(sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int) -> np.ndarray:
    """Which pairs an epoch sees, as indices into the corpora laid end to end.

    A corpus of n pairs and weight w contributes round(w * n) in all, and at least one: each pair floor(w) times, and
    random ones once more.
    """
    parts = []
    begin = 0
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        whole = int(weight)
        parts += [np.arange(begin, begin + size)] * whole
        extra = max(round(weight * size), min(size, 1)) - whole * size
        if extra:
            rng = np.random.default_rng([seed, epoch, 2, number])
            parts.append(begin + np.sort(rng.choice(size, extra, replace=False)))
        begin += size
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


STRETCH = 1024
"""Neighbouring pairs of a large corpus that stay together on their way into a block."""


def epoch_blocks(
    sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int, block_size: int
) -> list[np.ndarray]:
    """What each block of an epoch holds: rows of (first pair, pairs), stretches of the corpora laid end to end.

    The stretches come in random order; a block has about `block_size` pairs, and all are about equal. Each corpus is
    seen as often as `epoch_indices` says, but that the random pairs that are seen once more are whole stretches (and
    part of one). Takes memory for a stretch, not for a pair.
    """
    parts = []
    begin = 0
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        firsts = np.arange(begin, begin + size, STRETCH)
        once = np.stack((firsts, np.minimum(STRETCH, begin + size - firsts)), axis=1)
        whole = int(weight)
        parts += [once] * whole
        extra = max(round(weight * size), min(size, 1)) - whole * size
        if extra:
            drawn = once[np.random.default_rng([seed, epoch, 2, number]).permutation(len(once))]
            room = extra - np.cumsum(drawn[:, 1]) + drawn[:, 1]
            drawn[:, 1] = np.minimum(drawn[:, 1], room)
            parts.append(drawn[drawn[:, 1] > 0])
        begin += size
    stretches = np.concatenate(parts)
    stretches = stretches[np.random.default_rng([seed, epoch, 3]).permutation(len(stretches))]
    totals = np.cumsum(stretches[:, 1])
    count = math.ceil(totals[-1] / block_size)
    ends = np.searchsorted(totals, totals[-1] * np.arange(1, count + 1) / count) + 1
    cuts = np.unique(np.concatenate(([0], ends)))
    return [stretches[first:last] for first, last in itertools.pairwise(cuts)]


def padding_share(source_lengths: np.ndarray, target_lengths: np.ndarray, batches: Sequence[np.ndarray]) -> float:
    """Share of cells of both sides together that hold padding."""
    cells = real = 0
    for batch in batches:
        for lengths in (source_lengths[batch], target_lengths[batch]):
            cells += len(batch) * int(lengths.max())
            real += int(lengths.sum())
    return 1 - real / cells if cells else 0.0
