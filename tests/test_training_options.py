"""Every setting of training, optimizer, schedule, batching and average does something: a test each, and no gaps."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from toy_run import Runs, events

from mtkit import pipeline
from mtkit.checkpoint import load_tensors
from mtkit.data import batching
from mtkit.errors import TrainingError, UsageError
from mtkit.folders import RunFolder, checkpoint_state, read_lineage
from mtkit.model.transformer import Transformer
from mtkit.sections.data import Batching
from mtkit.sections.training import Average, Constant, Cosine, InverseSquareRoot, Linear, Optimizer, Training
from mtkit.training import trainer, validate

BRIEF = {"max_steps": 4, "validate_every_steps": 2, "log_every_steps": 1}
Measure = Callable[[RunFolder], Any]


def fields(section: type[BaseModel]) -> set[str]:
    return set(section.model_fields) - {"name"}


def weights(run: RunFolder) -> list[bytes]:
    """The weights to translate with, after the last update."""
    saved = load_tensors(run.checkpoint(run.steps()[-1]) / "model.safetensors")
    return [weight.numpy().tobytes() for _, weight in sorted(saved.items())]


def state(run: RunFolder) -> dict[str, Any]:
    return dict(checkpoint_state(run.checkpoint(run.steps()[-1]))["train"])


def steps_of(kind: str) -> Measure:
    return lambda run: [row["step"] for row in events(run, kind)]


# Settings that decide what is computed: another value, other weights after the first updates

COMPUTED: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("training", "seed"): (2, {}),
    ("training", "accumulate"): (2, {}),
    ("training", "label_smoothing"): (0.3, {}),
    ("training", "precision"): ("bf16", {}),
    ("training", "ema_decay"): (0.9, {}),
    ("training", "r_drop"): (2.0, {}),
    ("training", "word_dropout"): (0.2, {}),
    ("optimizer", "name"): ("adamw", {"optimizer": {"weight_decay": 0.5}}),
    ("optimizer", "beta1"): (0.5, {}),
    ("optimizer", "beta2"): (0.5, {}),
    ("optimizer", "epsilon"): (0.1, {}),
    ("optimizer", "weight_decay"): (0.5, {}),
    ("optimizer", "clip_norm"): (1e-6, {"optimizer": {"epsilon": 1e-3}}),
    ("batching", "max_tokens"): (256, {}),
    ("batching", "max_sentences"): (5, {}),
    ("batching", "pool_size"): (1, {}),
    ("batching", "block_size"): (100, {"batching": {"pool_size": 100}}),
}


@pytest.mark.parametrize(("section", "setting"), COMPUTED)
def test_what_decides_the_result(runs: Runs, section: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "STRETCH", 7)  # so that a corpus this small can be dealt out into blocks
    value, shared = COMPUTED[section, setting]
    shared = {"training": BRIEF, **shared}
    changed = {**shared, section: {**shared.get(section, {}), setting: value}}
    if "name" in changed.get("optimizer", {}):
        assert "adam" in changed["optimizer"]["name"]
    before, after = (runs.train(name, **sections) for name, sections in (("before", shared), ("after", changed)))
    assert weights(before) != weights(after)


# Settings that decide what happens when, and what is told: another value, another measurement

HAPPENS: dict[str, tuple[dict[str, Any], Measure, Any]] = {
    "max_steps": ({"max_steps": 3}, lambda run: state(run)["step"], 3),
    "max_epochs": ({"max_epochs": 1, "max_steps": 45, "validate_every_steps": 99}, lambda run: state(run)["epoch"], 1),
    "validate_every_steps": ({"validate_every_steps": 3}, steps_of("valid"), [3, 4]),
    "validate_sentences": ({"validate_sentences": 5}, lambda run: events(run, "valid")[0]["sentences"], 5),
    "log_every_steps": ({"log_every_steps": 3}, steps_of("train"), [3, 4]),
    "save_every_steps": ({"save_every_steps": 3}, lambda run: run.steps(), [3, 4]),
    "keep_last": ({"keep_last": 2, "keep_best": 0, "save_every_steps": 1}, lambda run: run.steps(), [3, 4]),
    "samples": ({"samples": 2}, lambda run: [len(row["samples"]) for row in events(run, "samples")], [2, 2]),
    "patience": ({"patience": 1, "max_steps": 8, "best_metric": "bleu"}, lambda run: state(run)["step"], 4),
}


@pytest.mark.parametrize("setting", HAPPENS)
def test_what_decides_when_things_happen(runs: Runs, setting: str) -> None:
    changed, measure, expected = HAPPENS[setting]
    rate = {"name": "constant", "rate": 1e-9}  # so that no validation is better than the first
    assert measure(runs.train(training={**BRIEF, **changed}, schedule=rate)) == expected
    without = {key: value for key, value in changed.items() if key != setting}
    assert measure(runs.train("without", training={**BRIEF, "max_steps": 5, **without}, schedule=rate)) != expected


@pytest.mark.parametrize("metric", ["bleu", "chrf", "loss"])
def test_best_metric_and_keep_best(runs: Runs, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are made up so that each metric has its own best step."""
    real, count = validate.ValidationReport.row, 0
    rows = [(9.0, 1.0, 5.0), (1.0, 9.0, 5.0), (1.0, 1.0, 1.0), (0.0, 0.0, 9.0), (0.0, 0.0, 9.0)]
    scores = [dict(zip(("bleu", "chrf", "nll"), row, strict=True)) for row in rows]

    def row(report: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {**real(report), **scores[count - 1]}

    monkeypatch.setattr(validate.ValidationReport, "row", row)
    training = {**BRIEF, "max_steps": 5, "validate_every_steps": 1, "best_metric": metric, "keep_last": 1}
    best = {"bleu": 1, "chrf": 2, "loss": 3}[metric]
    run = runs.train(training={**training, "keep_best": 1})
    assert run.steps() == [best, 5]
    pipeline.average(run, "best", 1)
    assert read_lineage(run.model)["steps"] == [best]
    count = 0
    assert runs.train("none", training={**training, "keep_best": 0}).steps() == [5]


def test_max_bad_steps(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtkit.training import step

    real = step.global_norm
    monkeypatch.setattr(step, "global_norm", lambda parameters: real(parameters) * math.nan)
    with pytest.raises(TrainingError, match="3 updates in a row"):
        runs.train(training={"max_bad_steps": 3})
    assert len(events(RunFolder(runs.folder / "run"), "skip")) == 3


@pytest.mark.parametrize(("size", "method"), [(1, "greedy"), (3, "beam")])
def test_validate_beam_size(runs: Runs, size: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtkit.translator import Translator

    seen: list[Any] = []
    real = Translator.translate_stream

    def spy(self: Any, lines: Any, search: Any = None, **named: Any) -> Any:
        seen.append(search)
        return real(self, lines, search, **named)

    monkeypatch.setattr(Translator, "translate_stream", spy)
    runs.train(training={**BRIEF, "validate_beam_size": size})
    assert {(search.method, getattr(search, "beam_size", 1)) for search in seen} == {(method, size)}
    assert {search.rules.max_length for search in seen} == {20}, "under the rules of the recipe's search"


def test_a_beam_in_validation_keeps_the_recipes_penalties(runs: Runs) -> None:
    beam = {"method": "beam", "beam_size": 6, "groups": 3, "n_best": 4, "length_penalty": 0.3, "mbr": "bleu"}
    search = validate.validation_search(runs.recipe(search=beam, training={"validate_beam_size": 2}))
    assert (search.beam_size, search.n_best, search.groups, search.mbr) == (2, 1, 1, "off")  # type: ignore[union-attr]
    assert search.length_penalty == 0.3  # type: ignore[union-attr]
    sampling = runs.recipe(search={"method": "sampling"}, training={"validate_beam_size": 2})
    assert validate.validation_search(sampling).method == "beam"


def test_device(runs: Runs) -> None:
    with pytest.raises(UsageError, match="device cuda:99 is not there; visible: cpu"):
        runs.train(training={"device": "cuda:99"})


def test_precision_fp16_is_for_gpus(runs: Runs) -> None:
    with pytest.raises(UsageError, match="fp16 is for GPUs"):
        runs.train(training={"precision": "fp16"})


def test_tensorboard(runs: Runs) -> None:
    """What it writes is in test_board."""
    pytest.importorskip("tensorboard", reason="needs the extra: tensorboard")
    assert any(runs.train(training={**BRIEF, "tensorboard": True}).tensorboard.iterdir())
    assert not runs.train("without", training=BRIEF).tensorboard.exists()


def test_threads(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only asked for: two threads on cores that other work keeps busy take ten times as long as one."""
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    runs.train(training={**BRIEF, "threads": 2})
    assert seen == [2]


def test_compile(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the compiler, which not every machine has: what it returns is what a step calls."""
    calls: list[str] = []

    def compiled(core: Any, **options: Any) -> Any:
        calls.append("compile")

        def call(*arguments: Any) -> Any:
            calls.append("call")
            return core(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    run = runs.train(training={**BRIEF, "compile": True})
    assert calls == ["compile"] + ["call"] * 4
    assert weights(run) == weights(runs.train("plain", training=BRIEF))


@pytest.mark.parametrize("setting", ["packing", "gradient_checkpointing"])
def test_how_the_model_is_called(runs: Runs, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That both compute the same is in test_packing and test_recomputing."""
    seen: set[tuple[bool, bool]] = set()
    real = Transformer.forward

    def spy(self: Any, source: Any, target: Any, packings: Any = None, checkpointing: bool = False) -> Any:
        if self.training:
            seen.add((packings is not None, checkpointing))
        return real(self, source, target, packings, checkpointing)

    monkeypatch.setattr(Transformer, "forward", spy)
    settings = {"packing": False, "gradient_checkpointing": False}
    for value in (True, False):
        seen.clear()
        runs.train(str(value), training={**BRIEF, **settings, setting: value})
        assert seen == {tuple({**settings, setting: value}.values())}


# Schedules


def rates(run: RunFolder) -> list[float]:
    return [row["learning_rate"] for row in events(run, "train")]


SCHEDULES: dict[str, tuple[type[BaseModel], dict[str, Any], list[float]]] = {
    "inverse_sqrt": (InverseSquareRoot, {"rate": 0.8, "warmup_steps": 1}, [0.8, 0.8 / 2**0.5, 0.8 / 3**0.5, 0.4]),
    "cosine": (Cosine, {"rate": 0.4, "warmup_steps": 2, "final_rate": 0.2}, [0.2, 0.4, 0.3, 0.2]),
    "linear": (Linear, {"rate": 0.4, "warmup_steps": 2, "final_rate": 0.2}, [0.2, 0.4, 0.3, 0.2]),
    "constant": (Constant, {"rate": 0.4, "warmup_steps": 4}, [0.1, 0.2, 0.3, 0.4]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_set_the_rate_of_each_update(runs: Runs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the optimizer itself; and each setting of the section, put back to its default, gives other rates."""
    section, values, expected = SCHEDULES[name]
    seen: list[float] = []
    real = trainer.train_step

    def step(*arguments: Any) -> Any:
        seen.append(arguments[2].param_groups[0]["lr"] * 1)
        return real(*arguments)

    monkeypatch.setattr(trainer, "train_step", step)
    scaled = {key: value if key == "warmup_steps" else value / 100 for key, value in values.items()}
    run = runs.train(training=BRIEF, schedule={"name": name, **scaled})
    assert [rate * 100 for rate in seen] == pytest.approx(expected)
    assert rates(run) == seen
    assert values.keys() == fields(section), "a new setting needs a test"
    from mtkit.training.schedule import learning_rate

    for setting in values:
        other = 0.05 if setting == "rate" else section.model_fields[setting].default
        changed = section.model_validate({"name": name, **values, setting: other})
        assert [learning_rate(changed, step, 4, 16) for step in range(1, 5)] != pytest.approx(expected)  # type: ignore[arg-type]


# Averaging

AVERAGED: dict[str, tuple[dict[str, Any], list[int]]] = {
    "select": ({"select": "last", "checkpoints": 1}, [4]),
    "checkpoints": ({"select": "best", "checkpoints": 2}, [2, 4]),
}


@pytest.mark.parametrize("setting", AVERAGED)
def test_averaging(runs: Runs, setting: str) -> None:
    """At a rate of 1e-9 the first validation, after update 2, stays the best."""
    section, steps = AVERAGED[setting]
    rate = {"name": "constant", "rate": 1e-9}
    pipeline.run(runs.recipe(training=BRIEF, schedule=rate, average=section))
    run = RunFolder(runs.folder / "run")
    assert read_lineage(run.model)["steps"] == steps
    pipeline.run(runs.recipe(training=BRIEF, schedule=rate))
    assert read_lineage(run.model)["steps"] == [2], "the default: the best one"


def test_an_average_of_more_than_there_are_is_said(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    pipeline.run(runs.recipe(training=BRIEF, average={"checkpoints": 5}))
    assert "average.checkpoints is 5, and 2 are there; training.keep_last and training.keep_best decide" in caplog.text
    assert read_lineage(Path(runs.folder / "run" / "model"))["steps"] == [2, 4]


def test_no_setting_is_without_a_test() -> None:
    others = {"keep_best", "best_metric", "max_bad_steps", "validate_beam_size", "device", "threads", "compile"}
    others |= {"tensorboard", "packing", "gradient_checkpointing"}
    others |= {"initialize_from", "freeze", "continue_schedule"}  # in test_finetune
    others |= {"parallel"}  # in test_fsdp
    others |= {"checksum_every_steps"}  # in test_ranks
    tested = set(HAPPENS) | others | {setting for section, setting in COMPUTED if section == "training"}
    assert tested == fields(Training)
    for section, kind in (("optimizer", Optimizer), ("batching", Batching)):
        assert {setting for name, setting in COMPUTED if name == section} == set(kind.model_fields)
    assert set(AVERAGED) == fields(Average)
