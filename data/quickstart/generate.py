"""Generates the quickstart corpus: Chinese and English sentences from one grammar, the same for the same seed.

    python data/quickstart/generate.py --output data/quickstart --seed 20

writes train, valid and test (.zh and .en), one sentence a line, and held_out.tsv: the word combinations that training
and validation never contain, and how many test sentences use each.

How it works: a construction (in tenses.py, describing.py, questions.py ...) draws words from the lexicon and builds the
Chinese and the English side together. Each sentence carries the word combinations that it makes. Some of
all combinations are held out beforehand: no training or validation sentence has both words of one in it, and a part of
the test sentences is made with them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import comparing
import describing
import everyday
import joined
import possession
import questions
import tenses
import travel
from grammar import WEIGHTS
from phrases import Combination, Phrases

SEED = 20
TRAIN, VALID, TEST = 20_000, 500, 1_000
TEST_HELD_OUT = 300  # of the test sentences, these hold a combination that training never does
HELD_OUT_SHARE = 0.08
CANDIDATES = 4  # of so many sentences the one with the rarest word is taken, so that no word stays rare

# The README's example. It is in none of the files, so that the trained model has to compose it.
EXAMPLE = ("我爱北京天安门。", "I love Tiananmen in Beijing.")

# Importing these fills WEIGHTS, the list of constructions.
MODULES = (tenses, travel, describing, comparing, possession, questions, joined, everyday)
KINDS = ("verb-object", "adjective-noun", "person-place")


@dataclass(frozen=True)
class Pair:
    """One sentence on both sides, the construction that built it, and the word combinations in it."""

    zh: str
    en: str
    construction: str
    combinations: frozenset[Combination]


@dataclass(frozen=True)
class Corpus:
    """The three splits, and the combinations that only the test set may hold."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    held_out: frozenset[Combination]

    def is_novel(self, pair: Pair) -> bool:
        """Whether the pair makes a combination that training never does."""
        return not self.held_out.isdisjoint(pair.combinations)


def sentence(zh: str, en: str) -> tuple[str, str]:
    """Both sides with their final mark, and the English with its capital."""
    asked = zh.endswith("？")
    return (zh if asked else f"{zh}。"), f"{en[0].upper()}{en[1:]}{'?' if asked else '.'}"


def draw(rng: random.Random) -> Pair:
    """One random sentence."""
    (construct,) = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    phrases = Phrases(rng)
    zh, en = sentence(*construct(phrases))
    # A construction may draw a word and drop it again.
    made = frozenset(c for c in phrases.combinations if c[1] in zh and c[2] in zh)
    return Pair(zh, en, construct.__name__, made)


def words(en: str) -> set[str]:
    """The distinct English words of a sentence, without punctuation and capitals."""
    return {word.strip(".,?").lower() for word in en.split()}


def hold_out(rng: random.Random) -> frozenset[Combination]:
    """The combinations kept from training: a share of each kind, and at most a quarter of any one word's."""
    drawn = Counter(combination for _ in range(30_000) for combination in draw(rng).combinations)
    held_out: set[Combination] = set()
    for kind in KINDS:
        candidates = sorted(c for c, count in drawn.items() if c[0] == kind and count >= 2)
        words = Counter(word for c in candidates for word in set(c[1:]))
        held_words: Counter[str] = Counter()
        rng.shuffle(candidates)
        wanted = round(HELD_OUT_SHARE * len(candidates))
        for combination in candidates:
            pair = set(combination[1:])
            if wanted and all(held_words[word] + 1 <= words[word] / 4 for word in pair):
                held_out.add(combination)
                held_words.update(pair)
                wanted -= 1
    return frozenset(held_out)


def build(seed: int = SEED, train: int = TRAIN) -> Corpus:
    """The corpus for a seed, with `train` training pairs.

    No sentence occurs twice on either side, in one split or in two.
    """
    rng = random.Random(seed)
    held_out = hold_out(rng)
    held_words = [(first, second) for _, first, second in sorted(held_out)]
    enough = train + VALID + TEST - TEST_HELD_OUT
    english_of: dict[str, str] = {EXAMPLE[0]: EXAMPLE[1]}
    seen_english = {EXAMPLE[1]}
    used: Counter[str] = Counter()  # how many sentences have each English word so far
    known: list[Pair] = []
    novel: list[Pair] = []
    while len(known) < enough or len(novel) < TEST_HELD_OUT:
        candidates = [draw(rng) for _ in range(CANDIDATES)]
        for pair in candidates:
            assert english_of.setdefault(pair.zh, pair.en) == pair.en, f"two translations of {pair.zh}"
        pair = min(candidates, key=lambda pair: min(used[word] for word in words(pair.en)))
        makes = not held_out.isdisjoint(pair.combinations)
        # Stricter than needed, and plain to check: no known sentence even mentions both words of a combination.
        mentions = not makes and any(first in pair.zh and second in pair.zh for first, second in held_words)
        if pair.en in seen_english or mentions:
            continue
        seen_english.add(pair.en)
        used.update(words(pair.en))
        (novel if makes else known).append(pair)
    known = known[:enough]
    rng.shuffle(known)
    rng.shuffle(novel)
    test = known[train + VALID :] + novel[:TEST_HELD_OUT]
    rng.shuffle(test)
    return Corpus(known[:train], known[train : train + VALID], test, held_out)


def write(corpus: Corpus, directory: Path) -> None:
    """Writes the six text files and held_out.tsv."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test)):
        _write_lines(directory / f"{name}.zh", [pair.zh for pair in pairs])
        _write_lines(directory / f"{name}.en", [pair.en for pair in pairs])
    uses = Counter(c for pair in corpus.test for c in pair.combinations)
    rows = ["\t".join((*c, str(uses[c]))) for c in sorted(corpus.held_out)]
    _write_lines(directory / "held_out.tsv", ["kind\tfirst\tsecond\ttest sentences", *rows])


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="folder to write to (default: this one)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help=f"another seed gives another corpus (default: {SEED})")
    parser.add_argument("--train", type=int, default=TRAIN, help=f"training pairs (default: {TRAIN})")
    arguments = parser.parse_args()
    corpus = build(arguments.seed, arguments.train)
    write(corpus, arguments.output)
    counts = Counter(c[0] for c in corpus.held_out)
    novel = sum(corpus.is_novel(pair) for pair in corpus.test)
    print(
        f"{len(corpus.train)} training, {len(corpus.valid)} validation, {len(corpus.test)} test pairs", file=sys.stderr
    )
    print(f"held out: {dict(sorted(counts.items()))}; in {novel} test sentences", file=sys.stderr)


if __name__ == "__main__":
    main()
