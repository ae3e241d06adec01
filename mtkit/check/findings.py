"""What a check has to say: errors that stand in the way of a run, and warnings, each with its remedy and examples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mtkit.check.facts import CorpusFacts
from mtkit.check.reading import fetch

_MOST_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a corpus, and the side of it that matters (None: both)."""

    facts: CorpusFacts
    line: int
    side: str | None = None
    remark: str = ""


@dataclass(slots=True)
class Example:
    """A line to show: where it is, and its text, cut where it is long."""

    corpus: str
    line: int
    text: str
    remark: str

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values."""
        return {"corpus": self.corpus, "line": self.line, "text": self.text, "remark": self.remark}


@dataclass(slots=True)
class Finding:
    """One thing found. `kind` names it for machines; `where` is the corpus, or the section of the recipe."""

    severity: str
    kind: str
    where: str
    message: str
    remedy: str
    count: int = 1
    places: Sequence[Place] = ()
    examples: list[Example] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {
            "kind": self.kind,
            "where": self.where,
            "count": self.count,
            "message": self.message,
            "remedy": self.remedy,
            "examples": [example.to_json() for example in self.examples],
        }


def error(kind: str, where: str, message: str, remedy: str, count: int = 1, places: Sequence[Place] = ()) -> Finding:
    """Something that stands in the way of a run."""
    return Finding("error", kind, where, message, remedy, count, places)


def warning(kind: str, where: str, message: str, remedy: str, count: int = 1, places: Sequence[Place] = ()) -> Finding:
    """Something that a run would go on with."""
    return Finding("warning", kind, where, message, remedy, count, places)


class Texts:
    """The texts of some lines of some corpora; each corpus is read once."""

    def __init__(self, wanted: Sequence[tuple[CorpusFacts, np.ndarray]]) -> None:
        """`wanted` are corpora and line numbers. Corpora that cannot be read are left out."""
        numbers: dict[int, list[np.ndarray]] = {}
        corpora: dict[int, CorpusFacts] = {}
        for facts, lines in wanted:
            corpora[id(facts)] = facts
            numbers.setdefault(id(facts), []).append(lines)
        self._texts = {
            key: fetch(facts.corpus, facts.root, np.concatenate(numbers[key]))
            for key, facts in corpora.items()
            if facts.error is None
        }

    def pair(self, facts: CorpusFacts, line: int) -> tuple[str, str]:
        """Source and target of a line; empty where it could not be read."""
        return self._texts.get(id(facts), {}).get(line, ("", ""))

    def pairs(self, facts: CorpusFacts, lines: np.ndarray) -> list[tuple[str, str]]:
        """Source and target of some lines, in their order."""
        return [self.pair(facts, line) for line in lines.tolist()]


def lines_of(findings: Sequence[Finding]) -> list[tuple[CorpusFacts, np.ndarray]]:
    """The lines whose texts the findings show."""
    return [(place.facts, np.array([place.line], dtype=np.int64)) for finding in findings for place in finding.places]


def fill_in(findings: Sequence[Finding], texts: Texts) -> None:
    """Give the findings their examples (changes them)."""
    for finding in findings:
        for place in finding.places:
            source, target = texts.pair(place.facts, place.line)
            if place.side is None:
                text = f"{shown(source, _MOST_CHARACTERS // 2)} ||| {shown(target, _MOST_CHARACTERS // 2)}"
            else:
                text = shown(source if place.side == "source" else target)
            finding.examples.append(Example(place.facts.name, place.line, text, place.remark))


def shown(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text as it can be printed: control characters escaped, cut to `most` characters where it is longer.

    >>> shown("a\\tb\\x00")
    'a\\\\tb\\\\x00'
    """
    if len(text) > most:
        text = f"{text[: most - 4]} ..."
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
