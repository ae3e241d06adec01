"""A translator that is measured, in a process of its own; the other end of `mtkit.bench.process`.

Reads a `Setup` from stdin, then one `Task` after the other, each a line of JSON, and answers each on stdout. Torch is
imported for mtkit's own engine alone, so that the memory of CTranslate2 is its own.
"""

import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from mtkit.bench.process import Setup, Task
from mtkit.errors import MtkitError
from mtkit.loading import load_torch
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Search
from mtkit.text.names import piece_names
from mtkit.text.tokenizer import Tokenizers


class Subject(Protocol):
    """Text in, text out."""

    def translate(self, lines: Sequence[str], search: Search) -> tuple[list[str], int]:
        """The translations, and how many tokens they have, with ends."""

    def seconds_of_lines(self, lines: Sequence[str], search: Search) -> list[float]:
        """How long each line takes when it is translated alone."""


class Own:
    """mtkit."""

    def __init__(self, setup: Setup) -> None:
        load_torch()
        from mtkit.runtime import bound_kernel_caches, set_threads, tune_allocator
        from mtkit.translator import Translator

        tune_allocator()
        bound_kernel_caches()
        set_threads(setup.threads)
        self._translator = Translator.load(
            setup.model,
            "cpu",
            precision=setup.precision,
            workers=setup.workers,
        )

    def translate(self, lines: Sequence[str], search: Search) -> tuple[list[str], int]:
        """See Subject."""
        found = list(self._translator.translate_stream(lines, search, scores=False))
        return [one.text for one in found], sum(one.hypotheses[0].length for one in found)

    def seconds_of_lines(self, lines: Sequence[str], search: Search) -> list[float]:
        """See Subject. With a batch size of 1 a line is answered before the next one is read."""
        alone = search.model_copy(update={"lines": search.lines.model_copy(update={"batch_size": 1})})
        seconds, began = [], time.perf_counter()
        for _ in self._translator.translate_stream(lines, alone, scores=False):
            now = time.perf_counter()
            seconds.append(now - began)
            began = now
        return seconds


class CTranslate2:
    """CTranslate2, called as its documentation does: the whole text at once, which it sorts and cuts into batches.

    Tokenized and detokenized as mtkit does.
    """

    def __init__(self, setup: Setup) -> None:
        # It would import torch, for converters that are not wanted here, and its memory would be that of torch.
        sys.modules["torch"] = None  # type: ignore[assignment]
        import ctranslate2

        self._translator = ctranslate2.Translator(
            setup.export,
            device="cpu",
            compute_type=setup.precision,
            inter_threads=setup.workers,
            intra_threads=setup.threads,
        )
        self._tokenizers = Tokenizers.load(setup.model)
        self._sources = piece_names(self._tokenizers.source)
        targets = piece_names(self._tokenizers.target)
        self._ids = {name: number for number, name in enumerate(targets)}

    def translate(self, lines: Sequence[str], search: Search) -> tuple[list[str], int]:
        """See Subject."""
        encoded = self._tokenizers.source.encode_batch(lines)
        pieces = [[self._sources[number] for number in ids] for ids in encoded]
        options = ctranslate2_options(search, encoded)
        found = self._translator.translate_batch(
            pieces, max_batch_size=search.lines.max_tokens, batch_type="tokens", **options
        )
        ids = [[self._ids[piece] for piece in one.hypotheses[0]] for one in found]
        # CTranslate2 does not return the ends; a translation that reached the limit has none.
        tokens = sum(min(len(row) + 1, options["max_decoding_length"]) for row in ids)
        return [self._tokenizers.target.decode(row) for row in ids], tokens

    def seconds_of_lines(self, lines: Sequence[str], search: Search) -> list[float]:
        """See Subject."""
        seconds = []
        for line in lines:
            began = time.perf_counter()
            self.translate([line], search)
            seconds.append(time.perf_counter() - began)
        return seconds


def ctranslate2_options(search: Search, encoded: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The search as CTranslate2's options, all else as it is by default, which is its quickest.

    Its limit to the length is one for all lines: the longest that any of these sources may have.
    """
    rules = search.rules
    most = max(int(rules.max_length_ratio * len(row)) + rules.max_length_offset for row in encoded)
    return {
        "beam_size": search.beam_size if isinstance(search, Beam) else 1,
        "length_penalty": search.length_penalty if isinstance(search, Beam) else 0.0,
        "patience": max(1.0, search.patience) if isinstance(search, Beam) else 1.0,
        "max_decoding_length": max(1, min(rules.max_length, most)),
        "min_decoding_length": rules.min_length,
        "max_input_length": 0,
        "no_repeat_ngram_size": rules.no_repeat_ngram,
        "repetition_penalty": rules.repetition_penalty,
        "disable_unk": not rules.allow_unknown,
    }


def answer(subject: Subject, setup: Setup, task: Task, recipe: Recipe) -> dict[str, Any]:
    """What a task found: seconds and tokens of a pass, and its text where it is asked for; or seconds of each line."""
    search = Recipe.model_validate(dict(recipe) | {"search": task.search}).search
    lines = setup.lines[: task.lines]
    if task.alone:
        return {"seconds": subject.seconds_of_lines(lines, search)}
    began = time.perf_counter()
    texts, tokens = subject.translate(lines, search)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "tokens": tokens, "texts": texts if task.texts else []}


def main() -> None:
    """Serve until stdin ends. An error of the user's is answered, and is the last answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is the parent's business
    setup = Setup(**json.loads(sys.stdin.readline()))
    try:
        recipe = Recipe.load(setup.recipe)
        began = time.perf_counter()
        subject: Subject = Own(setup) if setup.engine == "mtkit" else CTranslate2(setup)
        _say({"load_seconds": time.perf_counter() - began})
        for row in sys.stdin:
            _say(answer(subject, setup, Task(**json.loads(row)), recipe))
    except MtkitError as error:
        _say({"error": error.message, "hint": error.hint})


def _say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
