"""Searching in several processes on the cores of one machine, over one copy of the weights.

The processes are forks of this one: they share its memory, so the weights are there once, ready. Each uses one thread,
for two processes of one thread decode faster than one of two. A worker has a batch in hand and one waiting, for it asks
for the next when it begins one. Its engine sees them as one stream, so that the last sentences of greedy search go on
together (search/tails.py); its answers come back as they are ready.
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
from mtkit.sections.search import Search

_Wish = tuple[Search, bool, bool]
"""What `Engine.search` takes besides the batches."""

_Message = tuple[int, int, Batch | None, _Wish]
"""To a worker: the search's number, and a batch with its place; None: there are no more."""


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
        owed = dict.fromkeys(self._pipes, 0)
        for pipe in self._pipes:
            owed[pipe] += self._send(pipe, batches, wish)
        while any(owed.values()):
            for ready in wait([pipe for pipe, count in owed.items() if count]):
                assert isinstance(ready, Connection)
                search, answer = self._receive(ready)
                if search != self._searches:
                    continue  # of a search that was left before its end
                if isinstance(answer, BaseException):
                    raise answer
                if answer is None:  # a batch is begun
                    owed[ready] += self._send(ready, batches, wish)
                else:
                    owed[ready] -= 1
                    yield answer

    def _send(self, pipe: Connection, batches: Iterator[tuple[int, Batch]], wish: _Wish) -> int:
        """Hand the next batch to a worker, or tell it that there are none; returns 1 or 0."""
        place, batch = next(batches, (0, None))
        message: _Message = (self._searches, place, batch, wish)
        with contextlib.suppress(BrokenPipeError):  # the worker has died; _receive tells
            pipe.send(message)
        return int(batch is not None)

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
    search = 0
    work = _Work(pipe, answers)
    while True:
        # What is left of a search that has failed is passed over.
        search, _, _, wish = work.first(after=search)
        try:
            for at, found in engine.search(work.batches(), *wish):
                answers.put((search, (work.places[at], found)))
        except MtkitError as error:
            answers.put((search, error))
        except Exception as error:  # goes to the parent, which raises it
            error.add_note(traceback.format_exc())
            answers.put((search, error))


class _Work:
    """What a worker is told, as the batches of one search after the other."""

    def __init__(self, pipe: Connection, answers: "queue.SimpleQueue[Any]") -> None:
        self._pipe = pipe
        self._answers = answers
        self._next: _Message | None = None
        self.places: list[int] = []

    def first(self, after: int) -> _Message:
        """The first message, which is left where it is, of a search later than that with the number `after`."""
        self.places = []
        while self._next is None or self._next[0] <= after or self._next[2] is None:
            self._next = self._received()
        return self._next

    def batches(self) -> Iterator[Batch]:
        """The batches of the search whose first message is next; notes their `places`."""
        assert self._next is not None
        search, place, batch, _ = self._next
        number = search
        while number == search and batch is not None:
            self.places.append(place)
            self._answers.put((search, None))  # asks for one more
            yield batch
            self._next = self._received()
            number, place, batch, _ = self._next

    def _received(self) -> _Message:
        """Waits for it; ends the process where there will be none."""
        try:
            message: _Message = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        return message


def _send_all(answers: "queue.SimpleQueue[Any]", pipe: Connection) -> None:
    while True:
        try:
            pipe.send(answers.get())
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # the parent is gone
