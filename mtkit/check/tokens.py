"""What a tokenizer makes of the corpora: fertility, unknown tokens, what the filters leave; large ones by a sample."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mtkit.check.facts import CorpusFacts
from mtkit.check.findings import Texts
from mtkit.check.gather import usable_cores
from mtkit.data.encode import Chunk, Encoded, Encoder
from mtkit.data.workers import encode_all
from mtkit.errors import MtkitError, RecipeError
from mtkit.initial import initial_model, starting_tokenizers
from mtkit.lines import Occurrences
from mtkit.recipe import Recipe
from mtkit.stages import done, run_folder, tokenizer_inputs
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train

_CHUNK = 2048
_WORTH_A_PROCESS = 20_000
_SMALLEST_VOCABULARY = 64
WITHOUT_SPACES = ("zh", "zho", "cmn", "yue", "ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo")
"""Languages in which words are not set apart, so that tokens a word say nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokenizers of a check, and where they come from, in words. `stands_in`: the run's own will be another."""

    tokenizers: Tokenizers
    origin: str
    stands_in: bool


def choose(recipe: Recipe, given: Path | None, texts: Sequence[tuple[str, str]], whole: bool) -> Choice:
    """The tokenizers that a run would use, or the nearest to them, in this order.

    Those of the folder `given`; those of the run folder, where text and settings are still the same; those of the
    model to start from; or new ones learnt from `texts`, which nobody keeps. The latter are the run's own, to the last
    bit, where the texts are `whole` training text. Raises MtkitError, as training them would.
    """
    if given is not None:
        return Choice(Tokenizers.load(given), f"of {given}", False)
    run = run_folder(recipe)
    if done(run).get("tokenizer") == tokenizer_inputs(recipe):
        try:
            return Choice(Tokenizers.load(run.path), f"of the run folder {run.path}", False)
        except MtkitError:
            pass  # it is missing or damaged, and will be made again, as here
    initial = initial_model(recipe)
    if initial is not None:
        return Choice(starting_tokenizers(initial, recipe), f"of {initial.folder}", False)
    return _learnt(recipe, texts, whole)


def _learnt(recipe: Recipe, texts: Sequence[tuple[str, str]], whole: bool) -> Choice:
    section = recipe.tokenizer
    same = whole and 2 * len(texts) <= section.max_sentences
    size = section.vocab_size
    while True:
        smaller = section.model_copy(update={"vocab_size": size})
        try:
            with tempfile.TemporaryDirectory(prefix="mtkit-check-") as folder:
                tokenizers = train(
                    smaller, (one for one, _ in texts), (other for _, other in texts), recipe.symbols(), Path(folder)
                )
            break
        except RecipeError:
            # A sample may hold too little text for a vocabulary that the whole corpus fills.
            if whole or size // 2 < _SMALLEST_VOCABULARY:
                raise
            size //= 2
    told = "the training text" if whole else f"a sample of {len(texts):,} pairs"
    if size != section.vocab_size:
        told += f", with {size:,} entries instead of {section.vocab_size:,}, which the sample cannot fill"
    return Choice(tokenizers, f"learnt for this check from {told}, and not kept", not same)


@dataclass(slots=True)
class SideTokens:
    """One side of the pairs that are kept: sums over their normalised text."""

    tokens: int = 0
    unknown: int = 0
    words: int = 0
    characters: int = 0

    def to_json(self, spaced: bool) -> dict[str, Any]:
        """Sums and ratios as JSON values; tokens a word only where words are set apart by spaces."""
        return {
            "tokens": self.tokens,
            "unknown": self.unknown,
            "unknown_share": self.unknown / max(1, self.tokens),
            "tokens_per_word": self.tokens / max(1, self.words) if spaced else None,
            "characters_per_token": self.characters / max(1, self.tokens),
        }


