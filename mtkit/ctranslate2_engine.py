"""CTranslate2 as the engine of a translator: it searches, all else of `mtkit translate` stays.

What is the same: which tokens may be produced, how many hypotheses stay alive, and how they are ranked in the end. What
is not:

- CTranslate2 shares the probability of forbidden tokens out among the others. That moves log-probabilities by what a
  trained model gives to PAD, UNK and BOS, which is next to nothing; but also by what it gives to an end that comes
  before `min_length`, or to what `no_repeat_ngram` forbids, so that beam search with these may choose otherwise.
- It stops when a number of hypotheses have ended, mtkit when none alive is likelier than those (`mtkit.search.beam`).
  With twice the beam size, as here, that is nearly always the same translation.
- A search is given the longest limit of its batch; a sentence whose translation exceeds its own limit is searched
  again, alone.
"""

import logging
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtkit.checkpoint import load_model
from mtkit.convert.folder import cached
from mtkit.convert.to_ctranslate2 import (
    Quantization,
    ctranslate2_origin,
    positions_needed,
    require_ctranslate2,
    write_ctranslate2,
)
from mtkit.engine import Batch
from mtkit.errors import UsageError
from mtkit.folders import RECIPE_FILE, find_model
from mtkit.ids import EOS
from mtkit.recipe import Recipe
from mtkit.search.penalties import length_penalty
from mtkit.search.protocol import Hypothesis
from mtkit.search.rules import length_limits
from mtkit.sections.search import Beam, Sampling, Search
from mtkit.text.names import piece_names
from mtkit.text.tokenizer import Tokenizers

_LOG = logging.getLogger(__name__)

# With a penalty of exactly 0 CTranslate2 ends a search at the first likeliest hypothesis, whatever n-best asks for.
_ALMOST_NONE = 1e-7


@dataclass(frozen=True, slots=True)
class _Call:
    """One batch on its way: its rows' limits, and what CTranslate2 will answer."""

    place: int
    batch: Batch
    limits: list[tuple[int, int]]
    results: list[Any]


