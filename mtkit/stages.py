"""The stages before training: what each one reads, whether that has changed, and making them anew where it has.

RUN/stages.json holds, for each stage that is done, all that it has read: settings, and the hashes of files; and under
"made" the hashes of the files that it wrote. A stage is up to date while both are the same: contents count, time stamps
do not. A stage is struck off before it is made again, so that a kill half-way does not leave new files under an old
entry.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.data.binarize import binarize
from mtkit.data.report import REPORT_FILE, Report
from mtkit.data.shards import open_shard
from mtkit.data.vocabulary import train_tokenizer
from mtkit.errors import DataError, ModelError, RecipeError, UsageError
from mtkit.files import read_json, sha256_file, write_json
from mtkit.folders import WEIGHTS_FILE, RunFolder
from mtkit.initial import initial_model, starting_tokenizers
from mtkit.lineage import corpus_hashes, differences
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)

STAGES = ("fetch", "tokenizer", "binarize", "train", "average", "test")
"""All stages of a run, in order."""

_MADE = "made"
_FILES = {"source", "target", "tsv", "source_column", "target_column"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which stages a run does: from `first` to `last`; `force` does them even where they are up to date."""

    first: str = STAGES[0]
    last: str = STAGES[-1]
    force: bool = False

    def __post_init__(self) -> None:
        if STAGES.index(self.first) > STAGES.index(self.last):
            raise UsageError(
                f"--from {self.first} comes after --until {self.last}", f"the order is {', '.join(STAGES)}"
            )

    def has(self, stage: str) -> bool:
        """Whether this stage is to be done."""
        return STAGES.index(self.first) <= STAGES.index(stage) <= STAGES.index(self.last)

    def starts_after(self, stage: str) -> bool:
        """Whether this stage is taken as it is."""
        return STAGES.index(stage) < STAGES.index(self.first)

    def forces(self, stage: str) -> bool:
        """Whether this stage is to be done even if it is up to date."""
        return self.force and self.has(stage)


def run_folder(recipe: Recipe) -> RunFolder:
    """The recipe's run folder. Raises RecipeError when a file is in its place or above it, or a model is there."""
    path = Path(recipe.run_dir)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise RecipeError(f"run_dir: {place} is a file, not a folder", "choose another run_dir")
    if (path / WEIGHTS_FILE).exists():
        raise RecipeError(
            f"run_dir: {path} is a model folder or a checkpoint; training cannot go on from weights alone",
            "run_dir is the folder of the whole run, such as runs/quickstart",
        )
    return RunFolder(path)


def done(run: RunFolder) -> dict[str, Any]:
    """What each finished stage has read; empty when the file is missing or damaged."""
    if not run.stages.is_file():
        return {}
    try:
        stages = read_json(run.stages)
    except DataError as error:
        log.warning("%s; all stages count as not done", error.message)
        return {}
    return stages if isinstance(stages, dict) else {}


def mark(run: RunFolder, stage: str, inputs: dict[str, Any], files: Iterable[Path]) -> None:
    """Note that a stage is done, what it has read, and the hashes of `files`, which it has written."""
    stages = done(run)
    made = {path.relative_to(run.path).as_posix(): sha256_file(path) for path in files}
    stages |= {stage: inputs, _MADE: {**stages.get(_MADE, {}), stage: made}}
    write_json(run.stages, dict(sorted(stages.items())))


def spoilt(run: RunFolder, stage: str) -> str | None:
    """In words, the first file that is not as the stage has left it; None when all are."""
    for name, sha256 in done(run).get(_MADE, {}).get(stage, {}).items():
        path = run.path / name
        if not path.is_file():
            return f"{path} is missing"
        found = sha256_file(path)
        if found != sha256:
            return f"{path} is not the one that was made here (its SHA-256 is {found[:12]}..., not {sha256[:12]}...)"
    return None


def why(before: Any, inputs: Mapping[str, Any]) -> str | None:
    """Why a stage has to be done that has last read `before`, and would read `inputs` now; None when it has not."""
    if before is None:
        return "not done yet"
    if before == inputs:
        return None
    return f"changed: {', '.join(differences(before, inputs))}" if isinstance(before, Mapping) else "no record of it"


def strike_off(run: RunFolder, stage: str) -> None:
    """Note that a stage is not done."""
    stages = done(run)
    if stages.pop(stage, None) is not None:
        write_json(run.stages, stages)


def ensure_tokenizer(recipe: Recipe) -> Tokenizers:
    """The run's tokenizers, trained first where they are missing or their text or settings have changed.

    Raises RecipeError where that would pull the rug from under checkpoints that were trained with the old ones.
    """
    run = run_folder(recipe)
    reason = why_tokenizer(recipe)
    if reason is None:
        tokenizers = Tokenizers.load(run.path)
        log.info("tokenizer: up to date (%s)", _sizes(tokenizers))
        return tokenizers
    if done(run).get("tokenizer") == tokenizer_inputs(recipe):
        log.warning("%s; making the tokenizer again", reason)
    tokenizers = make_tokenizer(recipe)
    source = recipe.training.initialize_from
    log.info("tokenizer: %s (%s)", f"taken over from {source}" if source else "trained", _sizes(tokenizers))
    return tokenizers


def why_tokenizer(recipe: Recipe) -> str | None:
    """Why the tokenizers have to be made; None when they are up to date. Raises as `tokenizer_inputs` does."""
    run = run_folder(recipe)
    reason = why(done(run).get("tokenizer"), tokenizer_inputs(recipe))
    if reason is None:
        try:
            Tokenizers.load(run.path)
        except ModelError as error:
            return error.message
    return reason or spoilt(run, "tokenizer")


