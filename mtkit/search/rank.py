"""The best entries of rows of scores, with ties in a fixed order.

`torch.topk` promises no order among equal values, and bf16 models make many of them. Here the lower id always wins,
so the result of a row depends on that row alone.

Shapes: N rows, V vocabulary, k how many, C chunks of `WIDTH` ids.
"""

import torch
from torch import Tensor

WIDTH = 64  # ids in a chunk: one pass for the chunks' maxima, then a search among few chunks; 2 to 6 times torch.topk
_FEW = 1 << 15  # scores, all rows together, among which that is slower: of one row of 6,000, 68 us, and argmax takes 8


def best(scores_NV: Tensor) -> Tensor:
    """The id of each row's highest score, the lowest id among equals."""
    count, rest = divmod(scores_NV.size(1), WIDTH)
    if count < 4 or scores_NV.numel() < _FEW:
        return scores_NV.argmax(1)
    chunks_NCW = scores_NV[:, : count * WIDTH].unflatten(1, (count, WIDTH))
    highest_N, chunk_N = chunks_NCW.amax(2).max(1)
    inside_N = chunks_NCW.gather(1, chunk_N[:, None, None].expand(-1, -1, WIDTH)).squeeze(1).argmax(1)
    id_N = chunk_N * WIDTH + inside_N
    if rest:
        last_N, place_N = scores_NV[:, count * WIDTH :].max(1)
        id_N = torch.where(last_N > highest_N, place_N + count * WIDTH, id_N)
    return id_N


def top(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, highest first, and their ids; the lower id first among equals."""
    vocabulary = scores_NV.size(1)
    if k >= vocabulary:
        return scores_NV.sort(dim=1, descending=True, stable=True)
    # One more than asked for shows a tie across the border.
    values_Nk, ids_Nk = _topk(scores_NV, k + 1)
    tied_Nk = (values_Nk[:, 1:] == values_Nk[:, :-1]) & (values_Nk[:, 1:] > -torch.inf)
    values_Nk, ids_Nk = values_Nk[:, :k], ids_Nk[:, :k]
    if tied_Nk.any():
        rows = tied_Nk.any(1).nonzero().squeeze(1)
        sorted_MV, order_MV = scores_NV[rows].sort(dim=1, descending=True, stable=True)
        values_Nk = values_Nk.index_copy(0, rows, sorted_MV[:, :k])
        ids_Nk = ids_Nk.index_copy(0, rows, order_MV[:, :k])
    return values_Nk, ids_Nk


def _topk(scores_NV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As torch.topk along dimension 1, by chunks where that is faster; ties in any order.

    The k chunks with the highest maxima hold k highest scores: each entry elsewhere has k maxima not below it.
    """
    vocabulary = scores_NV.size(1)
    count, rest = divmod(vocabulary, WIDTH)
    if count < 4 * k or scores_NV.numel() < _FEW:
        return scores_NV.topk(k, 1)
    chunks_NCW = scores_NV[:, : count * WIDTH].unflatten(1, (count, WIDTH))
    chunk_Nk = chunks_NCW.amax(2).topk(k, 1).indices
    few_NM = chunks_NCW.gather(1, chunk_Nk[:, :, None].expand(-1, -1, WIDTH)).flatten(1)
    if rest:
        few_NM = torch.cat((few_NM, scores_NV[:, count * WIDTH :]), 1)
    values_Nk, place_Nk = few_NM.topk(k, 1)
    if not rest:
        return values_Nk, chunk_Nk.gather(1, place_Nk // WIDTH) * WIDTH + place_Nk % WIDTH
    # A place beyond the chosen chunks is one in the rest, whose first id is count * WIDTH.
    start_Nk = torch.cat((chunk_Nk * WIDTH, torch.full_like(chunk_Nk[:, :1], count * WIDTH)), 1)
    return values_Nk, start_Nk.gather(1, place_Nk // WIDTH) + place_Nk % WIDTH
