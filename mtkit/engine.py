"""What runs the searches of a translator: batches of source ids in, hypotheses out.

`Translator` knows only the protocol `Engine`; how and where a batch is searched is an engine's own business.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mtkit.ids import PAD
from mtkit.search.protocol import Hypothesis, SearchModel
from mtkit.search.run import search
from mtkit.sections.search import Search


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
        self, batches: Iterable[Batch], config: Search, attention: bool
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield, for every batch, its place among `batches` and the hypotheses of each of its rows, best first.

        Results come in any order, each as soon as it is there. With `attention` every hypothesis has its own.
        """


class ModelEngine:
    """Searches one batch after the other in this process, with a model on `device`."""

    def __init__(self, model: SearchModel, device: torch.device | str = "cpu") -> None:
        self.model = model
        self.device = torch.device(device)

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine; in order."""
        for place, batch in enumerate(batches):
            source_BS = padded(batch.rows).to(self.device)
            yield (
                place,
                search(
                    self.model,
                    source_BS,
                    config,
                    line_keys=batch.keys,
                    prefixes=batch.prefixes,
                    attention=attention,
                ),
            )


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """The rows as source_BS, right-padded.

    >>> padded([[5, 3], [4, 6, 3]]).tolist()
    [[5, 3, 0], [4, 6, 3]]
    """
    width = max(map(len, rows))
    return torch.tensor([[*row, *([PAD] * (width - len(row)))] for row in rows])
