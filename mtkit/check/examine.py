"""One look at a stretch of a corpus: counts of what is odd, lengths and hashes. The work of the checking processes."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mtkit.check.scripts import WrongScript
from mtkit.lines import Occurrences
from mtkit.text.normalize import normalize

NOTHING = 0
"""The hash of text without a letter or digit (loose), or of blank text (exact): such lines are compared with none."""

KINDS = {
    "bad_utf8": "bytes that are not UTF-8",
    "utf16": "the byte order mark of UTF-16",
    "columns": "too few tab-separated columns",
    "crlf": "CRLF line ends",
    "control": "control characters or unusual line separators",
    "replacement": "U+FFFD, the sign of a character that an earlier conversion lost",
    "mojibake": "UTF-8 that was read as Latin-1, such as Ã¤ or â€™",
    "empty": "empty",
    "blank": "white space only",
    "script": "mostly in another script",
    "tags": "HTML or XML tags",
    "entities": "HTML entities, such as &amp;",
    "markup": "wiki or forum markup",
    "tokenized": "marks of a tokenizer, such as @-@, @@ or ▁",
}
"""What is counted of each side, with its meaning."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_PATTERNS = {
    "replacement": re.compile("\ufffd"),
    "mojibake": re.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac|\u00e2\u0080"),
    "tags": re.compile(r"</?[A-Za-z][\w:-]*(?:\s+[\w:-]+\s*(?:=[^<>]*)?|\s*/)?>|<!--|<!\[CDATA\["),
    "entities": re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[\da-fA-F]{1,6});"),
    "markup": re.compile(r"\[\[[^\]\n]+\]\]|\{\{[^}\n]+\}\}|\[/?(?:b|i|u|url|img|quote|code)(?:=[^\]\n]*)?\]"),
    "tokenized": re.compile("@-@|@@ |\u2581"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of one corpus, as read, line ends included. `target` is None for a TSV file.

    The sides may be of unequal length where the files are.
    """

    corpus: int
    first_line: int
    source: list[bytes]
    target: list[bytes] | None


@dataclass(slots=True)
class SideFacts:
    """One side of a block. `characters` are lengths of normalised lines; `exact` and `loose` are their hashes."""

    tallies: dict[str, Occurrences]
    words: int
    bytes: int
    characters: np.ndarray
    exact: np.ndarray
    loose: np.ndarray

    def tally(self, kind: str, line: int) -> None:
        """Count one line of a kind; changes the facts."""
        self.tallies.setdefault(kind, Occurrences()).add(line)


@dataclass(slots=True)
class BlockFacts:
    """All that is kept of a block; arrays have a row a line."""

    corpus: int
    first_line: int
    source: SideFacts
    target: SideFacts
    columns: Occurrences


@dataclass(frozen=True, slots=True)
class CorpusForm:
    """What a process has to know of a corpus: columns of a TSV file (0 where there is none), and symbols that are no
    markup, but text to be kept."""

    source_column: int = 0
    target_column: int = 0
    symbols: tuple[str, ...] = ()


class Examiner:
    """Turns blocks into facts; can be pickled."""

    def __init__(
        self,
        forms: Sequence[CorpusForm],
        source_scripts: frozenset[str] | None,
        target_scripts: frozenset[str] | None,
    ) -> None:
        """`forms` has one entry a corpus. Without scripts, those of a side are not looked at."""
        self._forms = list(forms)
        self._source = WrongScript(source_scripts) if source_scripts else None
        self._target = WrongScript(target_scripts) if target_scripts else None

    def __call__(self, block: Block) -> BlockFacts:
        """The facts of a block; the same in every process."""
        form = self._forms[block.corpus]
        columns = Occurrences()
        if block.target is None:
            source, target = _split(block, form, columns)
        else:
            source, target = block.source, block.target
        return BlockFacts(
            block.corpus,
            block.first_line,
            _examine(source, block.first_line, self._source, form.symbols),
            _examine(target, block.first_line, self._target, form.symbols),
            columns,
        )


def _split(block: Block, form: CorpusForm, columns: Occurrences) -> tuple[list[bytes], list[bytes]]:
    """The two columns of a TSV file; lines with too few are counted, and count as empty."""
    needed = max(form.source_column, form.target_column)
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    for number, line in enumerate(block.source, block.first_line):
        end = b"\r\n" if line.endswith(b"\r\n") else b"\n"
        parts = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
        if len(parts) < needed:
            columns.add(number)
            parts += [b""] * needed
        sides[0].append(parts[form.source_column - 1] + end)
        sides[1].append(parts[form.target_column - 1] + end)
    return sides


def _examine(
    raw: Sequence[bytes], first_line: int, wrong_script: WrongScript | None, symbols: Sequence[str]
) -> SideFacts:
    """One side of a block."""
    facts = SideFacts({}, 0, sum(map(len, raw)), *(np.empty(0, dtype) for dtype in ("<i4", "<u8", "<u8")))
    lines = [line.removesuffix(b"\n") for line in raw]
    if any(line.endswith(b"\r") for line in lines):
        lines = _without_cr(lines, first_line, facts)
    texts = _decoded(lines, first_line, facts)
    if first_line == 1 and lines and lines[0].startswith((b"\xff\xfe", b"\xfe\xff")):
        facts.tally("utf16", 1)
    if first_line == 1 and texts:
        texts[0] = texts[0].removeprefix("\ufeff")
    _search(texts, first_line, facts, symbols)
    normal = [normalize(text) for text in texts]
    for number, (text, norm) in enumerate(zip(texts, normal, strict=True), first_line):
        if not norm:
            facts.tally("blank" if text else "empty", number)
        elif wrong_script is not None and wrong_script(norm):
            facts.tally("script", number)
    facts.words = sum(norm.count(" ") + 1 for norm in normal if norm)
    facts.characters = np.fromiter(map(len, normal), dtype="<i4", count=len(normal))
    facts.exact = hashes(normal)
    facts.loose = hashes(norm.translate(_LOOSE) for norm in normal)
    return facts


def _without_cr(lines: list[bytes], first_line: int, facts: SideFacts) -> list[bytes]:
    """The lines without the CR of a CRLF, counted."""
    stripped = []
    for number, line in enumerate(lines, first_line):
        if line.endswith(b"\r"):
            facts.tally("crlf", number)
            line = line[:-1]
        stripped.append(line)
    return stripped


def _decoded(lines: list[bytes], first_line: int, facts: SideFacts) -> list[str]:
    """The lines as text; those that are not UTF-8 are counted."""
    try:
        return b"\n".join(lines).decode("utf-8").split("\n") if lines else []
    except UnicodeDecodeError:
        texts = []
        for number, line in enumerate(lines, first_line):
            try:
                texts.append(line.decode("utf-8"))
            except UnicodeDecodeError:
                facts.tally("bad_utf8", number)
                texts.append(line.decode("utf-8", "ignore"))
        return texts


def _search(texts: list[str], first_line: int, facts: SideFacts, symbols: Sequence[str]) -> None:
    """Count the lines that hold control characters or anything of `_PATTERNS`.

    Blocks without any are the rule, so the whole is searched first.
    """
    whole = "\n".join(texts)
    for kind, pattern in (("control", _CONTROL), *_PATTERNS.items()):
        if not pattern.search(whole):
            continue
        for number, text in enumerate(texts, first_line):
            if kind == "tags":
                for symbol in symbols:
                    text = text.replace(symbol, " ")
            if pattern.search(text):
                facts.tally(kind, number)


class _LooseTable(dict[int, str | None]):
    """For str.translate: letters, marks and digits in compatible, caseless form; nothing else."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kept = unicodedata.category(character)[0] in "LMN"
        form = unicodedata.normalize("NFKC", character).casefold() if kept else None
        self[code] = form
        return form


_LOOSE = _LooseTable()


def loose_form(text: str) -> str:
    """What two lines have in common that differ in case, punctuation, spaces and compatibility characters alone.

    >>> loose_form("“Wait…” (she said)")
    'waitshesaid'
    """
    return normalize(text).translate(_LOOSE)


def hashes(texts: Iterable[str]) -> np.ndarray:
    """64-bit BLAKE2b hashes of texts, `NOTHING` for empty ones.

    Of 10 million different lines two are taken for equal with a probability of 3 in a million.
    """
    digests = b"".join(
        hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest() if text else bytes(8) for text in texts
    )
    return np.frombuffer(digests, dtype="<u8")


def pair_hashes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Hashes of pairs from those of their sides; `NOTHING` where a side has nothing."""
    with np.errstate(over="ignore"):
        mixed = source * np.uint64(0x9E3779B97F4A7C15) ^ (target + (source >> np.uint64(29)))
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.where((source == NOTHING) | (target == NOTHING), np.uint64(NOTHING), mixed | np.uint64(1))
