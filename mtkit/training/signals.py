"""What SIGINT and SIGTERM do: the first asks for a stop after the current update, the second stops at once."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)


class Signals:
    """Turns the first SIGINT or SIGTERM inside a `with` into a wish, `received`; the second ends the process.

    A shell that puts a job into the background makes it ignore SIGINT; here it is obeyed all the same.
    """

    def __init__(self) -> None:
        self.received: int | None = None
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
        if self.received is not None:
            _end(number)
        self.received = number
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