class CTranslate2Engine:
    """Searches with the model in an export's folder; several batches at a time, one a thread."""

    def __init__(
        self, folder: Path, tokenizers: Tokenizers, device: str = "cpu", threads: int | None = None, apart: bool = True
    ) -> None:
        """`device` is auto, cpu, cuda or cuda:N. With `apart` each thread has a batch of its own, otherwise they share.

        Raises UsageError when CTranslate2 is not installed or has no such device.
        """
        ctranslate2 = require_ctranslate2()
        ctranslate2.set_log_level(logging.ERROR)
        kind, index = _device(ctranslate2, device)
        threads = threads or torch.get_num_threads()
        self._ahead = (threads if apart and kind == "cpu" else 1) + 1
        self._translator = ctranslate2.Translator(
            str(folder),
            device=kind,
            device_index=index,
            inter_threads=threads if apart and kind == "cpu" else 1,
            intra_threads=1 if apart else threads,
        )
        self._sources = piece_names(tokenizers.source)
        self._targets = piece_names(tokenizers.target)
        self._ids = {name: number for number, name in enumerate(self._targets)}

    def search(
        self, batches: Iterable[Batch], config: Search, attention: bool, scores: bool = True
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """See Engine; in order. Without `attention` the log-probabilities of single tokens are NaN, their sum is not.

        Raises UsageError for what CTranslate2 cannot do; see `refuse`.
        """
        refuse(config)
        calls: deque[_Call] = deque()
        for place, batch in enumerate(batches):
            if batch.prefixes is not None:
                raise UsageError("--engine ctranslate2 cannot force a prefix as mtkit scores it", _OTHER_ENGINE)
            calls.append(self._call(place, batch, config, attention))
            if len(calls) >= self._ahead:
                yield self._answer(calls.popleft(), config, attention)
        while calls:
            yield self._answer(calls.popleft(), config, attention)

    def _call(self, place: int, batch: Batch, config: Search, attention: bool) -> _Call:
        limits = [length_limits(config.rules, len(row) - 1) for row in batch.rows]
        results = self._translator.translate_batch(
            [self._pieces(row) for row in batch.rows],
            asynchronous=True,
            **_options(config, limits, attention),
        )
        return _Call(place, batch, limits, results)

    def _pieces(self, row: Sequence[int]) -> list[str]:
        assert row[-1] == EOS
        return [self._sources[number] for number in row[:-1]]  # CTranslate2 adds the end

    def _answer(self, call: _Call, config: Search, attention: bool) -> tuple[int, list[list[Hypothesis]]]:
        found = []
        for row, limits, result in zip(call.batch.rows, call.limits, call.results, strict=True):
            answer = result.result()
            if any(len(self._bare(pieces)) + self._ended(pieces) > limits[1] for pieces in answer.hypotheses):
                options = _options(config, [limits], attention)
                [answer] = self._translator.translate_batch([self._pieces(row)], **options)
            found.append(self._hypotheses(row, answer, config, attention))
        return call.place, found

    def _ended(self, pieces: Sequence[str]) -> bool:
        return bool(pieces) and pieces[-1] == self._targets[EOS]

    def _bare(self, pieces: Sequence[str]) -> Sequence[str]:
        return pieces[:-1] if self._ended(pieces) else pieces

    def _hypotheses(self, row: Sequence[int], answer: Any, config: Search, attention: bool) -> list[Hypothesis]:
        """The answer to one sentence, best first."""
        hypotheses = []
        singles = self._singles(row, answer.hypotheses, config, attention)
        for place, pieces in enumerate(answer.hypotheses):
            scored = len(pieces)
            total = answer.scores[place] * max(1, scored) ** _penalty(config)
            alpha, kind = (
                (config.length_penalty, config.length_normalization) if isinstance(config, Beam) else (0.0, "plain")
            )
            probabilities = singles[place] if singles else [float("nan")] * scored
            hypotheses.append(
                Hypothesis(
                    ids=[self._ids[piece] for piece in self._bare(pieces)],
                    score=total / length_penalty(max(1, scored), alpha, kind),
                    log_probability=sum(probabilities) if singles else total,
                    token_log_probabilities=probabilities,
                    finished=self._ended(pieces),
                    attention=_with_end(answer.attention[place]) if attention else None,
                )
            )
        hypotheses.sort(key=lambda one: one.score, reverse=True)
        return hypotheses[: config.n_best if isinstance(config, Beam) else 1]

    def _singles(
        self, row: Sequence[int], hypotheses: Sequence[Sequence[str]], config: Search, attention: bool
    ) -> list[list[float]] | None:
        """The log-probability of every token, where it is asked for, or where scores are not log-probabilities."""
        if not attention and config.rules.repetition_penalty == 1.0:
            return None
        bare = [self._bare(pieces) for pieces in hypotheses]
        scored = self._translator.score_batch([self._pieces(row)] * len(bare), bare, max_input_length=0)
        return [one.log_probs[: len(pieces)] for one, pieces in zip(scored, hypotheses, strict=True)]


_OTHER_ENGINE = "leave it out, or leave out --engine ctranslate2"


def refuse(config: Search) -> None:
    """Raise UsageError, naming it, for a setting of the search that CTranslate2 cannot honour."""
    if isinstance(config, Sampling):
        raise UsageError("--engine ctranslate2 cannot sample by search.seed and the number of the line", _OTHER_ENGINE)
    problems = []
    if isinstance(config, Beam):
        if config.groups > 1:
            problems.append(f"search.groups: {config.groups} (diverse groups)")
        if config.coverage_penalty > 0:
            problems.append(f"search.coverage_penalty: {config.coverage_penalty:g} (it counts attention otherwise)")
    if config.rules.min_length_ratio > 0:
        problems.append(f"search.rules.min_length_ratio: {config.rules.min_length_ratio:g}")
    if problems:
        raise UsageError(f"--engine ctranslate2 cannot honour {'; '.join(problems)}", _OTHER_ENGINE)


def _options(config: Search, limits: Sequence[tuple[int, int]], attention: bool) -> dict[str, Any]:
    """The search as options of translate_batch, for rows of these least and most lengths."""
    rules = config.rules
    beam = isinstance(config, Beam)
    own_ranking = isinstance(config, Beam) and config.length_normalization != "plain"
    return {
        "beam_size": config.beam_size if isinstance(config, Beam) else 1,
        "num_hypotheses": (config.beam_size if own_ranking else config.n_best) if isinstance(config, Beam) else 1,
        "length_penalty": _penalty(config) if beam else 0.0,
        "max_decoding_length": max(most for _, most in limits),
        "min_decoding_length": max(least for least, _ in limits),  # a row that cannot reach it is searched again
        "max_input_length": 0,
        "no_repeat_ngram_size": rules.no_repeat_ngram,
        "repetition_penalty": rules.repetition_penalty,
        "disable_unk": not rules.allow_unknown,
        "return_end_token": True,  # so that the length that scores are divided by counts it
        "return_scores": True,
        "return_attention": attention,
        # Without patience mtkit goes on while a living hypothesis may win; twice as many ended ones come close to that.
        "patience": (config.patience if isinstance(config, Beam) else 0) or 2,
    }


def _penalty(config: Search) -> float:
    """The exponent that CTranslate2 is given."""
    if not isinstance(config, Beam):
        return 0.0
    if config.length_normalization != "plain":
        return _ALMOST_NONE
    return max(config.length_penalty, _ALMOST_NONE if config.n_best > 1 else 0.0)


def _with_end(attention: Sequence[Sequence[float]]) -> list[list[float]]:
    """The rows with what they leave for EOS, which CTranslate2 keeps to itself."""
    return [[*row, max(0.0, 1.0 - sum(row))] for row in attention]


def _device(ctranslate2: Any, device: str) -> tuple[str, int]:
    """CTranslate2's name and number of a device. Raises UsageError when it has none such."""
    count = ctranslate2.get_cuda_device_count()
    if device == "auto":
        return ("cuda" if count else "cpu"), 0
    if device == "cpu":
        return "cpu", 0
    kind, _, number = device.partition(":")
    index = int(number) if number.isdigit() else 0
    if kind != "cuda" or index >= count:
        raise UsageError(
            f"--device {device}: CTranslate2 sees no such device (CUDA devices: {count})", "use auto, cpu or cuda:N"
        )
    return kind, index


def load_engine(
    folder: Path, device: str, threads: int | None, search: Search, quantization: Quantization = "float32"
) -> tuple[CTranslate2Engine, Recipe, Tokenizers]:
    """The engine of a model folder, its recipe and its tokenizers.

    The export lies beside the weights, in ctranslate2-float32, and is made when it is missing, damaged or of something
    else; where nothing can be written there it is made in a temporary folder. `search` decides how many positions it
    needs. Raises UsageError for settings that CTranslate2 cannot honour, ModelError as `load_model` does.
    """
    refuse(search)
    require_ctranslate2()
    weights, home = find_model(folder)
    recipe, tokenizers = Recipe.load(home / RECIPE_FILE), Tokenizers.load(home)
    positions = positions_needed(recipe.model_copy(update={"search": search}))
    origin = ctranslate2_origin(weights, recipe, tokenizers, quantization, positions)

    def write(new: Path) -> None:
        model, _, _ = load_model(folder, torch.device("cpu"))
        write_ctranslate2(new, model, recipe, tokenizers, quantization, positions)

    with ExitStack() as stack:
        cache = weights.parent / f"ctranslate2-{quantization}"
        try:
            made = cached(cache, origin, write)
        except PermissionError:
            cache = Path(stack.enter_context(tempfile.TemporaryDirectory())) / cache.name
            made = cached(cache, origin, write)
        if made:
            _LOG.info("%s: exported for CTranslate2", cache)
        engine = CTranslate2Engine(cache, tokenizers, device, threads, apart=search.lines.batch_size > 1)
    return engine, recipe, tokenizers
