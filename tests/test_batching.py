"""Batches: every pair once, within the budget, the same each time, and with little padding."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtkit.data.batching import STRETCH, epoch_blocks, epoch_indices, padding_share, plan
from mtkit.sections.data import Batching

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=120)
OPTIONS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(64, 400),
        "max_sentences": st.none() | st.integers(1, 9),
        "pool_size": st.integers(1, 50) | st.just(100_000),
    }
)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))


def as_lists(batches: list[np.ndarray]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def natural_lengths(pairs: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of image captions in pieces: mean 16, deviation 5, correlation 0.87 between the sides."""
    rng = np.random.default_rng(seed)
    common, source, target = rng.normal(size=(3, pairs))
    mixed = [0.93 * common + 0.37 * own for own in (source, target)]
    return tuple(np.clip(np.round(np.exp(2.72 + 0.31 * one)), 3, 60).astype(np.int64) for one in mixed)


@given(pairs=LENGTHS, options=OPTIONS, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_every_pair_once_and_within_the_budget(
    pairs: list[tuple[int, int]], options: dict[str, Any], seed: int, epoch: int
) -> None:
    source, target = arrays(pairs)
    batches = plan(source, target, Batching(**options), seed, epoch)
    assert sorted(np.concatenate([np.empty(0, int), *batches]).tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert len(batch) > 0
        for lengths in (source, target):
            assert len(batch) * lengths[batch].max() <= options["max_tokens"]
        assert options["max_sentences"] is None or len(batch) <= options["max_sentences"]


@given(pairs=LENGTHS, options=OPTIONS, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_a_pure_function_of_its_arguments(
    pairs: list[tuple[int, int]], options: dict[str, Any], seed: int, epoch: int
) -> None:
    source, target = arrays(pairs)
    first = as_lists(plan(source, target, Batching(**options), seed, epoch))
    np.random.seed(seed)
    assert as_lists(plan(source.copy(), target.astype(np.int32), Batching(**options), seed, epoch)) == first


@pytest.mark.parametrize("other", [(2, 0), (1, 1), (2, 1)])
def test_seed_and_epoch_change_the_batches(other: tuple[int, int]) -> None:
    source, target = natural_lengths(20_000)
    one, two = (as_lists(plan(source, target, Batching(max_tokens=1024), *key)) for key in ((1, 0), other))
    assert one != two
    again = {frozenset(batch) for batch in one} & {frozenset(batch) for batch in two}
    assert len(again) < 0.05 * len(one), "only the very shortest and longest pairs may meet again"


def test_batches_come_in_no_order_of_length() -> None:
    source, target = natural_lengths(5000)
    batches = plan(source, target, Batching(max_tokens=1024), 1, 0)
    lengths = [float(source[batch].mean()) for batch in batches]
    assert abs(np.corrcoef(np.arange(len(lengths)), lengths)[0, 1]) < 0.3


def test_a_pair_longer_than_the_budget_is_a_batch_by_itself() -> None:
    """Validation pairs are not filtered, so they may exceed any budget."""
    source, target = np.array([5, 900, 6, 4]), np.array([5, 20, 300, 4])
    batches = as_lists(plan(source, target, Batching(max_tokens=64), 1, 0))
    assert sorted(sorted(batch) for batch in batches) == [[0, 3], [1], [2]]


def test_batches_are_as_full_as_the_budget_allows() -> None:
    source = target = np.full(100, 10)
    batches = plan(source, target, Batching(max_tokens=129), 1, 0)
    assert sorted(len(batch) for batch in batches) == [4, *[12] * 8]
    batches = plan(source, target, Batching(max_tokens=129, max_sentences=5), 1, 0)
    assert [len(batch) for batch in batches] == [5] * 20


def test_pools_are_not_mixed() -> None:
    """With a pool of 7, the 7 pairs that were drawn together are batched together."""
    source, target = natural_lengths(70)
    batches = plan(source, target, Batching(max_tokens=10_000, pool_size=7), 1, 0)
    assert [len(batch) for batch in batches] == [7] * 10


@pytest.mark.parametrize("max_tokens", [1024, 4096])
def test_padding_of_both_sides_is_under_a_tenth(max_tokens: int) -> None:
    source, target = natural_lengths(29_000)
    for epoch in range(2):
        batches = plan(source, target, Batching(max_tokens=max_tokens), 1, epoch)
        assert padding_share(source, target, batches) < 0.1
        least = np.maximum(source, target).sum() / max_tokens
        assert len(batches) < 1.1 * least + 1


@settings(max_examples=30)
@given(pairs=LENGTHS, options=OPTIONS)
def test_padding_share_counts_cells(pairs: list[tuple[int, int]], options: dict[str, Any]) -> None:
    source, target = arrays(pairs)
    batches = plan(source, target, Batching(**options), 1, 0)
    cells = pads = 0
    for batch in as_lists(batches):
        for lengths in (source.tolist(), target.tolist()):
            longest = max(lengths[row] for row in batch)
            cells += longest * len(batch)
            pads += sum(longest - lengths[row] for row in batch)
    assert padding_share(source, target, batches) == pytest.approx(pads / cells if cells else 0.0, abs=1e-12)


@given(
    corpora=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.75])), max_size=4)
)
def test_weights_repeat_and_sample_each_corpus(corpora: list[tuple[int, float]]) -> None:
    sizes, weights = [size for size, _ in corpora], [weight for _, weight in corpora]
    chosen = epoch_indices(sizes, weights, 1, 0)
    assert chosen.dtype == np.int64
    counts = np.bincount(chosen, minlength=sum(sizes))
    begin = 0
    for size, weight in corpora:
        mine = counts[begin : begin + size]
        assert set(mine.tolist()) <= {int(weight), int(weight) + 1}
        assert mine.sum() == max(round(weight * size), min(size, 1)), "at least one pair of each corpus"
        begin += size
    assert begin == len(counts)


