"""mtkit and CTranslate2 side by side: the same weights and text, each at its best setting, in turn.

For each precision and search:

1. Each engine is tried on the first lines with every way to split the cores into workers and threads, and with a few
   sizes of a batch; the quickest setting is its own.
2. Both are started afresh at that setting and translate the whole text once, while their memory is watched. The text of
   this pass is what is compared.
3. Both translate it again, in turn, `rounds` times. A ratio is of two passes of one round.

One line at a time, they take turns likewise, each with one thread and with one a core; the better one is its own.
Everything is text in to text out, model in memory.
"""

import logging
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mtkit.bench.process import Engine, MeasuredProcess, Setup, Task, memory_of_torch
from mtkit.bench.translate import Text, Wish, aligned, bleu_of, name_of, percentiles, read_text, search_of
from mtkit.checkpoint import load_model
from mtkit.convert.to_ctranslate2 import MODEL_FILE, require_ctranslate2, write_ctranslate2
from mtkit.ctranslate2_engine import refuse
from mtkit.errors import UsageError
from mtkit.figures import size
from mtkit.folders import RECIPE_FILE, find_model
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Greedy
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)

BUDGETS = (512, 1024, 2048, 4096, 8192)
"""Source tokens of a batch that are tried."""

TRIED_LINES = 300
"""So many lines are tried, or as many as `TRIED_SECONDS` are enough for where that is more."""

TRIED_SECONDS = 2.0

_ALIKE = 1.02

ENGINES: tuple[Engine, Engine] = ("mtkit", "ctranslate2")
_TITLES = {"mtkit": "mtkit", "ctranslate2": "CTranslate2"}


@dataclass(frozen=True, slots=True)
class Best:
    """An engine at its best setting: medians over the rounds, and what a fresh process held at most.

    `latency_threads` are those with which one line at a time is quickest. BLEU is None without references.
    """

    workers: int
    threads: int
    max_tokens: int
    sentences_per_second: float
    tokens_per_second: float
    seconds: list[float]
    memory_bytes: int | None
    model_bytes: int
    load_seconds: float
    latency_threads: int
    latency_p50: float
    latency_p95: float
    bleu: float | None


@dataclass(frozen=True, slots=True)
class Duel:
    """Both engines in one precision and search. Ratios are how many times as quick mtkit is, one a round."""

    precision: str
    search: str
    mtkit: Best
    ctranslate2: Best
    ratios: list[float]
    latency_ratios: list[float]
    equal_lines: int

    def name(self) -> str:
        """What was measured, in a few words."""
        return f"{self.precision}, {self.search}"

    def render(self) -> str:
        """The ratios in a line."""
        ratios = ", ".join(f"{value:.2f}" for value in _span(self.ratios))
        return f"{self.name()}: {ratios} times as fast as CTranslate2 (least, median, most)"


