"""The training loop: what it logs, validates, keeps, skips and refuses; resuming is in test_resume."""

import json
import math
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyCorpus
from toy_run import Runs, before_step, events, signalled

from mtkit import pipeline
from mtkit.checkpoint import load_checkpoint, load_tensors
from mtkit.cli.eval import evaluate
from mtkit.errors import DataError, ModelError, TrainingError
from mtkit.files import read_json_lines
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.recipe import Recipe
from mtkit.training import signals as signals_module
from mtkit.training import step as step_module
from mtkit.training.bad_numbers import LossTrack, largest_nll
from mtkit.training.log import Metrics, Window, finite
from mtkit.training.saving import surplus
from mtkit.training.signals import Signals, orderly_end
from mtkit.training.state import TrainState
from mtkit.training.step import StepReport
from mtkit.training.updates import open_pairs, updates
from mtkit.training.validate import validation_search
from mtkit.translator import Translator


def all_finite(run: RunFolder) -> bool:
    """Whether every tensor in every checkpoint is made of numbers."""
    return all(
        bool(torch.isfinite(tensor).all())
        for path in run.checkpoints.rglob("*.safetensors")
        for tensor in load_tensors(path).values()
    )


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int], how: float) -> None:
    """Multiply the loss of these updates, and with it their gradient."""
    current = 0
    real = step_module.batch_loss

    def loss(*arguments: Any) -> Any:
        smoothed, plain = real(*arguments)
        return (smoothed * how, plain * how) if current in steps else (smoothed, plain)

    real_seed = step_module.key_seed

    def key_seed(*key: Any) -> int:
        nonlocal current
        current = key[2]
        return real_seed(*key)

    monkeypatch.setattr(step_module, "batch_loss", loss)
    monkeypatch.setattr(step_module, "key_seed", key_seed)


# Bad numbers


