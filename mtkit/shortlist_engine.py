"""Searching each batch over the target tokens that a shortlist allows its sources.

A search over a few hundred target tokens spares most of the output projection, the softmax and the choice of the best.
The tokens left out have no probability then: log-probabilities are those of the model given that no such token is
wanted, and what a sentence gets depends a little on the sentences searched together with it, whose lists it shares.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mtkit.engine import Batch, ModelEngine
from mtkit.model.prepared import PreparedTransformer
from mtkit.search.narrow import Narrowed
from mtkit.search.protocol import Hypothesis, SearchModel
from mtkit.sections.search import Search
from mtkit.shortlist import Shortlist


class ShortlistEngine:
    """An engine that searches as `own` does, over the union of the lists of all source tokens of a batch.

    Forced prefixes belong to the union. It is sorted, so among equals the lower id wins as without a shortlist.
    """

    def __init__(self, own: ModelEngine, shortlist: Shortlist) -> None:
        assert own.model.vocab_size == shortlist.target_size
        self.own = own
        self.shortlist = shortlist

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine; in order."""
        for place, batch in enumerate(batches):
            ids_U = self.shortlist.union(batch.rows, batch.prefixes or ())
            model = narrowed(self.own.model, torch.from_numpy(ids_U).to(self.own.device))
            inside = replace(batch, prefixes=_inside(batch.prefixes, ids_U))
            found = self.own.search_batch(model, inside, config, attention, scores)
            for hypothesis in (one for hypotheses in found for one in hypotheses):
                hypothesis.ids = ids_U[hypothesis.ids].tolist() if hypothesis.ids else []
            yield place, found


def narrowed(model: SearchModel, ids_U: Tensor) -> SearchModel:
    """The model over these target ids alone, in the form that is fastest for its kind; its id i is `ids_U[i]`."""
    return model.narrowed(ids_U) if isinstance(model, PreparedTransformer) else Narrowed(model, ids_U)


def _inside(prefixes: Sequence[Sequence[int]] | None, ids_U: np.ndarray) -> Sequence[Sequence[int]] | None:
    """The prefixes in the numbers of the union, which holds all their ids."""
    return None if prefixes is None else [np.searchsorted(ids_U, list(prefix)).tolist() for prefix in prefixes]
