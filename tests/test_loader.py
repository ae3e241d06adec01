"""Shards to tensors, and batches made ahead in a thread."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtkit.data.loader import Batch, PairData, prefetch
from mtkit.data.shards import open_shard, write_shard
from mtkit.ids import BOS, EOS, PAD

Pairs = list[tuple[list[int], list[int]]]
SIDE = st.lists(st.integers(4, 65_000), max_size=6)
SHARDS = st.lists(st.lists(st.tuples(SIDE, SIDE), max_size=5), min_size=1, max_size=4)


def open_pairs(folder: Path, shards: list[Pairs], dtype: str = "uint16") -> PairData:
    """The pairs, written to one file a shard."""
    opened = []
    for number, pairs in enumerate(shards):
        path = folder / f"c-{number:05d}.shard"
        columns = [[row[side] for row in pairs] for side in (0, 1)]
        write_shard(
            path,
            *(np.array([token for row in rows for token in row], dtype=dtype) for rows in columns),
            *(np.array([len(row) for row in rows], dtype=np.int64) for rows in columns),
            np.arange(len(pairs)),
            {},
        )
        opened.append(open_shard(path))
    return PairData(opened)


def slow_batch(pairs: Pairs) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Source, target_in and target_out, row by row."""
    source_width = max(len(source) for source, _ in pairs) + 1
    target_width = max(len(target) for _, target in pairs) + 1

    def padded(row: list[int], width: int) -> list[int]:
        return row + [PAD] * (width - len(row))

    return (
        [padded([*source, EOS], source_width) for source, _ in pairs],
        [padded([BOS, *target], target_width) for _, target in pairs],
        [padded([*target, EOS], target_width) for _, target in pairs],
    )


@settings(max_examples=60)
@given(shards=SHARDS, dtype=st.sampled_from(["uint16", "uint32"]), data=st.data())
def test_collate_equals_a_slow_loop(
    tmp_path_factory: pytest.TempPathFactory, shards: list[Pairs], dtype: str, data: st.DataObject
) -> None:
    """Any pairs, in any order and more than once, from several shards, empty sides and empty shards included."""
    if dtype == "uint32":
        shards = [[([token + 100_000 for token in source], target) for source, target in pairs] for pairs in shards]
    laid_out = [pair for pairs in shards for pair in pairs]
    loaded = open_pairs(tmp_path_factory.mktemp("shards"), shards, dtype)
    assert len(loaded) == len(laid_out)
    assert loaded.source_lengths.tolist() == [len(source) + 1 for source, _ in laid_out]
    assert loaded.target_lengths.tolist() == [len(target) + 1 for _, target in laid_out]
    if not laid_out:
        return
    indices = data.draw(st.lists(st.integers(0, len(laid_out) - 1), min_size=1, max_size=8))
    batch = loaded.collate(np.array(indices))
    chosen = [laid_out[index] for index in indices]
    source, target_in, target_out = slow_batch(chosen)
    assert batch.source_BS.tolist() == source
    assert batch.target_in_BT.tolist() == target_in
    assert batch.target_out_BT.tolist() == target_out
    assert {ids.dtype for ids in (batch.source_BS, batch.target_in_BT, batch.target_out_BT)} == {torch.int64}
    assert batch.kept == sum(len(target) + 1 for _, target in chosen) == int((batch.target_out_BT != PAD).sum())
    assert batch.source_tokens == int((batch.source_BS != PAD).sum())
    assert batch.cells == batch.source_BS.numel() + batch.target_out_BT.numel()


@pytest.fixture
def many(tmp_path: Path) -> PairData:
    return open_pairs(tmp_path, [[([4 + row] * (1 + row % 3), [5 + row]) for row in range(100)]])


def firsts(batches: list[Batch]) -> list[list[int]]:
    return [batch.source_BS[:, 0].tolist() for batch in batches]


def collating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "collate"]


def test_prefetched_batches_are_those_of_collate_in_order(many: PairData) -> None:
    plan = [np.arange(begin, begin + 4) for begin in range(0, 100, 4)]
    assert firsts(list(prefetch(map(many.collate, plan)))) == firsts([many.collate(indices) for indices in plan])
    assert list(prefetch(iter([]))) == []
    assert not collating()


def test_work_is_done_ahead_but_not_far() -> None:
    done: list[int] = []
    stream = prefetch((done.append(row) for row in range(100)), ahead=3)
    next(stream)
    deadline = time.monotonic() + 10
    while len(done) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(done) == 5, "one handed out, three waiting, one in hand"
    stream.close()


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_closing_early_ends_the_thread(many: PairData, taken: int) -> None:
    stream = prefetch(many.collate(np.array([row])) for row in range(100))
    for _ in range(taken):
        next(stream)
    stream.close()
    assert not collating()


def test_an_error_in_the_thread_is_raised_where_the_batch_was_due(many: PairData) -> None:
    stream = prefetch(many.collate(np.array([row])) for row in (0, 1, 100, 2))
    assert firsts([next(stream), next(stream)]) == [[4], [5]]
    with pytest.raises(IndexError):
        next(stream)
    assert not collating()


def test_an_error_of_the_consumer_ends_the_thread(many: PairData) -> None:
    def consume() -> None:
        stream = prefetch(many.collate(np.array([row])) for row in range(100))
        try:
            for _ in stream:
                raise KeyboardInterrupt
        finally:
            stream.close()

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not collating()


def test_moving_to_the_cpu_copies_nothing(many: PairData) -> None:
    batch = many.collate(np.array([1, 2]))
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert moved.source_BS.device.type == "meta"
    assert (moved.kept, moved.source_tokens, moved.cells) == (batch.kept, batch.source_tokens, batch.cells)


@settings(max_examples=40)
@given(shards=SHARDS, dtype=st.sampled_from(["uint16", "uint32"]), data=st.data())
def test_held_stretches_equal_the_pairs_they_were_read_from(
    tmp_path_factory: pytest.TempPathFactory, shards: list[Pairs], dtype: str, data: st.DataObject
) -> None:
    """In any order, also across shards and more than once; reading lets go of the files' pages and can be repeated."""
    stored = open_pairs(tmp_path_factory.mktemp("shards"), shards, dtype)
    total = len(stored)
    if not total:
        return
    stretch = st.integers(0, total - 1).flatmap(lambda first: st.tuples(st.just(first), st.integers(1, total - first)))
    stretches = np.array(data.draw(st.lists(stretch, min_size=1, max_size=5)))
    order = np.concatenate([np.arange(first, first + count) for first, count in stretches.tolist()])
    for _ in range(2):
        held = stored.hold(stretches)
        assert len(held) == len(order)
        assert held.source_lengths.tolist() == stored.source_lengths[order].tolist()
        ours, theirs = held.collate(np.arange(len(order))), stored.collate(order)
        assert torch.equal(ours.source_BS, theirs.source_BS)
        assert torch.equal(ours.target_in_BT, theirs.target_in_BT)
        assert torch.equal(ours.target_out_BT, theirs.target_out_BT)
        assert held.shards[0].source_ids.dtype == dtype


def test_closing_closes_what_is_iterated_over() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(threading.current_thread().name)

    stream = prefetch(items())
    next(stream)
    stream.close()
    assert closed == ["collate"]
