"""Label-smoothed cross-entropy, as sums over target tokens and never means.

Shapes: N real target positions, D d_model, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mtkit.model.kernels import product
from mtkit.model.linear import is_quicker

CHUNK = 512


class _ChunkedLoss(torch.autograd.Function):
    """Projection, softmax and loss of a few hundred positions at a time: the N x V logits never exist at once.

    The gradient with respect to the logits, p - (1 - s) * onehot - s / V, is known as soon as p is, so the backward
    pass is done here and only scaled later.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, smoothing: float, low: torch.dtype
    ) -> Any:
        vocabulary = weight_VD.shape[0]
        hidden_ND, low_VD = hidden_ND.to(low), weight_VD.to(low)
        needed = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden_ND) if needed else None
        grad_weight = torch.zeros_like(weight_VD) if needed else None
        smoothed, plain = weight_VD.new_zeros(()), weight_VD.new_zeros(())
        project = product if is_quicker(hidden_ND[:CHUNK], vocabulary) else F.linear
        for begin in range(0, hidden_ND.shape[0], CHUNK):
            chunk, targets = hidden_ND[begin : begin + CHUNK], targets_N[begin : begin + CHUNK, None]
            logits = project(chunk, low_VD).to(weight_VD.dtype)
            p = logits.softmax(-1)
            # Of the likeliest id, p is at least 1 / V: its logarithm is safe, and tells what was divided by.
            log_sum = logits.amax(1, keepdim=True) - p.amax(1, keepdim=True).log()
            nll = (log_sum - logits.gather(1, targets)).sum()
            plain += nll
            smoothed += (1 - smoothing) * nll
            if smoothing:
                smoothed += smoothing * log_sum.sum() - smoothing / vocabulary * logits.sum()
            if grad_hidden is not None and grad_weight is not None:
                grad = p.scatter_add_(1, targets, p.new_full((), smoothing - 1).expand_as(targets)).to(low)
                grad_hidden[begin : begin + CHUNK] = project(grad, low_VD.t())
                grad_weight += grad.t() @ chunk
        if smoothing and grad_hidden is not None and grad_weight is not None:
            # The same s / V in every column and row of the gradient: two sums instead of two products.
            grad_hidden -= smoothing / vocabulary * weight_VD.sum(0)
            grad_weight -= smoothing / vocabulary * hidden_ND.sum(0, dtype=weight_VD.dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grads[0], grad_weight * grads[0], None, None, None


def matrix(output: nn.Linear) -> Tensor:
    """The output layer as one matrix_VD; a bias is one more column, for hidden states with a 1 put at their end."""
    return output.weight if output.bias is None else torch.cat((output.weight, output.bias[:, None]), 1)


def projected_nll(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, smoothing: float, low: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Sums over N of the smoothed loss, with gradients, and of the plain negative log-likelihood, without; in nats.

    loss = (1 - s) * -log p(target) + s * mean over all V ids of -log p(v), where p = softmax(hidden W^T) (Szegedy et
    al. 2016, section 7; the mass s is spread over all V ids, as F.cross_entropy does). Softmax and sums are in
    the precision of the weight, matrix products in that of `low`, if given; all logits are never held at once.
    """
    with torch.autocast(hidden_ND.device.type, enabled=False):
        smoothed, plain = _ChunkedLoss.apply(hidden_ND, weight_VD, targets_N, smoothing, low or weight_VD.dtype)
    return smoothed, plain
