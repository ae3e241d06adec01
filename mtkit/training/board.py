"""The log of a run for TensorBoard: the figures of metrics.jsonl once more, in RUN/tensorboard. Needs an extra."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtkit.errors import MtkitError
from mtkit.folders import RunFolder
from mtkit.recipe import Recipe

KINDS = ("train", "valid")
"""The events whose figures are shown."""


def check_board() -> None:
    """Raise MtkitError when TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise MtkitError(
            "training.tensorboard: needs TensorBoard, which is not installed",
            'pip install "mtkit[tensorboard]"; or leave it out, metrics.jsonl and mtkit report show the same figures',
        ) from None


class Board:
    """Writes figures as train/NAME and valid/NAME, each at its step."""

    def __init__(self, folder: Path, after_step: int) -> None:
        """Goes on in `folder` after update `after_step`.

        What an earlier start wrote of later updates, before it was killed, is shown no longer. Raises MtkitError when
        TensorBoard is not installed.
        """
        check_board()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=after_step + 1)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write the finite figures of an event to the disk; other kinds of events than `KINDS` are passed over."""
        if kind not in KINDS:
            return
        for name, value in values.items():
            if name not in ("step", "epoch") and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(f"{kind}/{name}", value, values["step"])
        self._writer.flush()

    def close(self) -> None:
        """End the thread that writes."""
        self._writer.close()


@contextmanager
def board_of(run: RunFolder, recipe: Recipe, after_step: int, leads: bool) -> Iterator[Board | None]:
    """Give the board of a run that goes on after update `after_step`; None where the recipe asks for none.

    Of several ranks only the one that `leads` has one.
    """
    if not (recipe.training.tensorboard and leads):
        yield None
        return
    with contextlib.closing(Board(run.tensorboard, after_step)) as board:
        yield board
