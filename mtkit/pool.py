"""Searching in several processes on the cores of one machine, over one copy of the weights.

The processes are forks of this one: they share its memory, so the weights are there once, ready. Each uses one thread,
for two processes of one thread decode faster than one of two. A worker has a batch in hand and one waiting, of greedy
search a few, whose last sentences it searches together (search/tails.py); its answers come back as they are ready.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from mtkit.engine import Batch, Engine
from mtkit.errors import MtkitError, UsageError
from mtkit.search.protocol import Hypothesis
from mtkit.sections.search import Greedy, Search

_Wish = tuple[Search, bool, bool]
"""What `Engine.search` takes besides the batches."""

_Work = list[tuple[int, Batch]]
"""Batches that a worker is handed at once, with their places."""

_IN_HAND = 2  # such lists of a worker: one at work, one waiting
_MOST = 4  # batches in one


class PoolEngine:
    """An engine of `workers` processes, each a fork of this one with its engine `own`, which must be on a CPU.

    The processes start with the first search of more than one batch, and end with this one or with `close`.
    """

    def __init__(self, own: Engine, workers: int) -> None:
        """Raises UsageError on a system without fork."""
        if workers > 1 and not can_fork():
            raise UsageError(
                f"{workers} workers: this system cannot fork a process", "use one worker, and more threads"
            )
        self.own = own
        self.workers = workers
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._searches = 0

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine. Raises what a worker raises, and MtkitError when one is killed."""
        rest = iter(batches)
        first = list(islice(rest, 2))
        if len(first) < 2 or self.workers == 1:
            yield from self.own.search(chain(first, rest), config, attention, scores)
            return
        if not self._processes:
            self._start()
        self._searches += 1
        yield from self._hand_out(enumerate(chain(first, rest)), (config, attention, scores))

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()
        self._processes, self._pipes = [], []

    def _hand_out(
        self, batches: Iterator[tuple[int, Batch]], wish: _Wish
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Keep every worker in work until there are no more batches; yield the answers."""
        config, attention, _ = wish
        work = _shares(batches, self.workers, _MOST if isinstance(config, Greedy) and not attention else 1)
        owed = dict.fromkeys(self._pipes, 0)
        for pipe in self._pipes * _IN_HAND:
            owed[pipe] += self._send(pipe, work, wish)
        while any(owed.values()):
            for ready in wait([pipe for pipe, count in owed.items() if count]):
                assert isinstance(ready, Connection)
                search, answer = self._receive(ready)
                if search != self._searches:
                    continue  # of a search that was left before its end
                if isinstance(answer, BaseException):
                    raise answer
                owed[ready] += self._send(ready, work, wish) - 1
                yield from answer

    def _send(self, pipe: Connection, work: Iterator[_Work], wish: _Wish) -> int:
        """Hand the next batches to a worker; returns 1, or 0 where there are none."""
        for several in work:
            with contextlib.suppress(BrokenPipeError):  # the worker has died; _receive tells
                pipe.send((self._searches, several, wish))
            return 1
        return 0

    def _receive(self, pipe: Connection) -> tuple[int, Any]:
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[self._pipes.index(pipe)]
            process.join()
            code = process.exitcode
            how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
            raise MtkitError(
                f"a worker process ended early ({how})",
                "it may have run out of memory; try fewer --workers, or a smaller --max-tokens",
            ) from None

    def _start(self) -> None:
        # What is still in the buffers would be written once by each process.
        sys.stdout.flush()
        sys.stderr.flush()
        fork = multiprocessing.get_context("fork")
        for _ in range(self.workers):
            here, there = fork.Pipe()
            process = fork.Process(target=_serve, args=(self.own, there, [*self._pipes, here]), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)


def _shares(batches: Iterator[tuple[int, Batch]], workers: int, most: int) -> Iterator[_Work]:
    """The batches in lists of at most `most`, shorter ones towards the end, where the workers are to end together.

    Of endless batches no more are read ahead than two such lists for each worker.

    >>> [len(share) for share in _shares(iter([(0, None)] * 16), 2, 4)]
    [4, 3, 2, 2, 1, 1, 1, 1, 1]
    """
    ahead: _Work = []
    if most == 1:
        yield from ([batch] for batch in batches)
        return
    while True:
        ahead += islice(batches, 2 * workers * most - len(ahead))
        if not ahead:
            return
        even = len(ahead) // workers
        share = min(most, max(2, even // 2)) if even > 2 else 1
        yield ahead[:share]
        ahead = ahead[share:]


def can_fork() -> bool:
    """Whether a process may be forked once torch has computed in it: on Linux."""
    return sys.platform == "linux"


def _serve(engine: Engine, pipe: Connection, others: list[Connection]) -> None:
    """The life of a worker: batches from the pipe, answers into it, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # ends of the parent, which keep the pipes of other workers open
        other.close()
    torch.set_num_threads(1)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # Sent by a thread: were this one to wait for the parent to read a long answer, the parent could at the same time
    # wait for it to read a long batch.
    threading.Thread(target=_send_all, args=(answers, pipe), daemon=True).start()
    while True:
        try:
            number, several, wish = pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        answers.put((number, _answer(engine, several, wish)))


def _answer(engine: Engine, several: _Work, wish: _Wish) -> list[tuple[int, list[list[Hypothesis]]]] | Exception:
    """Each batch's place, and what was found for it."""
    try:
        return [(several[at][0], found) for at, found in engine.search([batch for _, batch in several], *wish)]
    except MtkitError as error:
        return error
    except Exception as error:  # goes to the parent, which raises it
        error.add_note(traceback.format_exc())
        return error


def _send_all(answers: "queue.SimpleQueue[Any]", pipe: Connection) -> None:
    while True:
        try:
            pipe.send(answers.get())
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # the parent is gone
