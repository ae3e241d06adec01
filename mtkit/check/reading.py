"""Corpora as blocks of raw lines, and single lines of them by number."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from mtkit.check.examine import Block
from mtkit.errors import DataError
from mtkit.files import BROKEN_ARCHIVE, open_binary, strip_line_end
from mtkit.sections.data import Corpus

_BLOCK_BYTES = 2**20


def paths_of(corpus: Corpus, root: Path) -> tuple[Path, ...]:
    """The files of a corpus: source and target, or one TSV file."""
    if corpus.tsv is not None:
        return (root / corpus.tsv,)
    assert corpus.source is not None
    assert corpus.target is not None
    return root / corpus.source, root / corpus.target


def blocks(number: int, corpus: Corpus, root: Path, most_bytes: int | None = None) -> Iterator[Block]:
    """Yield a corpus, the `number`-th of the check, in blocks of about a megabyte of source.

    Where one file ends before the other, the rest of the other comes with an empty partner. `most_bytes` of source end
    it early. Raises DataError for a file that is missing, unreadable or damaged.
    """
    with ExitStack() as stack:
        readers = [_Reader(path, stack) for path in paths_of(corpus, root)]
        line, taken = 1, 0
        while True:
            source = readers[0].block()
            if len(readers) == 1:
                target = None
            else:
                target = readers[1].lines(len(source)) if source else readers[1].block()
            count = max(len(source), len(target or ()))
            if not count:
                return
            yield Block(number, line, source, target)
            line += count
            taken += sum(map(len, source))
            if most_bytes is not None and taken >= most_bytes:
                return


class _Reader:
    """Raw lines of one file."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        file = stack.enter_context(open_binary(path))
        # Decompressors give small pieces; a buffer over them makes lines several times as quickly.
        plain = isinstance(file, io.BufferedReader)
        self._stream = file if plain else cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, file), _BLOCK_BYTES))
        self._taken = 0

    def block(self) -> list[bytes]:
        """The next lines, a megabyte of them; none at the end."""
        return self._read(lambda: self._stream.readlines(_BLOCK_BYTES))

    def lines(self, count: int) -> list[bytes]:
        """The next `count` lines, or those that are left."""
        return self._read(lambda: list(islice(self._stream, count)))

    def _read(self, read: Callable[[], list[bytes]]) -> list[bytes]:
        try:
            lines = read()
        except (*BROKEN_ARCHIVE, OSError) as error:
            raise DataError(
                f"{self._path}: the file is damaged, or not what its suffix says, after line {self._taken} ({error})",
                "unpack it with the tool that made it to see where it breaks, or fetch it again",
            ) from error
        self._taken += len(lines)
        return lines


def fetch(corpus: Corpus, root: Path, numbers: np.ndarray) -> dict[int, tuple[str, str]]:
    """The source and target of some lines, numbered from 1; reads the corpus once, up to the last of them.

    Bytes that are not UTF-8 come as U+FFFD, columns and lines that are not there as nothing.
    """
    wanted = np.unique(numbers)
    found: dict[int, tuple[str, str]] = {}
    if not len(wanted):
        return found
    for block in blocks(0, corpus, root):
        count = max(len(block.source), len(block.target or ()))
        begin, end = np.searchsorted(wanted, [block.first_line, block.first_line + count])
        for number in wanted[begin:end].tolist():
            found[number] = _pair(corpus, block, number)
        if end == len(wanted):
            break
    return found


def _pair(corpus: Corpus, block: Block, number: int) -> tuple[str, str]:
    place = number - block.first_line
    if block.target is not None:
        return _text(block.source, place, number), _text(block.target, place, number)
    columns = _text(block.source, place, number).split("\t")
    columns += [""] * max(corpus.source_column, corpus.target_column)
    return columns[corpus.source_column - 1], columns[corpus.target_column - 1]


def _text(lines: list[bytes], place: int, number: int) -> str:
    if place >= len(lines):
        return ""
    text = strip_line_end(lines[place]).decode("utf-8", "replace")
    return text.removeprefix("\ufeff") if number == 1 else text
