"""Averaging checkpoints (Vaswani et al. 2017, section 6.1): which ones, and their mean."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtkit.checkpoint import load_tensors
from mtkit.errors import ModelError, UsageError
from mtkit.folders import WEIGHTS_FILE, RunFolder, TensorInfo, checkpoint_state, read_scores, read_tensor_table
from mtkit.lineage import differences

log = logging.getLogger(__name__)


def rank(scores: Mapping[str, Any], metric: str) -> float:
    """What decides between checkpoints, higher is better: BLEU, chrF, or minus the loss; without a score -infinity."""
    value = scores.get("nll" if metric == "loss" else metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return -math.inf
    return -value if metric == "loss" else float(value)


def select(run: RunFolder, how: str, count: int, metric: str) -> list[Path]:
    """The folders of the `count` newest ("last") or best-scored ("best") checkpoints, ascending by step.

    Best goes by `metric` (bleu, chrf, loss) of each checkpoint's validation; of equal ones the earlier is better, and
    checkpoints without a score come after all others, the newest first, which the log says.
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
    if how == "last":
        return [run.checkpoint(step) for step in steps[-count:]]
    ranks = {step: rank(read_scores(run.checkpoint(step)), metric) for step in steps}
    scored = sorted((step for step in steps if ranks[step] > -math.inf), key=lambda step: (-ranks[step], step))
    unscored = [step for step in reversed(steps) if ranks[step] == -math.inf]
    chosen = sorted((scored + unscored)[:count])
    if count > len(scored):
        names = ", ".join(str(step) for step in chosen if step in unscored)
        log.warning("average: no validation score to tell the best by; taken because newest: steps %s", names)
    return [run.checkpoint(step) for step in chosen]


def check_alike(folders: Sequence[Path]) -> None:
    """Raise ModelError, naming what differs, unless the checkpoints are of one model section and one tokenizer.

    Equal shapes do not suffice: models of 2 and of 4 heads have the same ones.
    """
    first = checkpoint_state(folders[0])
    for folder in folders[1:]:
        other = checkpoint_state(folder)
        keys = ("model", "tokenizer_sha256")
        changes = differences({key: first[key] for key in keys}, {key: other[key] for key in keys})
        if changes:
            rows = "; ".join(f"{key} is {new!r}, not {old!r}" for key, (old, new) in changes.items())
            raise ModelError(
                f"{folder}: was trained with another configuration than {folders[0]}: {rows}",
                "only checkpoints of one configuration can be averaged",
            )


def mean(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean weights of some checkpoint or model folders, each tensor in its own dtype.

    Sums in float64 and reads one file at a time. Shared matrices are stored once, so they count once; the mean of
    equal checkpoints is equal to them bit for bit. Raises ModelError, naming file and tensor, when they differ in
    names, shapes or dtypes, or when one is missing or damaged.
    """
    assert folders
    paths = [folder / WEIGHTS_FILE for folder in folders]
    table = read_tensor_table(paths[0])
    for path in paths[1:]:
        _check_tensors(paths[0], table, path)
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in paths:
        for name, weight in load_tensors(path).items():
            if name in sums:
                sums[name] += weight.double()
            else:
                sums[name], dtypes[name] = weight.double(), weight.dtype
    return {name: (total / len(paths)).to(dtypes[name]) for name, total in sums.items()}


def _check_tensors(first: Path, table: Mapping[str, TensorInfo], path: Path) -> None:
    other = read_tensor_table(path)
    for name in sorted(table.keys() | other.keys()):
        if table.get(name) != other.get(name):
            raise ModelError(
                f"{path}: tensor {name} is {other.get(name) or 'missing'}, in {first} it is "
                f"{table.get(name) or 'missing'}",
                "only checkpoints of one configuration can be averaged",
            )
