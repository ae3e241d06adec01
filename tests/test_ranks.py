"""Training in several processes: real ones over gloo, as torchrun starts them, on a model that trains in seconds."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from toy_job import Pair, Starter, ended, torchrun, wait_for
from toy_run import Runs, assert_same, events

from mtkit import pipeline
from mtkit import ranks as ranks_module
from mtkit.checkpoint import load_checkpoint
from mtkit.errors import ToldError, TrainingError, UsageError
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.ranks import ALONE, Ranks, checksum, joined, meet
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


SLOW = """
import time
from mtkit.training import trainer

def save(*arguments, real=trainer.save):
    time.sleep(1)
    real(*arguments)

trainer.save = save

from mtkit.cli.app import main

main()
"""


def test_a_signal_ends_both_with_a_checkpoint_and_the_same_command_goes_on(
    whole: tuple[Runs, Recipe], starter: Starter
) -> None:
    """A scheduler signals all processes; those of torchrun's have it from torchrun once more while they are saving."""
    runs, recipe = whole
    stopped = runs.recipe("stopped", **SECTIONS)
    run = RunFolder(Path(stopped.run_dir))
    script = run.path.with_suffix(".py")
    script.write_text(SLOW)
    job = torchrun(stopped, program=[str(script)])
    wait_for(lambda: run.steps())
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    for process in children.read_text().split() if children.exists() else []:
        os.kill(int(process), signal.SIGTERM)
    time.sleep(0.3)  # a signal that finds its like waiting is lost
    job.send_signal(signal.SIGTERM)
    end = ended(job, stopped)
    assert end.code != 0
    assert "/mtkit/" not in end.err  # in a traceback; the one of torchrun is its own
    assert [row["reason"] for row in events(run, "end")] == ["stopped by SIGTERM"]
    assert 0 < run.steps()[-1] < LAST
    pair = Pair(starter, stopped)
    assert [one.code for one in pair.ended()] == [0, 0]
    assert_same(RunFolder(Path(recipe.run_dir)), run, LAST)


def test_a_signal_to_one_process_ends_both(runs: Runs, starter: Starter) -> None:
    """As Ctrl-C on a machine that rank 0 is not on: both finish the same update, and exit as the signal asks."""
    recipe = runs.recipe(training={**SECTIONS["training"], "max_epochs": None, "max_steps": 10**6})
    run = RunFolder(Path(recipe.run_dir))
    pair = Pair(starter, recipe)
    wait_for(run.steps)
    os.kill(pair.processes[1], signal.SIGINT)
    first, second = pair.ended()
    assert (first.code, second.code) == (130, 130), first.err + second.err
    assert (first.complaints, second.complaints) == ([], [])
    end = events(run, "end")[0]
    assert (end["reason"], end["step"]) == ("stopped by SIGINT", run.steps()[-1])


def test_one_process_goes_on_with_a_run_of_two(whole: tuple[Runs, Recipe], caplog: pytest.LogCaptureFixture) -> None:
    """As after an elastic restart with a machine less: what is left of the epoch is done, a batch an update."""
    runs, recipe = whole
    fewer = runs.recipe("fewer", **SECTIONS)
    run = RunFolder(Path(fewer.run_dir))
    source = RunFolder(Path(recipe.run_dir))
    shutil.copytree(source.checkpoint(4), run.checkpoint(4))
    shutil.copy(source.recipe, run.recipe)
    pipeline.train(fewer)
    assert "the run had 2 processes, and has 1 now: an update takes as many more or fewer batches" in caplog.text
    assert [row["step"] for row in events(run, "resume")] == [4]
    assert run.steps()[-1] == 4 + 21 - 2 * 4
    before, after = (checkpoint_state(run.checkpoint(step))["train"] for step in (4, run.steps()[-1]))
    assert (before["processes"], after["processes"]) == (2, 1)
    last = checkpoint_state(source.checkpoint(LAST))["train"]
    assert after["target_tokens"] == last["target_tokens"], "each pair of the epoch was seen once"


