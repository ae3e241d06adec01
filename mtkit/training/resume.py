"""Continuing a run: what may have changed since, which checkpoint is sound, and who else is at work."""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtkit.checkpoint import load_checkpoint
from mtkit.errors import ModelError, RecipeError, TrainingError
from mtkit.files import atomic_write
from mtkit.folders import RunFolder, set_aside
from mtkit.initial import initial_model
from mtkit.lineage import differences
from mtkit.ranks import Ranks
from mtkit.recipe import Recipe
from mtkit.sections.training import Cosine, Linear
from mtkit.stages import shards_sha256
from mtkit.training.schedule import rate_of
from mtkit.training.state import Learner, TrainState

log = logging.getLogger(__name__)

CHANGEABLE = (
    "average",
    "data.downloads",
    "data.root",
    "data.test",
    "evaluation",
    "run_dir",
    "search",
    "training.best_metric",
    "training.checksum_every_steps",
    "training.compile",
    "training.device",
    "training.gradient_checkpointing",
    "training.initialize_from",
    "training.keep_best",
    "training.keep_last",
    "training.log_every_steps",
    "training.max_bad_steps",
    "training.max_epochs",
    "training.max_steps",
    "training.parallel",
    "training.patience",
    "training.samples",
    "training.save_every_steps",
    "training.tensorboard",
    "training.threads",
    "training.validate_beam_size",
    "training.validate_every_steps",
    "training.validate_sentences",
)
"""Keys that may change between two starts of one run; all others decide what the run computes.

Of training.initialize_from only the place may change: what is there must be the weights that the run began with.

The linear and the cosine schedule end at training.max_steps. When it changes under them, the updates still to come
follow the new curve, and the log says at which rate: the result is that of neither recipe run through from the start.
"""


def may_change(key: str) -> bool:
    """Whether a run can be continued after this key has changed."""
    return any(key == name or key.startswith(f"{name}.") for name in CHANGEABLE)


def compare_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Compare the recipe with that of the checkpoints, if there are any, and log what has changed.

    Raises RecipeError naming every changed key that would make the rest of the run another run.
    """
    steps = run.steps()
    if not steps:
        return
    if not run.recipe.is_file():
        raise RecipeError(
            f"{run.path}: there are checkpoints, and {run.recipe.name}, which tells what they are, is missing",
            "restore it, or start anew: --fresh deletes the run's checkpoints, --set run_dir=OTHER keeps them",
        )
    before = Recipe.load(run.recipe)
    changes = differences(before.model_dump(mode="json"), recipe.model_dump(mode="json"))
    fatal = {key: values for key, values in changes.items() if not may_change(key)}
    if fatal:
        rows = "".join(f"\n  {key}: {old!r} -> {new!r}" for key, (old, new) in fatal.items())
        raise RecipeError(
            f"{run.path}: the run was started with another recipe; these keys cannot change half-way:{rows}",
            "set them back, or start anew: --fresh deletes the run's checkpoints, --set run_dir=OTHER keeps them",
        )
    for key, (old, new) in changes.items():
        log.info("recipe: %s is now %r (was %r)", key, new, old)
    if "training.max_steps" in changes and isinstance(recipe.schedule, Cosine | Linear):
        initial = initial_model(recipe)
        rates = [rate_of(one, initial, steps[-1] + 1) for one in (before, recipe)]
        log.warning(
            "schedule %s ends at training.max_steps, which has changed: the next rate is %.3e instead of %.3e, "
            "and the result is not that of a run with %d steps from the start",
            recipe.schedule.name,
            rates[1],
            rates[0],
            recipe.training.max_steps,
        )


def keep_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Write the recipe, with every setting spelt out, into the run folder."""
    with atomic_write(run.recipe) as stream:
        stream.write(recipe.dump())


