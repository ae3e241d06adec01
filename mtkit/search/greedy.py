"""The likeliest token at every step, and the loop that greedy search and sampling share: rows that never meet.

Shapes: B sentences, S source length, K rows a sentence, N = B * K, V vocabulary, T steps.
"""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mtkit.ids import BOS, EOS, PAD
from mtkit.search.protocol import Hypothesis, SearchModel
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
    found = unroll(model, source_BS, 1, constraints, Likeliest(), attention, scores)
    if not scores:
        for [hypothesis] in found:
            hypothesis.score = hypothesis.log_probability = math.nan
            hypothesis.token_log_probabilities = [math.nan] * len(hypothesis.token_log_probabilities)
    return found


def unroll(
    model: SearchModel,
    source_BS: Tensor,
    per_source: int,
    constraints: Constraints,
    choose: Chooser,
    attention: bool,
    probabilities: bool = True,
) -> list[list[Hypothesis]]:
    """per_source hypotheses a sentence, in the order of the rows; their score is the sum of what `choose` was shown.

    That is log-probabilities or, without `probabilities`, what ranks the tokens in the same way.

    A row that has ended still steps, its choices unread, until its sentence leaves the batch.
    """
    state = model.start(source_BS, per_source, attention)
    trace = Trace(len(source_BS), per_source)
    limits_N = constraints.most_N
    ids_N = torch.full_like(limits_N, BOS)
    alive_N = torch.ones_like(limits_N, dtype=torch.bool)
    for step in range(constraints.longest):
        logits_NV = model.step(ids_N, state)
        scores = constraints.score(logits_NV) if probabilities else constraints.rank(logits_NV)
        ids_N = choose(scores.search_NV, step)
        trace.append(scores.step(ids_N, state.attention_NS if attention else None))
        alive_N &= ids_N != EOS
        full_N = constraints.at_limit()
        if full_N is not None:
            alive_N &= ~full_N
        alive_B = alive_N.view(-1, per_source).any(1)
        left = int(alive_B.sum())
        if left == 0:
            break
        kept_B = staying(alive_B, left)
        if kept_B is not None:
            rows_N = (kept_B[:, None] * per_source + torch.arange(per_source, device=kept_B.device)).flatten()
            ids_N, alive_N = ids_N[rows_N], alive_N[rows_N]
            for part in (state, constraints, choose):
                part.select(rows_N)
            trace.keep(kept_B.cpu().numpy())
        constraints.advance(ids_N)
    return trace.read(_ends(trace, limits_N.cpu().numpy()), (source_BS != PAD).sum(1).tolist())


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
    return Ends(sentences_N, np.minimum(first_N, limits_N - 1), slots_N)
