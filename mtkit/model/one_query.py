"""Attention on a CPU where every row has one query and keys of its own: a step of decoding.

As many small matrix products it would be slow; it is written out over all rows at once while keys are few.

Shapes: N rows, T steps or source positions, D d_model, H heads, E head width, X = N * H.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Numbers in the keys of a head from which torch leaves a row's product with them to the BLAS; below it is slow.
_BLAS_SIZE = 400


class Seen(NamedTuple):
    """Keys and values that queries meet, as they lie, for one query a row TNHE, and maybe in the order of products."""

    keys: Tensor
    values: Tensor
    by_heads: tuple[Tensor, Tensor] | None = None


def by_heads(keys_TNHE: Tensor, values_TNHE: Tensor) -> tuple[Tensor, Tensor]:
    """Views keys_XET and values_XTE, contiguous before; X are all rows' heads."""
    assert keys_TNHE.is_contiguous()
    assert values_TNHE.is_contiguous()
    steps, rows, heads, width = keys_TNHE.shape
    count, step = rows * heads, rows * heads * width
    # One call for each view, where flatten and permute would take three: with few rows calls are much of the time.
    keys_XET = keys_TNHE.as_strided((count, width, steps), (width, 1, step))
    return keys_XET, values_TNHE.as_strided((count, steps, width), (width, step, 1))


def attend_each(q: Tensor, seen: Seen, mask_TN1: Tensor | None, record: bool = False) -> tuple[Tensor, Tensor | None]:
    """One query a row against T keys of its own: the mixed values_ND and, to `record`, the heads' mean weights_NT.

    q is q_NHE, or q_ND, which is the same.
    """
    steps, rows, heads, width = seen.keys.shape
    if steps * width >= _BLAS_SIZE:
        return _by_products(q, seen, mask_TN1, record)
    scores_TNH = (seen.keys * q.view(rows, heads, width)).sum(3)
    if mask_TN1 is not None:
        scores_TNH += mask_TN1
    weights_TNH = scores_TNH.softmax(0)
    mixed_NHE = (seen.values * weights_TNH[..., None]).sum(0)
    return mixed_NHE.view(rows, heads * width), weights_TNH.mean(2).t() if record else None


def _by_products(q: Tensor, seen: Seen, mask_TN1: Tensor | None, record: bool) -> tuple[Tensor, Tensor | None]:
    """As `attend_each`, by a small matrix product for each row and head, X of them: it spares the products' memory."""
    steps, rows, heads, width = seen.keys.shape
    keys_XET, values_XTE = seen.by_heads or by_heads(seen.keys, seen.values)
    scores_X1T = torch.bmm(q.reshape(rows * heads, 1, width), keys_XET)
    if mask_TN1 is not None:
        scores_X1T.view(rows, heads, steps).add_(mask_TN1.permute(1, 2, 0))
    weights_X1T = scores_X1T.softmax(2)
    mixed_ND = torch.bmm(weights_X1T, values_XTE).view(rows, heads * width)
    return mixed_ND, weights_X1T.view(rows, heads, steps).mean(1) if record else None
