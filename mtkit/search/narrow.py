"""A model over a part of its target vocabulary, in the plainest way.

Shapes: B sentences, S source length, N rows, V vocabulary, U the ids in use.
"""

from typing import Any

from torch import Tensor

from mtkit.search.protocol import SearchModel, State


class Narrowed:
    """A SearchModel whose id i is the id `ids_U[i]` of another one. The four special ids must keep their numbers."""

    def __init__(self, model: SearchModel, ids_U: Tensor) -> None:
        self.model = model
        self.ids_U = ids_U
        self.vocab_size = len(ids_U)

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> State:
        """See SearchModel."""
        return self.model.start(source_BS, per_source, attention)

    def step(self, ids_N: Tensor, state: Any) -> Tensor:
        """The other model's logits_NU of the ids in use."""
        return self.model.step(self.ids_U[ids_N], state).index_select(1, self.ids_U)
