"""Parallel corpora as pairs of sentences: two aligned files or one TSV, plain or compressed, checked before use."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from mtkit.data.progress import bar
from mtkit.errors import DataError
from mtkit.files import BROKEN_ARCHIVE, decode_line, open_binary, read_byte_lines, read_lines
from mtkit.sections.data import Corpus

_BLOCK = 4 * 2**20  # bytes read at a time to check a file


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, as written, and the number of their line, counted from 1."""

    source: str
    target: str
    line_number: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What one reading of a corpus told: how many pairs it holds, and a hash of each side's text.

    The hash is SHA-256 of the lines as mtkit reads them, each with an LF: compression, CRLF, a byte order mark and a
    missing last LF make no difference to it.
    """

    name: str
    pairs: int
    source_sha256: str
    target_sha256: str


def read_pairs(corpus: Corpus, root: Path) -> Iterator[Pair]:
    """Yield the pairs of a corpus in order; memory holds one line at a time.

    Raises DataError for a missing or damaged file, bytes that are not UTF-8 (file and line), files of unequal line
    counts (both counts) and TSV rows with too few columns.
    """
    if corpus.tsv is not None:
        path = root / corpus.tsv
        for number, line in enumerate(read_lines(path), 1):
            source, target = _columns(corpus, path, number, line)
            yield Pair(source, target, number)
        return
    source_path, target_path = _paths(corpus, root)
    lines = zip_longest(read_byte_lines(source_path), read_byte_lines(target_path))
    for number, (source_line, target_line) in enumerate(lines, 1):
        if source_line is None or target_line is None:
            raise _unequal(corpus, source_path, target_path)
        yield Pair(decode_line(source_line, source_path, number), decode_line(target_line, target_path, number), number)


def read_side(corpus: Corpus, root: Path, side: str) -> Iterator[str]:
    """Yield the sentences of one side ("source" or "target") in order, without reading the other file."""
    assert side in ("source", "target")
    if corpus.tsv is not None:
        for pair in read_pairs(corpus, root):
            yield pair.source if side == "source" else pair.target
    else:
        source_path, target_path = _paths(corpus, root)
        yield from read_lines(source_path if side == "source" else target_path)


def inspect_corpus(corpus: Corpus, root: Path, tick: Callable[[int], object] = lambda pairs: None) -> Inspection:
    """Read a whole corpus once, check it, and say what it holds. `tick` is called with a number of pairs, now and then.

    Raises DataError as `read_pairs` does, and when there is no line at all.
    """
    if corpus.tsv is None:
        source_path, target_path = _paths(corpus, root)
        one, other = _scan(source_path, tick), _scan(target_path, lambda lines: None)
        if one and other and one[0] == other[0] > 0:
            return Inspection(corpus.name, one[0], one[1], other[1])
    # A table of columns; or something is wrong, and reading line by line tells what and where.
    source, target = hashlib.sha256(), hashlib.sha256()
    count = 0
    for pair in read_pairs(corpus, root):
        source.update(pair.source.encode("utf-8") + b"\n")
        target.update(pair.target.encode("utf-8") + b"\n")
        count += 1
        tick(1)
    if not count:
        where = " and ".join(str(path) for path in _all_paths(corpus, root))
        raise DataError(f"corpus {corpus.name}: {where} holds no line", "is this the right file?")
    return Inspection(corpus.name, count, source.hexdigest(), target.hexdigest())


def _scan(path: Path, tick: Callable[[int], object]) -> tuple[int, str] | None:
    """The lines of a file and a hash of them, as `Inspection` defines it, read in large blocks.

    None where something is wrong with it.
    """
    content, lines = hashlib.sha256(), 0
    try:
        for number, block in enumerate(_blocks(path)):
            text = block.replace(b"\r\n", b"\n") if b"\r\n" in block else block
            if number == 0:
                text = text.removeprefix(b"\xef\xbb\xbf")
            text.decode("utf-8")
            content.update(text)
            count = text.count(b"\n")
            if not text.endswith(b"\n"):  # the last line of the file
                content.update(b"\n")
                count += 1
            lines += count
            tick(count)
    except (UnicodeDecodeError, *BROKEN_ARCHIVE, OSError):
        return None
    return lines, content.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file in blocks of whole lines; only the last may lack its LF."""
    rest: list[bytes] = []
    with open_binary(path) as stream:
        while block := stream.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join((*rest, block[:end]))
                rest = []
            rest.append(block[end:])
    if last := b"".join(rest):
        yield last