def test_only_rank_0_writes_and_speaks(whole: tuple[Runs, Recipe]) -> None:
    recipe = whole[1]
    run = RunFolder(Path(recipe.run_dir))
    assert [row["step"] for row in events(run, "save")] == list(range(1, LAST + 1))
    err = Path(recipe.run_dir).with_suffix(".err").read_text("utf-8")
    assert err.count(f"training ended after step {LAST}") == 1
    assert "in each of 2 processes" in err


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other(runs: Runs, starter: Starter, killed: int) -> None:
    recipe = runs.recipe(training={**SECTIONS["training"], "max_epochs": None, "max_steps": 10**6})
    pair = Pair(starter, recipe)
    wait_for(RunFolder(Path(recipe.run_dir)).steps)
    os.kill(pair.processes[killed], signal.SIGKILL)
    began = time.monotonic()
    ends = pair.ended()
    assert time.monotonic() - began < 60
    dead, other = ends[killed], ends[1 - killed]
    assert (dead.code, other.code) == (-signal.SIGKILL, 1)
    assert "Traceback" not in other.err
    assert "the connection to another rank is lost" in other.complaints[0]


MORTAL = """
import os, signal
from mtkit.training import trainer

real = trainer.train_step

def train_step(*arguments):
    if arguments[5] == 5 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

trainer.train_step = train_step

from mtkit.cli.app import main

main()
"""


def test_torchrun_starts_a_job_again_in_which_one_process_was_killed(whole: tuple[Runs, Recipe]) -> None:
    """With --max-restarts: both begin again, from the last checkpoint, and end as if nothing had happened."""
    runs, recipe = whole
    again = runs.recipe("again", **SECTIONS)
    script = Path(again.run_dir).with_suffix(".py")
    script.write_text(MORTAL)
    job = torchrun(again, "--max-restarts", "1", program=[str(script)])
    end = ended(job, again)
    assert end.code == 0, end.err
    run = RunFolder(Path(again.run_dir))
    assert [(row["event"], row["step"]) for row in events(run, "start", "resume")] == [("start", 0), ("resume", 4)]
    assert_same(RunFolder(Path(recipe.run_dir)), run, LAST)


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


ASTRAY = """
import os, torch
from mtkit.training import trainer

real = trainer.train_step

def train_step(*arguments):
    report = real(*arguments)
    if arguments[5] == 3 and os.environ["RANK"] == "1":
        with torch.no_grad():
            next(arguments[1].parameters()).view(-1)[0] += 1e-6
    return report

trainer.train_step = train_step
"""


@pytest.mark.parametrize(("every", "found"), [(2, 4), (None, 6)])
def test_weights_that_go_astray_end_both_at_the_next_comparison(
    runs: Runs, starter: Starter, every: int | None, found: int
) -> None:
    """The least of differences, in one number of one rank; without the setting it is found before the checkpoint."""
    recipe = runs.recipe(training={"checksum_every_steps": every, "max_steps": 12})
    first, second = Pair(starter, recipe, ASTRAY).ended()
    assert (first.code, second.code) == (1, 1)
    assert f"step {found}: the weights of rank 1 differ from rank 0's; no checkpoint is written" in first.complaints[0]
    assert (second.complaints, RunFolder(Path(recipe.run_dir)).steps()) == ([], [])


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


def test_processes_that_start_again_do_not_meet_those_that_died() -> None:
    """Whoever comes first; what the ones before have left in the store is as if it were not there."""
    store = torch.distributed.HashStore()

    def started(order: Sequence[int]) -> set[str]:
        names: dict[int, str] = {}

        def process(rank: int) -> None:
            mine = meet(store, rank, 3, timedelta(seconds=60))
            mine.set(f"own {rank}", str(order))
            names[rank] = mine.get("own 0").decode()

        threads = [threading.Thread(target=process, args=(rank,)) for rank in order]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join(60)
        assert sorted(names) == [0, 1, 2]
        return set(names.values())

    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        assert started(order) == {str(order)}
    with pytest.raises(TrainingError, match=r"rank 1 has not come \(2 of 3 are missing\)"):
        meet(torch.distributed.HashStore(), 0, 3, timedelta(seconds=0.05))


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
