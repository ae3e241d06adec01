"""A batch in halves, for memory that has run out."""

import dataclasses

from torch import Tensor

from mtkit.data.loader import Batch
from mtkit.ids import PAD


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