def make_tokenizer(recipe: Recipe) -> Tokenizers:
    """Train the run's tokenizers, or take over those of the model it starts from, whether or not there are some.

    Raises as `ensure_tokenizer` does.
    """
    run = run_folder(recipe)
    inputs = tokenizer_inputs(recipe)
    refuse_with_checkpoints(run, "tokenizer", inputs)
    strike_off(run, "tokenizer")
    initial = initial_model(recipe)
    if initial is None:
        tokenizers = train_tokenizer(recipe, run.path)
    else:
        tokenizers = starting_tokenizers(initial, recipe)
        tokenizers.save(run.path)
    mark(run, "tokenizer", inputs, (path for path, _ in tokenizers.files(run.path)))
    return tokenizers


def tokenizer_inputs(recipe: Recipe) -> dict[str, Any]:
    """All that the tokenizer depends on. Raises DataError for a missing training file, ModelError for no model."""
    initial = initial_model(recipe)
    if initial is not None:
        return {"initial_tokenizer_sha256": initial.tokenizers.sha256, "symbols": list(recipe.symbols())}
    return {
        "tokenizer": recipe.tokenizer.model_dump(mode="json", exclude={"bpe_dropout"}),
        "symbols": list(recipe.symbols()),
        "corpora": [corpus.model_dump(mode="json", include=_FILES) for corpus in recipe.data.train],
        "files": corpus_hashes(recipe.data.train, Path(recipe.data.root)),
    }


def _sizes(tokenizers: Tokenizers) -> str:
    if tokenizers.joint:
        return f"joint vocabulary of {tokenizers.source.size:,}"
    return f"vocabularies of {tokenizers.source.size:,} and {tokenizers.target.size:,}"


def ensure_shards(recipe: Recipe, tokenizers: Tokenizers) -> None:
    """Binarize the corpora where shards are missing or what they were made from has changed.

    Raises RecipeError where there are checkpoints and what the shards were made from has changed.
    """
    run = run_folder(recipe)
    reason = why_shards(recipe, tokenizers)
    if reason is None:
        log.info("shards: up to date")
        return
    if done(run).get("binarize") == shard_inputs(recipe, tokenizers):
        log.warning("%s; making the shards again", reason)
    for line in make_shards(recipe, tokenizers).render().split("\n"):
        log.info("%s", line)


def shards_sha256(run: RunFolder) -> str | None:
    """What stands for the run's shards: the hash of their report, which has those of all shards; None without one."""
    path = run.shards / REPORT_FILE
    return sha256_file(path) if path.is_file() else None


def why_shards(recipe: Recipe, tokenizers: Tokenizers) -> str | None:
    """Why the shards have to be made; None when they are up to date. Raises as `shard_inputs` does."""
    run = run_folder(recipe)
    reason = why(done(run).get("binarize"), shard_inputs(recipe, tokenizers)) or spoilt(run, "binarize")
    if reason is not None:
        return reason
    try:
        for row in Report.load(run.shards).corpora:
            for shard in row.shards:
                path = open_shard(run.shards / shard.file).path
                if sha256_file(path) != shard.sha256:
                    return f"{path} is not the shard that {run.shards / REPORT_FILE} tells of"
    except (ModelError, DataError) as error:
        return error.message
    return None


def make_shards(recipe: Recipe, tokenizers: Tokenizers, workers: int | None = None) -> Report:
    """Binarize the corpora, whether or not there are shards; returns the report.

    Raises as `ensure_shards` does, and ModelError when the run's tokenizer was replaced by another.
    """
    run = run_folder(recipe)
    swapped = spoilt(run, "tokenizer")
    if swapped is not None:
        raise ModelError(f"{swapped}; {run.stages} tells which one", "make it again with: mtkit tokenizer RECIPE")
    inputs = shard_inputs(recipe, tokenizers)
    refuse_with_checkpoints(run, "binarize", inputs)
    strike_off(run, "binarize")
    report = binarize(recipe, tokenizers, run.shards, workers)
    mark(run, "binarize", inputs, [run.shards / REPORT_FILE])
    return report


def shard_inputs(recipe: Recipe, tokenizers: Tokenizers) -> dict[str, Any]:
    """All that the shards depend on. Raises DataError when a file is missing."""

    def listed(corpora: Iterable[Corpus]) -> list[dict[str, Any]]:
        return [corpus.model_dump(mode="json", exclude={"weight"}) for corpus in corpora]

    data = recipe.data
    return {
        "filters": recipe.filters.model_dump(mode="json"),
        "tokenizer_sha256": tokenizers.sha256,
        "train": listed(data.train),
        "valid": listed(data.valid),
        "files": corpus_hashes((*data.train, *data.valid), Path(data.root)),
    }


def refuse_with_checkpoints(run: RunFolder, stage: str, inputs: dict[str, Any]) -> None:
    """Raise RecipeError when there are checkpoints that are not known to come from these inputs.

    The same inputs make the same files again, so that checkpoints can go on with them.
    """
    count, before = len(run.steps()), done(run).get(stage)
    if not count or before == inputs:
        return
    what = {"tokenizer": "the tokenizer", "binarize": "the shards"}[stage]
    why = "there is no record of what was read"
    if isinstance(before, dict):
        why = f"these have changed: {', '.join(differences(before, inputs))}"
    raise RecipeError(
        f"{run.path}: {what} would have to be made again ({why}), and the checkpoints there ({count}) belong to the "
        "old text and settings",
        "start anew with --fresh, which deletes the checkpoints, or with --set run_dir=OTHER, which keeps them",
    )
