"""Why each stage of a run has to be done: what `mtkit run --dry-run` tells, and `--from` asks before it begins."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtkit.errors import ModelError
from mtkit.files import sha256_file
from mtkit.folders import WEIGHTS_FILE, RunFolder, checkpoint_state
from mtkit.lineage import corpus_hashes, corpus_names
from mtkit.model_stage import why_average
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.stages import (
    STAGES,
    Selection,
    done,
    refuse_with_checkpoints,
    run_folder,
    shard_inputs,
    spoilt,
    tokenizer_inputs,
    why,
    why_shards,
    why_tokenizer,
)
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.resume import compare_recipe
from mtkit.training.state import TrainState
from mtkit.training.trainer import finished


@dataclass(frozen=True, slots=True)
class Step:
    """A stage, whether it would be done, and why or why not."""

    stage: str
    due: bool
    reason: str


def plan(recipe: Recipe, selection: Selection, fresh: bool = False) -> list[Step]:
    """What a run would do, stage by stage. Changes nothing. Raises RecipeError where the run would be refused."""
    anew = fresh or selection.forces("train")
    steps = []
    for stage, reason in reasons(recipe, anew):
        if selection.starts_after(stage):
            steps.append(Step(stage, False, "comes before --from" + (f" (not up to date: {reason})" if reason else "")))
        elif not selection.has(stage):
            steps.append(Step(stage, False, "comes after --until"))
        elif selection.forces(stage) and reason is None:
            steps.append(Step(stage, True, "up to date, and forced"))
        else:
            steps.append(Step(stage, reason is not None, reason or "up to date"))
    return steps


def reasons(recipe: Recipe, anew: bool = False) -> Iterator[tuple[str, str | None]]:
    """Every stage with the reason to do it, None where it is up to date; as things are, before any is done.

    `anew`: checkpoints and all that follows from them count as deleted. Raises RecipeError, as the run would, where
    there are checkpoints that something has changed under.
    """
    run = run_folder(recipe)
    before: str | None = None
    for stage in STAGES:
        reason = _why_not_there(run, stage, anew)
        if reason is None and before is not None:
            reason = f"{before} comes before it; skipped if all that it reads stays the same"
        elif reason is None:
            reason = _why_stale(recipe, run, stage)
        yield stage, reason if stage != "test" or recipe.data.test else None
        if reason is not None and before is None:
            if stage in ("tokenizer", "binarize") and run.steps() and not anew:
                _refuse_changes(recipe, run, stage)
            before = stage
    if run.steps() and not anew:
        compare_recipe(run, recipe)


def _refuse_changes(recipe: Recipe, run: RunFolder, stage: str) -> None:
    """Raise RecipeError where the stage cannot be done because checkpoints stand on what was there before."""
    if stage == "tokenizer":
        refuse_with_checkpoints(run, stage, tokenizer_inputs(recipe))
    else:
        refuse_with_checkpoints(run, stage, shard_inputs(recipe, Tokenizers.load(run.path)))


def _why_not_there(run: RunFolder, stage: str, anew: bool) -> str | None:
    """Words for a stage that was never done, or would be deleted; None for one that was."""
    there = {
        "fetch": True,
        "tokenizer": "tokenizer" in done(run),
        "binarize": "binarize" in done(run),
        "train": bool(run.steps()),
        "average": run.model.is_dir(),
        "test": "test" in done(run),
    }[stage]
    if there and anew and STAGES.index(stage) >= STAGES.index("train"):
        return "starts anew: what is there is deleted"
    return None if there else "not done yet"


def _why_stale(recipe: Recipe, run: RunFolder, stage: str) -> str | None:
    """Why a stage that was done has to be done again, when all before it are up to date."""
    match stage:
        case "fetch":
            missing = ", ".join(missing_files(recipe))
            known = "" if recipe.data.downloads else "; the recipe has no downloads, these are your own files"
            return f"missing: {missing}{known}" if missing else None
        case "tokenizer":
            return why_tokenizer(recipe)
        case "binarize":
            return why_shards(recipe, Tokenizers.load(run.path))
        case "train":
            return why_train(run, recipe)
        case "average":
            return why_average(run, recipe)
        case "test":
            return why_test(recipe)
    raise AssertionError(stage)


def all_corpora(recipe: Recipe) -> list[Corpus]:
    """The corpora of all parts."""
    return [*recipe.data.train, *recipe.data.valid, *recipe.data.test]


def missing_files(recipe: Recipe) -> list[str]:
    """The files of corpora that are not there, as the recipe names them."""
    root = Path(recipe.data.root)
    return [name for name in corpus_names(all_corpora(recipe)) if not (root / name).exists()]


def why_train(run: RunFolder, recipe: Recipe) -> str | None:
    """Why training has to begin or to go on; None when it is over."""
    steps = run.steps()
    if not steps:
        return "not done yet"
    try:
        state = TrainState.from_dict(checkpoint_state(run.checkpoint(steps[-1]))["train"])
    except (ModelError, KeyError, TypeError) as error:
        return f"the newest checkpoint cannot be read ({error})"
    if finished(state, recipe) is None:
        return f"{state.step} of {recipe.training.max_steps} updates are done"
    return None


def output_of(run: RunFolder, corpus: Corpus) -> Path:
    """Where the translation of a test corpus lies."""
    return run.test / f"{corpus.name}.txt"


def inputs_of_test(recipe: Recipe) -> dict[str, object]:
    """All that the test scores depend on."""
    return {
        "weights_sha256": sha256_file(run_folder(recipe).model / WEIGHTS_FILE),
        "languages": recipe.languages.model_dump(mode="json"),
        "search": recipe.search.model_dump(mode="json"),
        "evaluation": recipe.evaluation.model_dump(mode="json"),
        "corpora": [corpus.model_dump(mode="json", exclude={"weight"}) for corpus in recipe.data.test],
        "files": corpus_hashes(recipe.data.test, Path(recipe.data.root)),
    }


def why_test(recipe: Recipe) -> str | None:
    """Why the test corpora have to be translated and scored; None when that is done."""
    run = run_folder(recipe)
    if not (run.model / WEIGHTS_FILE).is_file():
        return "not done yet"
    reason = why(done(run).get("test"), inputs_of_test(recipe)) or spoilt(run, "test")
    missing = [path for path in (run.scores, *(output_of(run, one) for one in recipe.data.test)) if not path.is_file()]
    return f"{missing[0]} is missing" if reason is None and missing else reason
