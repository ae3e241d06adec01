"""The batch plan of a run: how many batches and updates an epoch, how much padding, how many epochs to the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtkit.check.tokens import CorpusTokens
from mtkit.data.batching import epoch_indices, padding_share, plan
from mtkit.errors import DataError
from mtkit.files import read_json
from mtkit.folders import RunFolder
from mtkit.recipe import Recipe
from mtkit.sections.data import Batching


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Figures of the first epoch, of one process; where `sampled`, of a sample, scaled up.

    `rows`, `longest_source` and `longest_target` describe each planned batch, lengths with EOS.
    """

    sampled: bool
    batches: int
    updates: int
    pairs: int
    padding: float
    pairs_per_batch: float
    target_tokens_per_update: float
    updates_to_the_end: int
    epochs_to_the_end: float
    rows: np.ndarray
    longest_source: np.ndarray
    longest_target: np.ndarray


def measured_batching(recipe: Recipe) -> Batching | None:
    """The section with its budget as a number: the one that training measured last; None where it has not yet."""
    if recipe.batching.max_tokens != "auto":
        return recipe.batching
    path = RunFolder(Path(recipe.run_dir)).budget
    try:
        row = read_json(path) if path.is_file() else {}
        return Batching.model_validate({**recipe.batching.model_dump(), "max_tokens": int(row["max_tokens"])})
    except (DataError, ValueError, KeyError, TypeError):
        return None


def plan_batches(recipe: Recipe, corpora: Sequence[CorpusTokens]) -> BatchPlan | None:
    """The plan of epoch 0 by training's own planner; None when no pair is left. `corpora` are those of training."""
    source = np.concatenate([one.source_lengths for one in corpora]) + 1
    target = np.concatenate([one.target_lengths for one in corpora]) + 1
    training, weights = recipe.training, [one.facts.corpus.weight for one in corpora]
    chosen = epoch_indices([one.kept for one in corpora], weights, training.seed, 0)
    if not len(chosen):
        return None
    source, target = source[chosen], target[chosen]
    order = plan(source, target, recipe.batching, training.seed, 0)
    looked_at = sum(one.pairs for one in corpora)
    scale = sum(one.facts.pairs for one in corpora) / looked_at
    batches = round(len(order) * scale)
    updates = math.ceil(batches / training.accumulate)
    end = training.max_steps
    if training.max_epochs is not None:
        end = min(end, training.max_epochs * updates)
    return BatchPlan(
        sampled=scale > 1,
        batches=batches,
        updates=updates,
        pairs=round(len(chosen) * scale),
        padding=padding_share(source, target, order),
        pairs_per_batch=len(chosen) / len(order),
        target_tokens_per_update=float(target.sum()) * scale / updates,
        updates_to_the_end=end,
        epochs_to_the_end=end / updates,
        rows=np.array([len(batch) for batch in order]),
        longest_source=np.array([source[batch].max() for batch in order]),
        longest_target=np.array([target[batch].max() for batch in order]),
    )
