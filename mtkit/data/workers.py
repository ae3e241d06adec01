"""Work on chunks in several processes, results in order.

The processes are plain Python children that speak pickle over their pipes. Unlike multiprocessing's spawn they do not
run the caller's script again, and unlike its fork they do not copy a process that may hold threads and a GPU. Each has
at most one chunk in hand: memory stays bounded by the number of processes, and neither end can wait for the other with
a full pipe, for a child reads a whole chunk before it works and the parent takes its answer before it sends the next.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import mtkit
from mtkit.errors import DataError

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_CHILD = "from mtkit.data.workers import serve; serve()"


def encode_all(chunks: Iterator[Question], encoder: Callable[[Question], Answer], workers: int) -> Iterator[Answer]:
    """Yield `encoder(chunk)` for each chunk, in order, computed by `workers` processes (1: in this one).

    The encoder, for example a `mtkit.data.encode.Encoder`, can be pickled, as can chunks and answers. Closing the
    iterator, or an error, ends the processes. Raises what the encoder raises, and DataError when a process is killed.
    """
    if workers == 1:
        yield from map(encoder, chunks)
        return
    children: list[subprocess.Popen[bytes]] = []
    busy: deque[subprocess.Popen[bytes]] = deque()
    try:
        for chunk in chunks:
            if len(children) < workers:
                child = _start(encoder)
                children.append(child)
            else:
                child = busy.popleft()
                yield _receive(child)
            _send(child, chunk)
            busy.append(child)
        while busy:
            yield _receive(busy.popleft())
        for child in children:
            child.communicate()  # closes its stdin, which ends it
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
                child.communicate()


def serve() -> None:
    """The life of a child: an encoder, then chunks, from stdin; answers to stdout; ends when stdin does."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed must not mix with the answers
    encoder: Callable[[Any], Any] = pickle.load(questions)
    while True:
        try:
            chunk = pickle.load(questions)
        except EOFError:
            return
        try:
            answer: Any = encoder(chunk)
        except Exception as error:  # goes to the parent, which raises it
            error.add_note(traceback.format_exc())
            answer = error
        try:
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent is gone; nobody is left to hear about it


def _start(encoder: Callable[[Any], Any]) -> subprocess.Popen[bytes]:
    package = str(Path(mtkit.__file__).parent.parent)
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH")) if part)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # a Ctrl-C at the terminal is the parent's business
    )
    _send(child, encoder)
    return child


def _send(child: subprocess.Popen[bytes], message: Any) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the child has died; _receive tells how
        pickle.dump(message, child.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        child.stdin.flush()


def _receive(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    try:
        answer = pickle.load(child.stdout)
    except (EOFError, pickle.UnpicklingError):
        code = child.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise DataError(
            f"a process that encodes text ended early ({how})",
            "it may have run out of memory; try fewer processes, for example --workers 1",
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer
