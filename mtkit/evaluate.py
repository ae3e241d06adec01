"""Scores of translations through sacreBLEU (Post 2018), with the checks that its Python API leaves out.

sacreBLEU's API zips hypotheses and references, so that a shorter list, or references passed one list a sentence,
give a number instead of an error; here both are refused.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEUScore
from sacrebleu.metrics.base import Metric
from tqdm import tqdm

from mtkit.errors import DataError, UsageError
from mtkit.hygiene import is_unspaced
from mtkit.metrics import bleu_tokenizer, make_metrics
from mtkit.sections.data import Evaluation

logger = logging.getLogger(__name__)

_WORD_TOKENIZERS = ("13a", "intl", "none")

MEMORY_LIMIT = 2 << 30
"""Most bytes that resampling may take: sacreBLEU lays out all resamples at once."""
_STATISTICS = 24  # float32 figures a sentence: chrF++ has the most, three for each of its eight orders
SEED_VARIABLE = "SACREBLEU_SEED"


@dataclass(frozen=True, slots=True)
class MetricScore:
    """One figure: sacreBLEU's name of it, the unrounded score, the signature to quote, and BLEU's parts.

    With a 95 % interval of bootstrap resampling (Koehn 2004), `mean` is the mean of the resamples and `half_width` half
    of the interval, so that the score is quoted as mean ± half_width.
    """

    label: str
    score: float
    signature: str
    detail: str = ""
    mean: float | None = None
    half_width: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, without what there is not."""
        optional = {"detail": self.detail or None, "mean": self.mean, "half_width": self.half_width}
        plain = {"label": self.label, "score": self.score, "signature": self.signature}
        return plain | {name: value for name, value in optional.items() if value is not None}

    @property
    def interval(self) -> str:
        """`mean ± half_width` with two decimals; empty where there is none."""
        return "" if self.half_width is None else f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one set of hypotheses, by metric name (bleu, chrf, chrf++, ter), and what they were taken over."""

    metrics: dict[str, MetricScore]
    sentences: int
    references: int

    def render(self) -> str:
        """A table for people: each metric with two decimals, interval and signature, then the counts."""
        rows = [("metric", "score", "mean ± 95 %", "signature")]
        for one in self.metrics.values():
            rows.append((one.label, f"{one.score:.2f}", one.interval, one.signature))
            if one.detail:
                rows.append(("", "", "", one.detail))
        if not any(one.interval for one in self.metrics.values()):
            rows = [(label, figure, "", text) for label, figure, _, text in rows]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = []
        for label, figure, interval, text in rows:
            middle = f"{interval:<{widths[2]}}  " if widths[2] else ""
            lines.append(f"{label:<{widths[0]}}  {figure:>{max(widths[1], 6)}}  {middle}{text}")
        return "\n".join([*lines, self.counts()])

    def counts(self) -> str:
        """How much was scored, in words, and what has to be known to read the figures."""
        note = "; TER: lower is better" if "ter" in self.metrics else ""
        return f"{_count(self.sentences, 'sentence')}, {_count(self.references, 'reference')}{note}"

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, unrounded."""
        metrics = {name: metric.as_dict() for name, metric in self.metrics.items()}
        return {"sentences": self.sentences, "references": self.references, "metrics": metrics}


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    section: Evaluation | None = None,
    target_language: str | None = None,
    *,
    resamples: int = 0,
    progress: bool = False,
) -> Scores:
    """The scores of detokenized `hypotheses` against one or more references.

    `references` holds one full list for each reference, each as long as `hypotheses`. `section` chooses metrics,
    BLEU tokenizer and case (default: BLEU and chrF, cased); without a tokenizer there, `target_language` (ISO 639
    code) decides. `resamples` bootstrap resamples give each figure a 95 % interval; 0: none. `progress` shows a bar on
    a terminal when it takes longer than two seconds. Warns through logging about text that looks tokenized. Trailing
    white space of a line does not count, as with the sacrebleu command.

    Raises DataError for unequal lengths, nothing to score, or Chinese or similar text of unstated language;
    MtkitError when the tokenizer needs something that is not installed.

    >>> score(["the cat sat on the mat"], [["the cat sat on the mat"]]).metrics["bleu"].score
    100.00000000000004
    """
    section = section or Evaluation()
    _check_types(hypotheses, references)
    check_lengths(hypotheses, references)
    check_script(references, section, target_language)
    return measure(make_metrics(section, target_language), hypotheses, references, resamples, progress=progress)


def measure(
    metrics: Mapping[str, Metric],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    resamples: int = 0,
    *,
    progress: bool = False,
) -> Scores:
    """The scores by the given metrics, of text that was checked before; see `score`.

    Leaves out the intervals, with a warning, where they would take more memory than `MEMORY_LIMIT`.
    Raises UsageError when SACREBLEU_SEED holds no seed.
    """
    stripped, streams = strip_ends(hypotheses), [strip_ends(reference) for reference in references]
    if resamples:
        check_seed()
        if memory_of(len(stripped), resamples) > MEMORY_LIMIT:
            logger.warning(
                "no 95 %% intervals: %d resamples of %d sentences would take %.1f GB of memory; take fewer resamples",
                resamples,
                len(stripped),
                memory_of(len(stripped), resamples) / 1e9,
            )
            resamples = 0
    found: dict[str, MetricScore] = {}
    bar = tqdm(metrics.items(), desc="scoring", unit="metric", leave=False, delay=2, disable=None if progress else True)
    with relayed_warnings():
        for name, metric in bar:
            result = metric.corpus_score(stripped, streams, n_bootstrap=resamples or 1)
            detail = _parts(result) if isinstance(result, BLEUScore) else ""
            interval = (float(result._mean), float(result._ci)) if resamples else (None, None)
            found[name] = MetricScore(result.name, result.score, metric.get_signature().format(), detail, *interval)
    return Scores(found, len(stripped), len(streams))