@dataclass(frozen=True, slots=True)
class Versus:
    """All duels, and what holds for all of them. `tried` are the settings that were tried, for each engine."""

    model: str
    text: str
    lines: int
    left_out: int
    tried_lines: int
    rounds: int
    latency_lines: int
    cores: int
    ctranslate2_version: str
    torch_memory_bytes: int | None
    tried: dict[str, list[str]]
    budgets: list[int]
    duels: list[Duel]

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)

    def render(self) -> str:
        """The same as lines for people."""
        table = [["precision, search, engine", "sentences/s", "tokens/s", "p50 ms", "p95 ms", "memory", "model", "BLEU",
                  "workers x threads", "batch tokens", "threads, batch 1"]]  # fmt: skip
        ratios = [["mtkit / CTranslate2", "min", "median", "max", "batch 1: min", "median", "max", "memory", "equal"]]
        for duel in self.duels:
            name = duel.name()
            table += [[f"{name}, {_TITLES[engine]}", *_cells(getattr(duel, engine))] for engine in ENGINES]
            spans = [f"{value:.2f}" for values in (duel.ratios, duel.latency_ratios) for value in _span(values)]
            ours, theirs = duel.mtkit.memory_bytes, duel.ctranslate2.memory_bytes
            memory = "unknown" if ours is None or theirs is None else f"{ours / theirs:.2f}"
            ratios.append([name, *spans, memory, f"{duel.equal_lines:,} of {self.lines:,}"])
        left_out = f" ({self.left_out:,} blank or too long ones left out)" if self.left_out else ""
        torch = (
            "" if self.torch_memory_bytes is None else f"; importing torch alone takes {size(self.torch_memory_bytes)}"
        )
        return "\n".join(
            [
                *aligned(table),
                "",
                *aligned(ratios),
                "",
                f"{self.text}: {self.lines:,} lines{left_out}, {self.rounds} rounds in turn, text in to text out; "
                f"tokens with ends; {self.latency_lines:,} lines one by one; {self.cores} cores; CTranslate2 "
                f"{self.ctranslate2_version}",
                f"the best of what was tried on {self.tried_lines:,} lines or more: workers x threads "
                + "; ".join(f"{_TITLES[engine]} {', '.join(self.tried[engine])}" for engine in ENGINES)
                + f"; batches of {', '.join(map(str, self.budgets))} source tokens",
                f"memory: the most that a fresh process and its workers held{torch}",
                "both end a beam search by count (search.patience, 1 where the recipe has 0)",
            ]
        )


def _cells(best: Best) -> list[str]:
    return [
        f"{best.sentences_per_second:,.1f}",
        f"{best.tokens_per_second:,.0f}",
        f"{1000 * best.latency_p50:,.1f}",
        f"{1000 * best.latency_p95:,.1f}",
        "unknown" if best.memory_bytes is None else size(best.memory_bytes),
        size(best.model_bytes),
        "-" if best.bleu is None else f"{best.bleu:.2f}",
        f"{best.workers} x {best.threads}",
        str(best.max_tokens),
        str(best.latency_threads),
    ]


