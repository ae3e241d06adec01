"""Holding out validation pairs from training corpora, so that nothing of them is left in what is trained on.

A sentence may stand in a corpus many times. A held-out pair whose source, or target, is in training too would be
recited, and its score say nothing; so every pair that shares a sentence with a held-out one leaves training. Sentences
count as the same when their letters and digits are, whatever case, spaces and punctuation do.
"""

import contextlib
import random
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mtkit.data.corpus import Pair, read_pairs
from mtkit.data.progress import follow
from mtkit.errors import DataError
from mtkit.files import atomic_folder
from mtkit.sections.data import Corpus

_CANDIDATES_FOR_ONE = 3
_LONGEST = 2_000  # characters; longer lines are rarely sentences
_SEED = 1
_REMEDY = "give validation files of your own: --valid SOURCE TARGET"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What was written: the pairs of `train`, one corpus for each of the originals, and of `valid`.

    `dropped` pairs are in neither: they share a sentence with a held-out one.
    """

    train: list[Corpus]
    valid: Corpus
    train_pairs: int
    valid_pairs: int
    dropped: int


def wanted_pairs(pairs: int) -> int:
    """How many pairs to hold out of so many: one in twenty, at most 1,000."""
    return min(1000, pairs // 20)


def key(text: str) -> str:
    """What a sentence is compared by.

    >>> key("Hello,  World!") == key("hello world")
    True
    """
    letters = "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
    return letters or "".join(text.split())


def hold_out(corpora: Sequence[Corpus], count: int, folder: Path, languages: tuple[str, str]) -> HeldOut:
    """Write the corpora without `count` pairs, and these, into a new `folder`; the corpora stay as they are.

    Files: CORPUS.LANGUAGE and valid.LANGUAGE, plain text. Pairs whose sentences are rare in the corpora are preferred,
    so that few have to be dropped. Memory holds the candidates alone. The same corpora give the same files.
    Raises DataError when the corpora are too small, or all alike.
    """
    assert not folder.exists()
    chosen = _rarest(corpora, _draw(corpora, _CANDIDATES_FOR_ONE * count), count)
    places = {(number, pair.line_number) for number, pair in chosen}
    sources, targets = {key(pair.source) for _, pair in chosen}, {key(pair.target) for _, pair in chosen}
    names = [corpus.name if corpus.name != "valid" else "valid-1" for corpus in corpora]
    kept = dropped = 0
    with atomic_folder(folder) as new, contextlib.ExitStack() as stack:

        def open_both(name: str) -> list[IO[bytes]]:
            return [stack.enter_context(open(new / f"{name}.{language}", "wb")) for language in languages]

        to_valid, to_train = open_both("valid"), [open_both(name) for name in names]
        for number, pair in follow(_pairs(corpora), "holding out"):
            if (number, pair.line_number) in places:
                _append(to_valid, pair)
            elif key(pair.source) in sources or key(pair.target) in targets:
                dropped += 1
            else:
                _append(to_train[number], pair)
                kept += 1
        stack.close()
        if not kept:
            raise DataError(f"no pair would be left to train on beside {len(chosen)} held-out ones", _REMEDY)
    train = [_corpus(folder, name, languages) for name in names]
    return HeldOut(train, _corpus(folder, "valid", languages), kept, len(chosen), dropped)


def _corpus(folder: Path, name: str, languages: tuple[str, str]) -> Corpus:
    source, target = (str(folder / f"{name}.{language}") for language in languages)
    return Corpus(name=name, source=source, target=target)


def _pairs(corpora: Sequence[Corpus]) -> Iterator[tuple[int, Pair]]:
    """All pairs in order, each with the number of its corpus."""
    for number, corpus in enumerate(corpora):
        for pair in read_pairs(corpus, Path()):
            yield number, pair


def _append(streams: Sequence[IO[bytes]], pair: Pair) -> None:
    for stream, text in zip(streams, (pair.source, pair.target), strict=True):
        stream.write(text.encode("utf-8") + b"\n")


def _draw(corpora: Sequence[Corpus], count: int) -> list[tuple[int, Pair]]:
    """A uniform sample of pairs with text on both sides, in the order of the corpora (Vitter 1985, algorithm R)."""
    chance = random.Random(_SEED)
    drawn: list[tuple[int, Pair]] = []
    seen = 0
    for number, pair in follow(_pairs(corpora), "drawing"):
        if not key(pair.source) or not key(pair.target) or max(len(pair.source), len(pair.target)) > _LONGEST:
            continue
        seen += 1
        if len(drawn) < count:
            drawn.append((number, pair))
        elif (place := chance.randrange(seen)) < count:
            drawn[place] = number, pair
    return sorted(drawn, key=lambda row: (row[0], row[1].line_number))


def _rarest(corpora: Sequence[Corpus], candidates: list[tuple[int, Pair]], count: int) -> list[tuple[int, Pair]]:
    """Up to `count` candidates, no two of which share a sentence, the rarest first."""
    sources = dict.fromkeys((key(pair.source) for _, pair in candidates), 0)
    targets = dict.fromkeys((key(pair.target) for _, pair in candidates), 0)
    for _, pair in follow(_pairs(corpora), "counting"):
        for counts, text in ((sources, pair.source), (targets, pair.target)):
            name = key(text)
            if name in counts:
                counts[name] += 1
    chosen: list[tuple[int, Pair]] = []
    seen_sources, seen_targets = set[str](), set[str]()
    # Shuffled first: among equally rare ones, and sorting is stable, the order of the corpora must not decide.
    random.Random(_SEED).shuffle(candidates)
    for number, pair in sorted(candidates, key=lambda row: sources[key(row[1].source)] + targets[key(row[1].target)]):
        source, target = key(pair.source), key(pair.target)
        if source not in seen_sources and target not in seen_targets and len(chosen) < count:
            chosen.append((number, pair))
            seen_sources.add(source)
            seen_targets.add(target)
    if not chosen:
        raise DataError("the training corpora are too small to hold anything out of them", _REMEDY)
    return chosen
