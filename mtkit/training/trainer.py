"""The training loop: step, log, validate, save."""

import dataclasses
import logging
import math
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from mtkit.checkpoint import RunFolder, remove_checkpoint, remove_leftovers, save_checkpoint
from mtkit.data.batching import epoch_indices, plan
from mtkit.data.loader import Batch, PairData, prefetch
from mtkit.data.shards import find_shards, open_shard
from mtkit.errors import ModelError, TrainingError
from mtkit.model.transformer import count_parameters
from mtkit.recipe import Recipe
from mtkit.runtime import set_threads, tune_allocator
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.log import Metrics, duration
from mtkit.training.optimizer import set_rate
from mtkit.training.resume import check_recipe, locked, restore_newest
from mtkit.training.schedule import learning_rate
from mtkit.training.state import Learner, TrainState, make_learner
from mtkit.training.step import StepReport, train_step
from mtkit.training.validate import ValidationText, read_validation, validate

log = logging.getLogger(__name__)

DIVERGED = 4.0
"""A token loss of so many times log V, the loss of guessing blindly, counts as a bad number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How training ended: `reason` in words, and the number of the signal that stopped it, if one did."""

    state: TrainState
    reason: str
    signal_number: int | None = None


class Signals:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the current update; the second stops at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if signal.getsignal(signal.SIGINT) is not None:
            for number in (signal.SIGINT, signal.SIGTERM):
                try:
                    self._before[number] = signal.signal(number, self._note)
                except ValueError:
                    log.debug("not in the main thread: signals keep their handlers")
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
        log.warning("%s: finishing the update and saving; once more stops at once", signal.Signals(number).name)


def train_model(recipe: Recipe, tokenizers: Tokenizers) -> Outcome:
    """Train a recipe from its run folder's shards, continuing from the newest checkpoint where there is one.

    Writes checkpoints, metrics.jsonl and recipe.yaml into the run folder. On a CPU, a run that was stopped and
    continued ends in the weights of the uninterrupted run, bit for bit.
    Raises RecipeError when the recipe has changed too much to go on, TrainingError when the loss is no longer a number.
    """
    run = RunFolder(Path(recipe.run_dir))
    with locked(run), Signals() as signals:
        tune_allocator()
        threads = set_threads(recipe.training.threads)
        check_recipe(run, recipe)
        remove_leftovers(run)
        data = open_pairs(run.shards / "train", recipe.data.train)
        valid = open_pairs(run.shards / "valid", recipe.data.valid)
        for pairs in (data, valid):
            _check_vocabulary(run, pairs, tokenizers)
        learner = make_learner(recipe, tokenizers)
        metrics = Metrics(run.metrics, learner.device, recipe.training.max_steps)
        state = restore_newest(run, learner)
        metrics.event("resume" if state else "start", step=state.step if state else 0, recipe=recipe.sha256())
        log.info(
            "%s: %s parameters, %s pairs, %s, %s, %d threads",
            f"continuing after step {state.step}" if state else "training",
            f"{count_parameters(learner.core):,}",
            f"{len(data):,}",
            learner.device,
            str(learner.settings.dtype or torch.float32).removeprefix("torch."),
            threads,
        )
        return _loop(learner, state or TrainState(), run, data, valid, metrics, signals)


def open_pairs(folder: Path, corpora: Sequence[Corpus]) -> PairData:
    """The shards of some corpora, laid end to end in the recipe's order, so that corpora can be weighted."""
    return PairData([open_shard(path) for corpus in corpora for path in find_shards(folder, corpus.name)])


def _check_vocabulary(run: RunFolder, data: PairData, tokenizers: Tokenizers) -> None:
    for shard in data.shards:
        if shard.header["tokenizer_sha256"] != tokenizers.sha256:
            raise ModelError(
                f"{shard.path} was made with another tokenizer than {run.path} holds",
                "make the shards again with: mtkit binarize RECIPE",
            )


