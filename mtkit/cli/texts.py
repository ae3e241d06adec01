"""Stdin line by line; whole texts for the commands that score; the language that a file's name tells."""

import io
import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from mtkit.errors import UsageError
from mtkit.files import decode_line, open_binary, read_byte_lines, read_lines, strip_line_end
from mtkit.lines import BadUtf8, LineReader

STDIN = "<stdin>"
_PATIENCE_SECONDS = 0.5


class _InTurns(io.RawIOBase):
    """A descriptor that is waited for in short turns, between which Python looks for signals.

    A read that begins just after a signal has come would sleep through it until there is something to read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what is there; 0 at the end."""
        while not select.select([self._descriptor], [], [], _PATIENCE_SECONDS)[0]:
            pass
        return os.readv(self._descriptor, [buffer])


def stdin_lines() -> Iterator[bytes]:
    """The lines of stdin without their LF, each as soon as it is there."""
    stream: Iterable[bytes] = sys.stdin.buffer
    # Elsewhere only sockets can be waited for; and another program may have put something else in the place of stdin.
    if os.name == "posix" and isinstance(sys.stdin.buffer, io.BufferedReader):
        stream = io.BufferedReader(_InTurns(sys.stdin.fileno()))
    return map(strip_line_end, stream)


def open_lines(name: str, bad_utf8: BadUtf8) -> LineReader:
    """The lines of a file, or of stdin where it is -. Raises DataError at once when there is no such file.

    A pipe is opened when its lines are read, once: closing it would turn its writer away.
    """
    if name == "-":
        return LineReader(stdin_lines(), STDIN, bad_utf8)
    if not Path(name).is_fifo():
        open_binary(name).close()
    return LineReader(read_byte_lines(name), name, bad_utf8)


def name_of(path: str) -> str:
    """What to call a text in messages and results."""
    return STDIN if path == "-" else path


def read_text(path: str) -> list[str]:
    """The lines of a file, or of stdin where it is -. Raises DataError when it is missing or not UTF-8."""
    return list(stream_text(path))


def stream_text(path: str) -> Iterator[str]:
    """The same, line by line."""
    if path != "-":
        yield from read_lines(path)
        return
    for number, line in enumerate(stdin_lines(), 1):
        yield decode_line(line, STDIN, number)


def refuse_two_stdins(paths: Sequence[str | None]) -> None:
    """Raise UsageError when stdin is asked for more than once."""
    if paths.count("-") > 1:
        raise UsageError("- is given twice, and there is one stdin", "give one of them as a file")


def language_of(paths: Sequence[str]) -> str | None:
    """The language in a file's suffix, as in test.zh or test.zh.gz; None unless it decides on a tokenizer."""
    from mtkit.metrics import has_own_tokenizer

    for path in paths:
        suffixes = PurePath(path).suffixes
        if suffixes and suffixes[-1] in (".gz", ".xz", ".bz2"):
            suffixes.pop()
        if suffixes and has_own_tokenizer(suffixes[-1][1:]):
            return suffixes[-1][1:]
    return None