@pytest.mark.parametrize("rate", [1.0, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_too_high_a_rate_ends_in_an_error_and_spoils_no_checkpoint(
    runs: Runs, rate: float, norm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The report was of a perplexity of nan, logged while training went on and saved what it had."""
    run = runs.train("run", training={"max_steps": 3, "validate_every_steps": 3}, model={"norm": norm})
    good = {path: path.read_bytes() for path in run.checkpoints.rglob("*") if path.is_file()}
    recipe = runs.recipe(
        "wild",
        model={"norm": norm},
        schedule={"name": "constant", "rate": rate},
        training={"max_steps": 50, "validate_every_steps": 5},
    )
    wild = RunFolder(Path(recipe.run_dir))
    with pytest.raises(
        TrainingError, match="updates in a row had a loss or gradient that is not finite or has"
    ) as caught:
        pipeline.train(recipe)
    assert caught.value.exit_code == 1
    assert "lower schedule.rate" in str(caught.value.hint)
    skips = events(wild, "skip")
    assert [row["step"] for row in skips][-10:] == list(range(skips[-1]["step"] - 9, skips[-1]["step"] + 1))
    assert skips[-1]["step"] <= 50
    assert all_finite(wild)
    assert re.search(r"step \d+ \(epoch 0, batch \d+\): loss \S+, gradient norm \S+; skipped", caplog.text)
    assert {path: path.read_bytes() for path in good} == good


def test_going_on_at_too_high_a_rate_leaves_the_good_checkpoint(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves while numbers are bad would have pushed the good ones out: here every update asks for one."""
    settings = {"max_steps": 30, "save_every_steps": 1, "keep_last": 1, "keep_best": 0, "max_bad_steps": 5}
    before_step(monkeypatch, 7, lambda: None)
    spoil(monkeypatch, set(range(7, 100)), 1e6)
    with pytest.raises(TrainingError):
        runs.train(training=settings)
    run = RunFolder(runs.folder / "run")
    assert run.steps() == [6]
    assert [row["step"] for row in events(run, "skip")] == [7, 8, 9, 10, 11]
    monkeypatch.undo()
    assert runs.train(training=settings).steps() == [30]


@pytest.mark.parametrize("how", [math.nan, math.inf])
def test_exactly_the_bad_update_is_skipped_and_named(
    runs: Runs, how: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"training": {"max_steps": 6, "save_every_steps": 1, "accumulate": 2, "log_every_steps": 1}}
    spoil(monkeypatch, {4}, how)
    run = runs.train(**settings)
    assert "step 4 (epoch 0, batches 7 to 8): loss " in caplog.text
    assert [(row["step"], row["place"]) for row in events(run, "skip")] == [(4, "epoch 0, batches 7 to 8")]
    assert [row["step"] for row in events(run, "train")] == [1, 2, 3, 5, 6]
    assert run.steps() == [1, 2, 3, 5, 6]
    state = checkpoint_state(run.checkpoint(5))["train"]
    assert (state["skipped_steps"], state["bad_steps"], state["batch"]) == (1, 0, 10), "its data are passed over"
    optimizer = load_checkpoint(run.checkpoint(5))[1]
    assert optimizer["optimizer.step.target_embedding.weight"].item() == 4
    assert all_finite(run)


def test_a_bad_gradient_alone_is_skipped_too(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is fine, so the weights are, and they may be saved."""
    real, calls = step_module.global_norm, []

    def norm(parameters: Any) -> Any:
        calls.append(1)
        return real(parameters) * (math.nan if len(calls) == 3 else 1)

    monkeypatch.setattr(step_module, "global_norm", norm)
    run = runs.train(training={"max_steps": 3, "validate_every_steps": 3})
    assert [row["step"] for row in events(run, "skip")] == [3]
    assert run.steps() == [3]
    assert checkpoint_state(run.checkpoint(3))["train"]["bad_steps"] == 1


def test_bad_updates_in_a_row_are_counted_over_a_restart(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more skip after the restart than before it: the limit of two is reached by the first."""
    real = step_module.global_norm
    monkeypatch.setattr(step_module, "global_norm", lambda parameters: real(parameters) * math.nan)
    settings = {"max_bad_steps": 2, "save_every_steps": 1}
    with pytest.raises(TrainingError, match="step 2"):
        runs.train(training=settings)
    with pytest.raises(TrainingError, match="step 2"):
        runs.train(training=settings)
    assert [row["step"] for row in events(RunFolder(runs.folder / "run"), "skip")] == [1, 2, 2]


def test_ending_in_bad_numbers_is_no_success(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few of them in a row for max_bad_steps, but the last weights are not worth keeping."""
    spoil(monkeypatch, {11, 12}, 1e6)
    with pytest.raises(TrainingError, match="step 12, the last: its loss is not finite or has diverged"):
        runs.train()
    assert RunFolder(runs.folder / "run").steps() == [6]


def test_a_signal_amid_bad_numbers_saves_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are bad by then; going on starts from the checkpoint before."""
    spoil(monkeypatch, {5, 6}, 1e6)
    before_step(monkeypatch, 6, signalled(signal.SIGTERM))
    settings = {"save_every_steps": 2, "max_steps": 8}
    run = runs.train(training=settings)
    assert run.steps() == [2, 4]
    assert [(row["step"], row["reason"]) for row in events(run, "end")] == [(6, "stopped by SIGTERM")]
    monkeypatch.undo()
    assert runs.train(training=settings).steps() == [2, 4, 6, 8]
    assert [row["step"] for row in events(run, "resume")] == [4]


def test_a_number_that_is_not_finite_is_never_saved(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every loss and gradient was fine; moving averages and optimizer state count."""
    from mtkit.training import trainer

    real = trainer.save

    def spoilt(learner: Any, *rest: Any) -> None:
        state_of_first = learner.optimizer.state[learner.parameters[0]]
        state_of_first["exp_avg_sq"][0] = math.inf
        real(learner, *rest)

    runs.train(training={"max_steps": 6})
    monkeypatch.setattr(trainer, "save", spoilt)
    with pytest.raises(
        TrainingError, match=r"optimizer\.exp_avg_sq\.\S+ is not finite; no checkpoint is written, the "
    ):
        runs.train()
    assert RunFolder(runs.folder / "run").steps() == [6]


def test_the_limit_of_the_loss_is_a_multiple_of_guessing() -> None:
    assert largest_nll(8000) == pytest.approx(4 * 8.987, abs=1e-3)


def test_fp16_overflows_are_not_bad_numbers(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of fp16 is found by overflowing; only where it has no room left an overflow is an ailment."""
    from mtkit.training import trainer

    scale = 1024.0

    class Scaler(torch.amp.GradScaler):
        def is_enabled(self) -> bool:
            return len(seen) > 0

        def get_scale(self) -> float:
            return scale

    seen: list[int] = []
    real = trainer.make_learner

    def learner(*arguments: Any) -> Any:
        made = real(*arguments)
        made.scaler = Scaler("cpu", enabled=False)
        return made

    monkeypatch.setattr(trainer, "make_learner", learner)
    monkeypatch.setattr(step_module, "global_norm", lambda parameters: torch.tensor(math.inf))
    before_step(monkeypatch, 1, lambda: None)
    real_skip = trainer.Loop._skip

    def skip(self: Any, report: Any, update: Any) -> None:
        seen.append(1)
        real_skip(self, report, update)
        seen.clear()

    monkeypatch.setattr(trainer.Loop, "_skip", skip)
    run = runs.train(training={"max_steps": 5, "max_bad_steps": 2, "validate_every_steps": 5})
    assert events(run, "skip") == []
    assert checkpoint_state(run.checkpoint(5))["train"]["skipped_steps"] == 5
    scale = 0.5
    with pytest.raises(TrainingError, match="2 updates in a row"):
        runs.train(training={"max_steps": 9, "max_bad_steps": 2})


def test_loss_spikes_are_named(runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    spoil(monkeypatch, {50, 130, 150}, 4.0)
    run = runs.train(training={"max_steps": 152, "validate_every_steps": 152}, schedule={"warmup_steps": 20})
    assert [row["step"] for row in events(run, "spike")] == [130, 150]
    assert re.search(r"step 130 \(epoch 6, batch \d+\): loss spike: loss \S+ where \S+ is usual, gradient", caplog.text)


def test_what_counts_as_a_spike() -> None:
    track = LossTrack()
    for number in range(100):
        assert track.limit() == math.inf
        track.add(3.0 + 0.1 * (-1) ** number)
    assert track.limit() == pytest.approx(3.6, abs=0.03), "6 standard deviations"
    before = track.limit()
    track.add(1e9)
    assert track.limit() < 1.15 * before, "one spike does not hide the next"
    flat = LossTrack()
    for _ in range(200):
        flat.add(2.0)
    assert flat.limit() == pytest.approx(2.2), "a loss that hardly varies needs a rise of a tenth"


# Stopping


@pytest.mark.parametrize(
    ("number", "ending", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143), (signal.SIGHUP, SystemExit, 129)],
)
def test_a_second_signal_stops_at_once(
    runs: Runs, number: signal.Signals, ending: type[BaseException], code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        signalled(number)()
        signalled(number)()
        time.sleep(1)
        raise AssertionError("it went on")

    before_step(monkeypatch, 4, twice)
    with pytest.raises(ending) as caught:
        runs.train(training={"save_every_steps": 1})
    assert getattr(caught.value, "code", None) == code
    assert RunFolder(runs.folder / "run").steps() == [1, 2, 3]


def test_under_torchrun_the_same_signal_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the scheduler, and from torchrun, which had it too: that must not keep the update from being saved."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    clock = [100.0]
    monkeypatch.setattr(signals_module.time, "monotonic", lambda: clock[0])
    with Signals() as signals:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signalled(number)()
            clock[0] += 1
        assert signals.received == signal.SIGTERM
        clock[0] = 100 + signals_module.ECHO
        with pytest.raises(SystemExit) as caught:
            signalled(signal.SIGTERM)()
    assert caught.value.code == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_update(
    runs: Runs, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before_step(monkeypatch, 4, signalled(number))
    before = signal.getsignal(number)
    outcome, scores = pipeline.run(runs.recipe())
    assert (outcome.signal_number, outcome.state.step, scores) == (number, 4, {})
    assert outcome.reason == f"stopped by {number.name}"
    run = RunFolder(runs.folder / "run")
    assert run.steps() == [4]
    assert not run.model.exists(), "the stages after it are not done"
    assert f"{number.name}: finishing the update and saving; once more stops at once" in caplog.text
    assert signal.getsignal(number) == before


def test_a_signal_before_the_first_update_saves_the_start(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtkit.training import trainer

    real = trainer.make_learner

    def learner(*arguments: Any) -> Any:
        signalled(signal.SIGINT)()
        return real(*arguments)

    monkeypatch.setattr(trainer, "make_learner", learner)
    assert runs.train().steps() == [0]


def test_sigterm_in_another_stage_cleans_up_and_exits_143(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ensure_tokenizer", lambda recipe: signalled(signal.SIGTERM)())
    with pytest.raises(SystemExit) as caught:
        pipeline.train(runs.recipe())
    assert caught.value.code == 143


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    import threading

    done: list[str] = []

    def work() -> None:
        with orderly_end(), Signals() as signals:
            done.append(str(signals.received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["None"]


# The log


def test_the_log_adds_up(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        run = runs.train(training={"samples": 2, "max_steps": 12, "log_every_steps": 5})
    every = runs.train("every", training={"log_every_steps": 1})
    rows, singles = events(run, "train"), events(every, "train")
    assert [row["step"] for row in rows] == [5, 10, 12]
    assert [row["step"] for row in singles] == list(range(1, 13))
    for row, part in zip(rows, (singles[:5], singles[5:10], singles[10:]), strict=True):
        assert min(one["loss"] for one in part) < row["loss"] < max(one["loss"] for one in part)
        assert row["gradient_norm"] == part[-1]["gradient_norm"]
        assert row["perplexity"] == pytest.approx(math.exp(row["nll"]))
        assert 0 <= row["padding_share"] < 0.5
    whole = read_json_lines(run.metrics)
    assert {row["event"] for row in whole} == {"start", "train", "valid", "samples", "save", "end"}
    assert all(row["target_tokens_per_second"] > 0 for row in whole if row["event"] == "train")
    assert all(row["peak_memory_bytes"] > 1e6 for row in whole if row["event"] == "train")
    assert [len(row["samples"]) for row in whole if row["event"] == "samples"] == [2, 2]
    assert whole[-1]["reason"] == "max_steps"
    line = r"step 5/12  epoch 0  loss \d\.\d{3}  ppl \S+  lr 1\.00e-02  grad \S+  \S+ tok/s  pad \S+ %  mem \S+ GB"
    assert re.search(line, caplog.text)
    assert re.search(r"valid step 6: ppl \S+  BLEU \S+  chrF \S+  \(8 sentences, 0 s\)  new best bleu", caplog.text)
    assert caplog.text.count("  hypothesis: ") == 4


def test_what_goes_into_validation_and_saving_does_not_slow_the_log(tmp_path: Path) -> None:
    report = StepReport(3.0, 2.0, 100, 100, 250, 1.0, True)
    metrics = Metrics(tmp_path / "m", torch.device("cpu"), 10)
    window = Window()
    window.add(report)
    metrics.add(report)
    with metrics.paused():
        time.sleep(0.3)
    assert metrics.flush(window, 1, 0, 0.1) == Window()
    assert read_json_lines(tmp_path / "m")[0]["target_tokens_per_second"] > 100 / 0.3
    assert metrics.flush(Window(), 2, 0, 0.1) == Window(), "nothing to tell"
    assert len(read_json_lines(tmp_path / "m")) == 1


def test_json_has_no_infinities() -> None:
    assert finite({"a": [math.inf, (1.5, math.nan)], "b": "x", "c": True}) == {
        "a": [None, [1.5, None]],
        "b": "x",
        "c": True,
    }


# Validation


@pytest.mark.parametrize("beam_size", [1, 3])
def test_validation_gives_the_digits_of_translate_and_eval(
    runs: Runs, beam_size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {
        "max_steps": 40,
        "validate_every_steps": 40,
        "validate_sentences": None,
        "validate_beam_size": beam_size,
        "ema_decay": 0.9,
    }
    run = runs.train(training=training, schedule={"rate": 0.03}, evaluation={"tokenize": "char"})
    row = events(run, "valid")[-1]
    recipe = Recipe.load(run.recipe)
    assert row["sentences"] == 40
    assert row["bleu"] > 0
    translator = Translator.load(run.checkpoint(40), "cpu")
    lines = (runs.corpus.folder / "valid.source").read_text(encoding="utf-8").split("\n")[:-1]
    output = translator.translate(lines, validation_search(recipe))
    (tmp_path / "out.xx").write_text("".join(f"{line}\n" for line in output), encoding="utf-8")
    reference = str(runs.corpus.folder / "valid.target")
    evaluate(str(tmp_path / "out.xx"), [reference], tokenize="char", resamples=0, as_json=True)
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert row["bleu"] == metrics["bleu"]["score"]
    assert row["chrf"] == metrics["chrf"]["score"]
    assert row["signature"] == metrics["bleu"]["signature"]


def test_the_validation_loss_is_that_of_all_pairs_without_dropout_and_smoothing(runs: Runs) -> None:
    """One pair at a time, by torch's own loss, with the saved weights."""
    from mtkit.checkpoint import load_model

    run = runs.train(training={"max_steps": 6, "ema_decay": 0.5})
    model, recipe, _ = load_model(run.checkpoint(6), torch.device("cpu"))
    data = open_pairs(run.shards / "valid", recipe.data.valid)
    total = 0.0
    for index in range(len(data)):
        batch = data.collate(np.array([index]))
        logits = model.logits(model(batch.source_BS, batch.target_in_BT))[0].detach()
        total += float(torch.nn.functional.cross_entropy(logits, batch.target_out_BT[0], reduction="sum"))
    assert events(run, "valid")[-1]["nll"] == pytest.approx(total / data.target_lengths.sum(), rel=1e-5)


def test_validation_leaves_training_as_it_was(runs: Runs) -> None:
    """More validations, the same weights: mode, moving average and random state are put back."""
    often = runs.train("often", training={"validate_every_steps": 1, "ema_decay": 0.9})
    seldom = runs.train("seldom", training={"validate_every_steps": 12, "ema_decay": 0.9})
    for mine, other in zip(*(load_checkpoint(run.checkpoint(12))[:2] for run in (often, seldom)), strict=True):
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_without_validation_corpora_training_works_and_the_newest_counts_as_best(
    runs: Runs, tiny_corpus: TinyCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    data = {**tiny_corpus.values()["data"], "valid": []}
    with caplog.at_level("INFO"):
        outcome, scores = pipeline.run(runs.recipe(data=data))
    run = RunFolder(runs.folder / "run")
    assert run.steps() == [6, 12]
    assert events(run, "valid") == []
    assert "taken because newest: steps 12" in caplog.text
    assert outcome.reason == "max_steps"
    assert scores["tiny"].sentences == 40


def test_several_validation_corpora_are_scored_as_one_text(runs: Runs, tiny_corpus: TinyCorpus) -> None:
    data = tiny_corpus.values()["data"]
    second = {"name": "second", "source": "test.source", "target": "test.target", "tags": ["<news>"]}
    run = runs.train(data={**data, "valid": [*data["valid"], second]}, training={"validate_sentences": 60})
    assert [row["sentences"] for row in events(run, "valid")] == [60, 60]


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ({"search": {"method": "greedy", "lines": {"max_source_length": 10, "on_long": "error"}}}, "line 1 has"),
        ({"model": {"positions": "learned", "max_positions": 24}}, "a validation pair has 2. tokens on a side"),
    ],
)
def test_what_would_fail_at_the_first_validation_fails_before_training(
    runs: Runs, sections: dict[str, Any], error: str
) -> None:
    if "model" in sections:
        short = {"filters": {"max_length": 20}, "batching": {"max_tokens": 512}}
        lines = {"method": "greedy", "lines": {"max_source_length": 20}, "rules": {"max_length": 20}}
        sections = {**sections, **short, "search": lines}
        sections["model"]["max_positions"] = 21
    with pytest.raises(DataError, match=error):
        runs.train(**sections)
    assert RunFolder(runs.folder / "run").steps() == []


# Which checkpoints are kept


def state_of(scores: dict[int, float]) -> TrainState:
    return TrainState(validations=[{"step": step, "bleu": bleu} for step, bleu in scores.items()])


@pytest.mark.parametrize(
    ("keep_best", "keep_last", "surplus_steps"),
    [(0, 1, [1, 2, 3, 4]), (1, 1, [1, 3, 4]), (2, 1, [1, 4]), (1, 3, [1]), (5, 1, []), (0, 9, [])],
)
def test_the_newest_and_the_best_are_kept(runs: Runs, keep_best: int, keep_last: int, surplus_steps: list[int]) -> None:
    """2 and 3 are equally good: the earlier counts as better. 5 was not validated."""
    recipe = runs.recipe(training={"keep_best": keep_best, "keep_last": keep_last})
    state = state_of({1: 0.5, 2: 7.0, 3: 7.0, 4: 1.0})
    assert surplus([1, 2, 3, 4, 5], state, recipe) == surplus_steps


def test_best_means_the_recipes_metric_even_if_that_has_changed(runs: Runs) -> None:
    """A validation's rank used to be kept in the units of the metric of its day."""
    state = TrainState(validations=[{"step": 1, "bleu": 9.0, "nll": 3.0}, {"step": 2, "bleu": 1.0, "nll": 2.0}])
    assert (state.best_step("bleu"), state.best_step("loss")) == (1, 2)
    assert (state.validations_since_best("bleu"), state.validations_since_best("loss")) == (1, 0)
    recipe = runs.recipe(training={"keep_best": 1, "keep_last": 1, "best_metric": "bleu"})
    assert surplus([1, 2, 3], state, recipe) == [2]
    assert TrainState().best_step("bleu") is None
    assert TrainState().validations_since_best("bleu") == 0


# Which batches


def test_updates_are_the_same_from_any_place_on(runs: Runs) -> None:
    recipe = runs.recipe(training={"accumulate": 3, "max_epochs": 2})
    run = RunFolder(Path(recipe.run_dir))
    data = open_pairs(run.shards / "train", recipe.data.train)

    def listed(epoch: int, batch: int) -> list[Any]:
        return [
            (update.place, update.next_epoch, update.next_batch, [b.source_BS.tolist() for b in update.batches])
            for update in updates(recipe, data, epoch, batch)
        ]

    whole = listed(0, 0)
    assert [row[1:3] for row in whole][-1] == (2, 0)
    for place in (1, 4, len(whole) // 2, len(whole) - 1):
        assert listed(*whole[place - 1][1:3]) == whole[place:]
    seen = sum(len(rows) for row in whole for rows in row[3])
    assert seen == 2 * 600, "every pair once an epoch, also those of the last, smaller update"


def test_nothing_to_train_on_is_an_error(runs: Runs) -> None:
    recipe = runs.recipe()
    with pytest.raises(TrainingError, match="there are no training pairs"):
        next(updates(recipe, open_pairs(Path("nowhere"), []), 0, 0))


def test_shards_of_another_tokenizer_are_refused(runs: Runs, tiny_tokenizers: Any) -> None:
    from mtkit.training.trainer import train_model

    with pytest.raises(ModelError, match="was made with another tokenizer"):
        train_model(runs.recipe(), tiny_tokenizers)


def test_a_checkpoint_of_another_tokenizer_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtkit.files import write_json
    from mtkit.folders import STATE_FILE, seal

    run = runs.train(training={"max_steps": 6})
    state = {**checkpoint_state(run.checkpoint(6)), "tokenizer_sha256": "0" * 64}
    write_json(run.checkpoint(6) / STATE_FILE, seal(state))
    with pytest.raises(ModelError, match="was trained with the tokenizer 000000000000"):
        runs.train()
    assert run.steps() == [6]


def test_zero_steps_save_the_start(runs: Runs) -> None:
    run = runs.train(training={"max_steps": 0})
    assert run.steps() == [0]
    before = run.metrics.read_bytes()
    runs.train(training={"max_steps": 0})
    assert run.metrics.read_bytes() == before
    assert runs.train(training={"max_steps": 3}).steps() == [0, 3]
