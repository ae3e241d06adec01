"""Optimizer, gradient clipping and the moving average of the weights."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from mtkit.fsdp import own
from mtkit.sections.training import Optimizer
from mtkit.training.muon import Muon


def make_optimizer(
    section: Optimizer,
    parameters: Iterable[nn.Parameter],
    device: torch.device,
    matrices: Iterable[nn.Parameter] = (),
    dtype: torch.dtype = torch.float32,
) -> torch.optim.Optimizer:
    """The recipe's optimizer with its constants; the learning rate is set at every update.

    `matrices` are those of the parameters that Muon takes, and `dtype` is the one of its products; the others are for
    AdamW then.
    """
    parameters = list(parameters)
    if section.name != "muon":
        return _adam(section, parameters, device)
    inner = {id(weight) for weight in matrices}
    taken = [weight for weight in parameters if id(weight) in inner]
    rest = [weight for weight in parameters if id(weight) not in inner]
    if not taken:
        return _adam(section, parameters, device)
    return Muon(taken, _adam(section, rest, device) if rest else None, section.weight_decay, dtype)


def _adam(section: Optimizer, parameters: Sequence[nn.Parameter], device: torch.device) -> torch.optim.Optimizer:
    """Adam, or AdamW for it and beside Muon."""
    kind = torch.optim.Adam if section.name == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=0.0,
        betas=(section.beta1, section.beta2),
        eps=section.epsilon,
        weight_decay=section.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups (mutates the optimizer)."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def global_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Euclidean norm of all gradients together; of this rank's pieces, where they are in pieces."""
    norms = torch._foreach_norm([own(weight.grad) for weight in parameters if weight.grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_gradient(parameters: Sequence[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale all gradients by limit / norm where the norm exceeds the limit (Pascanu et al. 2013, algorithm 1)."""
    scale = (limit / (norm + 1e-12)).clamp(max=1.0)
    torch._foreach_mul_([own(weight.grad) for weight in parameters if weight.grad is not None], scale)


class MovingAverage:
    """Exponential moving average of the weights: average += (1 - decay) * (weight - average).

    The decay starts low, min(decay, (1 + step) / (10 + step)), so that the random start is soon forgotten.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.parameters = list(parameters)
        self.averages = [weight.detach().clone() for weight in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step` (mutates the averages)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, weights = ([own(one.detach()) for one in side] for side in (self.averages, self.parameters))
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages; a second call restores both."""
        for weight, average in zip(self.parameters, self.averages, strict=True):
            held = weight.detach().clone()
            weight.copy_(average)
            average.copy_(held)
