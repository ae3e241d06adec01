"""What runs the searches of a translator: batches of source ids in, hypotheses out.

`Translator` knows only the protocol `Engine`; how and where a batch is searched is an engine's own business.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from mtkit.errors import ModelError
from mtkit.ids import PAD
from mtkit.model.prepared import PreparedTransformer
from mtkit.runtime import autocast, is_out_of_memory, release_memory
from mtkit.search.protocol import Hypothesis, Prefixes, SearchModel
from mtkit.search.run import search
from mtkit.search.tails import greedy_in_turn
from mtkit.sections.search import Greedy, Search

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences to be searched together.

    `rows` are source ids, each with EOS at its end and without padding; `keys` key the noise of sampling, one a row;
    `prefixes` are the target ids that each row's hypotheses must begin with (None: no row has any).
    """

    rows: Sequence[Sequence[int]]
    keys: Sequence[int]
    prefixes: Sequence[Sequence[int]] | None


class Engine(Protocol):
    """Searches batches, in this process or elsewhere."""

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield, for every batch, its place among `batches` and the hypotheses of each of its rows, best first.

        Results come in any order, each as soon as it is there. With `attention` every hypothesis has its own; without
        `scores` its scores may be NaN.
        """


class ModelEngine:
    """Searches one batch after the other in this process, with a model on `device`.

    Matrix products are in `dtype` where it is given (torch's autocast).
    """

    def __init__(
        self, model: SearchModel, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> None:
        self.model = model
        self.device = torch.device(device)
        self.dtype = dtype

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine; in order, but for greedy search on a CPU, where the last sentences of a batch may wait."""
        stream = enumerate(batches)
        owed: dict[int, Batch] = {}
        if isinstance(config, Greedy) and isinstance(self.model, PreparedTransformer) and not attention:
            for place, found in self._search_in_turn(self.model, stream, owed, config, scores):
                del owed[place]
                yield place, found
        # What is still owed did not fit into memory that way.
        for place, batch in chain(list(owed.items()), stream):
            yield place, self.search_batch(self.model, batch, config, attention, scores)

    def _search_in_turn(
        self,
        model: PreparedTransformer,
        stream: Iterator[tuple[int, Batch]],
        owed: dict[int, Batch],
        config: Greedy,
        scores: bool,
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """What greedy search finds, batch by batch, until there are no more or memory runs out.

        Batches that are taken from the stream are noted in `owed`.
        """

        def sources() -> Iterator[tuple[Tensor, Prefixes | None]]:
            for place, batch in stream:
                owed[place] = batch
                yield padded(batch.rows), batch.prefixes

        try:
            yield from greedy_in_turn(model, sources(), config, scores)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise

    def search_batch(
        self, model: SearchModel, batch: Batch, config: Search, attention: bool, scores: bool
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each row by `model`, which is this engine's or a part of it.

        A batch that does not fit into memory is cut in halves, which changes no result. Raises ModelError when a single
        sentence does not fit.
        """
        try:
            with autocast(self.dtype, self.device):
                return search(
                    model,
                    padded(batch.rows).to(self.device),
                    config,
                    line_keys=batch.keys,
                    prefixes=batch.prefixes,
                    attention=attention,
                    scores=scores,
                )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Only here, where the error and the tensors that it holds are gone, can memory be given back.
        release_memory(self.device)
        rows = len(batch.rows)
        if rows == 1:
            raise ModelError(
                f"out of memory with a single sentence, of {len(batch.rows[0])} tokens",
                "lower search.lines.max_source_length, search.rules.max_length or search.beam_size, or free memory",
            )
        _LOG.warning(
            "out of memory with %d sentences at once; translating them in halves (search.lines.batch_size and "
            "search.lines.max_tokens bound them)",
            rows,
        )
        parts = [_part(batch, part) for part in (slice(0, rows // 2), slice(rows // 2, rows))]
        return [row for part in parts for row in self.search_batch(model, part, config, attention, scores)]


def _part(batch: Batch, part: slice) -> Batch:
    return Batch(batch.rows[part], batch.keys[part], None if batch.prefixes is None else batch.prefixes[part])


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows as source_BS, right-padded.

    >>> padded([[5, 3], [4, 6, 3]]).tolist()
    [[5, 3, 0], [4, 6, 3]]
    """
    width = max(map(len, rows))
    return torch.tensor([[*row, *([PAD] * (width - len(row)))] for row in rows])
