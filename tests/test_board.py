"""The log for TensorBoard: the same figures as in metrics.jsonl, each step once, whatever happened in between."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_run import Runs, before_step, events

from mtkit import pipeline
from mtkit.errors import MtkitError
from mtkit.folders import RunFolder

BRIEF = {"max_steps": 6, "validate_every_steps": 3, "log_every_steps": 1, "tensorboard": True}


@pytest.fixture
def accumulator() -> Any:
    """What TensorBoard itself reads logs with."""
    reason = "needs the extra: tensorboard"
    return pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=reason)


def shown(accumulator: Any, run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every figure that TensorBoard shows."""
    reader = accumulator.EventAccumulator(str(run.tensorboard))
    reader.Reload()
    return {tag: [(one.step, one.value) for one in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_it_shows_what_the_metrics_say(runs: Runs, accumulator: Any) -> None:
    run = runs.train(training=BRIEF)
    figures = shown(accumulator, run)
    for kind in ("train", "valid"):
        rows = events(run, kind)
        names = {name.partition("/")[2] for name in figures if name.startswith(kind)}
        expected = {"train": {"loss", "nll", "perplexity", "learning_rate", "gradient_norm"}, "valid": {"bleu", "chrf"}}
        assert names >= expected[kind]
        for name in names & rows[0].keys():
            assert figures[f"{kind}/{name}"] == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]


def test_a_run_that_goes_on_shows_no_step_twice(runs: Runs, accumulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after update 5, two updates after its checkpoint: these are done, and written, again."""

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patched:
        before_step(patched, 6, kill)
        with pytest.raises(Killed):
            runs.train(training=BRIEF)
    run = RunFolder(runs.folder / "run")
    assert [step for step, _ in shown(accumulator, run)["train/loss"]] == [1, 2, 3, 4, 5]
    runs.train(training=BRIEF)
    figures = shown(accumulator, run)
    assert [row["step"] for row in events(run, "train")] == [1, 2, 3, 4, 5, 4, 5, 6]
    assert [step for step, _ in figures["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in figures["valid/bleu"]] == [3, 6]


def test_a_run_that_was_stopped_goes_on_in_the_same_curve(
    runs: Runs, accumulator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        before_step(patched, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        run = runs.train(training=BRIEF)
    runs.train(training=BRIEF)
    assert [step for step, _ in shown(accumulator, run)["train/loss"]] == [1, 2, 3, 4, 5, 6]
    before = sorted(run.tensorboard.iterdir())
    runs.train(training=BRIEF)
    assert sorted(run.tensorboard.iterdir()) == before, "nothing to do, nothing written"


def test_fresh_forgets_the_old_curve(runs: Runs, accumulator: Any) -> None:
    run = runs.train(training={**BRIEF, "max_steps": 8})
    pipeline.train(runs.recipe(training={**BRIEF, "max_steps": 2}), fresh=True)
    assert [step for step, _ in shown(accumulator, run)["train/loss"]] == [1, 2]


def test_without_tensorboard_the_extra_is_named_before_any_work(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    recipe = runs.recipe("nothing", training=BRIEF)
    with pytest.raises(MtkitError) as caught:
        pipeline.train(recipe, fresh=True)
    assert 'pip install "mtkit[tensorboard]"' in str(caught.value)
    assert not RunFolder(Path(recipe.run_dir)).metrics.exists()
