"""A run that was stopped and continued is the uninterrupted run, bit for bit; and what may change in between."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from toy_run import Runs, assert_same, before_step, events, last_of_each, signalled, toy_recipe

from mtkit import pipeline
from mtkit.errors import RecipeError
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.training.resume import CHANGEABLE, may_change

STEPS = 24

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adamw": {"optimizer": {"name": "adamw", "weight_decay": 0.01}},
    "muon": {"optimizer": {"name": "muon", "weight_decay": 0.01}},
    "accumulated": {"training": {"accumulate": 3}},
    "moving average": {"training": {"ema_decay": 0.9}},
    "weighted corpus": {"data": {"weight": 0.5}},
    "warm-up": {"schedule": {"name": "inverse_sqrt", "rate": 0.01, "warmup_steps": 8}},
    "falling rate": {"schedule": {"name": "linear", "rate": 0.01, "warmup_steps": 4}},
    "r-drop and word dropout": {"training": {"r_drop": 2.0, "word_dropout": 0.2}},
    "bpe-dropout": {"tokenizer": {"vocab_size": 120, "bpe_dropout": 0.2}},
    "layer dropout": {"model": {"layer_dropout": 0.4, "encoder_layers": 2}, "training": {"accumulate": 2}},
    "bf16": {"training": {"precision": "bf16"}},
}


def sections(corpus: TinyCorpus, variant: str, **training: Any) -> dict[str, Any]:
    """The recipe sections of a variant, with settings of training merged in."""
    chosen = dict(VARIANTS[variant])
    if "data" in chosen:
        data = corpus.values()["data"]
        chosen["data"] = {**data, "train": [{**data["train"][0], **chosen["data"]}]}
    chosen["training"] = {"max_steps": STEPS, **chosen.get("training", {}), **training}
    return chosen


@pytest.fixture(scope="module")
def uninterrupted(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each variant trained in one go, once."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("uninterrupted"))
    return lambda variant: runs.train(variant, **sections(tiny_corpus, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_inside_an_epoch_by_signals(
    runs: Runs, uninterrupted: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops at 7 and 17 fall between validations, between lines of the log and inside epochs."""
    settings = sections(runs.corpus, variant)
    for step in (7, 17):
        with monkeypatch.context() as patch:
            before_step(patch, step, signalled(signal.SIGINT))
            assert runs.train(**settings).steps()[-1] == step, "the update is finished, then it is saved"
    run, whole = runs.train(**settings), uninterrupted(variant)
    assert_same(run, whole, STEPS)
    kinds = ("train", "valid")
    assert last_of_each(events(run, *kinds)) == last_of_each(events(whole, *kinds))
    assert [row["step"] for row in events(run, "resume")] == [7, 17]


