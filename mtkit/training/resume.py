"""Continuing a run: what may have changed since, which checkpoint is sound, and who else is at work."""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mtkit.checkpoint import RunFolder, load_checkpoint
from mtkit.errors import ModelError, RecipeError, TrainingError
from mtkit.files import atomic_write
from mtkit.recipe import Recipe
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
    "training.compile",
    "training.device",
    "training.keep_best",
    "training.keep_last",
    "training.log_every_steps",
    "training.max_bad_steps",
    "training.max_epochs",
    "training.max_steps",
    "training.patience",
    "training.samples",
    "training.save_every_steps",
    "training.threads",
    "training.validate_beam_size",
    "training.validate_every_steps",
    "training.validate_sentences",
)
"""Keys that may change between two starts of one run; all others decide what the run computes."""


def changed_keys(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, each with its old and new value."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    return {
        key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
    }


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def may_change(key: str) -> bool:
    """Whether a run can be continued after this key has changed."""
    return any(key == name or key.startswith(f"{name}.") for name in CHANGEABLE)


def check_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Compare the recipe with the run's own, and keep the new one.

    Raises RecipeError naming every changed key that would make the rest of the run another run.
    """
    if run.recipe.is_file():
        changes = changed_keys(Recipe.load(run.recipe), recipe)
        fatal = {key: values for key, values in changes.items() if not may_change(key)}
        if fatal:
            rows = "".join(f"\n  {key}: {old!r} -> {new!r}" for key, (old, new) in fatal.items())
            raise RecipeError(
                f"{run.path}: the run was started with another recipe; these keys cannot change half-way:{rows}",
                "set them back, or start anew: --fresh deletes the run's checkpoints, run_dir=OTHER keeps them",
            )
        for key, (old, new) in changes.items():
            log.info("recipe: %s is now %r (was %r)", key, new, old)
    with atomic_write(run.recipe) as stream:
        stream.write(recipe.dump())


def restore_newest(run: RunFolder, learner: Learner) -> TrainState | None:
    """Put the newest sound checkpoint into the learner (mutates it); None when there is no checkpoint.

    A damaged checkpoint is named and passed over. Raises TrainingError when all are damaged.
    """
    steps = run.steps()
    for step in reversed(steps):
        folder = run.checkpoint(step)
        try:
            weights, tensors, document = load_checkpoint(folder)
        except ModelError as error:
            log.warning("%s; it is passed over for the one before", error.message)
            continue
        learner.restore(weights, tensors, document["scaler"])
        return TrainState(**document["train"])
    if steps:
        raise TrainingError(
            f"{run.checkpoints}: none of the {len(steps)} checkpoints can be read",
            "restore one from a backup, or start anew with --fresh",
        )
    return None


@contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Hold the run folder's lock; the system lets go of it when the process ends, however it ends.

    Raises TrainingError, naming host and process, when another process is at work in the folder.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / "lock", "a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            raise TrainingError(
                f"{run.path}: another process is training here ({stream.read().strip() or 'unknown'})",
                "wait until it has ended, stop it, or choose another run_dir",
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield
