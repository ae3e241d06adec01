"""Memory that has run out: a batch in halves, and what to say where halves do not help."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from mtkit.data.loader import Batch
from mtkit.errors import TrainingError
from mtkit.ids import PAD
from mtkit.runtime import is_out_of_memory


def halves(batch: Batch) -> list[Batch]:
    """The first and the second half of a batch's rows, without columns that are now padding alone."""
    rows = len(batch.source_BS)
    assert rows > 1
    return [_rows(batch, slice(0, rows // 2)), _rows(batch, slice(rows // 2, rows))]


def _rows(batch: Batch, chosen: slice) -> Batch:
    source_BS, target_out_BT = _trimmed(batch.source_BS[chosen]), _trimmed(batch.target_out_BT[chosen])
    return dataclasses.replace(
        batch,
        source_BS=source_BS,
        target_in_BT=batch.target_in_BT[chosen, : target_out_BT.shape[1]],
        target_out_BT=target_out_BT,
        source_tokens=int((source_BS != PAD).sum()),
        kept=int((target_out_BT != PAD).sum()),
    )


def _trimmed(ids_BT: Tensor) -> Tensor:
    return ids_BT[:, : int((ids_BT != PAD).sum(dim=1).max())]


@contextmanager
def room_for_update(step: int) -> Iterator[None]:
    """Raise TrainingError where memory runs out inside, in what no smaller batch would help: the move of the optimizer.

    Its two moments a weight are there from the first update on, as is, with several ranks, a copy of all gradients.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"step {step}: out of memory in the optimizer's move; the checkpoints are as they were",
            "it takes three times the memory of the weights beside them, whatever the batch: free memory on the "
            "device, or lower the size of the model or of the vocabulary",
        ) from None
