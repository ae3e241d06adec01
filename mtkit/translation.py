"""What goes into and comes out of a translator: a line of text, its translation, and the count of what went wrong.

Torch-free, stands on row 2, so that formats and tests need no model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mtkit.lines import Occurrences

Status = Literal["ok", "blank", "split", "truncated", "empty"]

_LOOP_COPIES = 4
_LOOP_LONGEST = 16


@dataclass(frozen=True, slots=True)
class Line:
    """A line to translate. The translation starts with `prefix`; `extra` is passed through untouched."""

    text: str
    prefix: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextHypothesis:
    """One translation of a line.

    `score` is what the search ranks by; for a line in several parts (see Translation.parts) see `join`.
    `log_probability` is the sum of `token_log_probabilities`, one a token, and of `end_log_probabilities`, one for each
    part whose translation ended by itself. `finished`: all parts did, none was stopped at the length limit. `looped`:
    see `has_loop`. Only with details: `tokens` as text, and `alignment`, which links source pieces to tokens as pairs
    (i, j), both from 0.
    """

    text: str
    score: float
    log_probability: float
    token_log_probabilities: Sequence[float]
    end_log_probabilities: Sequence[float]
    finished: bool
    looped: bool
    tokens: Sequence[str] | None = None
    alignment: Sequence[tuple[int, int]] | None = None

    @property
    def length(self) -> int:
        """Tokens, with one for the end of each part that ended by itself."""
        return len(self.token_log_probabilities) + len(self.end_log_probabilities)


BLANK = TextHypothesis("", 0.0, 0.0, (), (), finished=True, looped=False, tokens=(), alignment=())
"""The translation of a blank line, which no model has seen."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The answer to one line.

    `number` counts from 1; `hypotheses` are best first and never none; the line was translated in `parts` pieces (0
    when blank); the model read `source_tokens`, tags included, of which `unknown_tokens` are not in the vocabulary;
    `cut_tokens` were left out. `source_pieces` are the source tokens as text; None when details were not asked for.
    `status` is the first that holds of: blank (nothing to translate), empty (the best translation has no text),
    truncated, split, ok.
    """

    number: int
    line: Line
    hypotheses: Sequence[TextHypothesis]
    parts: int
    source_tokens: int
    unknown_tokens: int
    cut_tokens: int
    source_pieces: Sequence[str] | None

    @property
    def source(self) -> str:
        """The line as it was given."""
        return self.line.text

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def status(self) -> Status:
        """See the class."""
        if self.parts == 0:
            return "blank"
        if not self.text:
            return "empty"
        if self.cut_tokens:
            return "truncated"
        return "split" if self.parts > 1 else "ok"


def join(
    parts: Sequence[TextHypothesis], source_lengths: Sequence[int], joiner: str, penalty: Callable[[int], float]
) -> TextHypothesis:
    """The translation of a line from those of its parts, which have `source_lengths` source pieces each.

    Scores are freed of their length `penalty`, added up, and divided by the penalty of the whole length.
    """
    tokens: list[str] = []
    alignment: list[tuple[int, int]] = []
    source_start = 0
    for part, source_length in zip(parts, source_lengths, strict=True):
        alignment += [(source + source_start, target + len(tokens)) for source, target in part.alignment or ()]
        tokens += part.tokens or ()
        source_start += source_length
    detailed = all(part.tokens is not None for part in parts)
    return TextHypothesis(
        text=joiner.join(part.text for part in parts if part.text),
        score=sum(part.score * penalty(part.length) for part in parts) / penalty(sum(part.length for part in parts)),
        log_probability=sum(part.log_probability for part in parts),
        token_log_probabilities=[value for part in parts for value in part.token_log_probabilities],
        end_log_probabilities=[value for part in parts for value in part.end_log_probabilities],
        finished=all(part.finished for part in parts),
        looped=any(part.looped for part in parts),
        tokens=tokens if detailed else None,
        alignment=alignment if detailed else None,
    )


def has_loop(ids: Sequence[int]) -> bool:
    """Whether some run of 1 to 16 tokens stands four times or more in direct succession.

    >>> has_loop([5, 6, 5, 6, 5, 6, 5, 6]), has_loop([5, 6, 5, 6, 5, 6])
    (True, False)
    """
    if len(ids) - len(set(ids)) < _LOOP_COPIES - 1:
        return False  # of most texts few tokens occur twice
    for period in range(1, min(_LOOP_LONGEST, len(ids) // _LOOP_COPIES) + 1):
        same = 0
        for place in range(period, len(ids)):
            same = same + 1 if ids[place] == ids[place - period] else 0
            if same == period * (_LOOP_COPIES - 1):
                return True
    return False


class Tally:
    """Counts over all translations so far of what a user should know about the search."""

    def __init__(self, wanted: int = 1) -> None:
        """`wanted`: how many hypotheses each line should have."""
        self.wanted = wanted
        self.lines = 0
        self.blank = 0
        self.source_tokens = 0
        self.target_tokens = 0
        self.unknown_tokens = 0
        self.split, self.truncated, self.empty, self.unknown = (Occurrences() for _ in range(4))
        self.unfinished, self.looped, self.few = (Occurrences() for _ in range(3))

    def add(self, translation: Translation) -> None:
        """Count one translation; of its hypotheses only the best."""
        best = translation.hypotheses[0]
        self.lines += 1
        self.blank += translation.status == "blank"
        self.source_tokens += translation.source_tokens
        self.target_tokens += best.length
        self.unknown_tokens += translation.unknown_tokens
        for kind, holds in (
            (self.split, translation.parts > 1),
            (self.truncated, translation.cut_tokens > 0),
            (self.empty, translation.status == "empty"),
            (self.unfinished, not best.finished),
            (self.looped, best.looped),
            (self.few, len(translation.hypotheses) < self.wanted),
            (self.unknown, translation.unknown_tokens > 0),
        ):
            if holds:
                kind.add(translation.number)

    def report(self) -> list[str]:
        """One sentence for each kind of trouble that occurred, with counts and the first line numbers."""
        share = 100 * self.unknown_tokens / max(1, self.source_tokens)
        kinds = {
            "longer than the model reads, translated in pieces": self.split,
            "longer than the model reads, cut": self.truncated,
            "translation is empty": self.empty,
            "translation stopped at the length limit, without an end": self.unfinished,
            "translation goes round in a loop": self.looped,
            f"fewer than {self.wanted} translations are possible": self.few,
            f"unknown source tokens ({self.unknown_tokens} of {self.source_tokens}, {share:.2g} %)": self.unknown,
        }
        return [f"{what}: {lines}" for what, lines in kinds.items() if lines.count]
