"""Training in several processes: real ones over gloo, as torchrun starts them, on a model that trains in seconds."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from toy_job import Pair, Starter, ended, torchrun, wait_for
from toy_run import Runs, assert_same, events

from mtkit import ranks as ranks_module
from mtkit.checkpoint import load_checkpoint
from mtkit.errors import ToldError, TrainingError, UsageError
from mtkit.folders import RunFolder
from mtkit.ranks import ALONE, Ranks, checksum, joined
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.training import trainer
from mtkit.training.optimizer import set_rate
from mtkit.training.state import Learner, TrainState, make_learner
from mtkit.training.updates import Update, open_pairs, updates
from mtkit.training.validate import Interrupted, read_validation, validate

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.0},
    "training": {"max_epochs": 1, "max_steps": 1000, "save_every_steps": 1, "validate_every_steps": 5, "keep_last": 99},
}
"""An epoch of 21 batches: two processes do 10 updates of two, and one of a single batch."""

LAST = 11
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    one = Starter()
    yield one
    one.process.kill()
    one.process.wait()


@pytest.fixture(scope="module")
def whole(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Recipe]:
    """A run of two processes that nothing has interrupted."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("whole"))
    recipe = runs.recipe(**SECTIONS)
    end = ended(torchrun(recipe), recipe)
    assert end.code == 0, end.err
    return runs, recipe


def learner_at(recipe: Recipe, step: int) -> tuple[Learner, TrainState]:
    """One process's learner with the checkpoint after `step`; as new for 0."""
    run = RunFolder(Path(recipe.run_dir))
    learner = make_learner(recipe, Tokenizers.load(run.path), CPU)
    if step == 0:
        return learner, TrainState()
    weights, tensors, document = load_checkpoint(run.checkpoint(step))
    learner.restore(weights, tensors, document["scaler"])
    return learner, TrainState.from_dict(document["train"])


def alone(recipe: Recipe, step: int) -> Update:
    """The update after `step` of one process that accumulates two batches."""
    _, state = learner_at(recipe, step)
    double = recipe.model_copy(update={"training": recipe.training.model_copy(update={"accumulate": 2})})
    data = open_pairs(RunFolder(Path(recipe.run_dir)).shards / "train", recipe.data.train)
    return next(updates(double, data, state.epoch, state.batch))


def assert_same_gradient(recipe: Recipe, update: Update, step: int) -> None:
    """One process that does `update` after `step` has the optimizer state that the run has after the next step."""
    learner, _ = learner_at(recipe, step)
    set_rate(learner.optimizer, 0.01)
    whole = (learner.model, learner.core, learner.optimizer, learner.scaler)
    trainer.train_step(*whole, update.batches, step + 1, learner.settings)
    ours = learner.tensors()
    theirs = load_checkpoint(RunFolder(Path(recipe.run_dir)).checkpoint(step + 1))[1]
    averages = [name for name in theirs if ".exp_avg." in name]
    assert averages
    for name in averages:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