def _loop(
    learner: Learner,
    state: TrainState,
    run: RunFolder,
    data: PairData,
    valid: PairData,
    metrics: Metrics,
    signals: Signals,
) -> Outcome:
    """The loop itself; mutates learner and state."""
    training = learner.recipe.training
    texts = read_validation(learner.recipe)
    saved = state.step if run.steps() else None
    reason = finished(state, learner.recipe)
    if reason is not None and state.step:
        return Outcome(state, reason)
    updates = epochs(learner.recipe, data, state)
    began = time.perf_counter() - state.seconds
    metrics.restart_clock()
    while reason is None and signals.received is None and (update := next(updates, None)) is not None:
        batches, state.epoch, state.batch = update
        state.step += 1
        rate = learning_rate(learner.recipe.schedule, state.step, training.max_steps, learner.recipe.model.d_model)
        set_rate(learner.optimizer, rate)
        report = train_step(
            learner.model,
            learner.core,
            learner.optimizer,
            learner.scaler,
            batches,
            state.step,
            learner.settings,
        )
        _account(learner, state, report, metrics)
        state.seconds = time.perf_counter() - began
        if state.step % training.log_every_steps == 0:
            metrics.flush(state.step, state.epoch, rate)
        last = state.step >= training.max_steps
        validated = bool(texts) and (last or state.step % training.validate_every_steps == 0)
        if validated:
            _validate(learner, state, valid, texts, metrics)
            state.seconds = time.perf_counter() - began
        every = training.save_every_steps
        if last or (
            validated if every is None and texts else state.step % (every or training.validate_every_steps) == 0
        ):
            saved = _save(learner, state, run, metrics)
        reason = finished(state, learner.recipe)
    updates.close()
    if saved != state.step:
        _save(learner, state, run, metrics)
    reason = reason or (f"stopped by {signal.Signals(signals.received).name}" if signals.received else "max_epochs")
    metrics.event("end", step=state.step, reason=reason, seconds=state.seconds)
    log.info("training ended after step %d, %s (%s)", state.step, duration(state.seconds), reason)
    return Outcome(state, reason, signals.received)


def epochs(recipe: Recipe, data: PairData, state: TrainState) -> Generator[tuple[list[Batch], int, int]]:
    """Yield the batches of each update from the state's place on, with the place after it: epoch and batch.

    The last update of an epoch takes the batches that are left. Ends after `training.max_epochs`.
    """
    if len(data) == 0:
        raise TrainingError("there are no training pairs", "see the report of `mtkit binarize` for what was dropped")
    corpora, sizes = recipe.data.train, _corpus_sizes(recipe.data.train, data)
    epoch, begin = state.epoch, state.batch
    while recipe.training.max_epochs is None or epoch < recipe.training.max_epochs:
        seed = recipe.training.seed
        chosen = epoch_indices(sizes, [corpus.weight for corpus in corpora], seed, epoch)
        order = plan(data.source_lengths[chosen], data.target_lengths[chosen], recipe.batching, seed, epoch)
        batches: list[np.ndarray] = [chosen[indices] for indices in order[begin:]]
        stream = prefetch(data, batches)
        try:
            group: list[Batch] = []
            for number, batch in enumerate(stream, begin + 1):
                group.append(batch)
                if len(group) == recipe.training.accumulate or number == len(order):
                    at_end = number == len(order)
                    yield group, epoch + at_end, 0 if at_end else number
                    group = []
        finally:
            stream.close()
        epoch, begin = epoch + 1, 0


def _corpus_sizes(corpora: Sequence[Corpus], data: PairData) -> list[int]:
    sizes = {corpus.name: 0 for corpus in corpora}
    for shard in data.shards:
        sizes[shard.header["corpus"]] += len(shard)
    return list(sizes.values())


def finished(state: TrainState, recipe: Recipe) -> str | None:
    """Why training is over, in words; None when it goes on."""
    training = recipe.training
    if state.step >= training.max_steps:
        return "max_steps"
    if training.max_epochs is not None and state.epoch >= training.max_epochs:
        return "max_epochs"
    if training.patience is not None and state.validations_since_best() >= training.patience:
        return f"no new best {training.best_metric} in {training.patience} validations"
    return None


