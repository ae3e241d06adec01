"""The training loop: step, log, validate, save."""

import contextlib
import logging
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from mtkit.data.loader import PairData
from mtkit.data.shards import Shard
from mtkit.errors import ModelError, TrainingError
from mtkit.figures import duration
from mtkit.folders import RunFolder, remove_leftovers
from mtkit.fsdp import is_shared_out
from mtkit.model.transformer import count_parameters
from mtkit.ranks import ALONE, Ranks
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device, set_threads, tune_allocator
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.bad_numbers import ADVICE
from mtkit.training.board import board_of
from mtkit.training.budget import settle
from mtkit.training.finetune import frozen_symbols, trained
from mtkit.training.log import Metrics, finite
from mtkit.training.optimizer import set_rate
from mtkit.training.resume import keep_recipe, restore
from mtkit.training.saving import contents, save
from mtkit.training.schedule import rate_of
from mtkit.training.signals import Signals
from mtkit.training.state import Learner, TrainState, make_learner
from mtkit.training.step import StepReport, train_step
from mtkit.training.updates import Update, open_pairs, updates
from mtkit.training.validate import Interrupted, ValidationText, check_validation, read_validation, validate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How training ended: `reason` in words, and the number of the signal that stopped it, if one did."""

    state: TrainState
    reason: str
    signal_number: int | None = None


def train_model(recipe: Recipe, tokenizers: Tokenizers, ranks: Ranks = ALONE) -> Outcome:
    """Train a recipe from its run folder's shards, continuing from the newest checkpoint where there is one.

    Writes checkpoints, metrics.jsonl and recipe.yaml into the run folder, whose lock the caller holds. On a CPU, a run
    that was stopped and continued ends in the weights of the uninterrupted run, bit for bit. With several ranks, all
    train and validate together, and the leading one writes.
    Raises TrainingError when the loss is no longer a number, or a checkpoint cannot be read or written.
    """
    run = RunFolder(Path(recipe.run_dir))
    with Signals() as signals:
        tune_allocator()
        threads = set_threads(recipe.training.threads)
        ranks.lead(lambda: _prepare(run, recipe))
        data = open_pairs(run.shards / "train", recipe.data.train)
        valid = open_pairs(run.shards / "valid", recipe.data.valid)
        for pairs in (data, valid):
            _check_vocabulary(run, pairs, tokenizers)
        device = resolve_device(recipe.training.device, ranks.local)
        make = partial(make_learner, recipe, tokenizers, device, ranks)
        texts = read_validation(recipe)
        budget = settle(run, recipe, make, data, texts, ranks)
        learner = make()
        state = restore(run, learner, ranks)
        loop = Loop(
            learner=learner,
            state=state or TrainState(max_tokens=budget.max_tokens if budget else 0),
            run=run,
            valid=valid,
            texts=texts,
            metrics=Metrics(run.metrics, learner.device, recipe.training.max_steps, ranks.leads),
            signals=signals,
            saved=state.step if state else None,
            ranks=ranks,
        )
        if state is not None and loop.is_complete():
            log.info("training: up to date after step %d (%s)", state.step, finished(state, recipe))
            return Outcome(state, str(finished(state, recipe)))
        if state is not None and state.processes != ranks.world:
            log.warning(
                "the run had %d processes, and has %d now: an update takes as many more or fewer batches",
                *(state.processes, ranks.world),
            )
        loop.state.processes = ranks.world
        if recipe.batching.max_tokens == "auto":
            learner.batching = recipe.batching.measured(loop.state.max_tokens)
            if state is not None:
                log.info("batching.max_tokens: auto is %d, as when the run began", state.max_tokens)
        check_validation(learner, valid, texts)
        loop.metrics.event("resume" if state else "start", step=loop.state.step, recipe=recipe.sha256())
        if budget is not None:
            loop.metrics.event("budget", **budget.row())
        _tell_of_initial(learner)
        frozen = recipe.training.freeze
        log.info(
            "%s: %s parameters%s, %s pairs, %s, %s, %d threads%s",
            f"continuing after step {state.step}" if state else "training",
            f"{count_parameters(learner.core):,}",
            f", {sum(weight.numel() for weight in trained(learner.core)):,} of them trained" if frozen else "",
            f"{len(data):,}",
            learner.device,
            str(learner.settings.dtype or torch.float32).removeprefix("torch."),
            threads,
            f" in each of {ranks.world} processes ({recipe.training.parallel})" if ranks.world > 1 else "",
        )
        with board_of(run, recipe, loop.state.step, ranks.leads) as loop.metrics.board:
            return loop.go(data)


def _prepare(run: RunFolder, recipe: Recipe) -> None:
    remove_leftovers(run)
    keep_recipe(run, recipe)


def _check_vocabulary(run: RunFolder, data: PairData, tokenizers: Tokenizers) -> None:
    for shard in data.shards:
        assert isinstance(shard, Shard)
        if shard.header["tokenizer_sha256"] != tokenizers.sha256:
            raise ModelError(
                f"{shard.path} was made with another tokenizer than {run.path} holds",
                "make the shards again with: mtkit binarize RECIPE",
            )


def _tell_of_initial(learner: Learner) -> None:
    """What the log says of the model that a run starts from."""
    recipe, initial = learner.recipe, learner.initial
    if initial is None:
        return
    if recipe.training.continue_schedule:
        rate = rate_of(recipe, initial, 1)
        log.info("schedule: goes on after %d updates of %s, from %.3e", initial.updates, initial.folder, rate)
    untaught = frozen_symbols(recipe, initial)
    if untaught:
        log.warning(
            "training.freeze: the rows of new symbols (%s) stay as they begin, averages of the others: the model "
            "cannot learn what they mean",
            ", ".join(untaught),
        )


def finished(state: TrainState, recipe: Recipe) -> str | None:
    """Why training is over, in words; None when it goes on."""
    training = recipe.training
    if state.step >= training.max_steps:
        return "max_steps"
    if training.max_epochs is not None and state.epoch >= training.max_epochs:
        return "max_epochs"
    if training.patience is not None and state.validations_since_best(training.best_metric) >= training.patience:
        return f"no new best {training.best_metric} in {training.patience} validations"
    return None


@dataclass(slots=True)
class Loop:
    """One training run from a state to its end. `saved` is the step of the newest checkpoint, `began` a clock's time.

    `sound` is False after an update whose loss was bad: then so are the weights, and they are not saved, lest they push
    out good checkpoints.
    """

    learner: Learner
    state: TrainState
    run: RunFolder
    valid: PairData
    texts: Sequence[ValidationText]
    metrics: Metrics
    signals: Signals
    saved: int | None
    began: float = 0.0
    sound: bool = True
    ranks: Ranks = ALONE

    def is_complete(self) -> bool:
        """Whether there is nothing left to do, not even a validation that a signal had cut short."""
        return finished(self.state, self.learner.recipe) is not None and not self._validation_is_due()

    def go(self, data: PairData) -> Outcome:
        """Train until the end of the recipe or a signal; mutates learner and state. Saves before it returns.

        Raises TrainingError when numbers have gone bad for too long, or at the very end.
        """
        state, recipe = self.state, self.learner.recipe
        self.began = perf_counter() - state.seconds
        if self._validation_is_due() and self._validate():
            self._save()
        stopped = self._signal()
        planned = recipe.model_copy(update={"batching": self.learner.batching})
        place = state.epoch, state.batch, self.ranks, self.learner.tokenizers, state.block
        with contextlib.closing(updates(planned, data, *place)) as stream:
            while finished(state, recipe) is None and stopped is None:
                self._update(next(stream))
                self._compare_ranks()
                self._validate_and_save()
                stopped = self._signal()
        reason = finished(state, recipe)
        if reason is not None:
            self._refuse_to_end_badly()
            if state.window.updates:
                self.metrics.flush(state.window, state.step, state.epoch, self._rate())
        if self.saved != state.step and self.sound:
            self._save()
        reason = reason or f"stopped by {signal.Signals(stopped or 0).name}"
        self.metrics.event("end", step=state.step, reason=reason, seconds=state.seconds)
        log.info("training ended after step %d, %s (%s)", state.step, duration(state.seconds), reason)
        return Outcome(state, reason, stopped)

    def _signal(self) -> int | None:
        """The signal that any rank has received; all stop together."""
        return self.ranks.largest(self.signals.received or 0) or None

    def _rate(self) -> float:
        return rate_of(self.learner.recipe, self.learner.initial, self.state.step)

    def _update(self, update: Update) -> None:
        learner, state = self.learner, self.state
        state.step += 1
        state.epoch, state.block, state.batch = update.next_epoch, update.next_block, update.next_batch
        set_rate(learner.optimizer, self._rate())
        report = train_step(
            learner.model,
            learner.core,
            learner.optimizer,
            learner.scaler,
            update.batches,
            state.step,
            learner.settings,
            update.target_tokens,
            self.ranks,
        )
        if report.halvings:
            self._tell_halvings(report, update)
        if report.applied:
            self._count(report, update)
        else:
            self._skip(report, update)
        self.sound = math.isfinite(report.loss) and report.nll <= learner.settings.max_nll * report.target_tokens
        if state.step % learner.recipe.training.log_every_steps == 0:
            state.window = self.metrics.flush(state.window, state.step, state.epoch, self._rate())

    def _compare_ranks(self) -> None:
        """Where it is time for it, compare the weights of all ranks."""
        every = self.learner.recipe.training.checksum_every_steps
        if every is not None and self.state.step % every == 0:
            self._agree()

    def _agree(self) -> None:
        """Raise TrainingError, on all ranks, when their weights are not the same; pieces of a model differ anyway."""
        if not is_shared_out(self.learner.core):
            self.ranks.agree(self.learner.parameters, self.state.step)

    def _tell_halvings(self, report: StepReport, update: Update) -> None:
        """Count the batches that did not fit into memory."""
        state = self.state
        state.halved_batches += report.halvings
        counts = {"count": report.halvings, "total": state.halved_batches}
        log.warning(
            "step %d (%s): out of memory; %d batches cut in halves (%d so far); batching.max_tokens is too large",
            *(state.step, update.place, *counts.values()),
        )
        self.metrics.event("oom", step=state.step, place=update.place, **counts)

    def _count(self, report: StepReport, update: Update) -> None:
        """Count an update that was applied, and name it where its loss stands out."""
        state = self.state
        state.bad_steps = 0
        state.target_tokens += report.target_tokens
        state.window.add(report)
        self.metrics.add(report)
        if self.learner.average is not None:
            self.learner.average.update(state.step)
        loss, usual, limit = report.loss / report.target_tokens, state.losses.mean, state.losses.limit()
        if loss > limit:
            figures = f"loss {loss:.3f} where {usual:.3f} is usual, gradient norm {report.gradient_norm:.3g}"
            log.warning("step %d (%s): loss spike: %s", state.step, update.place, figures)
            self.metrics.event("spike", step=state.step, place=update.place, loss=loss, usual=usual, limit=limit)
        state.losses.add(loss)

    def _skip(self, report: StepReport, update: Update) -> None:
        """Count an update that was not applied; too many in a row end the run."""
        state, scaler = self.state, self.learner.scaler
        state.skipped_steps += 1
        overflow = math.isfinite(report.loss) and not math.isfinite(report.gradient_norm)
        if overflow and scaler.is_enabled() and scaler.get_scale() >= 1:
            return  # fp16 finds its scale by overflowing now and then
        state.bad_steps += 1
        figures = f"loss {report.loss / report.target_tokens:.4g}, gradient norm {report.gradient_norm:.4g}"
        log.warning("step %d (%s): %s; skipped", state.step, update.place, figures)
        self.metrics.event("skip", step=state.step, place=update.place, reason=figures)
        if state.bad_steps >= self.learner.recipe.training.max_bad_steps:
            error = TrainingError(
                f"step {state.step} ({update.place}): {state.bad_steps} updates in a row had a loss or gradient that "
                f"is not finite or has diverged ({figures}); the checkpoints are as they were",
                ADVICE,
            )
            raise self.ranks.failure(error)

    def _refuse_to_end_badly(self) -> None:
        if not self.sound:
            error = TrainingError(
                f"step {self.state.step}, the last: its loss is not finite or has diverged; the checkpoints are as "
                "they were",
                ADVICE,
            )
            raise self.ranks.failure(error)

    def _validation_is_due(self) -> bool:
        """Whether the state's step wants a validation that it has not had."""
        state, recipe = self.state, self.learner.recipe
        regular = state.step % recipe.training.validate_every_steps == 0
        due = state.step > 0 and bool(self.texts) and (regular or self._is_last())
        return due and not state.scores_at(state.step)

    def _is_last(self) -> bool:
        return finished(self.state, self.learner.recipe) in ("max_steps", "max_epochs")

    def _validate_and_save(self) -> None:
        """Validate where it is time for it, then save where it is time for that; neither while the loss is bad.

        A validation that a signal cuts short is done when the run goes on.
        """
        if not self.sound:
            return
        training = self.learner.recipe.training
        validated = self._validation_is_due() and self._validate()
        if training.save_every_steps is not None:
            due = self.state.step % training.save_every_steps == 0
        else:
            due = validated or (not self.texts and self.state.step % training.validate_every_steps == 0)
        if due or self._is_last():
            self._save()

    def _validate(self) -> bool:
        """Validate and keep the result in the state; False when a signal has cut it short."""
        state, metric = self.state, self.learner.recipe.training.best_metric
        with self.metrics.paused():
            try:
                stop = lambda: self.signals.received is not None  # noqa: E731
                report = validate(self.learner, self.valid, self.texts, stop, self.ranks)
            except Interrupted:
                return False
        row = {"step": state.step, "epoch": state.epoch, **report.row()}
        state.validations.append(row)
        signature = report.scores.metrics["bleu"].signature
        self.metrics.event("valid", **row, seconds=report.seconds, signature=signature)
        log.info(
            "valid step %d: ppl %.2f  BLEU %.2f  chrF %.2f  (%d sentences, %s)%s",
            state.step,
            math.inf if row["perplexity"] is None else row["perplexity"],
            row["bleu"],
            row["chrf"],
            row["sentences"],
            duration(report.seconds),
            f"  new best {metric}" if state.best_step(metric) == state.step else "",
        )
        for source, hypothesis, reference in report.samples:
            log.info("  source:     %s\n  hypothesis: %s\n  reference:  %s", source, hypothesis, reference)
        if report.samples:
            self.metrics.event("samples", step=state.step, samples=finite(report.samples))
        return True

    def _save(self) -> None:
        self.state.seconds = perf_counter() - self.began
        with self.metrics.paused():
            self._agree()
            weights, tensors = contents(self.learner, self.ranks)
            self.ranks.lead(lambda: save(self.learner, self.state, self.run, weights, tensors))
        self.metrics.event("save", step=self.state.step)
        self.saved = self.state.step
