"""Whole texts for the commands that score: files or stdin, and the language that a file's name tells."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from mtkit.errors import UsageError
from mtkit.files import decode_line, read_lines, strip_line_end

STDIN = "<stdin>"


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
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield decode_line(strip_line_end(line), STDIN, number)


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
