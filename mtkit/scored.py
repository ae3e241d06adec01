"""What force-decoding tells of a pair: the record, its line of output, and what adds up over a corpus.

Torch-free, stands on row 1 as `mtkit.translation` does, so that formats and tests need no model. All logarithms are
natural ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mtkit.formats import dump_json_line
from mtkit.lines import Occurrences

Status = Literal["ok", "empty", "blank", "too_long"]


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A source with a target and the probability that the model gives to the target.

    `number` counts from 1. `status` is the first that holds of: blank (no source, so nothing to condition on), too_long
    (more tokens than fit), empty (a blank target, scored as the empty translation: its end alone), ok. The first two
    never entered the model, and their figures are None. `token_log_probabilities` has one entry a target token,
    `end_log_probability` is that of the end after them. The model reads `source_tokens`, tags included;
    `target_tokens` leave out the end. Only with details: `source_pieces` and `tokens`, both as text.
    """

    number: int
    source: str
    target: str
    status: Status
    source_tokens: int
    target_tokens: int
    unknown_source_tokens: int
    unknown_target_tokens: int
    token_log_probabilities: Sequence[float] = ()
    end_log_probability: float | None = None
    source_pieces: Sequence[str] = ()
    tokens: Sequence[str] = ()

    @property
    def length(self) -> int:
        """Target tokens that were scored, the end included; 0 when nothing was."""
        return 0 if self.end_log_probability is None else len(self.token_log_probabilities) + 1

    @property
    def log_probability(self) -> float | None:
        """log P(target | source), the end included."""
        if self.end_log_probability is None:
            return None
        return sum(self.token_log_probabilities) + self.end_log_probability

    @property
    def normalized_score(self) -> float | None:
        """The mean log-probability of a token, the end included."""
        total = self.log_probability
        return None if total is None else total / self.length

    @property
    def perplexity(self) -> float | None:
        """exp of minus the normalized score; infinite where that overflows."""
        return perplexity(self.normalized_score)


def perplexity(mean_log_probability: float | None) -> float | None:
    """exp(-x), infinite where that overflows; None for None.

    >>> perplexity(0.0), perplexity(-1000.0), perplexity(None)
    (1.0, inf, None)
    """
    if mean_log_probability is None:
        return None
    return math.exp(-mean_log_probability) if mean_log_probability > -700 else math.inf


def text_line(pair: ScoredPair) -> str:
    """log-probability TAB log-probability a token; nan for a pair that was not scored."""
    return f"{_number(pair.log_probability)}\t{_number(pair.normalized_score)}\n"


def json_line(pair: ScoredPair, model_sha256: str | None = None) -> str:
    """One JSON object on one line; `mtkit score --help` lists its keys. What is None or infinite becomes null."""
    end = pair.end_log_probability
    return dump_json_line(
        {
            "id": pair.number - 1,
            "line": pair.number,
            "status": pair.status,
            "source": pair.source,
            "target": pair.target,
            "source_pieces": list(pair.source_pieces),
            "source_tokens": pair.source_tokens,
            "target_tokens": pair.target_tokens,
            "unknown_tokens": pair.unknown_source_tokens,
            "unknown_target_tokens": pair.unknown_target_tokens,
            "log_probability": pair.log_probability,
            "normalized_score": pair.normalized_score,
            "perplexity": _finite(pair.perplexity),
            "tokens": list(pair.tokens),
            "token_log_probabilities": list(pair.token_log_probabilities),
            "end_log_probabilities": [] if end is None else [end],
            "model_sha256": model_sha256,
        }
    )


