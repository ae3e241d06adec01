"""COMET (Rei et al. 2020), a learnt metric that reads source, hypothesis and reference, through the extra `comet`.

It stands beside sacreBLEU's metrics as one of their kind, a score a sentence and their mean, so that intervals and
paired tests are the same code for all.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature

from mtkit.errors import DataError, MtkitError

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
_HINT = (
    "pip install -e '.[comet]' in an environment of its own, without -c constraints.txt: COMET needs an older numpy "
    "than the one pinned there"
)


class CometSignature(Signature):
    """What a figure of COMET depends on: its version, the model, the number of references, and that it is times 100."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.info |= {"version": arguments["version"], "model": arguments["model_name"], "scale": 100}


class Comet(Metric):
    """COMET times 100 as a metric of sacreBLEU's kind; with several references the mean over them.

    Loads the model when it is made, downloading it on first use as COMET does, and keeps what it has scored.
    """

    _SIGNATURE_TYPE: type[Signature] = CometSignature

    def __init__(self, sources: Sequence[str], model_name: str = DEFAULT_MODEL, batch_size: int = 16) -> None:
        """`model_name` is one of COMET's or a checkpoint file. Raises MtkitError when package or model are missing."""
        super().__init__()
        comet = _package()
        self.sources = list(sources)
        self.model_name, self.batch_size = model_name, batch_size
        self.version = str(getattr(comet, "__version__", "unknown"))
        self.num_refs = 0
        self._model = _load(comet, model_name)
        self._known: dict[tuple[str, ...], list[float]] = {}

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]] | None
    ) -> list[list[float]]:
        """For each sentence its score times 100, and 1 to divide the sum by."""
        assert references
        self.num_refs = len(references)
        sums = [0.0] * len(hypotheses)
        for reference in references:
            sums = [total + one for total, one in zip(sums, self._scores(hypotheses, reference), strict=True)]
        return [[100 * total / len(references), 1.0] for total in sums]

    def _scores(self, hypotheses: Sequence[str], reference: Sequence[str]) -> list[float]:
        if len(self.sources) != len(hypotheses):
            raise DataError(
                f"COMET: {len(self.sources)} source lines, {len(hypotheses)} hypotheses",
                "each hypothesis needs its source on the same line",
            )
        key = (*hypotheses, *reference)
        if key not in self._known:
            rows = [
                {"src": source, "mt": hypothesis, "ref": line}
                for source, hypothesis, line in zip(self.sources, hypotheses, reference, strict=True)
            ]
            with contextlib.redirect_stdout(sys.stderr):
                predicted = self._model.predict(rows, batch_size=self.batch_size, gpus=_gpus())
            self._known[key] = [float(one) for one in predicted.scores]
        return self._known[key]

    def _aggregate_and_compute(self, stats: list[list[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        return Score("COMET", float(stats[0] / stats[1]))

    def _preprocess_segment(self, sent: str) -> str:
        raise AssertionError("COMET scores whole lists")

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        raise AssertionError("COMET scores whole lists")

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        raise AssertionError("COMET scores whole lists")


def _package() -> ModuleType:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import comet
    except ImportError as error:
        missing = error.name or "a package of it"
        raise MtkitError(
            f"the metric comet needs the package unbabel-comet, and {missing} is not there", _HINT
        ) from error
    return comet


def _load(comet: ModuleType, name: str) -> Any:
    """The model behind a name, or in a checkpoint file."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return comet.load_from_checkpoint(name if Path(name).is_file() else comet.download_model(name))
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise MtkitError(
            f"COMET's model {name} cannot be loaded ({error})",
            "COMET downloads a model on first use; try again with a network, or give the path of a checkpoint",
        ) from error


def _gpus() -> int:
    torch = sys.modules.get("torch")  # COMET has imported it
    return int(torch is not None and torch.cuda.is_available())
