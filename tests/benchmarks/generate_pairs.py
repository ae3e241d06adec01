"""Write made-up sentence pairs of realistic lengths, to measure on corpora of a size that cannot lie in the repository.

    python tests/benchmarks/generate_pairs.py --pairs 4500000 --folder DIR           DIR/train.source, DIR/train.target
    python tests/benchmarks/generate_pairs.py --pairs 450000 --folder DIR --gz       the same as .gz

Words are made of syllables, frequent ones of fewer; their frequencies follow Zipf and Mandelbrot, 1 / (rank + 2.7), and
sentence lengths a log-normal of median 22 and mean 26 words, cut at 120: about what WMT14 English-German has. A target
sentence holds the translation of each source word, a few of them dropped, doubled or moved. The same seed gives the
same lines, whatever the number of pairs asked for beyond them; memory does not grow with that number.
"""

import argparse
import gzip
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 120_000
CHUNK = 10_000
ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "h",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "sch",
    "st",
    "t",
    "v",
    "z",
)
SOURCE_VOWELS, TARGET_VOWELS = ("a", "e", "i", "o", "u", "ai"), ("ä", "e", "ie", "ö", "au", "ü", "o")
CODAS = ("", "", "", "", "n", "r", "l", "s", "t", "ng")


def invent_words(vowels: tuple[str, ...], chance: np.random.Generator) -> np.ndarray:
    """`VOCABULARY` different words, the most frequent first, as an array of str."""
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        longest = 1 + sum(len(words) >= rank for rank in (200, 1_000, 20_000))
        syllables = int(chance.integers(max(1, longest - 1), longest + 1))
        parts = [
            f"{ONSETS[chance.integers(len(ONSETS))]}{vowels[chance.integers(len(vowels))]}"
            f"{CODAS[chance.integers(len(CODAS))]}"
            for _ in range(syllables)
        ]
        words["".join(parts)] = None
    return np.array(list(words), dtype=object)


def chunk_of_pairs(
    number: int, seed: int, source_words: np.ndarray, target_words: np.ndarray, shares: np.ndarray
) -> Iterator[tuple[str, str]]:
    """The pairs of one chunk; a function of seed and number alone. `shares` are the summed frequencies of the words."""
    chance = np.random.default_rng([seed, number])
    lengths = np.clip(np.round(chance.lognormal(np.log(22), 0.58, CHUNK)), 1, 120).astype(np.int64)
    ends = np.cumsum(lengths)
    ranks = np.minimum(np.searchsorted(shares, chance.random(ends[-1])), VOCABULARY - 1)
    # In the target a word is there 0 to 2 times, and may stand up to three places from where it was.
    copies = chance.choice(3, len(ranks), p=(0.1, 0.86, 0.04))
    copies[ends - 1] = 1
    sentence = np.repeat(np.repeat(np.arange(CHUNK), lengths), copies)
    place = np.repeat(np.arange(len(ranks)), copies) + chance.normal(0, 0.8, copies.sum())
    order = np.lexsort((place, sentence))
    target_ranks = np.repeat(ranks, copies)[order]
    target_ends = np.searchsorted(sentence, np.arange(CHUNK), side="right")
    sources, targets = source_words[ranks].tolist(), target_words[target_ranks].tolist()
    marks = chance.choice(np.array([".", ".", ".", "!", "?", ""], dtype=object), CHUNK).tolist()
    begin = target_begin = 0
    for end, target_end, mark in zip(ends.tolist(), target_ends.tolist(), marks, strict=True):
        source, target = " ".join(sources[begin:end]), " ".join(targets[target_begin:target_end])
        yield f"{source[:1].upper()}{source[1:]}{mark}", f"{target[:1].upper()}{target[1:]}{mark}"
        begin, target_begin = end, target_end


def pairs(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """`count` pairs; the same seed gives the same ones."""
    chance = np.random.default_rng(seed)
    source_words, target_words = invent_words(SOURCE_VOWELS, chance), invent_words(TARGET_VOWELS, chance)
    frequencies = 1 / (np.arange(VOCABULARY) + 2.7)
    shares = np.cumsum(frequencies / frequencies.sum())
    for number in range(-(-count // CHUNK)):
        for place, pair in enumerate(chunk_of_pairs(number, seed, source_words, target_words, shares)):
            if number * CHUNK + place == count:
                return
            yield pair


def write(folder: Path, name: str, count: int, seed: int, compress: bool) -> tuple[Path, Path]:
    """Write `count` pairs as folder/NAME.source and NAME.target (.gz); returns the two paths."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".gz" if compress else ""
    paths = folder / f"{name}.source{suffix}", folder / f"{name}.target{suffix}"

    with ExitStack() as stack:
        streams: list[Any] = [stack.enter_context(open(path, "wb")) for path in paths]
        if compress:
            streams = [
                stack.enter_context(gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0)) for file in streams
            ]
        for pair in pairs(count, seed):
            for stream, text in zip(streams, pair, strict=True):
                stream.write(text.encode("utf-8") + b"\n")
    return paths


def main() -> int:
    """Write the files; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, required=True, help="how many pairs")
    options.add_argument("--folder", type=Path, required=True, help="where to put the two files")
    options.add_argument("--name", default="train", help="first part of the files' names (default train)")
    options.add_argument("--seed", type=int, default=1, help="another seed, other pairs (default 1)")
    options.add_argument("--gz", action="store_true", help="compress the files")
    chosen = options.parse_args()
    for path in write(chosen.folder, chosen.name, chosen.pairs, chosen.seed, chosen.gz):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
