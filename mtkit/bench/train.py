"""How fast a recipe trains here, and what the time goes into. Nothing is written into the run folder."""

import logging
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mtkit.bench.flops import training_flops
from mtkit.bench.peak import DTYPES, Products, matrix_peaks, synchronize
from mtkit.data.loader import Batch, PairData
from mtkit.errors import ModelError, TrainingError
from mtkit.ids import PAD
from mtkit.model.transformer import count_parameters
from mtkit.ranks import ALONE
from mtkit.recipe import Recipe
from mtkit.runtime import page_faults, peak_memory, resolve_device, set_threads, tune_allocator
from mtkit.stages import done, ensure_shards, ensure_tokenizer, run_folder, shard_inputs
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.budget import measure as measure_budget
from mtkit.training.optimizer import set_rate
from mtkit.training.schedule import learning_rate
from mtkit.training.state import Learner, make_learner
from mtkit.training.step import train_step
from mtkit.training.updates import Update, open_pairs, updates

log = logging.getLogger(__name__)

PHASES = ("loader", "forward", "backward", "optimizer")
_ALONE_SECONDS = 1.0
_SHARE_BETWEEN = 0.05  # seconds of matrix products after an update, for each second of it


@dataclass(frozen=True, slots=True)
class TrainSpeed:
    """What was measured over `updates` updates, after `warmup` that do not count.

    Tokens are real ones, EOS included; a batch's padding is in `padding_share`, of both sides together. `seconds` are
    those of one update: waiting for the loader, forward, backward, and all else as `optimizer` (norm, clipping, update,
    moving average). Loss and gradient of the output layer are computed together, in `forward`. `flops_per_second` are
    those of `mtkit.bench.flops`. `peaks` are those of single matrix products, the quickest before and after the
    updates, `peak_share` is the share of it. `sustained_flops_per_second` is what such products reach in between: some
    after every update, all their time counted.
    """

    device: str
    threads: int
    precision: str
    parameters: int
    updates: int
    warmup: int
    target_tokens_per_second: float
    source_tokens_per_second: float
    target_tokens_per_second_of_updates: dict[str, float]
    padding_share: float
    seconds: dict[str, float]
    flops_per_second: float
    peaks: dict[str, float]
    peak_share: float
    sustained_flops_per_second: float
    sustained_share: float
    loader_alone_target_tokens_per_second: float
    peak_memory_bytes: int
    page_faults: float
    loss: float

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)

    def render(self) -> str:
        """The same as lines for people."""
        whole = sum(self.seconds.values())
        spread = self.target_tokens_per_second_of_updates
        peaks = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in self.peaks.items())
        rows = [
            ("target tokens/s", f"{self.target_tokens_per_second:,.0f}   an update: median {spread['median']:,.0f}, "
             f"{spread['least']:,.0f} to {spread['most']:,.0f}"),
            ("source tokens/s", f"{self.source_tokens_per_second:,.0f}"),
            ("padding", f"{100 * self.padding_share:.1f} % of both sides"),
            ("an update", f"{1000 * whole:,.1f} ms"),
            *((f"  {name}", f"{1000 * self.seconds[name]:,.1f} ms, {100 * self.seconds[name] / whole:.1f} %")
              for name in PHASES),
            ("loader alone", f"{self.loader_alone_target_tokens_per_second:,.0f} target tokens/s"),
            ("arithmetic", f"{self.flops_per_second / 1e9:,.1f} GFLOP/s"),
            ("  of products", f"{100 * self.sustained_share:.1f} % of the {self.sustained_flops_per_second / 1e9:,.0f} "
             f"GFLOP/s of matrix products in {self.precision} between the updates"),
            ("  of the peak", f"{100 * self.peak_share:.1f} % of the quickest single product ({peaks} GFLOP/s)"),
            ("memory", f"{self.peak_memory_bytes / 1e9:.2f} GB at most, {self.page_faults:,.0f} page faults an update"),
            ("loss", f"{self.loss:.3f} a target token at the end"),
            ("measured", f"{self.updates} updates after {self.warmup}, on {self.device}, {self.threads} threads, "
             f"{self.precision}, {self.parameters:,} parameters"),
        ]  # fmt: skip
        return "\n".join(f"{name:<17}{text}" for name, text in rows)


def bench_train(
    recipe: Recipe, count: int = 50, warmup: int = 10, tick: Callable[[], object] = lambda: None
) -> TrainSpeed:
    """Train `count` updates after `warmup` from the recipe's start, as `mtkit train` would, and measure.

    Tokenizer and shards of the run folder are used where they are up to date, otherwise made in a temporary folder.
    `tick` is called after each update. Raises what training raises, and TrainingError where an update is not sound.
    """
    tune_allocator()
    threads = set_threads(recipe.training.threads)
    device = resolve_device(recipe.training.device)
    with ExitStack() as stack:
        folder = _prepared(recipe, stack)
        tokenizers = Tokenizers.load(folder)
        data = open_pairs(folder / "shards" / "train", recipe.data.train)
        recipe = _with_budget(recipe, data, tokenizers, device)
        watch = Watch(device)
        learner = make_learner(recipe, tokenizers, device)
        learner.settings = replace(learner.settings, watch=watch)
        before = matrix_peaks(device)
        kind = "bf16" if learner.settings.dtype is not None and "bf16" in before else "fp32"
        between = Products(device, DTYPES[kind], before[kind].size)
        stream = stack.enter_context(closing(updates(recipe, data, 0, 0, ALONE, tokenizers)))
        rows = []
        for step in range(1, warmup + count + 1):
            row = _row(learner, stream, step, watch, tick)
            if step > warmup:
                rows.append(row)
                between.run(_SHARE_BETWEEN * sum(row.seconds.values()))
        after = matrix_peaks(device)
        alone = _loader_alone(stream)
    peaks = {name: max(before[name], after[name]).flops_per_second for name in before}
    found = {"threads": threads, "peaks": peaks, "peak": peaks[kind], "alone": alone}
    return _summary(rows, learner, warmup, {**found, "sustained": between.flops / between.seconds})


