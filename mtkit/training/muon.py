"""Muon (Jordan et al. 2024) for the matrices inside the layers, and another optimizer for all else.

Muon moves a matrix by its momentum with all singular values brought near 1, so that every direction is learned at the
same pace and not only the few strongest. With G the gradient, B the momentum and mu = 0.95:

    B <- mu B + (1 - mu) G
    W <- W - rate * weight_decay * W - rate * 0.2 sqrt(max(O, I)) * orthogonal((1 - mu) G + mu B)

The factor 0.2 sqrt(max(O, I)) makes a step about as large as one of Adam (Liu et al. 2025, section 2.2), so rates that
suit Adam suit Muon. `torch.optim.Muon` computes the same, one matrix after the other; here matrices of one shape go
together, in about half the time. The tests hold one to the other.

Shapes: K matrices of O outputs and I inputs.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
_ROUNDS = 5
# Jordan et al. 2024: the quintic a x + b x^3 + c x^5 that lifts small singular values fastest; 5 rounds take all but
# the smallest to between 0.7 and 1.2.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon for `matrices`, and `others` for the rest, as one optimizer: they share the state, and a step moves both."""

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: torch.optim.Optimizer | None,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is that of the products; bfloat16 will do, and is quick where the processor multiplies it."""
        super().__init__([{"params": list(matrices)}], {"lr": 0.0, "weight_decay": weight_decay})
        self.dtype = dtype
        self.others = others
        if others is not None:
            others.state = self.state
            self.param_groups.extend(others.param_groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move all weights that have a gradient (mutates weights and state)."""
        assert closure is None
        alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None:
                alike[tuple(weight.shape)].append(weight)
        for weights in alike.values():
            self._move(weights)
        if self.others is not None:
            self.others.step()

    def _move(self, weights: Sequence[nn.Parameter]) -> None:
        """Move matrices of one shape (mutates them and their momentum)."""
        rate, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead_KOI = torch.stack(gradients).lerp_(torch.stack(momenta), MOMENTUM)
        moves_KOI = orthogonal(ahead_KOI.to(self.dtype)).to(weights[0].dtype)
        if decay:
            torch._foreach_mul_(list(weights), 1 - rate * decay)
        torch._foreach_add_(list(weights), list(moves_KOI), alpha=-rate * 0.2 * max(weights[0].shape) ** 0.5)


def orthogonal(matrices_KOI: Tensor) -> Tensor:
    """U V^T for each matrix U S V^T, nearly: singular values end up around 1 (Newton-Schulz; Jordan et al. 2024)."""
    tall = matrices_KOI.size(1) > matrices_KOI.size(2)
    x_KOI = matrices_KOI.mT if tall else matrices_KOI
    x_KOI = x_KOI / x_KOI.norm(dim=(1, 2), keepdim=True).clamp_min(_TINY)
    for _ in range(_ROUNDS):
        gram_KOO = x_KOI @ x_KOI.mT
        x_KOI = torch.baddbmm(x_KOI, torch.baddbmm(gram_KOO, gram_KOO, gram_KOO, beta=_B, alpha=_C), x_KOI, beta=_A)
    return x_KOI.mT if tall else x_KOI
