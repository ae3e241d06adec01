"""Averaging checkpoints (Vaswani et al. 2017, section 6.1): which ones, and their mean."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mtkit.checkpoint import WEIGHTS_FILE, RunFolder, checkpoint_state, load_tensors, tensor_shapes
from mtkit.errors import ModelError, UsageError


def select(run: RunFolder, how: str, count: int) -> list[Path]:
    """The folders of the `count` newest ("last") or best-scored ("best") checkpoints, ascending by step.

    Best goes by the validation score in each checkpoint's state; checkpoints without one come after all others.
    Raises ModelError when there are none, UsageError when there are fewer than asked for.
    """
    steps = run.steps()
    if not steps:
        raise ModelError(f"{run.path}: no checkpoints to average", "train first: mtkit train RECIPE")
    if count > len(steps):
        raise UsageError(
            f"{run.path}: {count} checkpoints are asked for, {len(steps)} are there",
            "lower average.checkpoints (--checkpoints), or raise training.keep_last and training.keep_best",
        )
    if how == "best":
        ranks = {step: _rank(run.checkpoint(step)) for step in steps}
        steps.sort(key=lambda step: (ranks[step], step))
    return [run.checkpoint(step) for step in sorted(steps[-count:])]


def _rank(folder: Path) -> float:
    value = checkpoint_state(folder).get("rank")
    return float(value) if isinstance(value, int | float) else float("-inf")


def mean(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean weights of some checkpoint or model folders, each tensor in its own dtype.

    Sums in float64 and reads one file at a time. Shared matrices are stored once, so they count once; the mean of
    equal checkpoints is equal to them bit for bit. Raises ModelError, naming file and tensor, when they differ in
    names or shapes or when one is missing or damaged.
    """
    assert folders
    paths = [folder / WEIGHTS_FILE for folder in folders]
    shapes = tensor_shapes(paths[0])
    for path in paths[1:]:
        _check_alike(paths[0], shapes, path)
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        for name, weight in load_tensors(path).items():
            if name in sums:
                sums[name] += weight.double()
            else:
                sums[name], dtypes[name] = weight.double(), weight.dtype
    return {name: (total / len(paths)).to(dtypes[name]) for name, total in sums.items()}


def _check_alike(first: Path, shapes: dict[str, tuple[int, ...]], path: Path) -> None:
    other = tensor_shapes(path)
    for name in sorted(shapes.keys() | other.keys()):
        if shapes.get(name) != other.get(name):
            raise ModelError(
                f"{path}: tensor {name} is {other.get(name) or 'missing'}, in {first} it is "
                f"{shapes.get(name) or 'missing'}",
                "only checkpoints of one configuration can be averaged",
            )
