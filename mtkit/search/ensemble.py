"""Several models that decide together: the mean of their probabilities.

Shapes: B sentences, S source length, N rows, V vocabulary, M models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mtkit.errors import ModelError
from mtkit.search.protocol import SearchModel, State


@dataclass(slots=True)
class EnsembleState:
    """One state for each model."""

    states: list[State]

    @property
    def attention_NS(self) -> Tensor | None:
        """The mean of the models' attention."""
        weights = [state.attention_NS for state in self.states]
        known = [weight_NS for weight_NS in weights if weight_NS is not None]
        return torch.stack(known).mean(0) if len(known) == len(weights) else None

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order, in every state."""
        for state in self.states:
            state.select(rows_N)


class Ensemble:
    """A SearchModel whose probabilities are the arithmetic or the geometric mean of those of its models.

    The geometric mean is the mean of the log-probabilities; search's log-softmax makes it sum to 1 again. The models
    must share one target vocabulary; here only its size can be compared. Raises ModelError where sizes differ.
    """

    def __init__(
        self, models: Sequence[SearchModel], combine: Literal["arithmetic", "geometric"] = "arithmetic"
    ) -> None:
        sizes = [model.vocab_size for model in models]
        assert sizes, "an ensemble needs a model"
        if len(set(sizes)) > 1:
            raise ModelError(
                f"the models of an ensemble have vocabularies of different sizes: {', '.join(map(str, sizes))}",
                "only models that were trained with the same tokenizer can be combined",
            )
        self.models = list(models)
        self.combine = combine
        self.vocab_size = sizes[0]

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> EnsembleState:
        """See SearchModel."""
        return EnsembleState([model.start(source_BS, per_source, attention) for model in self.models])

    def step(self, ids_N: Tensor, state: EnsembleState) -> Tensor:
        """Log of the mean probabilities (N, V), up to a constant a row."""
        logs = [
            torch.log_softmax(model.step(ids_N, part), 1) for model, part in zip(self.models, state.states, strict=True)
        ]
        logs_MNV = torch.stack(logs)
        return logs_MNV.mean(0) if self.combine == "geometric" else logs_MNV.logsumexp(0)