def restore_newest(run: RunFolder, learner: Learner) -> TrainState | None:
    """Put the newest sound checkpoint into the learner (mutates it); None when there is no checkpoint.

    A checkpoint that cannot be read is named, renamed so that it counts no longer, and passed over for the one before.
    Raises TrainingError when none can be read.
    """
    steps = run.steps()
    unreadable = []
    for step in reversed(steps):
        folder = run.checkpoint(step)
        try:
            weights, tensors, document = load_checkpoint(folder)
        except ModelError as error:
            log.warning("%s; it is passed over for the checkpoint before", error.message)
            unreadable.append(step)
            continue
        _check_origin(run, folder, learner, document)
        _check_initial(folder, learner, document)
        learner.restore(weights, tensors, document["scaler"])
        for other in unreadable:
            log.warning("%s", f"{run.checkpoint(other)} is now {set_aside(run, other).name}, and can be deleted")
        return TrainState.from_dict(document["train"])
    if steps:
        count = "the only checkpoint there" if len(steps) == 1 else f"none of the {len(steps)} checkpoints there"
        raise TrainingError(
            f"{run.checkpoints}: {count} can{'not' if len(steps) == 1 else ''} be read",
            "restore one from a backup, or start anew with --fresh",
        )
    return None


def _check_origin(run: RunFolder, folder: Path, learner: Learner, document: Mapping[str, Any]) -> None:
    """Raise ModelError when the run folder's tokenizer or shards are not those that the checkpoint was trained with."""
    if document["tokenizer_sha256"] != learner.tokenizers.sha256:
        names = " and ".join(str(path) for path, _ in learner.tokenizers.files(run.path))
        raise ModelError(
            f"{names} and {folder} do not belong together: the checkpoint was trained with the tokenizer "
            f"{document['tokenizer_sha256'][:12]}..., the run folder now holds {learner.tokenizers.sha256[:12]}...",
            "put the old tokenizer back, or start anew with --fresh",
        )
    trained_on = document.get("shards_sha256")
    if trained_on is not None and trained_on != shards_sha256(run):
        raise ModelError(
            f"{run.shards} and {folder} do not belong together: these are not the shards that it was trained on",
            "make them again from the old text with mtkit binarize RECIPE, or start anew with --fresh",
        )


def _check_initial(folder: Path, learner: Learner, document: Mapping[str, Any]) -> None:
    """Raise RecipeError when the run began with other weights than `training.initialize_from` has now."""
    began = (document.get("initialized_from") or {}).get("weights_sha256")
    now = learner.initial.weights_sha256 if learner.initial else None
    if began != now:
        raise RecipeError(
            f"{folder}: the run began with {_weights(began)}, training.initialize_from now has {_weights(now)}",
            "set it back, or start anew: --fresh deletes the run's checkpoints, --set run_dir=OTHER keeps them",
        )


def _weights(sha256: str | None) -> str:
    return "random weights" if sha256 is None else f"the weights with SHA-256 {sha256[:12]}..."


def restore(run: RunFolder, learner: Learner, ranks: Ranks) -> TrainState | None:
    """`restore_newest` on the leading rank; the others take over the checkpoint that it has chosen."""
    state = ranks.lead(lambda: restore_newest(run, learner))
    if state is not None and not ranks.leads:
        weights, tensors, document = load_checkpoint(run.checkpoint(state.step))
        learner.restore(weights, tensors, document["scaler"])
    return state


@contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Hold the run folder's lock; the system lets go of it when the process ends, however it ends.

    So a lock file that is left behind blocks nobody. Raises TrainingError, naming process and host, when another
    process is at work in the folder.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / "lock", "a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise TrainingError(
                f"{run.path}: another process is at work here ({stream.read().strip() or 'unknown'})",
                "wait until it has ended, stop it, or choose another folder with --set run_dir=OTHER",
            ) from None
        except OSError as error:
            log.warning("%s: cannot be locked (%s); see to it that no other process works here", run.path, error)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield
