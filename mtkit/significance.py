"""Several systems against the same references, and whether their difference to a baseline could be chance.

The tests are sacreBLEU's: paired bootstrap resampling (Koehn 2004) and approximate randomization (Riezler and Maxwell
2005), two-sided, each system against the baseline, over the same sentences.
"""

import contextlib
import copy
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from mtkit.errors import MtkitError
from mtkit.evaluate import MEMORY_LIMIT, SEED_VARIABLE, Scores, check_seed, measure, memory_of, strip_ends

logger = logging.getLogger(__name__)

Method = Literal["bootstrap", "randomization"]
LEVEL = 0.05
"""A p-value below this is called significant."""
_SHORT: dict[Method, str] = {"bootstrap": "bs", "randomization": "ar"}
_NAMES: dict[Method, str] = {"bootstrap": "paired bootstrap", "randomization": "approximate randomization"}
_NO_DIFFERENCE = 1e-9
_BYTES_A_TRIAL = 18  # two masks a sentence, and the copy of one as 64-bit numbers


@dataclass(frozen=True, slots=True)
class Trial:
    """A paired test: by which method, and over how many resamples or trials."""

    method: Method
    trials: int


@dataclass(frozen=True, slots=True)
class System:
    """One system's name and figures; `p_values` by metric name where it was tested against the baseline."""

    name: str
    scores: Scores
    p_values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Contest:
    """Systems over the same references. With a `trial` the first one is the baseline; signatures by metric name."""

    systems: tuple[System, ...]
    trial: Trial | None = None
    signatures: Mapping[str, str] | None = None

    def render(self) -> str:
        """A table for people, a row a system; under it signatures, counts and what was tested."""
        first = self.systems[0].scores
        rows = [["system", *(metric.label for metric in first.metrics.values())]]
        for number, system in enumerate(self.systems):
            mark = " (baseline)" if self.trial and not number else ""
            rows.append(
                [system.name + mark, *(_figure(one.score, one.interval) for one in system.scores.metrics.values())]
            )
            if system.p_values:
                rows.append(["", *(self._against(system, name) for name in first.metrics)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join([*lines, "", *self._signature_lines(), first.counts(), *self.explanation()])

    def _against(self, system: System, name: str) -> str:
        difference = system.scores.metrics[name].score - self.systems[0].scores.metrics[name].score
        p_value = system.p_values[name]
        return f"{difference:+.2f}, p = {p_value:.4f}{'*' if is_significant(difference, p_value) else ''}"

    def _signature_lines(self) -> list[str]:
        lines = [f"{one.label}: {one.signature}" for one in self.systems[0].scores.metrics.values()]
        for name, signature in (self.signatures or {}).items():
            label = self.systems[0].scores.metrics[name].label
            if f"{label}: {signature}" not in lines:
                lines.append(f"{label}, p-value: {signature}")
        return lines

    def explanation(self) -> list[str]:
        """What stands in brackets, and what p is: a sentence each."""
        intervals = any(one.interval for one in self.systems[0].scores.metrics.values())
        lines = ["in brackets: mean of the resamples ± half of the 95 % interval"] if intervals else []
        if self.trial is not None:
            lines.append(
                f"p: {_NAMES[self.trial.method]}, {self.trial.trials} {_unit(self.trial.method)}, two-sided; "
                f"* p < {LEVEL}: hardly by chance on these sentences"
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, unrounded; each metric of a tested system with `difference` and `p_value`."""
        systems = []
        for system in self.systems:
            row = system.scores.as_dict()
            for name, p_value in system.p_values.items():
                difference = system.scores.metrics[name].score - self.systems[0].scores.metrics[name].score
                row["metrics"][name] |= {"difference": difference, "p_value": p_value}
            systems.append({"name": system.name} | row)
        if self.trial is None:
            return {"systems": systems}
        test = {"method": self.trial.method, "trials": self.trial.trials, "signatures": dict(self.signatures or {})}
        return {"systems": systems, "baseline": self.systems[0].name, "paired_test": test}


def score_systems(
    metrics: Mapping[str, Metric],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    resamples: int = 0,
    trial: Trial | None = None,
) -> Contest:
    """The figures of each system, with intervals from `resamples` resamples; with `trial`, p-values against the first.

    The lines were checked before, by `evaluate.check_lengths` and `evaluate.check_script`. Raises MtkitError when the
    test would take more memory than `evaluate.MEMORY_LIMIT`, UsageError when SACREBLEU_SEED holds no seed.
    """
    assert trial is None or len(systems) > 1
    if trial is not None:
        _check_trial(trial, len(references[0]))
        if trial.method == "bootstrap":
            resamples = 0  # the test resamples anyway
    scored = [
        System(name, measure(metrics, lines, references, resamples, progress=True), {})
        for name, lines in systems.items()
    ]
    return Contest(tuple(scored)) if trial is None else _tested(trial, metrics, systems, references, scored)


def _tested(
    trial: Trial,
    metrics: Mapping[str, Metric],
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    scored: Sequence[System],
) -> Contest:
    """The scored systems with p-values, and with the intervals of the test where it is a bootstrap."""
    named: list[tuple[str, Sequence[str]]] = [(name, strip_ends(lines)) for name, lines in systems.items()]
    streams = [strip_ends(reference) for reference in references]
    with _silenced():
        fresh = {name: _unsampled(metric) for name, metric in metrics.items()}
        signatures, results = PairedTest(named, fresh, streams, _SHORT[trial.method], n_samples=trial.trials)()
    labels = {name: metric.label for name, metric in scored[0].scores.metrics.items()}
    texts = {name: signatures[label].format() for name, label in labels.items()}
    done = []
    for number, system in enumerate(scored):
        found = {name: _result(results[label][number]) for name, label in labels.items()}
        figures = dict(system.scores.metrics)
        if trial.method == "bootstrap":
            for name, one in found.items():
                mean, half_width = float(one.mean or 0), float(one.ci or 0)
                figures[name] = replace(figures[name], signature=texts[name], mean=mean, half_width=half_width)
        p_values = {name: float(one.p_value) for name, one in found.items() if one.p_value is not None}
        done.append(System(system.name, replace(system.scores, metrics=figures), p_values))
    return Contest(tuple(done), trial, texts)


def small_differences(contest: Contest) -> tuple[list[str], list[str]]:
    """Differences to the first system that are smaller than an interval: those to doubt, and those a test confirms."""
    doubtful, confirmed = [], []
    first = contest.systems[0]
    for system in contest.systems[1:]:
        for name, one in system.scores.metrics.items():
            other = first.scores.metrics[name]
            if one.half_width is None or other.half_width is None:
                continue
            difference, width = abs(one.score - other.score), max(one.half_width, other.half_width)
            if difference >= width:
                continue
            text = (
                f"{one.label}: {system.name} and {first.name} differ by {difference:.2f}, less than the 95 % interval, "
                f"± {width:.2f}"
            )
            p_value = system.p_values.get(name)
            if p_value is None:
                doubtful.append(f"{text}; it may be chance (--baseline tests that)")
            elif not is_significant(difference, p_value):
                doubtful.append(f"{text}; it may be chance (p = {p_value:.4f})")
            else:
                confirmed.append(f"{text}; over the same sentences it is significant all the same (p = {p_value:.4f})")
    return doubtful, confirmed


def is_significant(difference: float, p_value: float) -> bool:
    """Whether p is below `LEVEL`. No difference is no finding, though sacreBLEU gives it the smallest p."""
    return p_value < LEVEL and abs(difference) > _NO_DIFFERENCE


def _check_trial(trial: Trial, sentences: int) -> None:
    check_seed()
    if re.fullmatch("0+", os.environ.get(SEED_VARIABLE, "")):
        logger.warning(
            "%s=0: sacreBLEU's paired tests take seed 0 for none, so p-values differ each time", SEED_VARIABLE
        )
    bootstrap = trial.method == "bootstrap"
    memory = memory_of(sentences, trial.trials) if bootstrap else sentences * trial.trials * _BYTES_A_TRIAL
    if memory > MEMORY_LIMIT:
        raise MtkitError(
            f"a {_NAMES[trial.method]} test of {sentences} sentences with {trial.trials} {_unit(trial.method)} would "
            f"take {memory / 1e9:.1f} GB of memory",
            f"{'--resamples' if bootstrap else '--trials'} {int(trial.trials * MEMORY_LIMIT / memory)} stays below "
            f"{MEMORY_LIMIT / 1e9:.1f} GB",
        )


def _unsampled(metric: Metric) -> Metric:
    """The metric without memory of an earlier interval, which would stand in the test's signature."""
    fresh = copy.copy(metric)
    fresh.n_bootstrap = fresh.seed = None
    return fresh


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """What sacreBLEU warns of was said when each system was scored."""
    theirs = logging.getLogger("sacrebleu")
    level = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        theirs.setLevel(level)


def _result(result: str | Result) -> Result:
    assert isinstance(result, Result)
    return result


def _figure(score: float, interval: str) -> str:
    return f"{score:.2f} ({interval})" if interval else f"{score:.2f}"


def _unit(method: Method) -> str:
    return "resamples" if method == "bootstrap" else "trials"
