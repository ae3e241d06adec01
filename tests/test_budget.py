"""`batching.max_tokens: auto`: what is picked under a given memory and speed, and that a run sticks to it."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_job import Pair, Starter
from toy_run import Runs, assert_same, before_step, events

from mtkit import pipeline
from mtkit.errors import RecipeError, TrainingError
from mtkit.files import read_json
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.ids import BOS, EOS
from mtkit.ranks import ALONE
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.training import budget as budget_module
from mtkit.training import step as step_module
from mtkit.training.budget import Budget, Probe, Trial, made_up, measure, pick
from mtkit.training.state import make_learner
from mtkit.training.updates import open_pairs
from mtkit.training.validate import read_validation

AUTO = {"batching": {"max_tokens": "auto"}, "filters": {"max_length": 100}}


class Machine:
    """A memory that `fixed + each * tokens` bytes are taken of, and a speed that saturates at `half` tokens."""

    def __init__(self, memory: float, fixed: float, each: float, half: float = 0.0, told: bool = True) -> None:
        self.memory, self.fixed, self.each, self.half, self.told = memory, fixed, each, half, told
        self.tried: list[int] = []

    def used(self, max_tokens: int) -> float:
        return (self.fixed + self.each * max_tokens) / self.memory

    def __call__(self, max_tokens: int) -> Trial | None:
        self.tried.append(max_tokens)
        used = self.used(max_tokens)
        if used > 1 and not self.told:
            return None
        speed = max_tokens / (max_tokens + self.half) if self.half else float(max_tokens)
        return Trial(max_tokens, used if self.told else 0.0, 1000 * speed)


# The choice


@pytest.mark.parametrize("memory", [2e3, 1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("fixed", [0.0, 500.0])
@pytest.mark.parametrize("told", [True, False], ids=["foretold", "by trial"])
def test_memory_is_used_but_not_exceeded(memory: float, fixed: float, told: bool) -> None:
    """Where every token more makes it faster, the budget is what fits, to within 20 %."""
    machine = Machine(memory, fixed, 1.5, told=told)
    found = pick(machine, 101, 10**9)
    true = (memory - fixed) / 1.5
    assert 0.8 * true <= found.max_tokens <= true
    assert found.reason == "memory"
    if told:
        assert all(machine.used(size) <= 1 for size in machine.tried[1:]), "nothing is tried that was known not to fit"
    assert len(machine.tried) < 30


@pytest.mark.parametrize("half", [10, 1000, 50_000])
def test_more_than_makes_it_faster_is_not_taken(half: int) -> None:
    machine = Machine(1e12, 0, 1, half)
    found = pick(machine, 101, 10**9)
    assert found.reason == "speed"
    fastest = max(trial.speed for trial in found.trials)
    chosen = next(trial for trial in found.trials if trial.max_tokens == found.max_tokens)
    assert chosen.speed * budget_module.WORTH >= fastest
    assert all(
        trial.speed * budget_module.WORTH < fastest for trial in found.trials if trial.max_tokens < chosen.max_tokens
    )
    assert max(machine.tried) <= max(4 * 512, 64 * half)


def test_the_corpus_bounds_it() -> None:
    machine = Machine(1e12, 0, 1)
    assert pick(machine, 101, 3000) == Budget(
        3000, "corpus", [Trial(size, size / 1e12, 1000.0 * size) for size in machine.tried]
    )
    assert pick(machine, 101, 50).max_tokens == 101, "pairs as long as the filters allow must fit"


@pytest.mark.parametrize("told", [True, False])
def test_what_cannot_fit_is_an_error_with_advice(told: bool) -> None:
    with pytest.raises(TrainingError, match="out of memory with 101 tokens, the least for pairs as long") as caught:
        pick(Machine(100, 0, 1, told=told), 101, 10**6)
    assert "filters.max_length" in str(caught.value.hint)
    assert pick(Machine(102, 0, 1, told=told), 101, 10**6).max_tokens == 101


def test_figures_that_jump_end_all_the_same() -> None:
    """A memory that is taken in large pieces, and a clock that stutters."""

    def probe(size: int) -> Trial | None:
        return Trial(size, math.ceil(size / 4000) * 0.3, 1000 * size * (1 + size % 3))

    found = pick(probe, 101, 10**6)
    assert found.max_tokens <= 12_000
    assert len(found.trials) < 30


# The measuring


def learner_of(runs: Runs, **sections: Any) -> Any:
    recipe = runs.recipe(**{**AUTO, **sections})
    return make_learner(recipe, Tokenizers.load(Path(recipe.run_dir)), torch.device("cpu"))


def test_made_up_batches_are_what_collate_makes() -> None:
    batch = made_up(3, 5, 20, 10)
    assert batch.source_BS.shape == batch.target_in_BT.shape == batch.target_out_BT.shape == (3, 5)
    assert (batch.kept, batch.source_tokens) == (15, 15)
    assert bool((batch.target_in_BT[:, 0] == BOS).all())
    assert torch.equal(batch.target_in_BT[:, 1:], batch.target_out_BT[:, :-1])
    for ids_BL, words in ((batch.source_BS, 20), (batch.target_out_BT, 10)):
        assert bool((ids_BL[:, -1] == EOS).all())
        assert bool(((ids_BL[:, :-1] >= 4) & (ids_BL[:, :-1] < words)).all())


def test_lengths_are_those_of_an_epoch_and_are_not_kept(runs: Runs) -> None:
    """Corpora count by their weight; of a corpus of any size no more than a block is in memory at a time."""
    recipe = runs.recipe(**AUTO)
    data = open_pairs(RunFolder(Path(recipe.run_dir)).shards / "train", recipe.data.train)
    heavy = recipe.model_dump(mode="json")
    heavy["data"]["train"][0]["weight"] = 3.0
    found = budget_module._lengths(Recipe.model_validate(heavy), data)
    assert not {"source_lengths", "target_lengths"} & set().union(*(vars(one) for one in (data, *data.shards)))
    longer = [max(pair) for pair in zip(data.source_lengths.tolist(), data.target_lengths.tolist(), strict=True)]
    assert found == (max(longer), pytest.approx(sum(longer) / len(longer)), 3 * sum(longer))


def test_this_machine_is_measured(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    """Real updates and a real search: more tokens take more memory, and the tiny corpus bounds the budget."""
    learner = learner_of(runs, model={"d_model": 64, "d_ff": 256, "encoder_layers": 1, "decoder_layers": 1})
    run = RunFolder(Path(learner.recipe.run_dir))
    data = open_pairs(run.shards / "train", learner.recipe.data.train)
    found = measure(learner, data, read_validation(learner.recipe), ALONE)
    assert found.max_tokens == 101
    assert found.reason == "corpus"
    assert found.decoding is not None
    assert 0 < found.decoding < 1
    probe = Probe(learner, 100, 12, learner.recipe.batching, 1.0, ALONE)
    small, large = probe(300), probe(3000)
    assert small is not None
    assert large is not None
    assert large.used - small.used > 2700 * 64 * 4, "at the very least one activation of each token"
    assert learner.optimizer.state, "optimizer state counts"


def test_a_size_that_runs_out_of_memory_does_not_fit(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(runs)
    real = step_module.batch_loss

    def batch_loss(model: Any, output: Any, one: Any, settings: Any) -> Any:
        if one.source_BS.numel() > 900:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, output, one, settings)

    monkeypatch.setattr(step_module, "batch_loss", batch_loss)
    monkeypatch.setattr(Probe, "__call__", quick(Probe.__call__))
    found = pick(Probe(learner, 90, 10, learner.recipe.batching, 1e15, ALONE), 101, 10**6)
    assert found.reason == "memory"
    assert 720 <= found.max_tokens <= 999


def quick(real: Callable[..., Trial | None]) -> Callable[..., Trial | None]:
    """The real probe, whose figures of speed are as they would be on a machine that nobody shares."""

    def probe(self: Probe, max_tokens: int) -> Trial | None:
        trial = real(self, max_tokens)
        return trial and replace(trial, speed=float(max_tokens))

    return probe


def test_validation_that_does_not_fit_is_warned_of(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learner = learner_of(runs)

    def run_search(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(budget_module, "run_search", run_search)
    texts = read_validation(learner.recipe)
    assert budget_module._decoding(learner, texts, 1e12, ALONE) is None
    assert "validation decodes 8 sentences at once, and they do not fit" in caplog.text
    assert learner.core.training


# The run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """In place of the real one: 700 tokens fit."""
    one = Machine(700, 0, 1)
    monkeypatch.setattr(Probe, "__call__", lambda self, max_tokens: one(max_tokens))
    monkeypatch.setattr(budget_module, "LEAST_UPDATES", 1)
    return one


def max_tokens(run: RunFolder) -> int:
    return int(checkpoint_state(run.checkpoint(run.steps()[-1]))["train"]["max_tokens"])


def weights(run: RunFolder) -> bytes:
    return (run.checkpoint(run.steps()[-1]) / "model.safetensors").read_bytes()


def test_a_run_with_a_measured_budget_is_one_with_that_number(
    runs: Runs, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        run = runs.train(**AUTO)
    number = max_tokens(run)
    assert 560 <= number <= 700
    assert f"batching.max_tokens: auto is {number} (more would not fit" in caplog.text
    assert events(run, "budget")[0]["max_tokens"] == read_json(run.budget)["max_tokens"] == number
    same = runs.train("number", batching={"max_tokens": number})
    assert [row["loss"] for row in events(run, "train")] == [row["loss"] for row in events(same, "train")]
    assert weights(run) == weights(same)


def test_a_resumed_run_keeps_the_number(
    runs: Runs, machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even on a machine with room for more, and where the file is gone."""
    whole = runs.train("whole", **AUTO, training={"max_steps": 18})
    run = runs.train(**AUTO)
    run.budget.unlink()
    tried, machine.memory = len(machine.tried), 5000
    with caplog.at_level("INFO"):
        runs.train(**AUTO, training={"max_steps": 18})
    assert len(machine.tried) == tried
    assert f"auto is {max_tokens(whole)}, as when the run began" in caplog.text
    assert_same(run, whole, 18)


