"""Several processes answer as one does, and no failure of theirs goes unnoticed."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_model import build, random_rows

from mtkit.engine import Batch, ModelEngine
from mtkit.errors import DataError, MtkitError
from mtkit.ids import EOS
from mtkit.model.prepared import PreparedTransformer
from mtkit.pool import PoolEngine, can_fork
from mtkit.sections.search import Beam, Greedy, Rules

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork")
CONFIG = Beam(beam_size=3, n_best=2, rules=Rules(max_length=6))
BATCHES = [Batch([[*row, EOS] for row in random_rows([3, 2, 1], 50, seed)], [0, 1, 2], None) for seed in range(9)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the command line sees to: a process whose torch has started threads must not be forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pool() -> Iterator[PoolEngine]:
    engine = PoolEngine(ModelEngine(PreparedTransformer(build())), 2)
    yield engine
    engine.close()


def test_the_same_answers_as_of_one_process(pool: PoolEngine) -> None:
    wanted = dict(pool.own.search(BATCHES, CONFIG, True))
    assert dict(pool.search(iter(BATCHES), CONFIG, True)) == wanted
    assert dict(pool.search(BATCHES, CONFIG, True)) == wanted  # and once more, by the same processes
    assert len(pool._processes) == 2


def test_the_last_sentences_of_a_workers_batches_go_on_together(pool: PoolEngine) -> None:
    """What they have waited for is answered batch by batch."""
    lengths = [1 + 5 * at % 11 for at in range(16)]
    sources = [[[*row, EOS] for row in random_rows(lengths, 50, seed)] for seed in range(9)]
    batches = [Batch(rows, list(range(16)), None) for rows in sources]
    config = Greedy(method="greedy", rules=Rules(max_length_ratio=2, max_length_offset=1))
    wanted = {place: [one.ids for [one] in found] for place, found in pool.own.search(batches, config, False)}
    found = list(pool.search(iter(batches), config, False))
    assert len(found) == len(batches)
    assert {place: [one.ids for [one] in answer] for place, answer in found} == wanted


def test_a_single_batch_starts_no_process(pool: PoolEngine) -> None:
    assert list(pool.search(BATCHES[:1], CONFIG, False)) == list(pool.own.search(BATCHES[:1], CONFIG, False))
    assert list(pool.search([], CONFIG, False)) == []
    assert pool._processes == []


def test_batches_are_read_only_as_they_are_needed(pool: PoolEngine) -> None:
    """Endless input must not pile up."""
    taken = []

    def endless() -> Iterator[Batch]:
        while True:
            taken.append(1)
            yield BATCHES[len(taken) % 9]

    answers = pool.search(endless(), CONFIG, False)
    for _ in range(10):
        next(answers)
    assert len(taken) <= 10 + 2 * pool.workers + 2


def test_a_search_left_half_way_does_not_disturb_the_next(pool: PoolEngine) -> None:
    answers = pool.search(BATCHES, CONFIG, False)
    next(answers)
    del answers
    other = Greedy(method="greedy", rules=Rules(max_length=4))
    assert dict(pool.search(BATCHES[::-1], other, False)) == dict(pool.own.search(BATCHES[::-1], other, False))


class Failing:
    """An engine that does something else for each first id of a batch."""

    def __init__(self, deed: Any) -> None:
        self.deed = deed

    def search(self, batches: Any, config: Any, attention: bool, scores: bool = True) -> Iterator[Any]:
        for place, _ in enumerate(batches):
            self.deed()
            yield place, [[]]


def fail_as_user_error() -> None:
    raise DataError("the batch is bad", "mend it")


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_of_a_worker_is_raised_here() -> None:
    pool = PoolEngine(Failing(fail_as_user_error), 2)
    with pytest.raises(DataError, match="the batch is bad") as caught:
        list(pool.search(BATCHES, CONFIG, False))
    assert caught.value.hint == "mend it"
    pool.close()


def test_a_killed_worker_ends_the_search_with_an_error() -> None:
    pool = PoolEngine(Failing(kill_oneself), 2)
    with pytest.raises(MtkitError, match="ended early"):
        list(pool.search(BATCHES, CONFIG, False))
    pool.close()


def test_long_batches_and_long_answers_do_not_wait_for_each_other() -> None:
    """Each longer than a pipe holds."""

    class Echo:
        def search(self, batches: Any, config: Any, attention: bool, scores: bool = True) -> Iterator[Any]:
            for place, batch in enumerate(batches):
                yield place, list(batch.rows)

    pool = PoolEngine(Echo(), 2)
    long = [Batch([list(range(200_000))], [0], None) for _ in range(8)]
    assert [len(rows[0]) for _, rows in pool.search(long, CONFIG, False)] == [200_000] * 8  # type: ignore[arg-type]
    pool.close()


def test_workers_end_when_the_pool_is_closed(pool: PoolEngine) -> None:
    list(pool.search(BATCHES, CONFIG, False))
    processes = list(pool._processes)
    pool.close()
    assert [process.exitcode for process in processes] == [0, 0]


def test_workers_do_not_outlive_a_parent_that_is_killed() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(reading)
        engine = PoolEngine(ModelEngine(PreparedTransformer(build())), 2)
        list(engine.search(BATCHES, CONFIG, False))
        os.write(writing, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(reading, 1) == b""  # nobody holds the other end any more
    os.close(reading)
