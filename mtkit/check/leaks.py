"""Validation and test sentences that occur in training."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mtkit.check.examine import NOTHING, BlockFacts, SideFacts, pair_hashes
from mtkit.check.facts import CorpusFacts
from mtkit.lines import EXAMPLES

FORMS = ("exact", "loose")
WHATS = ("pair", "source", "target")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Line `line` of a held-out corpus stands in line `train_line` of training corpus number `train_corpus`."""

    line: int
    train_corpus: int
    train_line: int


@dataclass(slots=True)
class Leak:
    """How many lines of one held-out corpus occur in training, and the first few.

    `what` is pair, source or target; `form` is exact (equal as the model reads them) or loose (equal but for case,
    punctuation and spaces; exact ones included).
    """

    held_out: CorpusFacts
    what: str
    form: str
    count: int = 0
    examples: list[Occurrence] = field(default_factory=list)


class _Needles:
    """Hashes to look for, and where each was first found."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.hashes = hashes
        self.values = np.unique(hashes[hashes != NOTHING])
        self.corpus = np.full(len(self.values), -1, dtype=np.int32)
        self.line = np.zeros(len(self.values), dtype=np.int64)

    def look(self, hashes: np.ndarray, corpus: int, first_line: int) -> None:
        """Look through the lines of a block; changes the needles."""
        if not len(self.values) or not len(hashes):
            return
        places = np.minimum(np.searchsorted(self.values, hashes), len(self.values) - 1)
        rows = np.flatnonzero(self.values[places] == hashes)
        rows = rows[self.corpus[places[rows]] < 0]
        chosen = rows[np.unique(places[rows], return_index=True)[1]]
        self.corpus[places[chosen]] = corpus
        self.line[places[chosen]] = first_line + chosen

    def leak(self, leak: Leak) -> Leak:
        """Count the held-out lines that were found; changes `leak` and returns it."""
        if not len(self.values):
            return leak
        places = np.minimum(np.searchsorted(self.values, self.hashes), len(self.values) - 1)
        found = (self.values[places] == self.hashes) & (self.corpus[places] >= 0)
        lines = np.flatnonzero(found)
        leak.count = len(lines)
        leak.examples = [
            Occurrence(line + 1, int(self.corpus[places[line]]), int(self.line[places[line]]))
            for line in lines[:EXAMPLES].tolist()
        ]
        return leak


class LeakFinder:
    """Looks through training blocks, which come in order, for the lines of held-out corpora."""

    def __init__(self, held_out: Sequence[CorpusFacts]) -> None:
        self._needles = [
            (facts, {(what, form): _Needles(_hashes(facts, what, form)) for what in WHATS for form in FORMS})
            for facts in held_out
        ]

    def look(self, block: BlockFacts) -> None:
        """Take the next block of training text; changes the finder."""
        hashes = {(what, form): _block_hashes(block, what, form) for what in WHATS for form in FORMS}
        for _, needles in self._needles:
            for key, one in needles.items():
                one.look(hashes[key], block.corpus, block.first_line)

    def leaks(self) -> list[Leak]:
        """One for each held-out corpus, what and form, found or not."""
        return [one.leak(Leak(facts, *key)) for facts, needles in self._needles for key, one in needles.items()]


def _hashes(facts: CorpusFacts, what: str, form: str) -> np.ndarray:
    source, target = (getattr(side, form)[: facts.pairs] for side in (facts.source, facts.target))
    return pair_hashes(source, target) if what == "pair" else source if what == "source" else target


def _block_hashes(block: BlockFacts, what: str, form: str) -> np.ndarray:
    sides: tuple[SideFacts, SideFacts] = (block.source, block.target)
    pairs = min(len(side.exact) for side in sides)
    source, target = (getattr(side, form)[:pairs] for side in sides)
    return pair_hashes(source, target) if what == "pair" else source if what == "source" else target
