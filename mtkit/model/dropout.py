"""Dropout (Srivastava et al. 2014) whose random bits are cheap on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16


class Dropout(nn.Module):
    """Zero each number with probability `rate` in training and scale the rest by 1 / (1 - rate).

    On a CPU one 64-bit draw decides four numbers, at a resolution of 2^-16 of the rate; the scale uses the rate as
    rounded, so the expectation stays exact. torch's own kernel spends several times as long on its random numbers; it
    is used on other devices, and where the model is compiled.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.dropped = min(round(rate * _LEVELS), _LEVELS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """x with some numbers zeroed; x itself in evaluation or at rate 0."""
        if not self.training or self.dropped == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # the draw below would cut the compiled graph
            return F.dropout(x, self.rate, training=True)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        # 1 where a draw reaches the limit, else 0: in place on 16-bit numbers that is faster than a comparison.
        below = self.dropped - _LEVELS // 2 - 1
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape).clamp_(below, below + 1).sub_(below)
        return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - self.dropped))