class Watch:
    """Adds up the seconds that are spent in named phases, on the device as well."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside."""
        synchronize(self.device)
        began = time.perf_counter()
        try:
            yield
        finally:
            synchronize(self.device)
            self.seconds[phase] += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Row:
    """One update: seconds by phase, tokens, cells, arithmetic, page faults and loss a token."""

    seconds: dict[str, float]
    target_tokens: int
    source_tokens: int
    cells: int
    flops: int
    faults: int
    loss: float


def _prepared(recipe: Recipe, stack: ExitStack) -> Path:
    """A folder with the recipe's tokenizer and shards, which is not written to."""
    run = run_folder(recipe)
    try:
        if done(run).get("binarize") == shard_inputs(recipe, Tokenizers.load(run.path)):
            return run.path
        log.info("the shards in %s are not up to date; making others for this measurement", run.path)
    except ModelError:
        log.info("there is no tokenizer in %s; making one, and shards, for this measurement", run.path)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mtkit-bench-"))
    elsewhere = recipe.model_copy(update={"run_dir": str(Path(folder) / "run")})
    ensure_shards(elsewhere, ensure_tokenizer(elsewhere))
    return Path(elsewhere.run_dir)


def _with_budget(recipe: Recipe, data: PairData, tokenizers: Tokenizers, device: torch.device) -> Recipe:
    """The recipe with a number for `batching.max_tokens: auto`, and without an end of its epochs."""
    batching = recipe.batching
    if batching.max_tokens == "auto":
        budget = measure_budget(make_learner(recipe, tokenizers, device), data, [], ALONE)
        log.info("batching.max_tokens: auto is %d", budget.max_tokens)
        batching = batching.measured(budget.max_tokens)
    endless = recipe.training.model_copy(update={"max_epochs": None})
    return recipe.model_copy(update={"batching": batching, "training": endless})


def _row(learner: Learner, stream: Iterator[Update], step: int, watch: Watch, tick: Callable[[], object]) -> _Row:
    """Do one update, as the training loop does."""
    recipe, faults = learner.recipe, page_faults()
    watch.seconds.clear()
    began = time.perf_counter()
    update = next(stream)
    loaded = time.perf_counter()
    rate = learning_rate(recipe.schedule, step, recipe.training.max_steps, recipe.model.d_model)
    set_rate(learner.optimizer, rate)
    whole = (learner.model, learner.core, learner.optimizer, learner.scaler)
    report = train_step(*whole, update.batches, step, learner.settings, update.target_tokens, ALONE)
    if not report.applied and not learner.scaler.is_enabled():
        raise TrainingError(
            f"update {step}: loss or gradient is not finite or has diverged", "lower the learning rate, or use fp32"
        )
    if learner.average is not None:
        learner.average.update(step)
    synchronize(learner.device)
    seconds = {"loader": loaded - began, **watch.seconds}
    seconds["optimizer"] = time.perf_counter() - loaded - sum(watch.seconds.values())
    tick()
    return _Row(
        seconds=seconds,
        target_tokens=report.target_tokens,
        source_tokens=report.source_tokens,
        cells=report.cells,
        flops=sum(_flops(learner, batch) for batch in update.batches),
        faults=page_faults() - faults,
        loss=report.loss / report.target_tokens,
    )


def _flops(learner: Learner, batch: Batch) -> int:
    lengths = ((ids != PAD).sum(dim=1).numpy() for ids in (batch.source_BS, batch.target_out_BT))
    return training_flops(learner.recipe.model, learner.tokenizers.target.size, *lengths)


def _loader_alone(stream: Iterator[Update]) -> float:
    """Target tokens a second that the loader makes when nobody else works; from the middle of an epoch on."""
    for _ in range(4):  # what was made ahead
        next(stream)
    tokens, began = 0, time.perf_counter()
    while time.perf_counter() - began < _ALONE_SECONDS:
        tokens += next(stream).target_tokens
    return tokens / (time.perf_counter() - began)


def _summary(rows: list[_Row], learner: Learner, warmup: int, found: Mapping[str, Any]) -> TrainSpeed:
    seconds = sum(sum(row.seconds.values()) for row in rows)
    target, source = sum(row.target_tokens for row in rows), sum(row.source_tokens for row in rows)
    rates = [row.target_tokens / sum(row.seconds.values()) for row in rows]
    precision = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[learner.settings.dtype]
    flops = sum(row.flops for row in rows) / seconds
    return TrainSpeed(
        device=str(learner.device),
        threads=found["threads"],
        precision=precision,
        parameters=count_parameters(learner.core),
        updates=len(rows),
        warmup=warmup,
        target_tokens_per_second=target / seconds,
        source_tokens_per_second=source / seconds,
        target_tokens_per_second_of_updates={
            "least": min(rates),
            "median": statistics.median(rates),
            "most": max(rates),
        },
        padding_share=1 - (target + source) / sum(row.cells for row in rows),
        seconds={name: sum(row.seconds[name] for row in rows) / len(rows) for name in PHASES},
        flops_per_second=flops,
        peaks=found["peaks"],
        peak_share=flops / found["peak"],
        sustained_flops_per_second=found["sustained"],
        sustained_share=flops / found["sustained"],
        loader_alone_target_tokens_per_second=found["alone"],
        peak_memory_bytes=peak_memory(learner.device),
        page_faults=sum(row.faults for row in rows) / len(rows),
        loss=rows[-1].loss,
    )