def _span(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a duel takes place."""

    wish: Wish
    recipe: Recipe
    home: Path
    text: Text
    cores: int
    tried_lines: int
    budgets: Sequence[int]
    exports: dict[str, Path]
    weights_bytes: int

    def setup(self, engine: Engine, precision: str, workers: int, threads: int) -> Setup:
        """What such an engine is started with."""
        return Setup(
            engine=engine,
            model=str(self.wish.model if engine == "mtkit" else self.home),
            recipe=str(self.home / RECIPE_FILE),
            precision=precision,
            workers=workers,
            threads=threads,
            lines=self.text.lines,
            export=str(self.exports[precision]),
        )

    def task(self, search: Greedy | Beam, max_tokens: int, **more: Any) -> Task:
        """A pass with batches of so many source tokens, however many lines that are."""
        whole = len(self.text.lines)
        batches = {"max_tokens": max_tokens, "batch_size": whole, "buffer_size": whole * 256}
        lines = search.lines.model_copy(update=batches)
        return Task(search.model_copy(update={"lines": lines}).model_dump(), **({"lines": whole} | more))


def bench_versus(
    wish: Wish,
    cores: int,
    tried_lines: int = TRIED_LINES,
    budgets: Sequence[int] = (),
    tick: Callable[[], object] = lambda: None,
) -> Versus:
    """Measure all duels; `wish.workers` does not matter here. `budgets` are tried, by default `BUDGETS`.

    Logs each duel, and calls `tick` after it.

    Raises UsageError when CTranslate2 is missing or cannot do what is asked, and what `bench_translate` raises.
    """
    ctranslate2 = require_ctranslate2()
    weights, home = find_model(wish.model)
    recipe = Recipe.load(home / RECIPE_FILE)
    searches = [by_count(search_of(recipe, beam_size)) for beam_size in wish.beam_sizes]
    for search in searches:
        refuse(search)
    _refuse_precisions(wish.precisions, ctranslate2.get_supported_compute_types("cpu"))
    text = read_text(wish, recipe, Tokenizers.load(home))
    with tempfile.TemporaryDirectory(prefix="mtkit-bench-") as folder:
        exports = exported(wish, Path(folder))
        size_of = weights.stat().st_size
        tried_lines = min(tried_lines, len(text.lines))
        place = Place(wish, recipe, home, text, cores, tried_lines, budgets or BUDGETS, exports, size_of)
        duels = []
        for precision in wish.precisions:
            for search in searches:
                duels.append(_duel(place, precision, search))
                log.info("%s", duels[-1].render())
                tick()
    return Versus(
        model=str(wish.model),
        text=text.name,
        lines=len(text.lines),
        left_out=text.left_out,
        tried_lines=place.tried_lines,
        rounds=wish.rounds,
        latency_lines=min(wish.latency_lines, len(text.lines)),
        cores=cores,
        ctranslate2_version=ctranslate2.__version__,
        torch_memory_bytes=memory_of_torch(),
        tried={engine: [f"{workers} x {threads}" for workers, threads in splits(engine, cores)] for engine in ENGINES},
        budgets=list(place.budgets),
        duels=duels,
    )


def by_count(search: Greedy | Beam) -> Greedy | Beam:
    """The search with a patience, as CTranslate2 has no other rule to end a beam search: by default 1, its quickest."""
    if isinstance(search, Beam) and search.patience == 0:
        return search.model_copy(update={"patience": 1.0})
    return search


def _refuse_precisions(wanted: Sequence[str], there: set[str]) -> None:
    for precision in wanted:
        if precision not in there:
            raise UsageError(
                f"--precision {precision}: CTranslate2 has {', '.join(sorted(there))} on this processor",
                "name what both have, for example --precision float32 --precision int8",
            )


def exported(wish: Wish, folder: Path) -> dict[str, Path]:
    """CTranslate2's model in each precision."""
    import torch

    model, recipe, tokenizers = load_model(wish.model, torch.device("cpu"))
    exports = {}
    for precision in wish.precisions:
        exports[str(precision)] = folder / precision
        exports[str(precision)].mkdir()
        # CTranslate2 quantizes what it is given in place.
        write_ctranslate2(exports[str(precision)], model, recipe, tokenizers, precision)
    return exports


def splits(engine: Engine, cores: int) -> list[tuple[int, int]]:
    """Workers and threads of each that make `cores` together; several workers of mtkit have one thread each.

    >>> splits("ctranslate2", 4), splits("mtkit", 4)
    ([(1, 4), (2, 2), (4, 1)], [(1, 4), (4, 1)])
    """
    ways = [(workers, cores // workers) for workers in range(1, cores + 1) if cores % workers == 0]
    return ways if engine == "ctranslate2" else [way for way in ways if 1 in way]


def _duel(place: Place, precision: str, search: Greedy | Beam) -> Duel:
    settings = {engine: best_setting(place, engine, precision, search) for engine in ENGINES}
    tasks = {engine: place.task(search, settings[engine][2]) for engine in ENGINES}
    texts, memory, tokens, loads = {}, {}, {}, {}
    seconds: dict[Engine, list[float]] = {engine: [] for engine in ENGINES}
    with ExitStack() as stack:
        processes = {}
        for engine in ENGINES:
            workers, threads, _ = settings[engine]
            process = stack.enter_context(MeasuredProcess(place.setup(engine, precision, workers, threads)))
            with process.watched() as told:
                first = process.translate(replace(tasks[engine], texts=True))
            texts[engine], tokens[engine], memory[engine] = first.texts, first.tokens, told[0]
            processes[engine], loads[engine] = process, process.load_seconds
        for _ in range(place.wish.rounds):
            for engine in ENGINES:
                seconds[engine].append(processes[engine].translate(tasks[engine]).seconds)
    latencies, threads_alone = _latencies(place, precision, search)
    bests = {}
    for engine in ENGINES:
        median = statistics.median(seconds[engine])
        p50, p95 = percentiles([value for row in latencies[engine] for value in row])
        workers, threads, max_tokens = settings[engine]
        bests[engine] = Best(
            workers=workers,
            threads=threads,
            max_tokens=max_tokens,
            sentences_per_second=len(place.text.lines) / median,
            tokens_per_second=tokens[engine] / median,
            seconds=seconds[engine],
            memory_bytes=memory[engine],
            model_bytes=_model_bytes(place, engine, precision),
            load_seconds=loads[engine],
            latency_threads=threads_alone[engine],
            latency_p50=p50,
            latency_p95=p95,
            bleu=bleu_of(texts[engine], place.text, place.recipe),
        )
    sums = {engine: [sum(row) for row in latencies[engine]] for engine in ENGINES}
    return Duel(
        precision=precision,
        search=name_of(search),
        mtkit=bests["mtkit"],
        ctranslate2=bests["ctranslate2"],
        ratios=_ratios(seconds),
        latency_ratios=_ratios(sums),
        equal_lines=sum(one == other for one, other in zip(texts["mtkit"], texts["ctranslate2"], strict=True)),
    )


def _ratios(seconds: dict[Engine, list[float]]) -> list[float]:
    return [theirs / ours for ours, theirs in zip(seconds["mtkit"], seconds["ctranslate2"], strict=True)]


def _model_bytes(place: Place, engine: Engine, precision: str) -> int:
    """What the engine reads its weights from."""
    return place.weights_bytes if engine == "mtkit" else (place.exports[precision] / MODEL_FILE).stat().st_size


def best_setting(place: Place, engine: Engine, precision: str, search: Greedy | Beam) -> tuple[int, int, int]:
    """Workers, threads and tokens of a batch for the first lines; see `best_of`."""
    found: dict[tuple[int, int, int], float] = {}
    for workers, threads in splits(engine, place.cores):
        with MeasuredProcess(place.setup(engine, precision, workers, threads)) as process:
            few = place.task(search, min(place.budgets), lines=place.tried_lines)
            process.translate(few)  # a warm-up
            most = int(place.tried_lines * TRIED_SECONDS / process.translate(few).seconds)
            lines = min(len(place.text.lines), max(place.tried_lines, most))
            for _ in range(2):
                for budget in place.budgets:
                    took = process.translate(place.task(search, budget, lines=lines)).seconds / lines
                    key = (workers, threads, budget)
                    found[key] = min(took, found.get(key, took))
    return best_of(found)


def best_of(found: dict[tuple[int, int, int], float]) -> tuple[int, int, int]:
    """The setting (workers, threads, tokens of a batch) of the fastest workers whose batches are smallest.

    Batches count as fast within `_ALIKE` of the fastest, about what two passes differ by: the smaller need less memory.

    >>> best_of({(1, 2, 512): 3.0, (2, 1, 512): 2.2, (2, 1, 1024): 2.03, (2, 1, 2048): 2.0})
    (2, 1, 1024)
    """
    workers, threads, _ = min(found, key=lambda key: found[key])
    alike = [key for key in found if key[:2] == (workers, threads) and found[key] <= _ALIKE * min(found.values())]
    return min(alike)


def _latencies(
    place: Place, precision: str, search: Greedy | Beam
) -> tuple[dict[Engine, list[list[float]]], dict[Engine, int]]:
    """Seconds of each line in each round, one line at a time, for each engine, and with how many threads."""
    task = place.task(search, min(place.budgets), lines=place.wish.latency_lines, alone=True)
    found: dict[tuple[Engine, int], list[list[float]]] = {}
    with ExitStack() as stack:
        processes = {
            (engine, threads): stack.enter_context(MeasuredProcess(place.setup(engine, precision, 1, threads)))
            for threads in sorted({1, place.cores})
            for engine in ENGINES
        }
        for process in processes.values():
            process.seconds_of_lines(replace(task, lines=10))  # a warm-up
        for _ in range(place.wish.rounds):
            for key, process in processes.items():
                found.setdefault(key, []).append(process.seconds_of_lines(task))
    best = {}
    for engine in ENGINES:
        totals = {key: statistics.median(map(sum, rows)) for key, rows in found.items() if key[0] == engine}
        best[engine] = min(totals, key=lambda key: totals[key])
    return {engine: found[best[engine]] for engine in ENGINES}, {engine: best[engine][1] for engine in ENGINES}
