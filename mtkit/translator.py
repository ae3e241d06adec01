"""Text to text: N lines in, N lines out, in order. Batches by length, splits long lines, answers blank ones itself.

How a batch is searched is its engine's business (engine.py).
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError

from mtkit.checkpoint import load_model, open_model
from mtkit.decoding import decoding_dtype, decoding_model, stored_precision
from mtkit.engine import Batch, Engine, ModelEngine
from mtkit.errors import DataError, ModelError, UsageError
from mtkit.ids import EOS
from mtkit.model.kernels import Precision
from mtkit.pool import PoolEngine
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device, usable_cores
from mtkit.search.ensemble import Ensemble
from mtkit.search.mbr import choose
from mtkit.search.penalties import length_penalty
from mtkit.search.protocol import Hypothesis, SearchModel
from mtkit.search.sizes import round_down
from mtkit.sections.search import Beam, Greedy, Sampling, Search
from mtkit.segment import joiner, split
from mtkit.shortlist import load_shortlist
from mtkit.shortlist_engine import ShortlistEngine
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizers
from mtkit.translation import BLANK, Line, TextHypothesis, Translation, has_loop, join

_LOG = logging.getLogger(__name__)

# A buffer also ends at so many characters, so that a stretch of huge lines does not fill the memory.
_BUFFER_CHARACTERS = 1 << 20
# Cores at most for which the number of batches is a multiple: with more of them, few lines would make small batches.
_TOGETHER = 4
# The noise of a part is keyed by part * this + line number; no input has so many lines.
_LINE_NUMBERS = 1 << 40


@dataclass(frozen=True, slots=True)
class _Plan:
    """What holds for all lines of one call: `limit` is the most tokens of a part, `tag_ids` not counted."""

    search: Search
    tag_ids: list[int]
    limit: int
    details: bool
    scores: bool
    on_batch: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Job:
    """A line on its way. `parts` are token ids without tags, `results` the hypotheses of each, once they are there."""

    number: int
    line: Line
    parts: list[list[int]]
    prefix_ids: list[int]
    cut_tokens: int
    results: dict[int, list[TextHypothesis]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.parts)


class Translator:
    """A model behind an engine, with its tokenizers and recipe, ready to translate. Holds no state between calls."""

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        tokenizers: Tokenizers,
    ) -> None:
        """The recipe's section `search` is the default of every call."""
        self.engine = engine
        self.recipe = recipe
        self.tokenizers = tokenizers

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        device: str = "auto",
        ensemble: Sequence[str | PathLike[str]] = (),
        combine: Literal["arithmetic", "geometric"] = "arithmetic",
        precision: Precision | None = None,
        workers: int = 1,
        shortlist: bool = False,
    ) -> "Translator":
        """The translator in a model folder such as runs/quickstart/model.

        `device` is auto, cpu, cuda, cuda:N or mps. The models of the folders in `ensemble` vote with it: their
        probabilities are averaged by the arithmetic or geometric mean; recipe and tokenizers are those of `folder`.
        `precision` is float32, bfloat16 or, on a CPU, int8; by default that of the weights in `folder`. More than one
        of `workers` search in as many processes, of one thread each, on Linux and a CPU. `shortlist` searches over the
        target tokens of the folder's shortlist alone (see shortlist_engine.py), which is not for ensembles.
        Raises ModelError when a folder is damaged or an ensemble's tokenizers differ, UsageError for the device, and
        for workers that it cannot have.
        """
        if shortlist and ensemble:
            raise UsageError(f"a shortlist for an ensemble, with {ensemble[0]}", "leave out one of the two")
        target = resolve_device(device)
        if workers > 1 and target.type != "cpu":
            raise UsageError(f"{workers} workers on device {target}", "several workers are for device cpu")
        precision = precision or stored_precision(Path(folder), target)
        first, recipe, tokenizers = _decoding_model(folder, target, precision, shortlist)
        models = [first]
        for other in ensemble:
            other_model, _, other_tokenizers = _decoding_model(other, target, precision)
            if other_tokenizers.sha256 != tokenizers.sha256:
                raise ModelError(
                    f"{other}: its tokenizer (sha256 {other_tokenizers.sha256[:12]}...) is not that of {folder} "
                    f"({tokenizers.sha256[:12]}...)",
                    "the models of an ensemble must share one vocabulary; train them with the same tokenizer",
                )
            models.append(other_model)
        joined = Ensemble(models, combine) if ensemble else models[0]
        own = ModelEngine(joined, target, decoding_dtype(target, precision))
        engine: Engine = ShortlistEngine(own, load_shortlist(Path(folder), tokenizers)) if shortlist else own
        if workers > 1:
            engine = PoolEngine(engine, workers)
        return cls(engine, recipe, tokenizers)

    def translate(self, lines: Sequence[str], search: Search | None = None) -> list[str]:
        """The best translation of each line, in order; of a blank line the empty string.

        `search` defaults to the recipe's. Lines that were cut (`on_long: truncate`) are named in the log.
        Raises DataError for a long line under `on_long: error`.

        >>> Translator.load("runs/quickstart/model").translate(["我爱北京天安门。"])  # doctest: +SKIP
        ['I love Tiananmen in Beijing.']
        """
        if isinstance(lines, str):
            raise UsageError("translate takes a list of lines, and was given one string", "write translate([line])")
        results = []
        for translation in self.translate_stream(lines, search, scores=False):
            if translation.cut_tokens:
                _LOG.warning("line %d: its last %d tokens were cut off", translation.number, translation.cut_tokens)
            results.append(translation.text)
        assert len(results) == len(lines)
        return results

    def translate_stream(
        self,
        lines: Iterable[str | Line],
        search: Search | None = None,
        *,
        tags: Sequence[str] = (),
        details: bool = False,
        scores: bool = True,
        on_batch: Callable[[int], None] = lambda lines: None,
        at_hand: bool = False,
    ) -> Iterator[Translation]:
        """Yield the translation of each line, in order, as soon as it and all before it are ready.

        Lines are read in buffers, the first of `search.lines.batch_size` lines, each next one twice as large until it
        makes `buffer_size` hypotheses; a buffer is sorted by length, cut into batches and answered before the next one
        is read. Where the lines are all `at_hand`, as in a file or a sequence, the first buffer is a whole one. With
        `batch_size` 1 each line is answered before the next one is read. `tags` are user-defined symbols
        put before every source; `details` asks for tokens, source pieces and alignments; without `scores` all
        scores and log-probabilities may be NaN, which makes greedy search quicker; `on_batch` is called with the number
        of lines that became complete, once for the blank ones of a buffer and after every batch.

        Raises UsageError or ModelError at once for a search or tags that do not fit the model. Raises DataError for a
        long line under `on_long: error`, before anything of its buffer is yielded.
        """
        plan = self._plan(search, tags, details, scores, on_batch)
        return self._stream(_buffers(lines, plan.search, at_hand or isinstance(lines, Sequence)), plan)

    def refuse_long(
        self, lines: Iterable[str | Line], search: Search | None = None, *, tags: Sequence[str] = ()
    ) -> None:
        """Raise DataError when a line is too long to be translated in one piece; nothing is translated."""
        plan = self._plan(search, tags)
        number = 0
        for buffer in _buffers(lines, plan.search, at_hand=True):
            for ids in self.tokenizers.source.encode_batch([line.text for line in buffer]):
                number += 1
                if len(ids) > plan.limit:
                    raise _too_long(number, len(ids), plan.limit)

    def _plan(
        self,
        search: Search | None,
        tags: Sequence[str],
        details: bool = False,
        scores: bool = True,
        on_batch: Callable[[int], None] = lambda lines: None,
    ) -> _Plan:
        """The plan of a call. Raises UsageError or ModelError when it does not fit the model."""
        search = search or self.recipe.search
        try:
            # The recipe's own cross-checks: learned positions, for example, set a limit to lengths.
            Recipe.model_validate(dict(self.recipe) | {"search": search})
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise UsageError(message, "the search settings have to suit the model's recipe") from None
        tag_ids = [self.tokenizers.source.symbol_id(tag) for tag in tags]
        most = min(search.lines.max_source_length, search.lines.max_tokens - 1)
        if len(tag_ids) >= most:
            raise UsageError(
                f"{len(tag_ids)} tags leave no room for text within {most} source tokens",
                "give fewer tags, or raise search.lines.max_source_length (and max_tokens)",
            )
        return _Plan(search, tag_ids, most - len(tag_ids), details, scores, on_batch)

    def _stream(self, buffers: Iterable[list[Line]], plan: _Plan) -> Iterator[Translation]:
        first = 1
        for buffer in buffers:
            yield from self._translate_buffer(self._jobs(buffer, first, plan), plan)
            first += len(buffer)

    def _jobs(self, buffer: list[Line], first: int, plan: _Plan) -> list[_Job]:
        """The lines of a buffer, the first of which has the number `first`, encoded and cut into parts that fit."""
        texts = [normalize(line.text) for line in buffer]
        encoded = self.tokenizers.source.encode_batch(texts)
        jobs = []
        for number, (line, text, ids) in enumerate(zip(buffer, texts, encoded, strict=True), first):
            parts, cut_tokens = [ids] if ids else [], 0
            if len(ids) > plan.limit:
                match plan.search.lines.on_long:
                    case "split":
                        parts = split(text, plan.limit, self.tokenizers.source.encode_batch)
                    case "truncate":
                        parts, cut_tokens = [ids[: plan.limit]], len(ids) - plan.limit
                    case "error":
                        raise _too_long(number, len(ids), plan.limit)
            prefix_ids = self.tokenizers.target.encode(line.prefix) if line.prefix else []
            if len(prefix_ids) >= plan.search.rules.max_length:
                raise DataError(
                    f"line {number}: its prefix has {len(prefix_ids)} tokens, and a translation may have "
                    f"{plan.search.rules.max_length} at most",
                    "raise search.rules.max_length, or shorten the prefix",
                )
            jobs.append(_Job(number, line, parts, prefix_ids, cut_tokens))
        return jobs

    def _translate_buffer(self, jobs: list[_Job], plan: _Plan) -> Iterator[Translation]:
        """Yield the translations of a buffer, in order; the parts of all its lines are batched together."""
        parts = [(job, index) for job in jobs for index in range(len(job.parts))]
        parts.sort(key=lambda part: len(part[0].parts[part[1]]), reverse=True)
        waiting = deque(jobs)
        plan.on_batch(sum(job.done for job in jobs))
        yield from self._ready(waiting, plan)
        batches = list(_batches(parts, plan))
        work = (self._work(batch, plan) for batch in batches)
        for place, found in self.engine.search(work, plan.search, plan.details, plan.scores):
            self._put(batches[place], found, plan)
            plan.on_batch(len({job.number for job, _ in batches[place] if job.done}))
            yield from self._ready(waiting, plan)
        assert not waiting

    def _ready(self, waiting: deque[_Job], plan: _Plan) -> Iterator[Translation]:
        """Yield the translations that are next in order and complete, and take them out of `waiting`."""
        while waiting and waiting[0].done:
            yield self._translation(waiting.popleft(), plan)

    def _work(self, batch: list[tuple[_Job, int]], plan: _Plan) -> Batch:
        """What the engine is given of these parts."""
        prefixes = [job.prefix_ids if index == 0 else [] for job, index in batch]
        return Batch(
            rows=[[*plan.tag_ids, *job.parts[index], EOS] for job, index in batch],
            keys=[index * _LINE_NUMBERS + job.number for job, index in batch],
            prefixes=prefixes if any(prefixes) else None,
        )

    def _put(self, batch: list[tuple[_Job, int]], found: list[list[Hypothesis]], plan: _Plan) -> None:
        """Put what was found for these parts into their jobs."""
        for (job, index), hypotheses in zip(batch, found, strict=True):
            source_ids = [*plan.tag_ids, *job.parts[index]]
            texts = [self._text_hypothesis(one, source_ids, plan) for one in hypotheses]
            job.results[index] = self._by_agreement(texts, plan.search)

    def _text_hypothesis(self, hypothesis: Hypothesis, source_ids: list[int], plan: _Plan) -> TextHypothesis:
        ids, probabilities = hypothesis.ids, hypothesis.token_log_probabilities
        tokens = alignment = None
        if plan.details:
            tokens = self.tokenizers.target.pieces(ids)
            assert hypothesis.attention is not None
            alignment = _alignment(hypothesis.attention[: len(ids)], len(plan.tag_ids), len(source_ids))
        return TextHypothesis(
            text=self.tokenizers.target.decode(ids),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            token_log_probabilities=probabilities[: len(ids)],
            end_log_probabilities=probabilities[len(ids) :],
            finished=hypothesis.finished,
            looped=has_loop(ids) and not has_loop(source_ids),
            tokens=tokens,
            alignment=alignment,
        )

    def _by_agreement(self, hypotheses: list[TextHypothesis], search: Search) -> list[TextHypothesis]:
        """The hypotheses with the one first that minimum Bayes risk chooses, where the search asks for it."""
        if isinstance(search, Greedy) or search.mbr == "off":
            return hypotheses
        from mtkit.metrics import bleu_tokenizer  # brings sacreBLEU, which few searches need

        tokenize = bleu_tokenizer(self.recipe.evaluation, self.recipe.languages.target)
        chosen = choose([hypothesis.text for hypothesis in hypotheses], search.mbr, tokenize)
        return [hypotheses[chosen], *hypotheses[:chosen], *hypotheses[chosen + 1 :]]

    def _translation(self, job: _Job, plan: _Plan) -> Translation:
        """A line's translation from those of its parts; the k-th hypothesis joins the k-th of each part.

        A part can have fewer hypotheses than were asked for, where the rules allow no more; the line then has as few.
        """
        sources = [[*plan.tag_ids, *ids] for ids in job.parts]
        source = self.tokenizers.source
        if not sources:
            hypotheses = [BLANK] * hypothesis_count(plan.search)
        elif len(sources) == 1:
            hypotheses = job.results[0]
        else:
            ranks = zip(*(job.results[index] for index in range(len(sources))), strict=False)
            lengths, between = [len(ids) for ids in sources], joiner(self.recipe.languages.target)
            hypotheses = [join(parts, lengths, between, partial(_penalty, plan.search)) for parts in ranks]
        return Translation(
            number=job.number,
            line=job.line,
            hypotheses=hypotheses,
            parts=len(sources),
            source_tokens=sum(map(len, sources)),
            unknown_tokens=sum(map(source.unknown_count, sources)),
            cut_tokens=job.cut_tokens,
            source_pieces=[piece for ids in sources for piece in source.pieces(ids)] if plan.details else None,
        )


