"""Losses and gradients that are not finite or have run away: skipped, counted, and in the end given up on."""

import logging
import math
from dataclasses import dataclass

log = logging.getLogger(__name__)

DIVERGED = 4.0
"""A token loss of so many times log V, the loss of guessing blindly, counts as a bad number."""

ADVICE = "lower schedule.rate or lengthen schedule.warmup_steps, use optimizer.clip_norm, or training.precision: fp32"

_QUIET = 100  # first updates, in which nothing counts as a spike
_MEMORY = 20  # updates that mean and deviation look back on; more would hide a spike in the slope of a falling loss
_DEVIATIONS = 6.0
_LEAST_RISE = 0.1  # of the mean: a loss that hardly varies must not make every ripple a spike


def largest_nll(vocab_size: int) -> float:
    """The mean negative log-likelihood, in nats a token, above which an update is skipped.

    A model at its start guesses blindly, which costs log V, and only gets better; one that is surer of wrong tokens by
    this factor has been thrown off by too high a rate, and its gradients lead nowhere.
    """
    return DIVERGED * math.log(vocab_size)


@dataclass(slots=True)
class LossTrack:
    """Running mean and variance of the loss, exponentially forgetting after some 20 updates; part of the state."""

    updates: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def limit(self) -> float:
        """Above this a loss is a spike: 6 standard deviations and at least 10 % above the running mean.

        Infinite for the first 100 updates, when the loss still falls steeply.
        """
        if self.updates < _QUIET:
            return math.inf
        return self.mean + max(_DEVIATIONS * math.sqrt(self.variance), _LEAST_RISE * abs(self.mean))

    def add(self, loss: float) -> None:
        """Take in one loss; of a spike only as much as reaches the limit, so that one does not hide the next."""
        loss = min(loss, self.limit())
        self.updates += 1
        share = max(1 / self.updates, 1 / _MEMORY)
        rise = loss - self.mean
        self.mean += share * rise
        self.variance = (1 - share) * (self.variance + share * rise * rise)