class Summary:
    """What adds up over all pairs so far, and the lines of which a user should know."""

    def __init__(self, trained_length: int) -> None:
        """`trained_length`: the most tokens on a side that the model was trained on."""
        self.trained_length = trained_length
        self.lines = 0
        self.sentences = 0
        self.tokens = 0
        self.log_probability = 0.0
        self.source_tokens = self.target_tokens = 0
        self.unknown_source_tokens = self.unknown_target_tokens = 0
        self.blank, self.alone, self.too_long, self.empty = (Occurrences() for _ in range(4))
        self.longer, self.unknown_source, self.unknown_target = (Occurrences() for _ in range(3))

    @property
    def normalized_score(self) -> float | None:
        """The mean log-probability of a token of the corpus, ends included; None when nothing was scored."""
        return self.log_probability / self.tokens if self.tokens else None

    def add(self, pair: ScoredPair) -> None:
        """Count one pair."""
        self.lines += 1
        total = pair.log_probability
        scored = total is not None
        if total is not None:
            self.sentences += 1
            self.tokens += pair.length
            self.log_probability += total
            self.source_tokens += pair.source_tokens
            self.target_tokens += pair.target_tokens
            self.unknown_source_tokens += pair.unknown_source_tokens
            self.unknown_target_tokens += pair.unknown_target_tokens
        for kind, holds in (
            (self.blank, pair.status == "blank"),
            (self.alone, pair.status == "blank" and pair.target_tokens > 0),
            (self.too_long, pair.status == "too_long"),
            (self.empty, pair.status == "empty"),
            (self.longer, scored and max(pair.source_tokens, pair.target_tokens) > self.trained_length),
            (self.unknown_source, scored and pair.unknown_source_tokens > 0),
            (self.unknown_target, scored and pair.unknown_target_tokens > 0),
        ):
            if holds:
                kind.add(pair.number)

    def report(self) -> list[str]:
        """One sentence for each oddity that occurred, with counts and the first line numbers."""
        kinds = {
            "the source is blank and the target is not, not scored": self.alone,
            "too long, not scored": self.too_long,
            "the target is blank, scored as the empty translation": self.empty,
            f"longer than the model was trained on ({self.trained_length} tokens), scored whole": self.longer,
            _unknown("source", self.unknown_source_tokens, self.source_tokens): self.unknown_source,
            _unknown("target", self.unknown_target_tokens, self.target_tokens): self.unknown_target,
        }
        return [f"{what}: {lines}" for what, lines in kinds.items() if lines.count]

    def figures(self) -> dict[str, Any]:
        """Everything for JSON: counts, then log-probability, mean and perplexity, null when nothing was scored."""
        return {
            "lines": self.lines,
            "sentences": self.sentences,
            "blank": self.blank.count,
            "empty": self.empty.count,
            "too_long": self.too_long.count,
            "tokens": self.tokens,
            "unknown_tokens": self.unknown_source_tokens,
            "unknown_target_tokens": self.unknown_target_tokens,
            "log_probability": self.log_probability if self.tokens else None,
            "normalized_score": self.normalized_score,
            "perplexity": _finite(perplexity(self.normalized_score)),
        }

    def render(self) -> str:
        """The figures for people, one a line."""
        rows = (f"{name}\t{_number(value)}" for name, value in self.figures().items())
        return "".join(row + "\n" for row in rows)

    def __str__(self) -> str:
        """The figures in one line.

        >>> str(Summary(trained_length=256))
        '0 of 0 pairs scored (0 blank, 0 too long): log-probability nan, 0 target tokens with ends, perplexity nan'
        """
        left_out = f"{self.blank.count} blank, {self.too_long.count} too long"
        total = self.log_probability if self.tokens else None
        return (
            f"{self.sentences} of {self.lines} pairs scored ({left_out}): log-probability {_number(total, 4)}, "
            f"{self.tokens} target tokens with ends, perplexity {_number(perplexity(self.normalized_score), 4)}"
        )


def _unknown(side: str, unknown: int, tokens: int) -> str:
    return f"unknown {side} tokens ({unknown} of {tokens}, {100 * unknown / max(1, tokens):.2g} %)"


def _number(value: float | None, decimals: int = 6) -> str:
    if isinstance(value, int):
        return str(value)
    return "nan" if value is None else f"{value:.{decimals}f}"


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
