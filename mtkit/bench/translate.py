"""How fast a model translates here: text in to text out, for each precision, number of workers and search."""

import logging
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from mtkit.bench.process import MeasuredProcess, Setup, Task
from mtkit.bench.start import Start, measure_start
from mtkit.data.corpus import read_pairs
from mtkit.errors import DataError
from mtkit.evaluate import score
from mtkit.figures import size
from mtkit.files import read_lines
from mtkit.folders import RECIPE_FILE, find_model
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Greedy, Search
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured: of MODEL, on the first `lines` lines of `input` (the recipe's own corpus where None).

    `beam_sizes` are searches, 1 being greedy; `latency_lines` of the lines are translated one by one.
    """

    model: Path
    input: Path | None
    reference: Path | None
    lines: int
    latency_lines: int
    precisions: Sequence[Precision]
    workers: Sequence[int]
    beam_sizes: Sequence[int]
    rounds: int


@dataclass(frozen=True, slots=True)
class Text:
    """The lines to translate, where they are from, how many were left out, and their references, if any."""

    lines: list[str]
    references: list[str] | None
    name: str
    left_out: int


@dataclass(frozen=True, slots=True)
class Row:
    """One precision, number of workers and search.

    Speeds are the median over the rounds, text in to text out, model in memory; `seconds` are those of the passes.
    Latencies are of one line at a time. `memory_bytes` is the most that a fresh process held, with what its workers
    held besides; None where the system does not tell.
    """

    precision: str
    workers: int
    search: str
    sentences_per_second: float
    tokens_per_second: float
    seconds: list[float]
    latency_p50: float
    latency_p95: float
    memory_bytes: int | None
    load_seconds: float
    bleu: float | None

    def name(self) -> str:
        """What was measured, in a few words."""
        return f"{self.precision}, {self.search}, {self.workers} worker{'s' * (self.workers > 1)}"


@dataclass(frozen=True, slots=True)
class TranslateSpeed:
    """All rows, and what holds for all of them."""

    model: str
    weights_bytes: int
    text: str
    lines: int
    left_out: int
    rounds: int
    latency_lines: int
    cores: int
    rows: list[Row]
    start: Start

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)

    def render(self) -> str:
        """The same as lines for people."""
        titles = ["precision", "workers", "search", "sentences/s", "tokens/s", "p50 ms", "p95 ms", "memory", "load s"]
        with_bleu = any(row.bleu is not None for row in self.rows)
        table = [titles + ["BLEU"] * with_bleu]
        for row in self.rows:
            speeds = [f"{row.sentences_per_second:,.1f}", f"{row.tokens_per_second:,.0f}"]
            latencies = [f"{1000 * row.latency_p50:,.1f}", f"{1000 * row.latency_p95:,.1f}"]
            rest = ["unknown" if row.memory_bytes is None else size(row.memory_bytes), f"{row.load_seconds:.2f}"]
            bleu = [] if row.bleu is None else [f"{row.bleu:.2f}"]
            table.append([row.precision, str(row.workers), row.search, *speeds, *latencies, *rest, *bleu])
        return "\n".join(
            [
                *aligned(table),
                f"{self.text}: {self.lines:,} lines{_left_out(self.left_out)}, median of {self.rounds} passes, "
                f"text in to text out; tokens with ends; latency of {self.latency_lines:,} lines one by one; "
                f"{self.cores} cores",
                f"weights in the folder: {size(self.weights_bytes)}",
                self.start.render(),
            ]
        )


def _left_out(count: int) -> str:
    return f" ({count:,} blank or too long ones left out)" if count else ""


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The rows as text, in columns.

    >>> aligned([["a", "speed"], ["longer", "7"]])
    ['a       speed', 'longer      7']
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table]


def bench_translate(wish: Wish, cores: int, tick: Callable[[], object] = lambda: None) -> TranslateSpeed:
    """Measure every row in a fresh process, one after the other; logs each, and calls `tick` after it.

    Raises DataError or ModelError for files, and MtkitError when a measured process fails.
    """
    weights, home = find_model(wish.model)
    recipe = Recipe.load(home / RECIPE_FILE)
    text = read_text(wish, recipe, Tokenizers.load(home))
    rows = []
    for precision in wish.precisions:
        for workers in wish.workers:
            for beam_size in wish.beam_sizes:
                search = search_of(recipe, beam_size)
                setup = Setup("mtkit", str(wish.model), str(home / RECIPE_FILE), precision, workers, None, text.lines)
                rows.append(_row(wish, setup, search, text, recipe))
                log.info("%s: %s sentences/s", rows[-1].name(), f"{rows[-1].sentences_per_second:,.1f}")
                tick()
    return TranslateSpeed(
        model=str(wish.model),
        weights_bytes=weights.stat().st_size,
        text=text.name,
        lines=len(text.lines),
        left_out=text.left_out,
        rounds=wish.rounds,
        latency_lines=min(wish.latency_lines, len(text.lines)),
        cores=cores,
        rows=rows,
        start=measure_start(wish.model, text.lines[0]),
    )


def _row(wish: Wish, setup: Setup, search: Search, text: Text, recipe: Recipe) -> Row:
    whole = Task(search.model_dump(), len(text.lines))
    with MeasuredProcess(setup) as process:
        with process.watched() as memory:
            first = process.translate(Task(search.model_dump(), len(text.lines), texts=True))
        passes = [process.translate(whole) for _ in range(wish.rounds)]
        alone = process.seconds_of_lines(Task(search.model_dump(), wish.latency_lines, alone=True))
        load_seconds = process.load_seconds
    median = statistics.median(one.seconds for one in passes)
    p50, p95 = percentiles(alone)
    return Row(
        precision=setup.precision,
        workers=setup.workers,
        search=name_of(search),
        sentences_per_second=len(text.lines) / median,
        tokens_per_second=first.tokens / median,
        seconds=[one.seconds for one in passes],
        latency_p50=p50,
        latency_p95=p95,
        memory_bytes=memory[0],
        load_seconds=load_seconds,
        bleu=bleu_of(first.texts, text, recipe),
    )


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 95th percentile: the least value that so many percent do not exceed.

    >>> percentiles([0.1 * number for number in range(1, 101)])
    (5.0, 9.5)
    """
    ordered = sorted(seconds)
    half, most = (ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 95))
    return half, most


