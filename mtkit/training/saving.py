"""Writing checkpoints during training, and which ones are kept."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mtkit.average import rank
from mtkit.checkpoint import save_checkpoint
from mtkit.errors import TrainingError
from mtkit.folders import RunFolder, remove_checkpoint
from mtkit.fsdp import is_shared_out, whole
from mtkit.ranks import Ranks
from mtkit.recipe import Recipe
from mtkit.stages import shards_sha256
from mtkit.training.bad_numbers import ADVICE
from mtkit.training.state import Learner, TrainState


def gather(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The tensors, put together from all ranks' pieces; whole on the CPU of the leading one, and empty on the others.

    All ranks call it together. At most one tensor is whole on a GPU at a time.
    """
    gathered = {}
    for name, tensor in tensors.items():
        one = whole(tensor)
        gathered[name] = one.cpu() if ranks.leads else one.new_empty(0)
    return gathered


def contents(learner: Learner, ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What `save` writes: the weights to translate with, and the other tensors. All ranks call it together."""
    weights, tensors = learner.translation_weights(), learner.tensors()
    return (gather(weights, ranks), gather(tensors, ranks)) if is_shared_out(learner.core) else (weights, tensors)


def save(
    learner: Learner, state: TrainState, run: RunFolder, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Write the checkpoint of the state's step, then delete those that need not be kept.

    `weights` and `tensors` are its `contents`.

    Raises TrainingError, and leaves all checkpoints as they are, when a number to be saved is not finite or the disk
    is full.
    """
    for name, tensor in (*weights.items(), *tensors.items()):
        if not bool(torch.isfinite(tensor).all()):
            raise TrainingError(
                f"step {state.step}: {name} is not finite; no checkpoint is written, {_last(run)}", ADVICE
            )
    document = {
        "train": state.as_dict(),
        "scaler": learner.scaler.state_dict(),
        "model": learner.recipe.model.model_dump(mode="json"),
        "tokenizer_sha256": learner.tokenizers.sha256,
        "shards_sha256": shards_sha256(run),
        "recipe_sha256": learner.recipe.sha256(),
        "initialized_from": learner.initial.lineage() if learner.initial else None,
    }
    try:
        save_checkpoint(run, state.step, weights, tensors, document, state.scores_at(state.step))
    except OSError as error:
        raise TrainingError(
            f"{run.checkpoint(state.step)}: the checkpoint cannot be written ({error.strerror or error}); {_last(run)}",
            "make room, then run the same command again: it goes on from the last checkpoint",
        ) from None
    for step in surplus(run.steps(), state, learner.recipe):
        remove_checkpoint(run, step)


def _last(run: RunFolder) -> str:
    steps = run.steps()
    return f"the last one, of step {steps[-1]}, is as it was" if steps else "there is none yet"


def surplus(steps: Sequence[int], state: TrainState, recipe: Recipe) -> list[int]:
    """The checkpoints that are neither among the newest nor among the best that the recipe keeps.

    Of equally good ones the earlier is kept.
    """
    training = recipe.training
    newest = set(sorted(steps)[-training.keep_last :])
    ranks = {step: rank(state.scores_at(step), training.best_metric) for step in steps}
    scored = sorted((step for step in steps if ranks[step] > -math.inf), key=lambda step: (-ranks[step], step))
    return [step for step in steps if step not in newest and step not in scored[: training.keep_best]]
