"""What search knows of a model, and what it returns.

Shapes: B sentences, S source length, N = B * per_source rows (sentence-major), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class State(Protocol):
    """What a model remembers between two steps, for N rows. Made by `SearchModel.start`, changed by `step`."""

    @property
    def attention_NS(self) -> Tensor | None:
        """Weights over the source in the latest step, a tensor of its own for every step; None unless asked for.

        S stays the width of the source given to `start`; positions of padding are 0.
        """

    def select(self, rows_N: Tensor) -> None:
        """Keep the given rows, in the given order (changes the state).

        Rows come in groups of per_source. Every new group holds rows of one sentence: sentences are dropped or
        reordered whole, rows inside a sentence permuted or repeated.
        """


class SearchModel(Protocol):
    """A model that gives the logits of the next token, step by step."""

    @property
    def vocab_size(self) -> int:
        """V: ids are 0 .. V - 1."""

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> State:
        """A state of B * per_source rows, sentence-major.

        `source_BS` is padded with PAD on the right, and each row ends with EOS before the padding.
        """

    def step(self, ids_N: Tensor, state: Any) -> Tensor:
        """Feed one id (BOS first) to each row of a state that `start` made; returns the next logits, float32 (N, V).

        The tensor is the caller's: search overwrites it. Rows of ended hypotheses may be fed any id.
        """


@dataclass(slots=True)
class Hypothesis:
    """One translation, as ids without BOS and EOS.

    `score` is what the search ranks by: for beam log P / length penalty + coverage penalty, else log P, where log P
    includes the repetition penalty. `log_probability` and `token_log_probabilities` are the model's own (log-softmax of
    its logits, before any rule), so force-decoding the same tokens gives them again; EOS counts when `finished`.
    `finished` is False for a hypothesis cut at the length limit. `attention` has a row for each token (and EOS), a
    column for each source token (and EOS). Scores and log-probabilities that were not asked for may be NaN.
    """

    ids: list[int]
    score: float
    log_probability: float
    token_log_probabilities: list[float]
    finished: bool
    attention: list[list[float]] | None = None


Prefixes = Sequence[Sequence[int]]
