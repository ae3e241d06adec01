"""Whether an export translates as its model does: both answer the same lines, and are compared."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtkit.data.corpus import read_pairs
from mtkit.errors import DataError
from mtkit.files import read_lines
from mtkit.recipe import Recipe
from mtkit.sections.search import Search
from mtkit.translator import Translator


@dataclass(frozen=True, slots=True)
class Answer:
    """The best translation of a line, its score by the search's own formula, and its length in tokens."""

    text: str
    score: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two engines compare on the same lines; differences of score are over identical translations.

    Speeds are target tokens a second, model in memory.
    """

    lines: int
    identical: int
    largest_difference: float
    speeds: tuple[float, float]

    @property
    def share(self) -> float:
        """The share of lines with one translation."""
        return self.identical / max(1, self.lines)

    def __str__(self) -> str:
        return (
            f"{self.identical:,} of {self.lines:,} lines identical ({self.share:.1%}), largest score difference "
            f"{self.largest_difference:.2g}"
        )


def verification_lines(recipe: Recipe, file: Path | None, count: int) -> tuple[str, list[str]]:
    """Where the lines come from, in words, and the first `count` of them that are not blank.

    From `file`, or else from the recipe's first validation corpus. Raises DataError when there is none to be reached.
    """
    if file is not None:
        return str(file), list(islice((line for line in read_lines(file) if line.strip()), count))
    if not recipe.data.valid:
        raise DataError("the model's recipe has no validation corpus", "give lines to verify on: --verify FILE")
    corpus = recipe.data.valid[0]
    pairs = read_pairs(corpus, Path(recipe.data.root))
    name = corpus.source or corpus.tsv
    return f"{Path(recipe.data.root) / str(name)}", list(
        islice((pair.source for pair in pairs if pair.source.strip()), count)
    )


def answers(translator: Translator, lines: Sequence[str], search: Search) -> list[Answer]:
    """What a translator says."""
    return [
        Answer(one.text, one.hypotheses[0].score, one.hypotheses[0].length)
        for one in translator.translate_stream(lines, search)
    ]


def compare(first: Callable[[], list[Answer]], second: Callable[[], list[Answer]]) -> Agreement:
    """Ask both, and measure how long each takes."""
    replies, speeds = [], []
    for ask in (first, second):
        began = time.perf_counter()
        replies.append(ask())
        speeds.append(sum(one.tokens for one in replies[-1]) / max(1e-9, time.perf_counter() - began))
    same = [(one, other) for one, other in zip(*replies, strict=True) if one.text == other.text]
    largest = max((abs(one.score - other.score) for one, other in same), default=0.0)
    return Agreement(len(replies[0]), len(same), largest, (speeds[0], speeds[1]))