def strip_ends(lines: Sequence[str]) -> list[str]:
    """The lines as the sacrebleu command reads them: without white space at their ends."""
    return [line.rstrip() for line in lines]


def memory_of(sentences: int, resamples: int) -> int:
    """About how many bytes sacreBLEU takes to resample once a metric, indices included."""
    return sentences * resamples * (4 * _STATISTICS + 8)


def check_seed() -> None:
    """Raise UsageError unless SACREBLEU_SEED, which seeds sacreBLEU's resampling, is unset, a seed or `none`."""
    seed = os.environ.get(SEED_VARIABLE, "12345")
    if seed.lower() != "none" and not re.fullmatch(r"[0-9]+", seed, re.ASCII):
        raise UsageError(
            f"{SEED_VARIABLE}={seed}: the seed of resampling is a whole number from 0, or none for a different one "
            "each time",
            f"unset {SEED_VARIABLE} to have sacreBLEU's own, 12345",
        )


def check_lengths(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str] | None = None
) -> None:
    """Raise DataError unless there is text and every reference has one line for each hypothesis.

    `names` are what to call the hypotheses and then each reference in the message, such as file names.
    """
    names = names or ["hypotheses", *(f"reference {number}" for number in range(1, len(references) + 1))]
    if not references:
        raise DataError("nothing to score against: no reference was given", "give at least one list of references")
    for name, reference in zip(names[1:], references, strict=True):
        if len(reference) != len(hypotheses):
            raise DataError(
                f"{names[0]}: {_count(len(hypotheses), 'line')}, {name}: {_count(len(reference), 'line')}; "
                "each hypothesis needs its reference on the same line",
                _length_hint(hypotheses, references, names[0], name, reference),
            )
    if not hypotheses:
        raise DataError(f"{names[0]}: no lines, nothing to score", "is this the right file?")


def _length_hint(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], own_name: str, name: str, reference: Sequence[str]
) -> str:
    if len(references) == len(hypotheses) and len({len(lines) for lines in references}) == 1:
        return "pass one full list for each reference, [[line 1, line 2, ...]], not one list for each sentence"
    longer, longer_name = (hypotheses, own_name) if len(hypotheses) > len(reference) else (reference, name)
    extra = longer[min(len(hypotheses), len(reference)) :]
    if not any(line.strip() for line in extra):
        return f"what {longer_name} has more, at its end, is blank: remove that if it is no text"
    return "find the first pair that does not belong together, for example with: paste -d '\\n' A B | less"


def _check_types(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if isinstance(hypotheses, str):
        raise DataError("hypotheses: one string was given, a list of sentences is expected", "pass [text]")
    for number, reference in enumerate(references, 1):
        if isinstance(reference, str):
            raise DataError(
                f"reference {number} is one string, a list of sentences is expected",
                "pass a list of references, each a full list of sentences: [reference_lines]",
            )


def check_script(references: Sequence[Sequence[str]], section: Evaluation, target_language: str | None) -> None:
    """Warn where a metric splits words at spaces and the text has none. Raises DataError where no language is given."""
    spaced = ["ter"] if "ter" in section.metrics else []
    if "bleu" in section.metrics and bleu_tokenizer(section, target_language) in _WORD_TOKENIZERS:
        spaced.append("bleu")
    if not spaced or not is_unspaced(references[0]):
        return
    if "bleu" in spaced and section.tokenize is None and target_language is None:
        raise DataError(
            "the references are in a script without spaces, and BLEU's tokenizer 13a would take a line for one word",
            "name the target language (--target-language zh) or a tokenizer (--tokenize char)",
        )
    if "bleu" in spaced:
        logger.warning(
            "BLEU with tok:%s splits at spaces, which this script hardly has: the score means little; "
            "tokenize char, flores200, or zh for Chinese, would count characters or pieces",
            bleu_tokenizer(section, target_language),
        )
    if "ter" in spaced:
        logger.warning("TER splits at spaces, which this script hardly has: the score means little; prefer chrF")


class _Relay(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelno, "sacreBLEU: %s", record.getMessage())


@contextlib.contextmanager
def relayed_warnings() -> Iterator[None]:
    """sacreBLEU's log comes out through ours, and so above a progress bar and with its rank."""
    theirs, relay = logging.getLogger("sacrebleu"), _Relay()
    propagated, theirs.propagate = theirs.propagate, False
    theirs.addHandler(relay)
    try:
        yield
    finally:
        theirs.removeHandler(relay)
        theirs.propagate = propagated


def _parts(result: BLEUScore) -> str:
    """What BLEU is made of: precision of 1- to 4-grams, brevity penalty, and tokens against the reference's."""
    return (
        f"{result.prec_str} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
