"""The formulas that change a hypothesis's score. Pure.

Shapes: N rows, S source length, T tokens produced, V vocabulary.
"""

import torch
from torch import Tensor

from mtkit.ids import EOS, PAD

# Attention below this counts as this, so that a source token nobody looked at costs much but not everything.
LEAST_COVERAGE = 1e-9


def length_penalty(length: int, alpha: float, normalization: str) -> float:
    """What log P is divided by: length^alpha (plain), or ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).

    `length` counts the scored tokens: EOS too where there is one. Never decreases with length, as alpha >= 0.
    """
    base = float(length) if normalization == "plain" else (5.0 + length) / 6.0
    return base**alpha


def coverage_mask(source_NS: Tensor) -> Tensor:
    """True at the source tokens that want covering: neither padding nor EOS."""
    return (source_NS != PAD) & (source_NS != EOS)


def coverage_penalty(coverage_NS: Tensor, mask_NS: Tensor, beta: float) -> Tensor:
    """beta * sum over source tokens of log min(attention received, 1): Wu et al. 2016, equation 14; never above 0.

    `coverage_NS` is the attention summed over the produced tokens. Attention counts as at least LEAST_COVERAGE.
    Returns float64 of shape (N,).
    """
    logs_NS = coverage_NS.double().clamp(LEAST_COVERAGE, 1.0).log()
    return beta * logs_NS.masked_fill(~mask_NS, 0.0).sum(1)


def penalize_repetition_(logits_NV: Tensor, produced_NT: Tensor, penalty: float) -> None:
    """Change the logits of produced tokens: positive ones are divided by `penalty`, negative ones multiplied.

    Keskar et al. 2019, section 4.1, with the sign taken into account so that a penalty above 1 never makes a token
    likelier. A token counts once however often it was produced.
    """
    seen_NT = logits_NV.gather(1, produced_NT)
    logits_NV.scatter_(1, produced_NT, torch.where(seen_NT > 0, seen_NT / penalty, seen_NT * penalty))
