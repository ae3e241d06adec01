"""The likeliest token at every step, and the loop that greedy search and sampling share: rows that never meet.

Shapes: B sentences, S source length, K rows a sentence, N = B * K, V vocabulary, T steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mtkit.ids import BOS, EOS, PAD
from mtkit.search.protocol import Hypothesis, SearchModel, State
from mtkit.search.rank import best
from mtkit.search.rules import Constraints
from mtkit.search.sizes import round_up
from mtkit.search.trace import Ends, Trace

# Sentences leave the batch when this share of it can: leaving copies the state, staying computes for nothing.
_LEAVING = 1 / 8


class Chooser(Protocol):
    """How the next token of each row is chosen."""

    def __call__(self, search_NV: Tensor, step: int) -> Tensor:
        """The chosen ids_N; forbidden tokens have log-probability -inf."""

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order."""


class Likeliest:
    """Chooses the likeliest token, the lowest id among equals."""

    def __call__(self, search_NV: Tensor, step: int) -> Tensor:
        """See Chooser."""
        return best(search_NV)

    def select(self, rows_N: Tensor) -> None:
        """Nothing to keep."""


def greedy(
    model: SearchModel, source_BS: Tensor, constraints: Constraints, attention: bool, scores: bool = True
) -> list[list[Hypothesis]]:
    """One hypothesis a sentence, the same as of a beam of 1 with length_penalty 0.

    Without `scores` the likeliest token is found among the logits, which spares the softmax, and scores and
    log-probabilities are NaN.
    """
    run = Run.begin(model, source_BS, 1, constraints, Likeliest(), attention, scores)
    run.go()
    return run.read() if scores else unscored(run.read())


def unscored(found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """The same hypotheses (mutates them) without the scores, which are not log-probabilities."""
    for [hypothesis] in found:
        hypothesis.score = hypothesis.log_probability = math.nan
        hypothesis.token_log_probabilities = [math.nan] * len(hypothesis.token_log_probabilities)
    return found


@dataclass(slots=True)
class Run:
    """A search whose rows never meet, under way: the loop that greedy search and sampling share.

    The score of a hypothesis is the sum of what `choose` was shown: log-probabilities or, without `probabilities`, what
    ranks the tokens in the same way. `limits_N` are the steps after which each row is full, at the latest. A row that
    has ended still steps, its choices unread, until its sentence leaves the batch.
    """

    model: SearchModel
    state: State
    constraints: Constraints
    choose: Chooser
    attention: bool
    probabilities: bool
    trace: Trace
    limits_N: np.ndarray
    source_lengths: Sequence[int]
    ids_N: Tensor
    alive_N: Tensor

    @classmethod
    def begin(
        cls,
        model: SearchModel,
        source_BS: Tensor,
        per_source: int,
        constraints: Constraints,
        choose: Chooser,
        attention: bool,
        probabilities: bool = True,
    ) -> "Run":
        """Before the first step, with `per_source` rows a sentence."""
        return cls(
            model=model,
            state=model.start(source_BS, per_source, attention),
            constraints=constraints,
            choose=choose,
            attention=attention,
            probabilities=probabilities,
            trace=Trace(len(source_BS), per_source),
            limits_N=constraints.most_N.cpu().numpy(),
            source_lengths=(source_BS != PAD).sum(1).tolist(),
            ids_N=torch.full_like(constraints.most_N, BOS),
            alive_N=torch.ones_like(constraints.most_N, dtype=torch.bool),
        )

    def go(self, enough: int = 0) -> bool:
        """Step until no more than `enough` sentences are left, and they alone; returns whether there are any."""
        while self.constraints.step < self.constraints.longest:
            logits_NV = self.model.step(self.ids_N, self.state)
            scores = (self.constraints.score if self.probabilities else self.constraints.rank)(logits_NV)
            self.ids_N = self.choose(scores.search_NV, self.constraints.step)
            self.trace.append(scores.step(self.ids_N, self.state.attention_NS if self.attention else None))
            self.alive_N &= self.ids_N != EOS
            full_N = self.constraints.at_limit()
            if full_N is not None:
                self.alive_N &= ~full_N
            alive_B = self.alive_N.view(-1, self.trace.per_source).any(1)
            left = int(alive_B.sum())
            if left == 0:
                return False
            kept_B = alive_B.nonzero().squeeze(1) if left <= enough else staying(alive_B, left)
            if kept_B is not None:
                self._keep(kept_B)
            self.constraints.advance(self.ids_N)
            if left <= enough:
                return True
        return False

    def _keep(self, kept_B: Tensor) -> None:
        """Let the other sentences leave."""
        per_source = self.trace.per_source
        rows_N = (kept_B[:, None] * per_source + torch.arange(per_source, device=kept_B.device)).flatten()
        self.ids_N, self.alive_N = self.ids_N[rows_N], self.alive_N[rows_N]
        for part in (self.state, self.constraints, self.choose):
            part.select(rows_N)
        self.trace.keep(kept_B.cpu().numpy())

    def read(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, in the order of its rows; of those that are left, what there is so far."""
        return self.trace.read(_ends(self.trace, self.limits_N), self.source_lengths)


def staying(alive_B: Tensor, left: int) -> Tensor | None:
    """The places of the sentences that stay in the batch, in order; None: all do. `left` of them are alive.

    To make up one of the few sizes of sizes.py, sentences stay that have ended.
    """
    size = round_up(left)
    if len(alive_B) - size < _LEAVING * len(alive_B):
        return None
    return alive_B.byte().sort(descending=True, stable=True).indices[:size].sort().values


def _ends(trace: Trace, limits_N: np.ndarray) -> Ends:
    """Each row's first EOS, or the step that fills it."""
    is_end_TN = trace.tokens().reshape(-1, len(limits_N)) == EOS
    first_N = np.where(is_end_TN.any(0), is_end_TN.argmax(0), len(is_end_TN))
    sentences_N, slots_N = np.divmod(np.arange(len(limits_N)), trace.per_source)
    # Sentences that are left have come to the last step.
    return Ends(sentences_N, np.minimum(first_N, np.minimum(limits_N, len(is_end_TN)) - 1), slots_N)
