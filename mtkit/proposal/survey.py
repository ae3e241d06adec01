"""What a parallel corpus is like: its size, the lengths of its sentences in words and tokens, its characters."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from mtkit.data.corpus import Pair, read_pairs
from mtkit.data.progress import follow
from mtkit.errors import DataError, RecipeError
from mtkit.lineage import corpus_names
from mtkit.sections.data import Corpus, TokenizerSection
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train

SAMPLE_PAIRS = 50_000
_LEAST_VOCABULARY = 16


@dataclass(frozen=True, slots=True)
class Survey:
    """`pairs` with text on both sides; of a uniform sample of them the texts, words on average, and characters."""

    pairs: int
    blank: int
    sources: list[str]
    targets: list[str]
    characters: int

    @property
    def source_words(self) -> float:
        """Words of a source sentence, on average; what stands between spaces."""
        return _mean_words(self.sources)

    @property
    def target_words(self) -> float:
        """Words of a target sentence, on average."""
        return _mean_words(self.targets)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A vocabulary tried on the sample: its size, the tokens of each pair without ends, characters a token."""

    vocab_size: int
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    characters_a_token: float

    def length_of(self, share: float) -> int:
        """The tokens that this share of the pairs does not exceed on either side."""
        longer = np.maximum(self.source_lengths, self.target_lengths)
        return int(np.quantile(longer, share, method="higher"))


def survey(corpora: Sequence[Corpus], seed: int = 1) -> Survey:
    """Read corpora once. Raises DataError as `read_pairs` does, and when no pair has text on both sides."""
    chance = random.Random(seed)
    kept: list[tuple[int, Pair]] = []
    pairs = blank = 0
    for pair in follow(chain.from_iterable(read_pairs(corpus, Path()) for corpus in corpora), "reading"):
        if not pair.source.strip() or not pair.target.strip():
            blank += 1
            continue
        pairs += 1
        if len(kept) < SAMPLE_PAIRS:
            kept.append((pairs, pair))
        elif (place := chance.randrange(pairs)) < SAMPLE_PAIRS:
            kept[place] = (pairs, pair)
    if not pairs:
        names = " and ".join(corpus_names(corpora))
        raise DataError(f"{names}: no pair has text on both sides", "are these the files of the training corpus?")
    kept.sort(key=lambda row: row[0])
    sources, targets = [pair.source for _, pair in kept], [pair.target for _, pair in kept]
    characters = Counter[str]()
    for text in (*sources, *targets):
        characters.update(text)
    return Survey(pairs, blank, sources, targets, len(characters))


def try_vocabulary(found: Survey, section: Callable[[int], TokenizerSection], wanted: int) -> Tokens:
    """Learn a vocabulary of about `wanted` entries from the sample, smaller where the text does not fill it.

    Raises RecipeError when no size fits.
    """
    size = wanted
    while True:
        try:
            tokenizers = _learn(section(size), found.sources, found.targets)
            break
        except RecipeError:
            if size <= max(_LEAST_VOCABULARY, wanted // 64):
                raise
            size = max(_LEAST_VOCABULARY, size * 3 // 4)
    sides = (tokenizers.source.encode_batch(found.sources), tokenizers.target.encode_batch(found.targets))
    lengths = [np.array([len(ids) for ids in side], dtype=np.int64) for side in sides]
    characters = sum(len(text) for text in (*found.sources, *found.targets))
    return Tokens(size, lengths[0], lengths[1], characters / max(1, int(lengths[0].sum() + lengths[1].sum())))


def _learn(section: TokenizerSection, sources: Iterable[str], targets: Iterable[str]) -> Tokenizers:
    with tempfile.TemporaryDirectory() as folder:
        return train(section, sources, targets, (), Path(folder))


def _mean_words(texts: list[str]) -> float:
    return sum(len(text.split()) for text in texts) / max(1, len(texts))
