"""The test scores of a run with their intervals; free of torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.data.corpus import read_pairs
from mtkit.errors import MtkitError
from mtkit.evaluate import score
from mtkit.files import read_lines
from mtkit.folders import SCORES_FILE
from mtkit.report.facts import Facts
from mtkit.sections.data import Evaluation


@dataclass(frozen=True, slots=True)
class TestScore:
    """One figure of one test corpus; `mean` and `half_width` are the 95 % interval's, where there is one."""

    test: str
    label: str
    score: float
    signature: str
    sentences: int
    mean: float | None
    half_width: float | None


def test_scores(facts: Facts) -> list[TestScore]:
    """The scores of the model's weights on the test corpora; what is not there is noted in `facts.missing`.

    An interval that scores.json lacks is computed from RUN/test and the corpus's references, by the code of mtkit eval.
    """
    rows: dict[str, Any] = (facts.model or {}).get("test") or {}
    if not rows:
        facts.missing.append(f"Test score: {_why_none(facts)}.")
        return []
    found = []
    for name, row in rows.items():
        metrics = {key: dict(metric) for key, metric in row["metrics"].items()}
        if facts.recipe is not None and not all("half_width" in metric for metric in metrics.values()):
            _add_intervals(facts, name, metrics)
        found += [
            TestScore(
                test=name,
                label=metric["label"],
                score=metric["score"],
                signature=metric["signature"],
                sentences=row["sentences"],
                mean=metric.get("mean"),
                half_width=metric.get("half_width"),
            )
            for metric in metrics.values()
        ]
    return found


def _why_none(facts: Facts) -> str:
    if facts.recipe is not None and not facts.recipe.data.test:
        return "the recipe has no test corpus"
    if facts.run.scores.is_file() and facts.model is not None:
        return f"{SCORES_FILE} is about other weights than the model's; mtkit run RECIPE tests again"
    return f"{SCORES_FILE} is not there; mtkit run RECIPE makes it when training is over"


def _add_intervals(facts: Facts, name: str, metrics: dict[str, dict[str, Any]]) -> None:
    """Put `mean` and `half_width` into the metrics of a test corpus (mutates them), or note why that cannot be."""
    assert facts.recipe is not None
    corpus = next((one for one in facts.recipe.data.test if one.name == name), None)
    section = facts.recipe.evaluation
    if corpus is None:
        facts.missing.append(f"Interval of {name}: the recipe does not know this test corpus any more.")
        return
    if not section.resamples:
        facts.missing.append(f"Interval of {name}: evaluation.resamples is 0.")
        return
    try:
        references = [pair.target for pair in read_pairs(corpus, Path(facts.recipe.data.root))]
        hypotheses = list(read_lines(facts.run.test / f"{name}.txt"))
        figures = score(
            hypotheses,
            [references],
            Evaluation.model_validate({**section.model_dump(), "metrics": tuple(metrics)}),
            facts.recipe.languages.target,
            resamples=section.resamples,
        )
    except MtkitError as error:
        facts.missing.append(f"Interval of {name}: {error.message}")
        return
    for key, metric in metrics.items():
        again = figures.metrics[key]
        if abs(again.score - metric["score"]) > 1e-6:
            facts.missing.append(f"Interval of {name}: references or translations have changed since it was scored.")
            return
        metric |= {"mean": again.mean, "half_width": again.half_width}
