"""Sentences that outlast their batch: greedy search finds for them what it finds batch by batch."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch_model import build, framed, random_rows

from mtkit.engine import Batch, ModelEngine
from mtkit.ids import EOS
from mtkit.model.prepared import PreparedTransformer
from mtkit.search import tails
from mtkit.search.protocol import Hypothesis
from mtkit.search.run import search
from mtkit.search.tails import greedy_in_turn
from mtkit.sections.model import Model
from mtkit.sections.search import Greedy, Rules

POSITIONS = get_args(Model.model_fields["positions"].annotation)
SIZES = (16, 9, 24, 1, 8, 16, 3, 30)


class Ending(PreparedTransformer):
    """A model that has learnt nothing, but ends a hypothesis at a step that depends on the source, or at its limit."""

    def step(self, ids_N: Tensor, state: Any) -> Tensor:
        places_N = state.length - (0 if state.first_N is None else state.first_N)
        logits_NV = super().step(ids_N, state)
        key_N = state.cross[0].keys[:, 0, 0, 0]
        logits_NV[:, EOS] = torch.where((20 * key_N).round().abs() % 16 == places_N, 100.0, -100.0)
        return logits_NV


def ending(**options: Any) -> Ending:
    """One of few layers and many tokens, so that near-ties are rare."""
    return Ending(build(vocab=200, seed=4, encoder_layers=1, decoder_layers=2, **options))


def batches(longest: int = 9) -> list[list[list[int]]]:
    """Source ids of sentences of different lengths, in batches of different sizes."""
    rows = random_rows([1 + 7 * number % longest for number in range(sum(SIZES))], 200, 5)
    starts = [sum(SIZES[:at]) for at in range(len(SIZES))]
    return [rows[start : start + size] for start, size in zip(starts, SIZES, strict=True)]


def in_turn(model: Any, config: Greedy, scores: bool = True) -> list[list[list[Hypothesis]]]:
    """What is found for each batch, in their order."""
    found = dict(greedy_in_turn(model, ((framed(batch), None) for batch in batches()), config, scores))
    return [found[place] for place in range(len(SIZES))]


@pytest.fixture(params=[1 / 8, 2 / 3], ids=["as it is", "large"])
def tail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(tails, "_TAIL", request.param)
    return float(request.param)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", get_args(Model.model_fields["norm"].annotation))
@pytest.mark.parametrize("least", [0, 14])
def test_the_same_as_batch_by_batch(tail: float, positions: str, norm: str, least: int) -> None:
    prepared = ending(positions=positions, norm=norm)
    config = Greedy(
        method="greedy", rules=Rules(max_length=25, min_length=least, max_length_ratio=2, max_length_offset=5)
    )
    wanted = [search(prepared, framed(batch), config) for batch in batches()]
    found = in_turn(prepared, config)
    lengths = set()
    for one, other in zip(wanted, found, strict=True):
        for [expected], [got] in zip(one, other, strict=True):
            assert (got.ids, got.finished) == (expected.ids, expected.finished)
            assert got.score == pytest.approx(expected.score, abs=1e-4)
            assert got.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
            assert got.token_log_probabilities == pytest.approx(expected.token_log_probabilities, abs=1e-4)
            lengths.add((len(got.ids), got.finished))
    assert len(lengths) > 10, "hypotheses end at many steps, some by their limit"
    for [unscored] in (hypotheses for batch in in_turn(prepared, config, scores=False) for hypotheses in batch):
        assert math.isnan(unscored.score)


def test_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are left of several batches share their steps."""
    monkeypatch.setattr(tails, "_TAIL", 1 / 3)
    prepared, config = ending(), Greedy(method="greedy", rules=Rules(max_length=40))
    steps = []
    step = prepared.step

    def counted(ids_N: Tensor, state: Any) -> Tensor:
        steps.append(len(ids_N))
        return step(ids_N, state)

    monkeypatch.setattr(prepared, "step", counted)
    for batch in batches():
        search(prepared, framed(batch), config)
    alone, steps[:] = list(steps), []
    in_turn(prepared, config)
    assert len(steps) < 0.85 * len(alone)
    assert sum(steps) < 1.05 * sum(alone)


@pytest.mark.parametrize("look_back", [{"no_repeat_ngram": 2}, {"repetition_penalty": 1.3}])
def test_where_rules_look_back_no_sentence_waits(tail: float, look_back: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, config = ending(), Greedy(method="greedy", rules=Rules(max_length=20, **look_back))
    monkeypatch.setattr(prepared, "joined", None)
    wanted = [search(prepared, framed(batch), config) for batch in batches()]
    assert [[one.ids for [one] in batch] for batch in in_turn(prepared, config)] == [
        [one.ids for [one] in batch] for batch in wanted
    ]


def engine_batches(prefixes: bool) -> list[Batch]:
    """The batches as an engine takes them; every second one with forced prefixes."""
    return [
        Batch(
            [[*row, EOS] for row in rows], list(range(len(rows))), [[7, 8]] * len(rows) if prefixes and at % 2 else None
        )
        for at, rows in enumerate(batches())
    ]


@pytest.mark.parametrize("prefixes", [False, True])
def test_an_engine_answers_every_batch(tail: float, prefixes: bool) -> None:
    prepared, config = ending(), Greedy(method="greedy", rules=Rules(max_length=20))
    engine, given = ModelEngine(prepared), engine_batches(prefixes)
    wanted = [[one.ids for [one] in engine.search_batch(prepared, batch, config, False, True)] for batch in given]
    found = list(engine.search(iter(given), config, attention=False))
    assert sorted(place for place, _ in found) == list(range(len(SIZES)))
    assert [[one.ids for [one] in batch] for _, batch in sorted(found, key=lambda pair: pair[0])] == wanted
    if prefixes:
        assert all(ids[:2] == [7, 8] for ids in wanted[1])


def test_what_does_not_fit_into_memory_together_is_searched_batch_by_batch(
    tail: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was waiting then is lost, nor what had not been read."""
    prepared, config = ending(), Greedy(method="greedy", rules=Rules(max_length=20))
    engine, given, read = ModelEngine(prepared), engine_batches(False), []

    def joined(states: Any) -> None:
        raise MemoryError

    def stream() -> Iterator[Batch]:
        for batch in given:
            read.append(batch)
            yield batch

    monkeypatch.setattr(prepared, "joined", joined)
    wanted = [[one.ids for [one] in engine.search_batch(prepared, batch, config, False, True)] for batch in given]
    found = dict(engine.search(stream(), config, attention=False))
    assert [[one.ids for [one] in found[place]] for place in range(len(SIZES))] == wanted
    assert read == given
