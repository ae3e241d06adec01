"""What SIGINT, SIGTERM and SIGHUP do: the first asks for a stop after the current update, the second stops at once.

SIGHUP comes when the terminal closes, or the connection to it breaks. Where it is ignored, as under nohup, it stays so.
"""

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
    """Turns the first of these signals inside a `with` into a wish, `received`; the second ends the process.

    A shell that puts a job into the background makes it ignore SIGINT; here it is obeyed all the same.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, *terminations()):
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
    """Inside, SIGTERM and SIGHUP unwind the stack, so that what is half-written is cleaned up; exit code 143 or 129."""

    def end(number: int, frame: FrameType | None) -> None:
        _end(number)

    try:
        before = {number: signal.signal(number, end) for number in terminations()}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def terminations() -> list[int]:
    """SIGTERM, and SIGHUP where the system has it and it is not ignored."""
    hangup = getattr(signal, "SIGHUP", None)
    return [signal.SIGTERM] + ([] if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN else [hangup])


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