def test_each_epoch_and_corpus_samples_anew() -> None:
    def sample(seed: int, epoch: int, corpus: int) -> frozenset[int]:
        chosen = epoch_indices([200, 200], [0.5, 0.5], seed, epoch)
        return frozenset((chosen[chosen // 200 == corpus] % 200).tolist())

    samples = [sample(1, 0, 0), sample(1, 1, 0), sample(2, 0, 0), sample(1, 0, 1)]
    assert len(set(samples)) == 4
    assert sample(1, 0, 0) == samples[0]
    seen = frozenset().union(*(sample(1, epoch, 0) for epoch in range(12)))
    assert len(seen) > 190


# Corpora larger than a block


def pairs_of(stretches: np.ndarray) -> np.ndarray:
    return np.concatenate([np.arange(first, first + count) for first, count in stretches.tolist()])


@given(
    corpora=st.lists(
        st.tuples(st.integers(1, 5 * STRETCH), st.sampled_from([0.01, 0.5, 1.0, 1.5, 2.0])), min_size=1, max_size=3
    ),
    block_size=st.integers(1, 6 * STRETCH),
)
def test_blocks_hold_each_corpus_as_often_as_its_weight_says(corpora: list[tuple[int, float]], block_size: int) -> None:
    sizes, weights = [size for size, _ in corpora], [weight for _, weight in corpora]
    blocks = epoch_blocks(sizes, weights, 1, 0, block_size)
    assert all(len(block) > 0 and (block[:, 1] > 0).all() for block in blocks)
    assert max(int(block[:, 1].sum()) for block in blocks) < block_size + 2 * STRETCH
    counts = np.bincount(np.concatenate([pairs_of(block) for block in blocks]), minlength=sum(sizes))
    begin = 0
    for size, weight in corpora:
        mine = counts[begin : begin + size]
        assert set(mine.tolist()) <= {int(weight), int(weight) + 1}
        assert mine.sum() == max(round(weight * size), 1)
        begin += size


def test_blocks_are_about_equal_and_mixed_from_everywhere() -> None:
    blocks = epoch_blocks([200 * STRETCH, 100 * STRETCH], [1.0, 1.0], 1, 0, 100 * STRETCH)
    assert [int(block[:, 1].sum()) // STRETCH for block in blocks] == [100, 100, 100]
    for block in blocks:
        assert 0.15 < float((block[:, 0] >= 200 * STRETCH).mean()) < 0.5, "both corpora in every block"


def test_blocks_depend_on_seed_and_epoch_alone() -> None:
    def firsts(seed: int, epoch: int) -> list[list[int]]:
        return [block[:, 0].tolist() for block in epoch_blocks([50 * STRETCH], [0.5], seed, epoch, 10 * STRETCH)]

    assert firsts(1, 0) == firsts(1, 0)
    assert len({str(firsts(*key)) for key in ((1, 0), (1, 1), (2, 0))}) == 3


def test_the_first_block_is_planned_as_a_small_corpus_is_and_the_others_in_another_order() -> None:
    source, target = natural_lengths(2000)
    first, second = (as_lists(plan(source, target, Batching(max_tokens=1024), 1, 0, block)) for block in (0, 1))
    assert first == as_lists(plan(source, target, Batching(max_tokens=1024), 1, 0))
    assert first != second