def search_of(recipe: Recipe, beam_size: int) -> Greedy | Beam:
    """The recipe's search with this beam size and one hypothesis; greedy for 1. Batches and limits are the recipe's."""
    own = recipe.search
    if beam_size == 1:
        return Greedy(method="greedy", rules=own.rules, lines=own.lines)
    kept = {"length_penalty", "length_normalization", "patience"} if isinstance(own, Beam) else set()
    return Beam(beam_size=beam_size, rules=own.rules, lines=own.lines, **own.model_dump(include=kept))


def name_of(search: Search) -> str:
    """The search in a word or two."""
    return f"beam {search.beam_size}" if isinstance(search, Beam) else search.method


def bleu_of(texts: Sequence[str], text: Text, recipe: Recipe) -> float | None:
    """BLEU of these translations; None without references."""
    if text.references is None:
        return None
    only_bleu = recipe.evaluation.model_copy(update={"metrics": ["bleu"], "resamples": 0})
    found = score(list(texts), [text.references], only_bleu, recipe.languages.target)
    return found.metrics["bleu"].score


def read_text(wish: Wish, recipe: Recipe, tokenizers: Tokenizers) -> Text:
    """The lines that are translated in one piece: not blank, not too long. Raises DataError when there are none."""
    name, pairs = _pairs(wish, recipe)
    taken = list(islice(pairs, wish.lines))
    encoded = tokenizers.source.encode_batch([source for source, _ in taken])
    most = min(recipe.search.lines.max_source_length, recipe.search.lines.max_tokens - 1)
    kept = [pair for pair, ids in zip(taken, encoded, strict=True) if 0 < len(ids) <= most]
    if not kept:
        raise DataError(f"{name} has no line that could be translated", "give another file with --input")
    references = [reference for _, reference in kept if reference is not None]
    whole = references if len(references) == len(kept) else None
    return Text([source for source, _ in kept], whole, name, len(taken) - len(kept))


def _pairs(wish: Wish, recipe: Recipe) -> tuple[str, Iterable[tuple[str, str | None]]]:
    """Sources and references, and where they are from: --input, or the recipe's first test or validation corpus."""
    if wish.input is not None:
        sources = read_lines(wish.input)
        if wish.reference is None:
            return str(wish.input), ((source, None) for source in sources)
        return str(wish.input), _side_by_side(wish.input, wish.reference)
    corpora = [*recipe.data.test, *recipe.data.valid]
    if not corpora:
        raise DataError("the model's recipe has no test or validation corpus", "give lines with --input FILE")
    pairs = read_pairs(corpora[0], Path(recipe.data.root))
    return f"corpus {corpora[0].name}", ((pair.source, pair.target) for pair in pairs)


def _side_by_side(sources: Path, references: Path) -> Iterable[tuple[str, str]]:
    """Pairs of lines. Raises DataError when one file ends before the other."""
    rest = read_lines(references)
    count = 0
    for source in read_lines(sources):
        reference = next(rest, None)
        if reference is None:
            raise DataError(f"{references} ends after {count} lines, {sources} goes on", _PAIRS_HINT)
        count += 1
        yield source, reference
    if next(rest, None) is not None:
        raise DataError(f"{references} goes on after {count} lines, where {sources} ends", _PAIRS_HINT)


_PAIRS_HINT = "--reference has one line for each line of --input"
