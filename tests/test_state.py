"""Decoding step by step from a cache equals one pass over the whole target, whatever rows are kept or moved."""

import random
from typing import get_args

import pytest
import torch
from torch_model import build, framed, random_rows

from mtkit.ids import BOS
from mtkit.model.transformer import Transformer
from mtkit.sections.model import Model

POSITIONS = get_args(Model.model_fields["positions"].annotation)
NORMS = get_args(Model.model_fields["norm"].annotation)
SOURCES = random_rows([5, 1, 9, 3], 50, 1)


def full_logits(model: Transformer, source: list[int], fed: list[int]) -> torch.Tensor:
    """Logits_V after the tokens `fed` (BOS first), from one pass over this sentence alone."""
    return model.logits(model(framed([source]), torch.tensor([fed]))[0, -1])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("per_source", [1, 3])
@torch.inference_mode()
def test_cached_steps_equal_the_full_pass(positions: str, norm: str, per_source: int) -> None:
    model = build(positions=positions, norm=norm)
    rows = len(SOURCES) * per_source
    target_in_NT = framed(random_rows([8] * rows, 50, 2), start=True)
    source_NS = framed(SOURCES).repeat_interleave(per_source, 0)
    full_NTV = model.logits(model(source_NS, target_in_NT))
    state = model.start(framed(SOURCES), per_source)
    for place in range(target_in_NT.shape[1]):
        step_NV = model.step(target_in_NT[:, place], state)
        torch.testing.assert_close(step_NV, full_NTV[:, place], rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("per_source", [1, 4])
@torch.inference_mode()
def test_rows_may_be_moved_repeated_and_dropped(positions: str, per_source: int) -> None:
    """Each step chooses sentences and rows within them by chance, and compares with each row's own history."""
    model = build(positions=positions)
    chance = random.Random(5)
    state = model.start(framed(SOURCES), per_source, attention=True)
    sentences = list(range(len(SOURCES)))
    histories: list[list[int]] = [[] for _ in range(len(SOURCES) * per_source)]
    for step in range(9):
        ids = [BOS if step == 0 else chance.randrange(4, 50) for _ in histories]
        histories = [[*history, token] for history, token in zip(histories, ids, strict=True)]
        logits_NV = model.step(torch.tensor(ids), state)
        assert state.attention_NS is not None
        for row, history in enumerate(histories):
            source = SOURCES[sentences[row // per_source]]
            torch.testing.assert_close(logits_NV[row], full_logits(model, source, history), rtol=0, atol=1e-5)
            real = state.attention_NS[row, : len(source) + 1]
            assert real.sum().item() == pytest.approx(1, abs=1e-5)
            assert (state.attention_NS[row, len(source) + 1 :] == 0).all()
        kept = list(range(len(sentences)))
        chance.shuffle(kept)
        if step in (3, 6):
            kept.pop()
        chosen = [place * per_source + chance.randrange(per_source) for place in kept for _ in range(per_source)]
        state.select(torch.tensor(chosen))
        sentences = [sentences[place] for place in kept]
        histories = [histories[row] for row in chosen]


@torch.inference_mode()
def test_select_before_the_first_step() -> None:
    model = build()
    state = model.start(framed(SOURCES), 2)
    state.select(torch.tensor([6, 6, 0, 1]))
    logits_NV = model.step(torch.full((4,), BOS), state)
    for row, source in enumerate([SOURCES[3], SOURCES[3], SOURCES[0], SOURCES[0]]):
        torch.testing.assert_close(logits_NV[row], full_logits(model, source, [BOS]), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_attention_is_recorded_when_asked_and_changes_nothing() -> None:
    model = build()
    plain, recorded = model.start(framed(SOURCES), 2), model.start(framed(SOURCES), 2, attention=True)
    ids_N = torch.full((8,), BOS)
    assert torch.equal(model.step(ids_N, plain), model.step(ids_N, recorded))
    assert plain.attention_NS is None
    assert recorded.attention_NS is not None
    assert recorded.attention_NS.shape == (8, max(map(len, SOURCES)) + 1)


@torch.inference_mode()
def test_attention_is_that_of_the_last_layer() -> None:
    """Without queries a layer attends to all source tokens alike: seen when it is the last layer's, and only then."""
    for layer, even in ((0, False), (1, True)):
        model = build()
        attention = model.decoder[layer].cross_attention
        attention.input.weight[:32] = 0
        attention.input.bias[:32] = 0
        state = model.start(framed(SOURCES), 1, attention=True)
        model.step(torch.full((4,), BOS), state)
        assert state.attention_NS is not None
        uniform = torch.stack([(framed(SOURCES)[row] != 0).float() / (len(SOURCES[row]) + 1) for row in range(4)])
        assert torch.allclose(state.attention_NS, uniform, atol=1e-6) == even


@torch.inference_mode()
def test_each_step_has_its_own_attention() -> None:
    model = build()
    state = model.start(framed(SOURCES), 1, attention=True)
    model.step(torch.full((4,), BOS), state)
    first = state.attention_NS
    assert first is not None
    copy = first.clone()
    model.step(torch.full((4,), 7), state)
    assert torch.equal(first, copy)
    assert state.attention_NS is not first
