"""Searching in all processes of a job: rank 0 hands out batches and takes part, the others serve.

Rank 0 alone reads, cuts and joins, so that the batches, and with them the results, are those of one process. It goes in
rounds of a batch for each rank, and nobody holds more than one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mtkit.engine import Batch, Engine
from mtkit.errors import ModelError, MtkitError, ToldError
from mtkit.ranks import Ranks
from mtkit.search.protocol import Hypothesis
from mtkit.sections.search import Search


@dataclass(frozen=True, slots=True)
class _Order:
    """A batch to search; None for a rank that has none this round."""

    batch: Batch | None
    config: Search
    attention: bool
    scores: bool


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing that is handed out; all ranks end with rank 0's exit code."""

    exit_code: int


Answer = list[list[Hypothesis]] | MtkitError | None


class RankedEngine:
    """An engine of rank 0 that searches in all ranks, of which each has an engine of its `own`.

    The others call `serve` until rank 0 calls `end`, which it must, however it ends.
    """

    def __init__(self, own: Engine, ranks: Ranks) -> None:
        self.own = own
        self.ranks = ranks

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine; in order. Raises what a rank has raised, naming the rank."""
        stream, place = iter(batches), 0
        while several := list(islice(stream, self.ranks.world)):
            for found in self._round(several, config, attention, scores):
                yield place, found
                place += 1

    def _round(
        self, batches: Sequence[Batch], config: Search, attention: bool, scores: bool
    ) -> list[list[list[Hypothesis]]]:
        idle = [None] * (self.ranks.world - len(batches))
        orders = [_Order(batch, config, attention, scores) for batch in (*batches, *idle)]
        own = self._answer(self.ranks.hand_out(orders))
        answers = self.ranks.hand_in(own)
        assert answers is not None
        found = []
        for rank, answer in enumerate(answers):
            if isinstance(answer, MtkitError):
                if rank > 0:
                    answer.message = f"rank {rank}: {answer.message}"
                raise answer
            if answer is not None:
                found.append(answer)
        return found

    def _answer(self, order: _Order) -> Answer:
        """What this rank's engine finds, or the error that ends the job; None without a batch."""
        if order.batch is None:
            return None
        try:
            ((_, found),) = self.own.search([order.batch], order.config, order.attention, order.scores)
        except MtkitError as error:
            return error
        return found

    def serve(self) -> None:
        """Search what rank 0 hands out, until it ends. Raises ToldError when it has ended by an error."""
        assert not self.ranks.leads
        while True:
            order = self.ranks.hand_out(None)
            if isinstance(order, _End):
                if order.exit_code:
                    raise ToldError(order.exit_code)
                return
            self.ranks.hand_in(self._answer(order))

    def end(self, exit_code: int) -> None:
        """Tell the other ranks to end, between two rounds."""
        self.ranks.hand_out([_End(exit_code)] * self.ranks.world)


def refuse_unlike(models: Sequence[str], ranks: Ranks) -> None:
    """Raise ModelError on rank 0, ToldError on the others, when ranks differ in the hashes of their `models`."""
    for rank, theirs in enumerate(ranks.collect(list(models))):
        if theirs != list(models):
            raise ranks.failure(
                ModelError(
                    f"rank {rank} has other weights than rank {ranks.rank}",
                    "give every machine the same model folders",
                )
            )
