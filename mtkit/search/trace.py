"""What a search did, step by step, and how hypotheses are read out of it at the end.

Steps only append tensors, so nothing is copied or waited for while the search runs. A hypothesis is found backwards,
from its last token along the parents: all hypotheses at once.

Shapes: B sentences in the batch at a step, K entries a sentence, N = B * K, S source length, H hypotheses, T steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtkit.errors import ModelError
from mtkit.ids import EOS
from mtkit.search.protocol import Hypothesis

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Step:
    """One step: the chosen tokens and the model's log-probabilities of them.

    `ranked_N` is what the search adds up, where that is something else; `parents_N` the slot that an entry continues,
    None for its own; `attention_NS` belongs to the model's rows before the choice.
    """

    tokens_N: Tensor
    log_probabilities_N: Tensor
    ranked_N: Tensor | None = None
    parents_N: Tensor | None = None
    attention_NS: Tensor | None = None


@dataclass(slots=True)
class Ends:
    """Where hypotheses end: sentence, step and slot of the last token; in the order in which they shall be returned.

    `scores_H` is None where the score is what the search added up.
    """

    sentences_H: Ints
    steps_H: Ints
    slots_H: Ints
    scores_H: NDArray[np.float64] | None = None

    def best(self, count: int) -> "Ends":
        """At most `count` of each sentence, highest score first, then the earliest, then the lowest slot."""
        assert self.scores_H is not None
        order_H = np.lexsort((self.slots_H, self.steps_H, -self.scores_H, self.sentences_H))
        sentences_H = self.sentences_H[order_H]
        rank_H = np.arange(len(order_H)) - np.searchsorted(sentences_H, sentences_H)
        order_H = order_H[rank_H < count]
        return Ends(self.sentences_H[order_H], self.steps_H[order_H], self.slots_H[order_H], self.scores_H[order_H])


class Trace:
    """All steps of a search over `sentences` sentences, some of which leave before the end.

    A step has `per_source` entries a sentence; the first `rows` of them, by default all, are the model's rows, and the
    only ones that later steps continue.
    """

    def __init__(self, sentences: int, per_source: int, rows: int | None = None) -> None:
        self.sentences = sentences
        self.per_source = per_source
        self.rows = per_source if rows is None else rows
        self.order = np.arange(sentences)  # the sentences in the batch; replaced, never changed
        self._orders: list[Ints] = []
        self._steps: list[Step] = []

    def append(self, step: Step) -> None:
        """Note a step."""
        self._steps.append(step)
        self._orders.append(self.order)

    def keep(self, kept: Ints) -> None:
        """From now on only these places of the batch are there."""
        self.order = self.order[kept]

    def tokens(self) -> Ints:
        """The tokens as (T, sentences, K), EOS where a sentence had left."""
        table = np.full((len(self._steps), self.sentences, self.per_source), EOS)
        tokens_T = arrays([step.tokens_N for step in self._steps])
        for row, order, tokens_N in zip(table, self._orders, tokens_T, strict=True):
            row[order] = tokens_N.reshape(-1, self.per_source)
        return table

    def ends(self, steps: Sequence[int], scores: Sequence[NDArray[np.float64]]) -> Ends:
        """Where the scores, arrays of (B, K) after these steps, are not -inf."""
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
        for step, scores_BK in zip(steps, scores, strict=True):
            places, slots = (scores_BK > -np.inf).nonzero()
            sentences = self._orders[step][places]
            found.append((sentences, np.full_like(sentences, step), slots, scores_BK[places, slots]))
        return Ends(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def read(self, ends: Ends, source_lengths: Sequence[int]) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence. `source_lengths` count EOS; they bound the attention.

        Raises ModelError where log P is not a finite number: the model is damaged, or allows nothing.
        """
        tokens_HT, logs_HT, ranked_HT, attention_HTS = self._follow(ends)
        scores_H = ends.scores_H if ends.scores_H is not None else ranked_HT.sum(1)
        totals_H = logs_HT.sum(1)
        results: list[list[Hypothesis]] = [[] for _ in range(self.sentences)]
        places = zip(ends.sentences_H.tolist(), (ends.steps_H + 1).tolist(), strict=True)
        for row, (sentence, length) in enumerate(places):
            finished = bool(tokens_HT[row, length - 1] == EOS)
            attention = None
            if attention_HTS is not None:
                attention = attention_HTS[row, :length, : source_lengths[sentence]].tolist()
            hypothesis = Hypothesis(
                ids=tokens_HT[row, : length - finished].tolist(),
                score=float(scores_H[row]),
                log_probability=float(totals_H[row]),
                token_log_probabilities=logs_HT[row, :length].tolist(),
                finished=finished,
                attention=attention,
            )
            results[sentence].append(hypothesis)
        if not (np.isfinite(scores_H).all() and np.isfinite(totals_H).all() and all(results)):
            raise ModelError(
                "the model gives no finite probability to any translation of a sentence",
                "its weights may hold values that are not numbers, as after training with too high a learning rate",
            )
        return results

    def _follow(self, ends: Ends) -> tuple[Ints, NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Tokens, the model's and the search's log-probabilities (H, T), 0 after the end; attention (H, T, S)."""
        tokens_T = arrays([step.tokens_N for step in self._steps])
        logs_T = arrays([step.log_probabilities_N for step in self._steps])
        ranked = [step.ranked_N if step.ranked_N is not None else step.log_probabilities_N for step in self._steps]
        ranked_T = arrays(ranked)
        parents_T = arrays([step.parents_N for step in self._steps if step.parents_N is not None])
        attention_T = arrays([step.attention_NS for step in self._steps if step.attention_NS is not None])
        shape = (len(ends.steps_H), len(self._steps))
        tokens_HT, logs_HT, ranked_HT = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        attention_HTS = np.zeros((*shape, attention_T[0].shape[1]), np.float32) if attention_T else None
        slots_H = ends.slots_H.copy()
        for step in reversed(range(len(self._steps))):
            live = (ends.steps_H >= step).nonzero()[0]
            place_B = np.zeros(self.sentences, np.int64)
            place_B[self._orders[step]] = np.arange(len(self._orders[step]))
            place_H = place_B[ends.sentences_H[live]]
            rows = place_H * self.per_source + slots_H[live]
            tokens_HT[live, step] = tokens_T[step][rows]
            logs_HT[live, step] = logs_T[step][rows]
            ranked_HT[live, step] = ranked_T[step][rows]
            if parents_T:
                slots_H[live] = parents_T[step][rows]
            if attention_HTS is not None:
                attention_HTS[live, step] = attention_T[step][place_H * self.rows + slots_H[live]]
        return tokens_HT, logs_HT, ranked_HT, attention_HTS


def arrays(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """The tensors as arrays, brought over from their device in one piece. They differ in their first dimension only."""
    if not tensors:
        return []
    together = torch.cat(list(tensors)).cpu().numpy()
    return np.split(together, np.cumsum([len(tensor) for tensor in tensors])[:-1])
