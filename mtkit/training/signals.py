"""What SIGINT and SIGTERM do: the first asks for a stop after the current update, the second stops at once."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

ECHO = 5.0
"""Seconds. A scheduler may signal every process of a job, and torchrun hands on the signal that it has had itself: what
a process that torchrun has started receives so soon after the first is that one once more, and not a second one."""


class Signals:
    """Turns the first SIGINT or SIGTERM inside a `with` into a wish, `received`; the second ends the process.

    A shell that puts a job into the background makes it ignore SIGINT; here it is obeyed all the same.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:
                log.debug("not in the main thread: signals keep their handlers")
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is not None:
            if "TORCHELASTIC_RUN_ID" in os.environ and now - self._since < ECHO:
                return
            _end(number)
        self.received, self._since = number, now
        log.warning("%s: finishing the update and saving; once more stops at once", signal.Signals(number).name)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGTERM unwinds the stack, so that what is half-written is cleaned up, and exits with code 143."""

    def end(number: int, frame: FrameType | None) -> None:
        _end(number)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