def _account(learner: Learner, state: TrainState, report: StepReport, metrics: Metrics) -> None:
    """Count an update that was applied, or one that was skipped; too many in a row end the run."""
    training = learner.recipe.training
    if report.applied:
        state.bad_steps = 0
        state.target_tokens += report.target_tokens
        metrics.add(report)
        if learner.average is not None:
            learner.average.update(state.step)
        return
    state.skipped_steps += 1
    if learner.scaler.is_enabled() and learner.scaler.get_scale() >= 1:
        return  # fp16 finds its scale by overflowing now and then
    state.bad_steps += 1
    figures = f"loss {report.loss / report.target_tokens:.4g}, gradient norm {report.gradient_norm:.4g}"
    log.warning("step %d (epoch %d, batch %d): %s; skipped", state.step, state.epoch, state.batch, figures)
    metrics.event("skip", step=state.step, epoch=state.epoch, batch=state.batch, reason=figures)
    if state.bad_steps >= training.max_bad_steps:
        raise TrainingError(
            f"step {state.step}: {state.bad_steps} updates in a row had a loss or gradient that is not finite or has "
            f"diverged ({figures}); the last checkpoint is as it was",
            "lower schedule.rate or lengthen schedule.warmup_steps, use optimizer.clip_norm, or precision fp32",
        )


def _validate(
    learner: Learner, state: TrainState, valid: PairData, texts: Sequence[ValidationText], metrics: Metrics
) -> None:
    """Validate and keep the result in the state; the clock of the speed stands still meanwhile."""
    report = validate(learner, valid, texts)
    row = {"step": state.step, "epoch": state.epoch, **report.row()}
    row["rank"] = report.rank(learner.recipe.training.best_metric)
    state.validations.append(row)
    metrics.event("valid", **row, seconds=report.seconds, signature=report.scores.metrics["bleu"].signature)
    best = state.best()
    log.info(
        "valid step %d: ppl %.2f  BLEU %.2f  chrF %.2f  (%d sentences, %s)%s",
        state.step,
        row["perplexity"],
        row["bleu"],
        row["chrf"],
        row["sentences"],
        duration(report.seconds),
        "  new best" if best is not None and best["step"] == state.step else "",
    )
    for source, hypothesis, reference in report.samples:
        log.info("  source:     %s\n  hypothesis: %s\n  reference:  %s", source, hypothesis, reference)
    metrics.event("samples", step=state.step, samples=report.samples)
    metrics.restart_clock()


def _save(learner: Learner, state: TrainState, run: RunFolder, metrics: Metrics) -> int:
    """Write a checkpoint, then delete those that need not be kept; returns its step."""
    weights = learner.translation_weights()
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise TrainingError(
                f"step {state.step}: weight {name} is not finite; no checkpoint is written, the last one is as it was",
                "lower schedule.rate or lengthen schedule.warmup_steps",
            )
    rank = state.rank_at(state.step)
    document = {
        "train": state.as_dict(),
        "scaler": learner.scaler.state_dict(),
        "rank": rank if rank is not None and math.isfinite(rank) else None,
        "tokenizer_sha256": learner.tokenizers.sha256,
        "recipe_sha256": learner.recipe.sha256(),
    }
    scores = next((row for row in state.validations if row["step"] == state.step), {})
    save_checkpoint(run, state.step, weights, learner.tensors(), document, scores)
    metrics.event("save", step=state.step)
    for step in surplus(run.steps(), state, learner.recipe):
        remove_checkpoint(run, step)
    metrics.restart_clock()
    return state.step


def surplus(steps: Sequence[int], state: TrainState, recipe: Recipe) -> list[int]:
    """The checkpoints that are neither among the newest nor among the best that the recipe keeps."""
    newest = set(sorted(steps)[-recipe.training.keep_last :])
    scored = [step for step in steps if state.rank_at(step) is not None]
    scored.sort(key=lambda step: (state.rank_at(step), -step))
    best = set(scored[len(scored) - recipe.training.keep_best :]) if recipe.training.keep_best else set()
    return [step for step in steps if step not in newest | best]