def inspect_corpora(corpora: Iterable[Corpus], root: Path) -> list[Inspection]:
    """Read and check corpora, with a progress bar. Missing files are found before any is read.

    Raises DataError as `inspect_corpus` does.
    """
    corpora = list(corpora)
    check_files(corpora, root)
    with bar("checking") as progress:
        return [inspect_corpus(corpus, root, progress.update) for corpus in corpora]


def check_corpora(corpora: Iterable[Corpus], root: Path) -> list[int]:
    """The number of pairs in each corpus, once all are checked as by `inspect_corpora`."""
    return [inspection.pairs for inspection in inspect_corpora(corpora, root)]


def check_files(corpora: Iterable[Corpus], root: Path) -> None:
    """Raises DataError naming every file of the corpora that does not exist."""
    missing = [(corpus, path) for corpus in corpora for path in _all_paths(corpus, root) if not path.is_file()]
    if missing:
        names = "; ".join(f"corpus {corpus.name}: {path}" for corpus, path in missing)
        raise DataError(
            f"no such file: {names}",
            f"paths start at data.root, which is {root}; `mtkit fetch RECIPE` brings the recipe's public corpora",
        )


def _paths(corpus: Corpus, root: Path) -> tuple[Path, Path]:
    assert corpus.source is not None
    assert corpus.target is not None
    return root / corpus.source, root / corpus.target


def _all_paths(corpus: Corpus, root: Path) -> tuple[Path, ...]:
    return (root / corpus.tsv,) if corpus.tsv is not None else _paths(corpus, root)


def _columns(corpus: Corpus, path: Path, number: int, line: str) -> tuple[str, str]:
    columns = line.split("\t")
    needed = max(corpus.source_column, corpus.target_column)
    if len(columns) < needed:
        raise DataError(
            f"{path}:{number}: has {len(columns)} tab-separated columns, corpus {corpus.name} needs column {needed}",
            "check source_column and target_column, and that columns are separated by tabs",
        )
    return columns[corpus.source_column - 1], columns[corpus.target_column - 1]


def _unequal(corpus: Corpus, source_path: Path, target_path: Path) -> DataError:
    """The error for files of unequal line counts: both counts, and where they seem to part."""
    source_lines, source_bytes = _measure(source_path)
    target_lines, target_bytes = _measure(target_path)
    typical = (
        math.log(source_bytes / source_lines * target_lines / target_bytes) if source_bytes and target_bytes else 0
    )
    line = first_shifted_line(source_path, target_path, source_lines - target_lines, typical)
    return DataError(
        f"corpus {corpus.name}: {source_path} has {source_lines} lines, {target_path} has {target_lines}; "
        f"the first pair that looks shifted is line {line}",
        "the lines of the two files must be translations of each other, one to one",
    )


def _measure(path: Path) -> tuple[int, int]:
    """Lines of a file, and bytes without line ends."""
    lines = size = 0
    for line in read_byte_lines(path):
        lines += 1
        size += len(line)
    return lines, size


def first_shifted_line(source_path: Path, target_path: Path, surplus: int, typical: float) -> int:
    """The likeliest line at which `surplus` lines stand on the source side only (negative: on the target side).

    Judged by lengths alone: before the line, pairs are taken as they stand, from it on with one side moved by the
    surplus, and the line is where the sum of |log(source bytes / target bytes) - typical| is least. A guess for the
    error message, good to some ten lines when one block is missing. Reads both files twice at once.
    """

    def oddities(source_skip: int, target_skip: int) -> Iterator[float]:
        lines = zip(
            islice(read_byte_lines(source_path), source_skip, None),
            islice(read_byte_lines(target_path), target_skip, None),
            strict=False,
        )
        for source, target in lines:
            yield abs(math.log((len(source) + 1) / (len(target) + 1)) - typical)

    best_line, best, balance = 1, 0.0, 0.0
    both = zip(oddities(0, 0), oddities(max(0, surplus), max(0, -surplus)), strict=False)
    for line, (straight, moved) in enumerate(both, 1):
        balance += straight - moved
        if balance < best:
            best_line, best = line + 1, balance
    return best_line
