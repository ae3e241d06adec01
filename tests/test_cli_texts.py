"""Stdin as lines: each as soon as it is there, by LF alone, and no signal is slept through."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from mtkit.cli.texts import stdin_lines


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[IO[bytes]]:
    """The writing end of a pipe of which stdin is the other."""
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="ascii") as stdin, os.fdopen(writing, "wb", buffering=0) as stream:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield stream


def test_a_line_comes_as_soon_as_it_is_there(pipe: IO[bytes]) -> None:
    lines = stdin_lines()
    pipe.write(b"one\ntwo\r\nthr")
    assert [next(lines), next(lines)] == [b"one", b"two"]
    pipe.write(b"ee\n\n" + b"x" * 40_000 + b"\x0b\r\xc2\x85\nlast\r")
    assert [next(lines), next(lines), next(lines)] == [b"three", b"", b"x" * 40_000 + b"\x0b\r\xc2\x85"]
    pipe.close()
    assert list(lines) == [b"last\r"]


def test_a_signal_that_interrupts_no_read_is_obeyed(pipe: IO[bytes]) -> None:
    """A Ctrl-C in the moment before `translate --interactive` began to wait for its first line left it waiting.

    Here the signal comes to another thread, so it interrupts nothing in this one at all.
    """
    over, late = threading.Event(), []

    def interrupt() -> None:
        over.wait(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not over.wait(10):
            late.append(pipe.write(b"so that it wakes\n"))

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            next(stdin_lines())
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        thread.join()
    assert not late