def test_two_processes_are_one_that_accumulates_two_batches(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    assert_same_gradient(recipe, alone(recipe, 0), 0)


def test_the_last_update_of_an_epoch_may_leave_a_process_without_a_batch(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    update = alone(recipe, LAST - 1)
    assert (len(update.batches), update.next_epoch) == (1, 1)
    assert_same_gradient(recipe, update, LAST - 1)


def test_scores_of_a_shared_validation_are_those_of_one_process(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    run = RunFolder(Path(recipe.run_dir))
    for row in events(run, "valid"):
        learner, _ = learner_at(recipe, row["step"])
        report = validate(learner, open_pairs(run.shards / "valid", recipe.data.valid), read_validation(recipe))
        for name, figure in report.row().items():
            assert row[name] == pytest.approx(figure, rel=1e-6), name


def test_a_signal_ends_both_with_a_checkpoint_and_the_same_command_goes_on(
    whole: tuple[Runs, Recipe], starter: Starter
) -> None:
    runs, recipe = whole
    stopped = runs.recipe("stopped", **SECTIONS)
    run = RunFolder(Path(stopped.run_dir))
    job = torchrun(stopped)
    wait_for(lambda: run.steps())
    job.send_signal(signal.SIGTERM)
    end = ended(job, stopped)
    assert end.code != 0
    assert "/mtkit/" not in end.err  # in a traceback; the one of torchrun is its own
    assert [row["reason"] for row in events(run, "end")] == ["stopped by SIGTERM"]
    assert 0 < run.steps()[-1] < LAST
    pair = Pair(starter, stopped)
    assert [one.code for one in pair.ended()] == [0, 0]
    assert_same(RunFolder(Path(recipe.run_dir)), run, LAST)


def test_only_rank_0_writes_and_speaks(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    run = RunFolder(Path(recipe.run_dir))
    assert [row["step"] for row in events(run, "save")] == list(range(1, LAST + 1))
    err = Path(recipe.run_dir).with_suffix(".err").read_text("utf-8")
    assert err.count(f"training ended after step {LAST}") == 1
    assert "in each of 2 processes" in err


def test_a_process_that_is_killed_ends_the_other(runs: Runs, starter: Starter) -> None:
    recipe = runs.recipe(training={**SECTIONS["training"], "max_epochs": None, "max_steps": 10**6})
    pair = Pair(starter, recipe)
    wait_for(RunFolder(Path(recipe.run_dir)).steps)
    os.kill(pair.processes[1], signal.SIGKILL)
    began = time.monotonic()
    first, second = pair.ended()
    assert time.monotonic() - began < 60
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "Traceback" not in first.err
    assert "the connection to another rank is lost" in first.complaints[0]


def test_a_corpus_that_rank_0_refuses_ends_all_with_one_error(tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"one\nt\xffo\n")
    corpus = {"name": "bad", "source": str(tmp_path / "bad"), "target": str(tmp_path / "bad")}
    data = {"train": [corpus], "valid": [], "test": []}
    recipe = tiny_corpus.recipe(run_dir=str(tmp_path / "run"), data=data, training={"device": "cpu"})
    end = ended(torchrun(recipe), recipe)
    assert end.code != 0
    assert len(end.complaints) == 1
    assert ":2" in end.complaints[0]
    assert "/mtkit/" not in end.err  # in a traceback; the one of torchrun is its own


def test_early_stopping_ends_both(runs: Runs, starter: Starter) -> None:
    training = {"max_steps": 100, "validate_every_steps": 2, "patience": 1, "best_metric": "loss"}
    recipe = runs.recipe(training=training, schedule={"name": "constant", "rate": 1e-30})
    assert [one.code for one in Pair(starter, recipe).ended()] == [0, 0]
    assert events(RunFolder(Path(recipe.run_dir)), "end")[0]["reason"] == "no new best loss in 1 validations"


def test_divergence_ends_both_with_one_error(runs: Runs, starter: Starter) -> None:
    training = {"max_steps": 100, "max_bad_steps": 3}
    recipe = runs.recipe(training=training, schedule={"name": "constant", "rate": 1e6})
    first, second = Pair(starter, recipe).ended()
    assert (first.code, second.code) == (1, 1)
    assert "3 updates in a row" in first.complaints[0]
    assert second.complaints == []
    assert len(events(RunFolder(Path(recipe.run_dir)), "skip")) == 3


FULL = """
import os, torch
from mtkit.training import step

real = step.batch_loss

def batch_loss(model, output_VD, batch, settings):
    loss = real(model, output_VD, batch, settings)
    if model.training and os.environ["RANK"] == "1" and len(batch.source_BS) > 8:
        loss[0].backward()
        raise torch.OutOfMemoryError("CUDA out of memory")
    return loss

step.batch_loss = batch_loss
"""


def test_memory_that_runs_out_on_one_rank_changes_nothing_but_the_time(
    whole: tuple[Runs, Recipe], starter: Starter
) -> None:
    """The gradient is that of whole batches, and the failed half-done backward pass leaves nothing behind."""
    runs = whole[0]
    full = runs.recipe("full", **{**SECTIONS, "training": {**SECTIONS["training"], "max_epochs": None, "max_steps": 2}})
    first, second = Pair(starter, full, FULL).ended()
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "out of memory" in first.err
    run = RunFolder(Path(full.run_dir))
    told = events(run, "oom")
    assert [row["step"] for row in told] == [1, 2]
    assert load_checkpoint(run.checkpoint(2))[2]["train"]["halved_batches"] == told[-1]["total"] > 0
    assert_same_gradient(full, alone(full, 0), 0)
    assert_same_gradient(full, alone(full, 1), 1)


@dataclass(frozen=True)
class FakeRanks(Ranks):
    """A rank whose companions answer what the test says."""

    answers: tuple[Any, ...] = ()

    def collect(self, value: Any) -> list[Any]:
        return [value, *self.answers]


def test_weights_that_differ_between_ranks_are_refused() -> None:
    weights = [torch.ones(3), torch.zeros(2, 2)]
    ranks = FakeRanks(world=2, answers=([checksum(weight) for weight in weights],))
    ranks.agree(weights, 7)
    weights[1][0, 1] = 1e-30
    with pytest.raises(TrainingError, match="step 7: the weights of rank 1 differ"):
        ranks.agree(weights, 7)
    with pytest.raises(ToldError):
        replace(ranks, rank=1).agree(weights, 7)
    ALONE.agree(weights, 7)


def test_a_validation_that_one_rank_leaves_is_left_by_all(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    learner, _ = learner_at(recipe, 0)
    valid = open_pairs(RunFolder(Path(recipe.run_dir)).shards / "valid", recipe.data.valid)
    with pytest.raises(Interrupted):
        validate(learner, valid, [], ranks=FakeRanks(world=2, answers=([],)))


def test_an_incomplete_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="WORLD_SIZE is 2, and RANK, LOCAL_RANK"), joined(CPU):
        raise AssertionError


def test_two_processes_do_not_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for device in ("cuda:0", "mps:0"):
        with pytest.raises(UsageError, match="in process 1 of this machine"), joined(torch.device(device)):
            raise AssertionError


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined(CPU) as ranks:
        assert ranks is ranks_module.ALONE
        assert (ranks.leads, ranks.largest(3), ranks.collect(4), ranks.lead(lambda: 5)) == (True, 3, [4], 5)
