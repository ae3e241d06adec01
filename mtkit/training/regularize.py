"""Training beyond plain likelihood: word dropout and R-Drop.

Shapes: B sentences, S source length, T target length, N real target positions, D d_model, V vocabulary.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mtkit.data.loader import Batch
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.training.loss import CHUNK


def drop_words(batch: Batch, rate: float) -> Batch:
    """The batch with tokens of source and target_in read as UNK, each with probability `rate`; rate 0 leaves it alone.

    As Bowman et al. 2016 (section 3.1) do to the decoder's input; Sennrich et al. 2016 (Edinburgh at WMT) do the like
    to both sides, with zeros in place of the embedding. UNK is what decoding has for the words it cannot know. BOS,
    EOS and padding stay, and so does target_out: the loss asks for the words that were there. Drawn from torch's
    random state.
    """
    if rate == 0:
        return batch

    def dropped(ids_BT: Tensor) -> Tensor:
        chosen_BT = torch.rand(ids_BT.shape, device=ids_BT.device) < rate
        words_BT = (ids_BT != PAD) & (ids_BT != BOS) & (ids_BT != EOS)
        return ids_BT.masked_fill(chosen_BT & words_BT, UNK)

    return dataclasses.replace(batch, source_BS=dropped(batch.source_BS), target_in_BT=dropped(batch.target_in_BT))


class _ChunkedDivergence(torch.autograd.Function):
    """Symmetric divergence of two predictions, a few hundred positions at a time, as in `mtkit.training.loss`.

    With p = softmax(first W^T) and q = softmax(second W^T), the gradient of KL(p|q) + KL(q|p) with respect to the
    logits of p is p * (log p - log q - KL(p|q)) + p - q, and the same with p and q exchanged for those of q.
    """

    @staticmethod
    def forward(ctx: Any, first_ND: Tensor, second_ND: Tensor, weight_VD: Tensor, low: torch.dtype) -> Tensor:
        sides = first_ND.to(low), second_ND.to(low)
        low_VD = weight_VD.to(low)
        grads_ND = torch.empty_like(sides[0]), torch.empty_like(sides[1])
        grad_weight, total = torch.zeros_like(weight_VD), weight_VD.new_zeros(())
        for begin in range(0, first_ND.shape[0], CHUNK):
            rows = slice(begin, begin + CHUNK)
            log_p, log_q = (torch.log_softmax(side[rows] @ low_VD.t(), -1, dtype=weight_VD.dtype) for side in sides)
            p, q, log_ratio = log_p.exp(), log_q.exp(), log_p - log_q
            forth, back = (p * log_ratio).sum(-1, keepdim=True), -(q * log_ratio).sum(-1, keepdim=True)
            total += forth.sum() + back.sum()
            slopes = p * (log_ratio - forth) + p - q, q * (-log_ratio - back) + q - p
            for side, grad_ND, slope in zip(sides, grads_ND, slopes, strict=True):
                grad_ND[rows] = slope.to(low) @ low_VD
                grad_weight += slope.to(low).t() @ side[rows]
        ctx.save_for_backward(*grads_ND, grad_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        first, second, weight = ctx.saved_tensors
        return first * grads[0], second * grads[0], weight * grads[0], None


def symmetric_divergence(
    first_ND: Tensor, second_ND: Tensor, weight_VD: Tensor, low: torch.dtype | None = None
) -> Tensor:
    """Sum over N of KL(p|q) + KL(q|p), in nats, for the predictions p and q of two passes (Liang et al. 2021, eq. 2).

    Softmax and sums are in the precision of the weight, matrix products in that of `low`, if given.
    """
    with torch.autocast(first_ND.device.type, enabled=False):
        divergence: Tensor = _ChunkedDivergence.apply(first_ND, second_ND, weight_VD, low or weight_VD.dtype)
    return divergence