@pytest.mark.parametrize("variant", ["plain", "accumulated", "moving average", "warm-up"])
def test_half_and_half(runs: Runs, uninterrupted: Any, variant: str) -> None:
    """Two halves with max_steps raised, under the schedules that do not depend on max_steps."""
    runs.train(**sections(runs.corpus, variant, max_steps=STEPS // 2))
    run, whole = runs.train(**sections(runs.corpus, variant)), uninterrupted(variant)
    assert_same(run, whole, STEPS)
    rows, expected = (last_of_each(events(one, "train", "valid")) for one in (run, whole))
    del rows["train", STEPS // 2]  # the last line of the first half
    assert rows == expected


def test_lost_updates_are_done_again(runs: Runs, uninterrupted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two checkpoints: the updates since the last one come out the same a second time."""
    settings = sections(runs.corpus, "moving average")

    def die() -> None:
        raise MemoryError

    before_step(monkeypatch, 17, die)
    with pytest.raises(MemoryError):
        runs.train(**settings)
    monkeypatch.undo()
    run = runs.train(**settings)
    assert [row["step"] for row in events(run, "resume")] == [12]
    assert_same(run, uninterrupted("moving average"), STEPS)
    assert last_of_each(events(run, "train", "valid")) == last_of_each(
        events(uninterrupted("moving average"), "train", "valid")
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed process is a fork of this one")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_at_random_moments(runs: Runs, uninterrupted: Any, number: signal.Signals) -> None:
    """A quick form of tests/benchmarks/kill_resume.py: real processes, saving after each update, saves included."""
    settings = sections(runs.corpus, "moving average", save_every_steps=1)
    run, chance, codes = RunFolder(Path(runs.recipe(**settings).run_dir)), random.Random(1), []

    def saves() -> int:
        return len(events(run, "save")) if run.metrics.exists() else 0

    while not codes or codes[-1] != 0:
        before = saves()
        child = os.fork()
        if child == 0:
            try:
                os._exit(128 + (pipeline.train(runs.recipe(**settings)).signal_number or -128))
            except BaseException:
                os._exit(1)
        while saves() < before + 2 and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, number)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    expected = -number if number == signal.SIGKILL else 128 + number
    assert set(codes) == {expected, 0}
    # A kill can come before a start has written that it resumes.
    resumed = len(events(run, "resume"))
    assert resumed == len(codes) - 1 if expected != -signal.SIGKILL else 2 <= resumed < len(codes)
    assert_same(run, uninterrupted("moving average"), STEPS)


def test_stopped_inside_a_validation(runs: Runs, uninterrupted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation is not worth waiting for: it is broken off, and done when the run goes on, before anything else."""
    from mtkit.training import validate

    settings = sections(runs.corpus, "moving average")
    real, calls = validate.batch_loss, []

    def loss(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:  # the second validation, after update 12, is of two batches as the first
            signalled(signal.SIGTERM)()
        return real(*arguments)

    monkeypatch.setattr(validate, "batch_loss", loss)
    run = runs.train(**settings)
    monkeypatch.undo()
    assert len(calls) == 3
    stopped_at = run.steps()[-1]
    assert stopped_at % 6 == 0
    assert checkpoint_state(run.checkpoint(stopped_at))["train"]["validations"][-1]["step"] == stopped_at - 6
    runs.train(**settings)
    for step in (stopped_at, STEPS):
        assert_same(run, uninterrupted("moving average"), step)


def test_over_epochs(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place inside the second epoch is found again, and max_epochs ends both runs at the same update."""
    settings = {"batching": {"max_tokens": 2048}, "training": {"max_epochs": 3, "max_steps": 1000}}
    whole = runs.train("whole", **settings)
    last = whole.steps()[-1]
    assert checkpoint_state(whole.checkpoint(last))["train"]["epoch"] == 3
    before_step(monkeypatch, last // 2 + 1, signalled(signal.SIGINT))
    runs.train(**settings)
    run = runs.train(**settings)
    assert_same(run, whole, last)
    assert checkpoint_state(run.checkpoint(last))["train"]["validations"][-1]["step"] == last, "the end is validated"


def test_patience_and_the_best_list_survive(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of 1e-9 nothing gets better: the first validation stays the best, and patience counts the others."""
    settings = {
        "schedule": {"name": "constant", "rate": 1e-9},
        "training": {
            "max_steps": 100,
            "validate_every_steps": 2,
            "patience": 4,
            "best_metric": "bleu",
            "keep_best": 1,
            "keep_last": 1,
        },
    }
    for step in (4, 7):
        with monkeypatch.context() as patch:
            before_step(patch, step, signalled(signal.SIGINT))
            runs.train(**settings)
    run = runs.train(**settings)
    assert run.steps() == [2, 10]
    assert events(run, "end")[-1]["reason"] == "no new best bleu in 4 validations"
    before = run.metrics.read_bytes()
    assert pipeline.train(runs.recipe(**settings)).reason == "no new best bleu in 4 validations"
    assert run.metrics.read_bytes() == before, "there was nothing to do"
    settings["training"]["patience"] = 5
    assert runs.train(**settings).steps() == [2, 12]


def test_metrics_only_grow(runs: Runs) -> None:
    run = runs.train()
    first = run.metrics.read_bytes()
    runs.train(training={"max_steps": 18})
    second = run.metrics.read_bytes()
    assert second.startswith(first)
    pipeline.train(runs.recipe(training={"max_steps": 18}), fresh=True)
    assert run.metrics.read_bytes().startswith(second)
    assert [(row["event"], row["step"]) for row in events(run, "start", "resume")] == [
        ("start", 0),
        ("resume", 12),
        ("start", 0),
    ]


def test_a_line_of_the_log_that_a_kill_has_cut_spoils_no_other(runs: Runs) -> None:
    run = runs.train()
    rows = events(run)
    with open(run.metrics, "ab") as stream:
        stream.write('{"event": "samples", "samples": [["é'.encode()[:-1])
    before = run.metrics.read_bytes()
    runs.train(training={"max_steps": 18})
    assert run.metrics.read_bytes().startswith(before)
    after = events(run)
    assert after[: len(rows)] == rows
    assert (after[len(rows)]["event"], after[len(rows)]["step"]) == ("resume", 12)


def test_a_finished_run_has_nothing_to_do(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    run = runs.train()
    before = {path: path.read_bytes() for path in sorted(run.path.rglob("*")) if path.is_file() and path.name != "lock"}
    caplog.clear()
    with caplog.at_level("INFO"):
        runs.train()
    assert "training: up to date after step 12 (max_steps)" in caplog.text
    assert before == {path: path.read_bytes() for path in before}


# Changed recipes


def other_values(name: str) -> dict[str, Any]:
    return {
        "average": {"average": {"checkpoints": 2}},
        "evaluation": {"evaluation": {"lowercase": True}},
        "search": {"search": {"method": "greedy"}},
        "training.best_metric": {"training": {"best_metric": "loss"}},
        "training.checksum_every_steps": {"training": {"checksum_every_steps": 2}},
        "training.keep_best": {"training": {"keep_best": 3}},
        "training.keep_last": {"training": {"keep_last": 2}},
        "training.log_every_steps": {"training": {"log_every_steps": 1}},
        "training.max_bad_steps": {"training": {"max_bad_steps": 2}},
        "training.gradient_checkpointing": {"training": {"gradient_checkpointing": True}},
        "training.max_epochs": {"training": {"max_epochs": 50}},
        "training.max_steps": {"training": {"max_steps": 18}},
        "training.parallel": {"training": {"parallel": "fsdp"}},
        "training.patience": {"training": {"patience": 9}},
        "training.samples": {"training": {"samples": 1}},
        "training.save_every_steps": {"training": {"save_every_steps": 2}},
        "training.threads": {"training": {"threads": None}},
        "training.validate_beam_size": {"training": {"validate_beam_size": 2}},
        "training.validate_every_steps": {"training": {"validate_every_steps": 4}},
        "training.validate_sentences": {"training": {"validate_sentences": 4}},
    }[name]


ELSEWHERE = {"data.downloads", "data.root", "data.test", "run_dir", "training.compile", "training.device"}
ELSEWHERE |= {"training.initialize_from", "training.tensorboard"}  # in test_finetune and test_training_options
"""Changes of place, of what is not read in training, or of what this machine may lack."""


@pytest.mark.parametrize("name", sorted(set(CHANGEABLE) - ELSEWHERE))
def test_what_may_change(runs: Runs, name: str, caplog: pytest.LogCaptureFixture) -> None:
    runs.train(training={"max_steps": 6})
    change = other_values(name)
    change["training"] = {"max_steps": 9, **change.get("training", {})}
    with caplog.at_level("INFO"):
        run = runs.train(**change)
    assert run.steps()[-1] == change["training"]["max_steps"]
    assert f"recipe: {name}" in caplog.text
    assert "continuing after step 6" in caplog.text


def test_a_run_folder_can_be_moved(runs: Runs, tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    """With its corpus, too: contents decide, not places."""
    import shutil

    runs.train(training={"max_steps": 6})
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.copytree(tiny_corpus.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("run"))
    data = {**tiny_corpus.values()["data"], "root": str(tmp_path / "corpus"), "test": []}
    assert runs.train("moved", data=data).steps() == [6, 12]


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("training", "seed", 2),
        ("training", "accumulate", 2),
        ("training", "label_smoothing", 0.0),
        ("training", "ema_decay", 0.5),
        ("training", "precision", "bf16"),
        ("optimizer", "beta2", 0.9),
        ("schedule", "warmup_steps", 3),
        ("model", "d_ff", 64),
        ("model", "dropout", 0.0),
        ("batching", "max_tokens", 600),
        ("tokenizer", "vocab_size", 100),
        ("filters", "max_length", 90),
    ],
)
def test_what_may_not_change_is_named(runs: Runs, section: str, setting: str, value: Any) -> None:
    run = runs.train(training={"max_steps": 6})
    before = run.recipe.read_bytes()
    changed = runs.recipe(**{section: {setting: value}})
    with pytest.raises(RecipeError) as caught:
        pipeline.train(changed)
    assert f"\n  {section}.{setting}: " in caught.value.message
    assert f"-> {value!r}" in caught.value.message
    assert "--fresh" in str(caught.value.hint)
    assert "max_steps" not in caught.value.message, "what may change is not blamed"
    assert (run.steps(), run.recipe.read_bytes()) == ([6], before)


def test_fresh_starts_anew_and_keeps_tokenizer_and_shards(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    runs.train()
    recipe = runs.recipe(model={"d_ff": 64}, training={"max_steps": 6})
    with caplog.at_level("INFO"):
        pipeline.train(recipe, fresh=True)
    assert RunFolder(Path(recipe.run_dir)).steps() == [6]
    assert "tokenizer: up to date" in caplog.text
    assert "shards: up to date" in caplog.text


def test_without_checkpoints_anything_may_change(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that died before its first checkpoint has nothing to protect."""

    def die() -> None:
        raise MemoryError

    before_step(monkeypatch, 2, die)
    with pytest.raises(MemoryError):
        runs.train()
    monkeypatch.undo()
    assert runs.train(batching={"max_tokens": 300}).steps() == [6, 12]


def test_checkpoints_without_a_recipe_are_not_guessed_at(runs: Runs) -> None:
    run = runs.train()
    run.recipe.unlink()
    with pytest.raises(RecipeError, match=r"recipe\.yaml, which tells what they are, is missing"):
        runs.train()


@pytest.mark.parametrize(("name", "warned"), [("linear", True), ("cosine", True), ("constant", False)])
def test_a_schedule_that_ends_at_max_steps_says_that_it_has_moved(
    runs: Runs, name: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After 12 of 12 the rate is 0; as the 13th of 24 it is about half again: another run, and the log says so."""
    schedule = {"name": name, "rate": 0.01, "warmup_steps": 2}
    runs.train(schedule=schedule)
    caplog.clear()
    run = runs.train(schedule=schedule, training={"max_steps": 24})
    assert run.steps()[-1] == 24
    assert (
        f"schedule {name} ends at training.max_steps, which has changed: the next rate is " in caplog.text
    ) == warned
    assert ("instead of 0.000e+00" in caplog.text) == warned


def test_the_changeable_keys_are_keys(tiny_corpus: TinyCorpus) -> None:
    values = toy_recipe(tiny_corpus, Path("x")).model_dump()
    for key in CHANGEABLE:
        inner: Any = values
        for part in key.split("."):
            inner = inner[part]
        assert may_change(key)
        assert may_change(f"{key}.inner")
    assert not may_change("training.seed")
    assert not may_change("searching")
