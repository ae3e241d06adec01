"""Attention on a CPU where every row has one query: a step of decoding, against its own steps or its source.

As many small matrix products it would be slow; it is written out over all rows at once while keys are few.

Shapes: B sentences, S source length, K rows a sentence, N = B * K rows, T steps, D d_model, H heads, E head width, X
all the heads of rows or, against the source, of sentences.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Numbers in the keys of a head from which torch leaves a row's product with them to the BLAS; below it is slow.
_BLAS_SIZE = 400


class Seen(NamedTuple):
    """Keys and values that queries meet: of a source BHSE, of the steps so far TNHE, each step in one piece."""

    keys: Tensor
    values: Tensor


def _by_heads(keys_TNHE: Tensor, values_TNHE: Tensor) -> tuple[Tensor, Tensor]:
    """Views keys_XET and values_XTE; X are all rows' heads."""
    assert keys_TNHE[0].is_contiguous()
    assert values_TNHE[0].is_contiguous()
    steps, rows, heads, width = keys_TNHE.shape
    count, step = rows * heads, keys_TNHE.stride(0)
    assert steps == 1 or values_TNHE.stride(0) == step
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


def attend_source(q_ND: Tensor, seen: Seen, mask_B11S: Tensor | None) -> tuple[Tensor, Tensor]:
    """K queries a sentence, one a row, against the S keys of its source: the mixed values_ND, and the weights_BHKS.

    The keys of a head lie together here: of many rows the cache holds a part only, and where the S keys of a head were
    as many pieces, steps of 20, 73 and 290 rows of width 128 took 1.4, 1.3 and 1.2 times as long as a whole.
    """
    sentences, heads, length, width = seen.keys.shape
    keys_XSE, values_XSE = seen.keys.view(-1, length, width), seen.values.view(-1, length, width)
    q_XKE = q_ND.view(sentences, -1, heads, width).transpose(1, 2).reshape(len(keys_XSE), -1, width)
    written_out = q_XKE.shape[1] == 1 and length * width < _BLAS_SIZE
    scores_XKS = (keys_XSE * q_XKE).sum(2)[:, None] if written_out else torch.bmm(q_XKE, keys_XSE.transpose(1, 2))
    scores_BHKS = scores_XKS.view(sentences, heads, -1, length)
    if mask_B11S is not None:
        scores_BHKS += mask_B11S
    weights_BHKS = scores_BHKS.softmax(3)
    weights_XKS = weights_BHKS.view(scores_XKS.shape)
    if written_out:
        mixed_XKE = (values_XSE * weights_XKS.transpose(1, 2)).sum(1)
    else:
        mixed_XKE = torch.bmm(weights_XKS, values_XSE)
    return mixed_XKE.view(sentences, heads, -1, width).transpose(1, 2).reshape(q_ND.shape), weights_BHKS
