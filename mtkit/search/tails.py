"""Greedy search of batch after batch, where the last few sentences of each wait for those of the others.

A batch has many rows at first and few in the end, and a step of few rows takes hardly less time than one of many: with
narrow models a third of all steps had fewer than 8 rows. So a batch stops when an eighth of its sentences is left. When
these are as many as a batch has, or there is nothing else to search, they go on together, each as many steps behind the
furthest as it was.

Shapes: S source length.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mtkit.search.greedy import Likeliest, Run, unscored
from mtkit.search.protocol import Hypothesis, Prefixes, SearchModel
from mtkit.search.rules import Constraints
from mtkit.search.trace import Trace
from mtkit.sections.search import Greedy

_TAIL = 1 / 8


class JoiningModel(SearchModel, Protocol):
    """A model that can go on with rows of several states at once."""

    def settle(self, state: Any) -> None:
        """Give up the room that a state has kept for rows that have left (changes the state)."""

    def joined(self, states: Sequence[Any]) -> Any:
        """One state for the rows of all, one a sentence, in order; theirs may have come to different lengths.

        Uses the states up.
        """


@torch.inference_mode()
def greedy_in_turn(
    model: JoiningModel, sources: Iterable[tuple[Tensor, Prefixes | None]], config: Greedy, scores: bool = True
) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
    """Yield, for each batch of source_BS and prefixes, its place and what `search` finds; in any order.

    Where rules look back at tokens (`Constraints.remembers`) no sentence waits.
    """
    for place, found in _in_turn(model, sources, config, scores):
        yield place, found if scores else unscored(found)


def _in_turn(
    model: JoiningModel, sources: Iterable[tuple[Tensor, Prefixes | None]], config: Greedy, probabilities: bool
) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
    waiting: list[tuple[int, Run]] = []
    for place, (source_BS, prefixes) in enumerate(sources):
        constraints = Constraints(config.rules, source_BS, 1, prefixes)
        run = Run.begin(model, source_BS, 1, constraints, Likeliest(), False, probabilities)
        if run.go(enough=0 if constraints.remembers else int(len(source_BS) * _TAIL)):
            model.settle(run.state)
            waiting.append((place, run))
            del run
        else:
            found = run.read()
            del run  # before the next batch begins: its state is large
            yield place, found
        if sum(len(one.ids_N) for _, one in waiting) >= len(source_BS):
            yield from _end(model, waiting)
            waiting = []
    yield from _end(model, waiting)


def _end(model: JoiningModel, waiting: Sequence[tuple[int, Run]]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
    """Go on with what is left of these batches, together."""
    if not waiting:
        return
    if len(waiting) == 1:
        [(place, run)] = waiting
        run.go()
        yield place, run.read()
        return
    rest = iter(_joined(model, [run for _, run in waiting]))
    for place, run in waiting:
        found = run.read()
        for sentence in run.trace.order.tolist():
            found[sentence] = [_continued(found[sentence][0], next(rest)[0])]
        yield place, found


def _joined(model: JoiningModel, runs: Sequence[Run]) -> list[list[Hypothesis]]:
    """What comes after the last step of each run, for the sentences that are left, in order."""
    constraints = Constraints.joined([run.constraints for run in runs])
    rows = len(constraints.most_N)
    run = Run(
        model=model,
        state=model.joined([run.state for run in runs]),
        constraints=constraints,
        choose=Likeliest(),
        attention=False,
        probabilities=runs[0].probabilities,
        trace=Trace(rows, 1),
        limits_N=(constraints.most_N - constraints.step).cpu().numpy(),
        source_lengths=[0] * rows,  # they bound the attention, and there is none
        ids_N=torch.cat([run.ids_N for run in runs]),
        alive_N=torch.cat([run.alive_N for run in runs]),
    )
    run.go()
    return run.read()


def _continued(first: Hypothesis, rest: Hypothesis) -> Hypothesis:
    return Hypothesis(
        ids=first.ids + rest.ids,
        score=first.score + rest.score,
        log_probability=first.log_probability + rest.log_probability,
        token_log_probabilities=first.token_log_probabilities + rest.token_log_probabilities,
        finished=rest.finished,
    )
