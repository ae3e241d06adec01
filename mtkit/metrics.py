"""sacreBLEU's metrics as a recipe's section of evaluation sets them, and BLEU's tokenizer for each language."""

import re
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from mtkit.errors import MtkitError
from mtkit.sections.data import Evaluation

_TOKENIZERS = {
    "zh": "zh", "zho": "zh", "chi": "zh", "cmn": "zh", "yue": "zh",
    "ja": "ja-mecab", "jpn": "ja-mecab",
    "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
_EXTRAS = {"ja-mecab": ("Japanese", "sacrebleu[ja]"), "ko-mecab": ("Korean", "sacrebleu[ko]")}


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
        _bleu(section, target_language)


def make_metrics(section: Evaluation, target_language: str | None) -> dict[str, Metric]:
    """sacreBLEU's metrics that a section names, by name. Raises MtkitError when a tokenizer cannot be had."""
    return {name: _metric(name, section, target_language) for name in section.metrics}


class _OneType:
    """Of a metric: scores resamples in one type of number.

    sacreBLEU gives a resample without any match, or without reference words, a plain float and all others numpy's
    float32, and its mean then fails (2.6.0). Where it does not fail, nothing changes.
    """

    def _compute_score_from_stats(self, stats: Any) -> Any:
        result = super()._compute_score_from_stats(stats)  # type: ignore[misc]
        if isinstance(stats, np.ndarray) and type(result.score) is float:
            result.score += 0.0 * stats[0]
        return result


class _ChrF(_OneType, CHRF):
    pass


class _Ter(_OneType, TER):
    pass


def _metric(name: str, section: Evaluation, target_language: str | None) -> Metric:
    match name:
        case "bleu":
            return _bleu(section, target_language)
        case "chrf":
            return _ChrF(lowercase=section.lowercase)
        case "chrf++":
            return _ChrF(word_order=2, lowercase=section.lowercase)
        case "ter":
            return _Ter()  # without regard to case, sacreBLEU's and tercom's default
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
                f'pip install "{extra}" (mtkit\'s extra {extra[-3:-1]}); or count characters: '
                "--tokenize char, evaluation.tokenize: char in a recipe",
            ) from error
        raise MtkitError(
            f"BLEU's tokenizer {name} cannot be loaded ({error})",
            "sacreBLEU downloads its model on first use; try again with a network, or choose another tokenizer",
        ) from error


def _primary(language: str | None) -> str:
    return re.split("[-_]", language or "", maxsplit=1)[0].lower()