def _decoding_model(
    folder: str | PathLike[str], device: torch.device, precision: Precision, narrowing: bool = False
) -> tuple[SearchModel, Recipe, Tokenizers]:
    """The model of a folder as it decodes, its recipe and its tokenizers. On a CPU it is never in memory twice."""
    if device.type == "cpu":
        empty, weights, recipe, tokenizers = open_model(Path(folder))
        return decoding_model(empty, device, precision, narrowing, weights), recipe, tokenizers
    model, recipe, tokenizers = load_model(Path(folder), device)
    return decoding_model(model, device, precision, narrowing), recipe, tokenizers


def _buffers(lines: Iterable[str | Line], search: Search, at_hand: bool) -> Iterator[list[Line]]:
    """Yield the lines in lists that grow from `batch_size` lines, or are whole ones; see `translate_stream`."""
    batch_size = search.lines.batch_size
    largest = max(1, search.lines.buffer_size // hypothesis_count(search))
    most = largest if at_hand and batch_size > 1 else min(batch_size, largest)
    buffer: list[Line] = []
    characters = 0
    for line in lines:
        buffer.append(Line(line) if isinstance(line, str) else line)
        characters += len(buffer[-1].text)
        if len(buffer) >= most or characters >= _BUFFER_CHARACTERS:
            yield buffer
            buffer, characters = [], 0
            if batch_size > 1:
                most = min(2 * most, largest)
    if buffer:
        yield buffer


def _batches(parts: list[tuple[_Job, int]], plan: _Plan) -> Iterator[list[tuple[_Job, int]]]:
    """Cut parts, longest first, into batches within `batch_size` and `max_tokens`, each about as much work.

    Three or more are a multiple of the cores, of up to four, so that several workers come to the end together. How many
    workers there are does not matter: the batches are the same, and so the results of one thread, to the last digit.
    """
    widths = [len(plan.tag_ids) + len(job.parts[index]) + 1 for job, index in parts]
    start = 0
    together = min(usable_cores(), _TOGETHER)
    for size in batch_sizes(widths, plan.search.lines.batch_size, plan.search.lines.max_tokens, together):
        yield parts[start : start + size]
        start += size


def batch_sizes(widths: Sequence[int], batch_size: int, max_tokens: int, together: int) -> list[int]:
    """How many rows each batch has when rows of these widths, widest first, are cut evenly within both bounds.

    More than two batches are a multiple of `together`, as far as that can be.

    >>> batch_sizes([9, 5, 5, 4, 4, 3, 3, 3], 8, 30, 4)
    [3, 5]
    """
    count = len(_sizes(widths, batch_size, max_tokens))
    if count > 2:
        count += -count % together
    budgets = range(max(widths, default=max_tokens), max_tokens + 1)
    # The least budget of tokens that makes no more batches than that.
    place = bisect_left(budgets, True, key=lambda budget: len(_sizes(widths, batch_size, budget)) <= count)
    return _sizes(widths, batch_size, budgets[place])


def _sizes(widths: Sequence[int], batch_size: int, max_tokens: int) -> list[int]:
    """Each batch as large as the bounds allow and a size of search/sizes.py, but for the last one."""
    sizes = []
    start = 0
    while start < len(widths):
        sizes.append(min(round_down(min(batch_size, max_tokens // widths[start])), len(widths) - start))
        start += sizes[-1]
    return sizes


def _alignment(attention: list[list[float]], start: int, end: int) -> list[tuple[int, int]]:
    """For each token its most attended source piece in [start, end), which leaves out tags and EOS."""
    return [(max(range(start, end), key=row.__getitem__), token) for token, row in enumerate(attention)]


def _penalty(search: Search, length: int) -> float:
    """What the search divides log P by for a hypothesis of this length."""
    if not isinstance(search, Beam):
        return 1.0
    return length_penalty(length, search.length_penalty, search.length_normalization)


def hypothesis_count(search: Search) -> int:
    """How many hypotheses the search gives for a line (fewer where its rules allow no more)."""
    match search:
        case Beam():
            return search.n_best
        case Sampling():
            return search.samples
        case _:
            return 1


def _too_long(number: int, length: int, limit: int) -> DataError:
    return DataError(
        f"line {number} has {length} source tokens, and at most {limit} are translated in one piece",
        "search.lines.on_long: split translates it in pieces; or raise search.lines.max_source_length",
    )
