"""Scores of translations through sacreBLEU (Post 2018), with the checks that its Python API leaves out.

sacreBLEU's API zips hypotheses and references, so that a shorter list, or references passed one list a sentence,
give a number instead of an error; here both are refused.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER, BLEUScore
from tqdm import tqdm

from mtkit.errors import DataError, MtkitError
from mtkit.sections.data import Evaluation

logger = logging.getLogger(__name__)

_TOKENIZERS = {
    "zh": "zh", "zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh",
    "ja": "ja-mecab", "jpn": "ja-mecab",
    "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
_EXTRAS = {"ja-mecab": ("Japanese", "sacrebleu[ja]"), "ko-mecab": ("Korean", "sacrebleu[ko]")}
_WORD_TOKENIZERS = ("13a", "intl", "none")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)
_SAMPLE_LINES = 1000


@dataclass(frozen=True, slots=True)
class MetricScore:
    """One figure: sacreBLEU's name of it, the unrounded score, the signature to quote, and BLEU's parts."""

    label: str
    score: float
    signature: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one set of hypotheses, by metric name (bleu, chrf, chrf++, ter), and what they were taken over."""

    metrics: dict[str, MetricScore]
    sentences: int
    references: int

    def render(self) -> str:
        """A table for people: each metric with two decimals and its signature, then the counts."""
        width = max(len("metric"), *(len(metric.label) for metric in self.metrics.values()))
        lines = [f"{'metric':<{width}}  {'score':>6}  signature"]
        for metric in self.metrics.values():
            lines.append(f"{metric.label:<{width}}  {metric.score:6.2f}  {metric.signature}")
            if metric.detail:
                lines.append(f"{'':<{width}}  {'':6}  {metric.detail}")
        note = "; TER: lower is better" if "ter" in self.metrics else ""
        lines.append(f"{_count(self.sentences, 'sentence')}, {_count(self.references, 'reference')}{note}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, unrounded."""
        metrics = {
            name: {"label": m.label, "score": m.score, "signature": m.signature}
            | ({"detail": m.detail} if m.detail else {})
            for name, m in self.metrics.items()
        }
        return {"sentences": self.sentences, "references": self.references, "metrics": metrics}


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    section: Evaluation | None = None,
    target_language: str | None = None,
    *,
    progress: bool = False,
) -> Scores:
    """The scores of detokenized `hypotheses` against one or more references.

    `references` holds one full list for each reference, each as long as `hypotheses`. `section` chooses metrics,
    BLEU tokenizer and case (default: BLEU and chrF, cased); without a tokenizer there, `target_language` (ISO 639
    code) decides. `progress` shows a bar on a terminal when it takes longer than two seconds. Warns through logging
    about text that looks tokenized. Trailing white space of a line does not count, as with the sacrebleu command.

    Raises DataError for unequal lengths, nothing to score, or Chinese or similar text of unstated language;
    MtkitError when the tokenizer needs something that is not installed.

    >>> score(["the cat sat on the mat"], [["the cat sat on the mat"]]).metrics["bleu"].score
    100.00000000000004
    """
    section = section or Evaluation()
    _check_types(hypotheses, references)
    check_lengths(hypotheses, references)
    stripped = [line.rstrip() for line in hypotheses]
    streams = [[line.rstrip() for line in reference] for reference in references]
    _check_script(streams, section, target_language)
    metrics: dict[str, MetricScore] = {}
    with _relayed_warnings():
        for name in tqdm(
            section.metrics, desc="scoring", unit="metric", leave=False, delay=2, disable=None if progress else True
        ):
            metric = _metric(name, section, target_language)
            result = metric.corpus_score(stripped, streams)
            detail = _parts(result) if isinstance(result, BLEUScore) else ""
            metrics[name] = MetricScore(result.name, result.score, metric.get_signature().format(), detail)
    return Scores(metrics, len(stripped), len(streams))


def bleu_tokenizer(section: Evaluation, target_language: str | None) -> str:
    """sacreBLEU's name of the BLEU tokenizer: the section's own, else by language, where a region does not matter.

    >>> bleu_tokenizer(Evaluation(), "zh-TW"), bleu_tokenizer(Evaluation(), "de")
    ('zh', '13a')
    """
    if section.tokenize is not None:
        return section.tokenize
    return _TOKENIZERS.get(_primary(target_language), "13a")