def test_a_run_that_died_before_its_first_checkpoint_keeps_the_number(
    runs: Runs, machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def die() -> None:
        raise MemoryError

    before_step(monkeypatch, 2, die)
    with pytest.raises(MemoryError):
        runs.train(**AUTO)
    run = RunFolder(runs.folder / "run")
    number, machine.memory = read_json(run.budget)["max_tokens"], 5000
    monkeypatch.undo()
    assert max_tokens(runs.train(**AUTO)) == number


@pytest.mark.parametrize("how", ["fresh", "other model", "damaged"])
def test_it_is_measured_again_for_another_run(runs: Runs, machine: Machine, how: str) -> None:
    run = runs.train(**AUTO, training={"max_steps": 0})
    machine.memory, tried = 2000, len(machine.tried)
    if how == "damaged":
        run.budget.write_text("{}")
    sections = {"model": {"d_ff": 64}} if how == "other model" else {}
    if how != "fresh":
        for step in run.steps():
            for file in run.checkpoint(step).iterdir():
                file.unlink()
            run.checkpoint(step).rmdir()
    pipeline.train(runs.recipe(**AUTO, **sections, training={"max_steps": 0}), fresh=how == "fresh")
    assert len(machine.tried) > tried
    assert 1600 <= max_tokens(run) <= 2000


def test_a_number_in_place_of_auto_is_another_run(runs: Runs, machine: Machine) -> None:
    runs.train(**AUTO)
    with pytest.raises(RecipeError, match=r"batching.max_tokens: 'auto' -> 512"):
        runs.train(training={"max_steps": 18})


# Two processes

PRELUDE = """
import itertools, os
import torch
from types import SimpleNamespace
from mtkit.training import budget, step

rank = int(os.environ["RANK"])
cells = 0

def made_up(*arguments, real=budget.made_up):
    global cells
    batch = real(*arguments)
    cells = max(cells, batch.source_BS.numel())
    return batch

def begin_peak(device):
    global cells
    cells = 0

def batch_loss(model, output, one, settings, real=step.batch_loss):
    if FAILS and rank == 1 and one.source_BS.numel() > 700:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return real(model, output, one, settings)

budget.LEAST_UPDATES = 1
budget.SHARE = 1.0
budget.made_up, budget.begin_peak, step.batch_loss = made_up, begin_peak, batch_loss
budget.job_share, budget.held_memory, budget.free_memory = lambda: 1, lambda device: 0, lambda device: 1400.0
budget.peak_held_memory = lambda device: 0 if FAILS else cells * (1 + rank)
budget.time = SimpleNamespace(perf_counter=itertools.count().__next__)
"""
"""A machine on which tokens take bytes and every update a second. For rank 1 no more than 700 tokens fit: it takes
twice the memory of rank 0, or, when it FAILS, runs out without having said so."""


@pytest.mark.parametrize("fails", [False, True], ids=["foretold", "by trial"])
def test_two_processes_agree_on_what_fits_both(runs: Runs, starter: Starter, fails: bool) -> None:
    """And train with it to the end: as a run of two processes does that has this number in its recipe."""

    def train(name: str, batching: dict[str, Any], before: str = "") -> RunFolder:
        recipe = runs.recipe(name, **{**AUTO, "batching": batching, "training": {"max_steps": 4}})
        for end in Pair(starter, recipe, before).ended():
            assert end.code == 0, end.err
        return RunFolder(Path(recipe.run_dir))

    run = train("auto", AUTO["batching"], f"FAILS = {fails}\n{PRELUDE}")
    number = max_tokens(run)
    assert 560 <= number <= 700
    assert events(run, "budget")[0]["reason"] == "memory"
    assert events(run, "oom") == []
    same = train("number", {"max_tokens": number})
    assert [row["loss"] for row in events(run, "train")] == [row["loss"] for row in events(same, "train")]
    assert weights(run) == weights(same)
