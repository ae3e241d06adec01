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
    """Keys and values that queries meet: of a source BHSE, of the steps so far TNHE."""

    keys: Tensor
    values: Tensor


def _by_heads(keys_TNHE: Tensor, values_TNHE: Tensor) -> tuple[Tensor, Tensor]:
    """Views keys_XET and values_XTE, contiguous before; X are all rows' heads."""
    assert keys_TNHE.is_contiguous()
    assert values_TNHE.is_contiguous()
    steps, rows, heads, width = keys_TNHE.shape
    count, step = rows * heads, rows * heads * width
    # One call for each view, where flatten and permute would take three: with few rows calls are much of the time.
    keys_XET = keys_TNHE.as_strided((count, width, steps), (width, 1, step))
    return keys_XET, values_TNHE.as_strided((count, steps, width), (width, step, 1))


def attend_steps(q: Tensor, seen: Seen, mask_TN1: Tensor | None) -> Tensor:
    """One query a row against the T keys of the steps so far: the mixed values_ND.

    q is q_NHE, or q_ND, which is the same.
    """
    steps, rows, heads, width = seen.keys.shape
    if steps * width >= _BLAS_SIZE:
        return _by_products(q, seen, mask_TN1)
    scores_TNH = (seen.keys * q.view(rows, heads, width)).sum(3)
    if mask_TN1 is not None:
        scores_TNH += mask_TN1
    weights_TNH = scores_TNH.softmax(0)
    return (seen.values * weights_TNH[..., None]).sum(0).view(rows, heads * width)


def _by_products(q: Tensor, seen: Seen, mask_TN1: Tensor | None) -> Tensor:
    """As `attend_steps`, by a small matrix product for each row and head, X of them: it spares the products' memory."""
    steps, rows, heads, width = seen.keys.shape
    keys_XET, values_XTE = _by_heads(seen.keys, seen.values)
    scores_X1T = torch.bmm(q.reshape(rows * heads, 1, width), keys_XET)
    if mask_TN1 is not None:
        scores_X1T.view(rows, heads, steps).add_(mask_TN1.permute(1, 2, 0))
    return torch.bmm(scores_X1T.softmax(2), values_XTE).view(rows, heads * width)


def attend_source(
    q_ND: Tensor, keys_NHSE: Tensor, values_NHSE: Tensor, mask_N11S: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One query a row against the keys of its own source, S of them: the mixed values_ND, and the weights_NHS.

    The keys of a head lie together here: of many rows the cache holds a part only, and where the S keys of a head were
    as many pieces, steps of 20, 73 and 290 rows of width 128 took 1.4, 1.3 and 1.2 times as long as a whole.
    """
    rows, heads, length, width = keys_NHSE.shape
    small = length * width < _BLAS_SIZE
    if small:
        scores_NHS = (keys_NHSE * q_ND.view(rows, heads, 1, width)).sum(3)
    else:
        keys_XES = keys_NHSE.view(-1, length, width).transpose(1, 2)
        scores_NHS = torch.bmm(q_ND.view(-1, 1, width), keys_XES).view(rows, heads, length)
    if mask_N11S is not None:
        scores_NHS += mask_N11S[:, 0]
    weights_NHS = scores_NHS.softmax(2)
    if small:
        mixed = (values_NHSE * weights_NHS[..., None]).sum(2)
    else:
        mixed = torch.bmm(weights_NHS.view(-1, 1, length), values_NHSE.view(-1, length, width))
    return mixed.view(rows, heads * width), weights_NHS