def has_own_tokenizer(language: str) -> bool:
    """Whether sacreBLEU has a BLEU tokenizer for this language code; all others share 13a."""
    return _primary(language) in _TOKENIZERS


def check_setup(section: Evaluation, target_language: str | None) -> None:
    """Raise MtkitError now if scoring would fail later, because the BLEU tokenizer lacks what it needs."""
    if "bleu" in section.metrics:
        _metric("bleu", section, target_language)


def check_lengths(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str] | None = None
) -> None:
    """Raise DataError unless there is text and every reference has one line for each hypothesis.

    `names` are what to call the hypotheses and then each reference in the message, such as file names.
    """
    names = names or ["hypotheses", *(f"reference {number}" for number in range(1, len(references) + 1))]
    if not references:
        raise DataError("nothing to score against: no reference was given")
    for name, reference in zip(names[1:], references, strict=True):
        if len(reference) != len(hypotheses):
            raise DataError(
                f"{names[0]}: {_count(len(hypotheses), 'line')}, {name}: {_count(len(reference), 'line')}; "
                "each hypothesis needs its reference on the same line",
                _length_hint(hypotheses, references, names[0], name, reference),
            )
    if not hypotheses:
        raise DataError(f"{names[0]}: no lines, nothing to score")


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


def _check_script(references: Sequence[Sequence[str]], section: Evaluation, target_language: str | None) -> None:
    """Refuse or warn where a metric splits words at spaces and the text has none."""
    spaced = ["ter"] if "ter" in section.metrics else []
    if "bleu" in section.metrics and bleu_tokenizer(section, target_language) in _WORD_TOKENIZERS:
        spaced.append("bleu")
    if not spaced:
        return
    letters = "".join("".join(filter(str.isalpha, line)) for line in references[0][:_SAMPLE_LINES])
    if len(_UNSPACED.findall(letters)) * 2 <= len(letters):
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
def _relayed_warnings() -> Iterator[None]:
    """sacreBLEU's log comes out through ours, and so above a progress bar and with its rank."""
    theirs, relay = logging.getLogger("sacrebleu"), _Relay()
    propagated, theirs.propagate = theirs.propagate, False
    theirs.addHandler(relay)
    try:
        yield
    finally:
        theirs.removeHandler(relay)
        theirs.propagate = propagated


def _metric(name: str, section: Evaluation, target_language: str | None) -> BLEU | CHRF | TER:
    match name:
        case "bleu":
            return _bleu(section, target_language)
        case "chrf":
            return CHRF(lowercase=section.lowercase)
        case "chrf++":
            return CHRF(word_order=2, lowercase=section.lowercase)
        case "ter":
            return TER()  # without regard to case, sacreBLEU's and tercom's default
    raise AssertionError(name)


def _bleu(section: Evaluation, target_language: str | None) -> BLEU:
    name = bleu_tokenizer(section, target_language)
    try:
        return BLEU(lowercase=section.lowercase, tokenize=name)
    except (RuntimeError, ImportError, OSError, AssertionError, SystemExit) as error:
        if name in _EXTRAS:
            language, extra = _EXTRAS[name]
            raise MtkitError(
                f"BLEU for {language} (tok:{name}) needs MeCab and its dictionary, which are not usable here",
                f'pip install "{extra}"; or count characters: --tokenize char, evaluation.tokenize: char in a recipe',
            ) from error
        raise MtkitError(
            f"BLEU's tokenizer {name} cannot be loaded ({error})",
            "sacreBLEU downloads its model on first use; try again with a network, or choose another tokenizer",
        ) from error


def _parts(result: BLEUScore) -> str:
    """What BLEU is made of: precision of 1- to 4-grams, brevity penalty, and tokens against the reference's."""
    return (
        f"{result.prec_str} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )


def _primary(language: str | None) -> str:
    return re.split("[-_]", language or "", maxsplit=1)[0].lower()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
