"""Validation: the loss under teacher forcing, and scores of text that is really decoded."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from mtkit.data.batching import plan
from mtkit.data.corpus import Pair, read_pairs
from mtkit.data.loader import Batch, PairData
from mtkit.engine import ModelEngine
from mtkit.errors import DataError, TrainingError
from mtkit.evaluate import Scores, score
from mtkit.ranks import ALONE, Ranks
from mtkit.recipe import Recipe
from mtkit.runtime import is_out_of_memory, release_memory
from mtkit.sections.search import Beam, Greedy
from mtkit.training.log import finite, perplexity
from mtkit.training.memory import halves
from mtkit.training.state import Learner
from mtkit.training.step import batch_loss
from mtkit.translator import Translator

T = TypeVar("T")

log = logging.getLogger(__name__)


class Interrupted(Exception):
    """A validation that was told to stop; it has changed nothing and can be done again."""


@dataclass(frozen=True, slots=True)
class ValidationText:
    """The sentences to translate: those of one corpus share its tags."""

    sources: Sequence[str]
    references: Sequence[str]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """`nll` is the mean over target tokens in nats; `samples` are (source, hypothesis, reference)."""

    nll: float
    scores: Scores
    samples: list[tuple[str, str, str]]
    seconds: float

    def row(self) -> dict[str, Any]:
        """The figures for JSON, null where one is not finite."""
        figures = {name: metric.score for name, metric in self.scores.metrics.items()}
        row = {"nll": self.nll, "perplexity": perplexity(self.nll), **figures, "sentences": self.scores.sentences}
        return dict(finite(row))


def read_validation(recipe: Recipe) -> list[ValidationText]:
    """The validation sentences to translate, at most `training.validate_sentences` of them, from the top."""
    left = recipe.training.validate_sentences
    texts = []
    for corpus in recipe.data.valid:
        pairs: list[Pair] = []
        for pair in read_pairs(corpus, Path(recipe.data.root)):
            if left is not None and len(pairs) >= left:
                break
            pairs.append(pair)
        left = None if left is None else left - len(pairs)
        if pairs:
            texts.append(ValidationText([p.source for p in pairs], [p.target for p in pairs], corpus.tags))
    return texts


def check_validation(learner: Learner, data: PairData, texts: Sequence[ValidationText]) -> None:
    """Raise DataError before training where a validation would fail after hours: by a pair that is too long."""
    recipe = learner.recipe
    longest = int(max(data.source_lengths.max(initial=0), data.target_lengths.max(initial=0)))
    if recipe.model.positions == "learned" and longest > recipe.model.max_positions:
        raise DataError(
            f"a validation pair has {longest} tokens on a side, EOS included, and model.max_positions is "
            f"{recipe.model.max_positions}",
            "raise it, or take the pair out of the validation corpus",
        )
    if recipe.search.lines.on_long == "error":
        translator = Translator(ModelEngine(learner.core, learner.device), recipe, learner.tokenizers)
        for text in texts:
            translator.refuse_long(text.sources, validation_search(recipe), tags=text.tags)


def validate(
    learner: Learner,
    data: PairData,
    texts: Sequence[ValidationText],
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> ValidationReport:
    """Loss over all of `data`, and BLEU and chrF of the texts, with the weights to translate with.

    The ranks share the work, and each gets the whole report. Leaves weights and mode as they were. `stop` is asked
    after every batch; raises Interrupted, on every rank, when it says yes on one.
    """
    began = time.perf_counter()
    with learner.translating() as ready:
        nll = mean_nll(ready, data, stop, ranks)
        hypotheses, scores = translate_and_score(ready, texts, stop, ranks)
    sources = [line for text in texts for line in text.sources]
    references = [line for text in texts for line in text.references]
    count = min(learner.recipe.training.samples, len(sources))
    chosen = np.linspace(0, len(sources) - 1, count, dtype=int).tolist() if count else []
    samples = [(sources[i], hypotheses[i], references[i]) for i in chosen]
    return ValidationReport(nll, scores, samples, time.perf_counter() - began)


@torch.inference_mode()
def mean_nll(learner: Learner, data: PairData, stop: Callable[[], bool] = lambda: False, ranks: Ranks = ALONE) -> float:
    """Mean negative log-likelihood of the target tokens, EOS included, in nats."""

    def share() -> tuple[float, int]:
        total, tokens = 0.0, 0
        batches = plan(data.source_lengths, data.target_lengths, learner.batching, 0, 0)
        for indices in batches[ranks.rank :: ranks.world]:
            batch = data.collate(indices).to(learner.device)
            total += _batch_nll(learner, batch)
            tokens += batch.kept
            _heed(stop)
        return total, tokens

    parts = _shared(share, ranks)
    return sum(part[0] for part in parts) / sum(part[1] for part in parts)


def _batch_nll(learner: Learner, batch: Batch) -> float:
    """The sum of a batch; one that does not fit into memory is cut in halves."""
    try:
        return float(batch_loss(learner.core, learner.core.output, batch, learner.settings)[1])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    release_memory(learner.device)
    rows = len(batch.source_BS)
    if rows == 1:
        raise TrainingError(
            f"validation: out of memory with a single pair, of {batch.source_tokens} source and {batch.kept} target "
            "tokens; the checkpoints are as they were",
            "take the pair out of the validation corpus, or free memory on the device",
        )
    log.warning("validation: out of memory with %d pairs at once; they are cut in halves", rows)
    return sum(_batch_nll(learner, half) for half in halves(batch))


def _shared(share: Callable[[], T], ranks: Ranks) -> list[T]:
    """What each rank's share came to. Raises Interrupted on all ranks when one of them was interrupted."""
    try:
        mine = [share()]
    except Interrupted:
        mine = []
    parts = ranks.collect(mine)
    if not all(parts):
        raise Interrupted
    return [part[0] for part in parts]


def _heed(stop: Callable[[], bool]) -> None:
    if stop():
        raise Interrupted


def translate_and_score(
    learner: Learner,
    texts: Sequence[ValidationText],
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
) -> tuple[list[str], Scores]:
    """The translations of all texts in order, and their scores by the scorer of `mtkit eval`."""
    recipe = learner.recipe
    translator = Translator(ModelEngine(learner.core, learner.device), recipe, learner.tokenizers)
    search = validation_search(recipe)
    hypotheses: list[str] = []
    for text in texts:

        def share(text: ValidationText = text) -> list[str]:
            sources = text.sources[ranks.rank :: ranks.world]
            stream = translator.translate_stream(sources, search, tags=text.tags, on_batch=lambda lines: _heed(stop))
            return [one.text for one in stream]

        shares = _shared(share, ranks)
        hypotheses += [shares[i % ranks.world][i // ranks.world] for i in range(len(text.sources))]
    references = [line for text in texts for line in text.references]
    section = recipe.evaluation.model_copy(update={"metrics": ("bleu", "chrf")})
    return hypotheses, score(hypotheses, [references], section, recipe.languages.target)


def validation_search(recipe: Recipe) -> Greedy | Beam:
    """Greedy search or a beam of `training.validate_beam_size`, under the rules of the recipe's search."""
    size = recipe.training.validate_beam_size
    shared = {"rules": recipe.search.rules, "lines": recipe.search.lines}
    if size == 1:
        return Greedy(method="greedy", **shared)
    if isinstance(recipe.search, Beam):
        return Beam.model_validate(dict(recipe.search) | {"beam_size": size, "n_best": 1, "groups": 1, "mbr": "off"})
    return Beam(beam_size=size, **shared)
