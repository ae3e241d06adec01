"""The stage that makes RUN/model: which checkpoints it averages, and whether the model there is already their mean."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.average import check_alike, mean, select
from mtkit.checkpoint import save_model
from mtkit.data.report import REPORT_FILE, Report
from mtkit.errors import ModelError, MtkitError
from mtkit.files import sha256_file
from mtkit.folders import RECIPE_FILE, WEIGHTS_FILE, RunFolder, check_checkpoint, read_lineage, read_scores
from mtkit.recipe import Recipe
from mtkit.stages import done, shards_sha256
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model folder to be: the checkpoints it is the mean of, and all that lies beside the weights."""

    folders: list[Path]
    steps: list[int]
    recipe: Recipe
    tokenizers: Tokenizers
    lineage: dict[str, Any]


def average(run: RunFolder, how: str, count: int, *, again: bool = False) -> list[int]:
    """Average checkpoints of a run into its model folder; returns their steps. `again` does so even if it is there.

    Raises ModelError when there are none, one is damaged, or tokenizer or shards are not those it was trained with;
    UsageError when there are too few.
    """
    if not run.recipe.is_file():
        raise ModelError(f"{run.path}: is not a run folder, it has no recipe.yaml", "train first: mtkit train RECIPE")
    plan = _plan(run, Recipe.load(run.recipe), how, count)
    names = ", ".join(map(str, plan.steps))
    if not again and _difference(run.model, plan) is None:
        log.info("model: up to date (steps %s)", names)
        return plan.steps
    save_model(run.model, mean(plan.folders), plan.recipe, plan.tokenizers, plan.lineage)
    log.info("model: %s from steps %s", run.model, names)
    return plan.steps


def why_average(run: RunFolder, recipe: Recipe) -> str | None:
    """Why the recipe's model has to be made; None when it is there. Raises as `average` does."""
    count = min(recipe.average.checkpoints, len(run.steps()))
    if not count:
        return "not done yet"
    return _difference(run.model, _plan(run, recipe, recipe.average.select, count))


def _plan(run: RunFolder, recipe: Recipe, how: str, count: int) -> _Plan:
    folders = select(run, how, count, recipe.training.best_metric)
    check_alike(folders)
    states = [check_checkpoint(folder) for folder in folders]
    tokenizers = Tokenizers.load(run.path)
    _check_origin(run, folders, states, tokenizers)
    steps = [int(state["step"]) for state in states]
    last = states[-1]
    lineage = {
        "steps": steps,
        "checkpoints_sha256": [state["sha256"][WEIGHTS_FILE] for state in states],
        "scores": [read_scores(folder) for folder in folders],
        "target_tokens": last["train"]["target_tokens"],
        "seconds": last["train"]["seconds"],
        "recipe_sha256": recipe.sha256(),
        "shards_sha256": shards_sha256(run),
        "corpora_sha256": _corpora_of(run),
        "files_sha256": done(run).get("binarize", {}).get("files", {}),
    }
    if last.get("initialized_from"):
        lineage["initialized_from"] = last["initialized_from"]
    return _Plan(folders, steps, recipe, tokenizers, lineage)


def _check_origin(run: RunFolder, folders: list[Path], states: list[dict[str, Any]], tokenizers: Tokenizers) -> None:
    """Raise ModelError when the run folder's tokenizer or shards are not those of the checkpoints."""
    for folder, state in zip(folders, states, strict=True):
        if tokenizers.sha256 != state["tokenizer_sha256"]:
            names = " and ".join(str(path) for path, _ in tokenizers.files(run.path))
            raise ModelError(
                f"{names} and {folder} do not belong together: the tokenizer is not the one that the checkpoint was "
                "trained with",
                "put the old tokenizer back, or train again: mtkit train RECIPE --fresh",
            )
        trained_on = state.get("shards_sha256")
        if trained_on is not None and trained_on != shards_sha256(run):
            raise ModelError(
                f"{run.shards / REPORT_FILE} and {folder} do not belong together: the shards are not those that the "
                "checkpoint was trained on",
                "make them again from the old text with mtkit binarize RECIPE, or train again: mtkit train RECIPE "
                "--fresh",
            )


def _difference(folder: Path, plan: _Plan) -> str | None:
    """In words, what a model folder lacks to be what `save_model` would write there; None when it lacks nothing."""
    if not folder.is_dir():
        return "not done yet"
    try:
        there = read_lineage(folder)
        theirs, recipe = Tokenizers.load(folder), Recipe.load(folder / RECIPE_FILE)
        weights = sha256_file(folder / WEIGHTS_FILE)
    except (MtkitError, OSError) as error:
        return f"{folder} is not whole ({error.message if isinstance(error, MtkitError) else error})"
    if there.get("steps") != plan.steps:
        return f"made from steps {there.get('steps')}, now {plan.steps}"
    if recipe != plan.recipe:
        return f"{folder / RECIPE_FILE} has other settings"
    if theirs.sha256 != plan.tokenizers.sha256:
        return f"{folder} has another tokenizer"
    hashes = {"weights_sha256": weights, "tokenizer_sha256": theirs.sha256}
    wanted = {"format": there["format"], **plan.lineage, **hashes}
    changed = [key for key in sorted(wanted.keys() | there.keys()) if wanted.get(key) != there.get(key)]
    return f"{folder} is not from these checkpoints ({', '.join(changed)})" if changed else None


def _corpora_of(run: RunFolder) -> dict[str, dict[str, str]]:
    """The hashes of the text that was binarized, by part and corpus."""
    rows = Report.load(run.shards).corpora
    return {f"{row.part} {row.corpus}": {"source": row.source_sha256, "target": row.target_sha256} for row in rows}