@dataclass(slots=True)
class CorpusTokens:
    """What the tokenizer made of a corpus, or of a sample of `pairs` pairs of it. Lengths are without EOS."""

    facts: CorpusFacts
    pairs: int
    source: SideTokens = field(default_factory=SideTokens)
    target: SideTokens = field(default_factory=SideTokens)
    dropped: dict[str, Occurrences] = field(default_factory=dict)
    source_lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    target_lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def kept(self) -> int:
        """Pairs that training would use."""
        return len(self.source_lengths)

    @property
    def scale(self) -> float:
        """Pairs of the corpus for each pair that was looked at."""
        return self.facts.pairs / max(1, self.pairs)


def draw_lines(facts: CorpusFacts, share: float, seed: int, number: int) -> np.ndarray:
    """The line numbers of a uniform sample without replacement, ascending; all of them when `share` is 1."""
    count = facts.pairs if share >= 1 else max(1, min(facts.pairs, round(share * facts.pairs)))
    if count >= facts.pairs:
        return np.arange(1, facts.pairs + 1)
    rng = np.random.default_rng([seed, 4, number])
    return np.sort(rng.choice(facts.pairs, count, replace=False)) + 1


def encode_sample(
    facts: CorpusFacts, lines: np.ndarray, texts: Texts, tokenizers: Tokenizers, recipe: Recipe
) -> CorpusTokens:
    """Encode and filter some lines of a corpus, as binarization would. Raises ModelError for an unknown tag."""
    tags = tuple(tokenizers.source.symbol_id(tag) for tag in facts.corpus.tags)
    encoder = Encoder(tokenizers, recipe.filters if facts.part == "train" else None, tags)
    repeated = None
    if facts.part == "train" and recipe.filters.drop_duplicates and facts.duplicates is not None:
        repeated = facts.duplicates.mask[lines - 1]
    result = CorpusTokens(facts, len(lines))
    chunks = _chunks(facts, lines, texts, repeated)
    workers = max(1, min(usable_cores(), len(lines) // _WORTH_A_PROCESS))
    lengths: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for number, encoded in enumerate(encode_all(chunks, encoder, workers)):
        _add(result, encoded, len(tags))
        _measure(result, lines[number * _CHUNK : (number + 1) * _CHUNK], number * _CHUNK, encoded, texts)
        lengths[0].append(encoded.source_lengths)
        lengths[1].append(encoded.target_lengths)
    if lengths[0]:
        result.source_lengths, result.target_lengths = (np.concatenate(side) for side in lengths)
    return result


def _chunks(facts: CorpusFacts, lines: np.ndarray, texts: Texts, repeated: np.ndarray | None) -> Iterator[Chunk]:
    """Chunks whose line numbers are places in the sample, from 1."""
    for begin in range(0, len(lines), _CHUNK):
        pairs = texts.pairs(facts, lines[begin : begin + _CHUNK])
        some = None if repeated is None else repeated[begin : begin + _CHUNK]
        yield Chunk(begin + 1, [one for one, _ in pairs], [other for _, other in pairs], some)


def _add(result: CorpusTokens, encoded: Encoded, tags: int) -> None:
    """Add the sums of a chunk to the result (mutates it). Corpus tags count as no text."""
    result.source.tokens += len(encoded.source_ids) - tags * len(encoded.line_numbers)
    result.target.tokens += len(encoded.target_ids)
    result.source.unknown += encoded.source_unknown
    result.target.unknown += encoded.target_unknown
    for reason, drop in encoded.dropped.items():
        result.dropped.setdefault(reason, Occurrences()).merge(drop)


def _measure(result: CorpusTokens, lines: np.ndarray, begin: int, encoded: Encoded, texts: Texts) -> None:
    """Add words and characters of the kept pairs of a chunk to the result (mutates it)."""
    kept = lines[encoded.line_numbers.astype(np.int64) - 1 - begin]
    for pair in texts.pairs(result.facts, kept):
        for side, text in zip((result.source, result.target), pair, strict=True):
            norm = normalize(text)
            side.words += norm.count(" ") + 1
            side.characters += len(norm)
