"""What a whole corpus shows: the facts of its blocks added up, repetitions, lengths that stand out."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtkit.check.examine import NOTHING, BlockFacts, SideFacts, pair_hashes
from mtkit.check.slips import Slip, correlation, find_slips
from mtkit.errors import DataError
from mtkit.lines import EXAMPLES, Occurrences
from mtkit.sections.data import Corpus

LONG_TIMES, LONG_CHARACTERS = 10, 200
"""A line stands out by its length when it is longer than so many medians of its side, and than so many characters."""
RATIO_SPREADS, RATIO_TIMES = 6, 2
"""A pair stands out by its ratio when that is so many robust standard deviations (of (t - cs) / sqrt(t + cs), Gale and
Church 1993, c being the corpus's own ratio) and more than so many times off."""


@dataclass(slots=True)
class Side:
    """One side of a corpus. `characters` and `exact` have a row a line; `loose` only where it is kept."""

    words: int = 0
    bytes: int = 0
    tallies: dict[str, Occurrences] = field(default_factory=dict)
    characters: np.ndarray = field(default_factory=lambda: np.empty(0, "<i4"))
    exact: np.ndarray = field(default_factory=lambda: np.empty(0, "<u8"))
    loose: np.ndarray = field(default_factory=lambda: np.empty(0, "<u8"))
    _parts: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return len(self.characters)

    def count(self, kind: str) -> int:
        """How many lines are of a kind."""
        return self.tallies[kind].count if kind in self.tallies else 0

    def add(self, facts: SideFacts, keep_loose: bool) -> None:
        """Take the facts of the next block; changes the side."""
        self.words += facts.words
        self.bytes += facts.bytes
        for kind, tally in facts.tallies.items():
            self.tallies.setdefault(kind, Occurrences()).merge(tally)
        self._parts.append((facts.characters, facts.exact, *((facts.loose,) if keep_loose else ())))

    def close(self) -> None:
        """Join the arrays; changes the side. A second call does nothing."""
        if not self._parts:
            return
        arrays = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        self._parts.clear()
        for name, array in zip(("characters", "exact", "loose"), arrays, strict=False):
            setattr(self, name, array)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the lines of a side that are not blank, in characters of normalised text."""

    median: float
    percentile_99: float
    longest: int
    mean: float

    @classmethod
    def of(cls, characters: np.ndarray) -> "Lengths":
        """Those of some lines; zeros where all are blank."""
        real = characters[characters > 0]
        if not len(real):
            return cls(0.0, 0.0, 0, 0.0)
        median, high = np.percentile(real, [50, 99])
        return cls(float(median), float(high), int(real.max()), float(real.mean()))


@dataclass(frozen=True, slots=True)
class Repeats:
    """Lines that came before: how many, which (a bit a line), and a few of them with the line they repeat."""

    count: int
    mask: np.ndarray
    examples: list[tuple[int, int]]


def find_repeats(hashes: np.ndarray) -> Repeats:
    """Which lines have the hash of an earlier one; lines of nothing repeat nothing."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NOTHING)
    mask = np.zeros(len(hashes), dtype=bool)
    mask[order[1:][again]] = True
    lines = np.flatnonzero(mask)
    examples = []
    for line in lines[:EXAMPLES].tolist():
        first = order[np.searchsorted(ordered, hashes[line])]
        examples.append((line + 1, int(first) + 1))
    return Repeats(len(lines), mask, examples)


@dataclass(slots=True)
class CorpusFacts:
    """All that reading a corpus told. `part` is train, valid, test, or pair; `error` says why it could not be read."""

    part: str
    corpus: Corpus
    root: Path
    source: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)
    columns: Occurrences = field(default_factory=Occurrences)
    identical: Occurrences = field(default_factory=Occurrences)
    half_blank: Occurrences = field(default_factory=Occurrences)
    whole: bool = True
    error: DataError | None = None
    duplicates: Repeats | None = None
    repeated_sources: Repeats | None = None
    repeated_targets: Repeats | None = None
    long_source: Occurrences = field(default_factory=Occurrences)
    long_target: Occurrences = field(default_factory=Occurrences)
    ratio: Occurrences = field(default_factory=Occurrences)
    slips: list[Slip] = field(default_factory=list)
    correlation: float = 0.0
    ratio_of_lengths: float = 0.0
    """Target characters a source character."""

    @property
    def name(self) -> str:
        """The corpus in messages."""
        return self.corpus.name if self.part == "pair" else f"{self.part} {self.corpus.name}"

    @property
    def pairs(self) -> int:
        """Lines that both sides have."""
        return min(self.source.lines, self.target.lines)

    @property
    def usable(self) -> bool:
        """Whether training could read it: no error, equal counts, all of it UTF-8 with the columns that are needed."""
        return (
            self.error is None
            and self.source.lines == self.target.lines > 0
            and not (self.columns.count or self.source.count("bad_utf8") or self.target.count("bad_utf8"))
        )

    def add(self, block: BlockFacts) -> None:
        """Take the facts of the next block; changes the corpus."""
        keep_loose = self.part in ("valid", "test")
        source, target = block.source, block.target
        self.source.add(source, keep_loose)
        self.target.add(target, keep_loose)
        self.columns.merge(block.columns)
        pairs = min(len(source.exact), len(target.exact))
        ours, theirs = source.exact[:pairs], target.exact[:pairs]
        self.identical.merge(_tally((ours == theirs) & (ours != NOTHING), block.first_line))
        self.half_blank.merge(_tally((ours == NOTHING) != (theirs == NOTHING), block.first_line))

    def close(self) -> None:
        """Join what the blocks told, and find what takes the whole corpus; changes the corpus, once."""
        if self.duplicates is not None:
            return
        self.source.close()
        self.target.close()
        if not self.pairs:
            return
        source, target = self.source.exact[: self.pairs], self.target.exact[: self.pairs]
        self.duplicates = find_repeats(pair_hashes(source, target))
        self.repeated_sources, self.repeated_targets = find_repeats(source), find_repeats(target)
        self._find_outliers()
        self.correlation = correlation(self.source.characters, self.target.characters)
        if self.whole or self.source.lines == self.target.lines:
            self.slips = find_slips(self.source.characters, self.target.characters)

    def _find_outliers(self) -> None:
        source, target = (side.characters[: self.pairs] for side in (self.source, self.target))
        self.long_source = _tally(source > _longest_usual(source))
        self.long_target = _tally(target > _longest_usual(target))
        both = (source > 0) & (target > 0)
        if not both.any():
            return
        self.ratio_of_lengths = float(target[both].sum(dtype=np.int64) / source[both].sum(dtype=np.int64))
        expected, real = source * np.float32(self.ratio_of_lengths), target.astype(np.float32)
        z = (real - expected) / np.sqrt(real + expected + 1)
        middle = np.median(z[both])
        spread = max(0.5, 1.4826 * float(np.median(np.abs(z[both] - middle))))
        times = np.maximum((real + 1) / (expected + 1), (expected + 1) / (real + 1))
        odd = both & (np.abs(z - middle) > RATIO_SPREADS * spread) & (times > RATIO_TIMES)
        self.ratio = _tally(odd)


def _longest_usual(characters: np.ndarray) -> float:
    """The length above which a line stands out."""
    real = characters[characters > 0]
    return max(LONG_CHARACTERS, LONG_TIMES * float(np.median(real))) if len(real) else LONG_CHARACTERS


def _tally(which: np.ndarray, first_line: int = 1) -> Occurrences:
    """The lines at which an array is true."""
    lines = np.flatnonzero(which)
    return Occurrences(len(lines), (lines[:EXAMPLES] + first_line).tolist())
