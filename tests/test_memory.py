"""Memory that runs out in the middle of an update: the batch is halved, the gradient is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_step import ROWS, Update, assert_gradients_close, batch
from toy_run import Runs, assert_same, events

from mtkit import engine
from mtkit.data.loader import Batch
from mtkit.errors import ModelError, TrainingError
from mtkit.folders import RunFolder
from mtkit.runtime import is_out_of_memory
from mtkit.training import step as step_module
from mtkit.training import validate
from mtkit.training.memory import halves
from mtkit.translation import Line
from mtkit.translator import Translator

ERRORS: list[Callable[[], BaseException]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
    lambda: MemoryError(),
]


def limit(
    monkeypatch: pytest.MonkeyPatch, rows: int, error: Callable[[], BaseException], late: bool = True
) -> list[int]:
    """Let memory run out above so many rows, by default after the backward pass; returns the rows of each attempt."""
    real = step_module.batch_loss
    seen: list[int] = []

    def batch_loss(model: Any, output_VD: Any, one: Batch, settings: Any) -> Any:
        seen.append(len(one.source_BS))
        smoothed, plain = real(model, output_VD, one, settings)
        if len(one.source_BS) > rows:
            if late:
                smoothed.backward()
            raise error()
        return smoothed, plain

    monkeypatch.setattr(step_module, "batch_loss", batch_loss)
    return seen


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("late", [True, False])
def test_the_gradient_is_that_of_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException], late: bool
) -> None:
    whole, cut = Update(), Update()
    expected = whole([batch(ROWS)])
    seen = limit(monkeypatch, 3, error, late)
    report = cut([batch(ROWS)])
    assert_gradients_close(cut, whole, 1e-6)
    assert report.loss == pytest.approx(expected.loss, rel=1e-6)
    assert report.nll == pytest.approx(expected.nll, rel=1e-6)
    assert (report.target_tokens, report.source_tokens, report.cells) == (
        expected.target_tokens,
        expected.source_tokens,
        expected.cells,
    )
    assert (expected.halvings, report.halvings) == (0, 3)
    assert seen == [8, 4, 2, 2, 2, 2]


def test_what_was_added_up_before_is_neither_lost_nor_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [batch(ROWS[:1]), batch(ROWS[1:6]), batch(ROWS[6:])]
    whole, cut = Update(), Update()
    whole(parts)
    limit(monkeypatch, 4, ERRORS[0])
    assert cut(parts).halvings == 1
    assert_gradients_close(cut, whole, 1e-6)


def test_the_update_after_is_a_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Update(rate=0.01)
    with monkeypatch.context() as patch:
        limit(patch, 4, ERRORS[0])
        assert update([batch(ROWS)]).applied
    assert update([batch(ROWS)], step=2).halvings == 0


def test_a_single_pair_that_does_not_fit_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Update(rate=0.01)
    before = update.everything()
    limit(monkeypatch, 0, ERRORS[0])
    with pytest.raises(
        TrainingError, match="step 3: out of memory with a single pair, of 6 source and 5 target"
    ) as told:
        update([batch(ROWS[:1])], step=3)
    assert "filters.max_length" in str(told.value.hint)
    for old, new in zip(before, update.everything(), strict=True):
        assert torch.equal(old, new)


def test_other_errors_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 0, lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        Update()([batch(ROWS)])
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_torchs_own_error_on_a_cpu_is_known() -> None:
    with pytest.raises(RuntimeError) as told:
        torch.empty(2**60)
    assert is_out_of_memory(told.value)


def test_halves_hold_the_rows_in_order_without_needless_padding() -> None:
    whole = batch(ROWS[:5], widen=3)
    first, second = halves(whole)
    for part, rows in ((first, ROWS[:2]), (second, ROWS[2:5])):
        alone = batch(rows)
        for name in ("source_BS", "target_in_BT", "target_out_BT"):
            assert torch.equal(getattr(part, name), getattr(alone, name)), name
        assert (part.source_tokens, part.kept) == (alone.source_tokens, alone.kept)


def test_the_log_counts_it(runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = step_module.batch_loss

    def batch_loss(model: Any, output_VD: Any, one: Batch, settings: Any) -> Any:
        if model.training and len(one.source_BS) > 16:
            raise MemoryError
        return real(model, output_VD, one, settings)

    monkeypatch.setattr(step_module, "batch_loss", batch_loss)
    run = runs.train(batching={"max_tokens": 600}, training={"max_steps": 2, "validate_every_steps": 100})
    told = events(run, "oom")
    assert told
    assert told[-1]["total"] == sum(row["count"] for row in told)
    assert "batches cut in halves" in caplog.text


# Where a smaller batch does not help


def test_the_optimizers_move_says_that_memory_has_run_out(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = torch.optim.Adam.step, []

    def step(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", step)
        with pytest.raises(
            TrainingError, match="step 8: out of memory in the optimizer's move; the checkpoints"
        ) as told:
            runs.train()
    assert "three times the memory of the weights" in str(told.value.hint)
    run = RunFolder(runs.folder / "run")
    assert run.steps() == [6]
    assert_same(runs.train(), runs.train("whole"), 12)


def test_other_errors_of_the_optimizer_pass(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    with pytest.raises(RuntimeError, match="device-side"):
        runs.train()


# Validation


def forgetful(real: Callable[..., Any], rows: int, size: Callable[..., int]) -> Callable[..., Any]:
    """The same function on a machine where so many rows, and no more, fit into memory."""

    def call(*arguments: Any, **named: Any) -> Any:
        if size(*arguments) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*arguments, **named)

    return call


def of_batch(model: Any, output: Any, one: Batch, settings: Any) -> int:
    return len(one.source_BS)


def of_search(model: Any, source_BS: Any, config: Any) -> int:
    return len(source_BS)


def test_validation_in_halves_has_the_same_scores(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = events(runs.train("roomy", training={"max_steps": 6}), "valid")
    monkeypatch.setattr(validate, "batch_loss", forgetful(validate.batch_loss, 5, of_batch))
    monkeypatch.setattr(engine, "search", forgetful(engine.search, 3, of_search))
    found = events(runs.train(training={"max_steps": 6}), "valid")
    for name in ("nll", "perplexity"):
        assert found[0].pop(name) == pytest.approx(expected[0].pop(name), rel=1e-6)
    assert found == expected
    assert "out of memory with 8 sentences at once; translating them in halves" in caplog.text
    assert "validation: out of memory with" in caplog.text


def test_a_validation_pair_that_does_not_fit_is_an_error(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(validate, "batch_loss", forgetful(validate.batch_loss, 0, of_batch))
        with pytest.raises(TrainingError, match="validation: out of memory with a single pair, of") as told:
            runs.train()
        assert "take the pair out of the validation corpus" in str(told.value.hint)
    monkeypatch.setattr(engine, "search", forgetful(engine.search, 0, of_search))
    with pytest.raises(ModelError, match="out of memory with a single sentence, of") as other:
        runs.train()
    assert "search.beam_size" in str(other.value.hint)


def test_halves_of_a_search_keep_order_noise_and_prefixes(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.train(training={"max_steps": 6, "validate_every_steps": 99})
    translator = Translator.load(run.checkpoint(6), "cpu")
    lines = [Line(line, prefix="a" * (index % 3)) for index, line in enumerate(runs.corpus.source[:7])]
    for search in ({"method": "beam", "beam_size": 2, "n_best": 2}, {"method": "sampling", "samples": 2, "seed": 3}):
        config = runs.recipe(search={**search, "rules": {"max_length": 20}}).search
        expected = [[one.text for one in line.hypotheses] for line in translator.translate_stream(lines, config)]
        with monkeypatch.context() as patch:
            patch.setattr(engine, "search", forgetful(engine.search, 2, of_search))
            found = [[one.text for one in line.hypotheses] for line in translator.translate_stream(lines, config)]
        assert found == expected


def test_a_search_that_fails_otherwise_fails(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(engine, "search", search)
    with pytest.raises(RuntimeError, match="device-side"):
        runs.train()
