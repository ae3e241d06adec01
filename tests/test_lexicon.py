"""IBM model 1 is its formulas, written out pair by pair; blocks, shards and a bounded table change nothing they should
not.
"""

import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from mtkit.data import lexicon
from mtkit.data.lexicon import Lexicon, learn
from mtkit.data.shards import Shard, open_shard, write_shard
from mtkit.ids import PAD

Pairs = list[tuple[list[int], list[int]]]
SIZES = (30, 40)


def invent(count: int, seed: int = 1) -> Pairs:
    """Pairs in which a source token e often stands beside the target token e + 5; tokens occur again within a pair."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [min(29, 4 + int(draw.expovariate(0.2))) for _ in range(draw.randint(1, 9))]
        target = [
            e + 5 if draw.random() < 0.8 else draw.randint(4, 39) for e in source for _ in range(draw.randint(0, 2))
        ]
        pairs.append((source, target or [4]))
    return pairs


def shards_of(pairs: Pairs, folder: Path, cuts: int = 1) -> list[Shard]:
    """The pairs as so many shards of about the same size."""
    shards = []
    for number in range(cuts):
        part = pairs[len(pairs) * number // cuts : len(pairs) * (number + 1) // cuts]
        flat = [np.array([token for pair in part for token in pair[side]], np.uint16) for side in (0, 1)]
        lengths = [np.array([len(pair[side]) for pair in part]) for side in (0, 1)]
        path = folder / f"{len(pairs)}-{cuts}-{number}.shard"
        write_shard(path, *flat, *lengths, np.arange(1, len(part) + 1), {})
        shards.append(open_shard(path))
    return shards


def slow_model_1(pairs: Pairs, iterations: int) -> dict[tuple[int, int], float]:
    """t(f | e) by the book: a dictionary, two loops over tokens, the empty word in the place of PAD."""
    t = {(e, f): 1.0 for source, target in pairs for e in [PAD, *source] for f in target}
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in pairs:
            for f in target:
                total = sum(t[e, f] for e in [PAD, *source])
                for e in [PAD, *source]:
                    counts[e, f] += t[e, f] / total
        totals: dict[int, float] = defaultdict(float)
        for (e, _), count in counts.items():
            totals[e] += count
        t = {(e, f): count / totals[e] for (e, f), count in counts.items()}
    return t


def table(learnt: Lexicon) -> dict[tuple[int, int], float]:
    return {divmod(key, SIZES[1]): t for key, t in zip(learnt.keys_E.tolist(), learnt.t_E.tolist(), strict=True)}


@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("couples", [1, 100, 10**6])
@pytest.mark.parametrize("cuts", [1, 3])
def test_equals_the_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int, couples: int, cuts: int
) -> None:
    """Whatever the blocks and shards are, down to one pair each."""
    monkeypatch.setattr(lexicon, "_COUPLES", couples)
    pairs = invent(120)
    found = table(learn(shards_of(pairs, tmp_path, cuts), SIZES, iterations))
    wanted = slow_model_1(pairs, iterations)
    assert found.keys() == wanted.keys()
    for couple, t in wanted.items():
        assert found[couple] == pytest.approx(t, rel=1e-9)


def test_the_best_are_those_of_the_formulas_and_the_frequent_are_counted(tmp_path: Path) -> None:
    pairs = invent(300)
    learnt, wanted = learn(shards_of(pairs, tmp_path), SIZES), slow_model_1(pairs, 5)
    best = learnt.best(3)
    assert len(best) == SIZES[0]
    assert best[PAD].tolist() == []  # the empty word is nobody's
    for e in range(4, SIZES[0]):
        own = sorted(((-t, f) for (other, f), t in wanted.items() if other == e))[:3]
        assert [wanted[e, f] for f in best[e].tolist()] == pytest.approx([-t for t, _ in own])
    assert all(best[e][0] == e + 5 for e in range(4, 20)), "what the pairs were made of"
    counts = Counter(f for _, target in pairs for f in target)
    order = sorted(counts, key=lambda f: (-counts[f], f))
    assert learnt.frequent(7).tolist() == order[:7]
    assert learnt.frequent(1000).tolist() == order, "no token that never stood there"


def test_of_many_pairs_every_so_manieth_is_taken_across_shards(tmp_path: Path) -> None:
    pairs = invent(100)
    few = learn(shards_of(pairs, tmp_path, 4), SIZES, 2, max_pairs=30)
    wanted = slow_model_1(pairs[::4], 2)
    assert table(few) == pytest.approx(wanted)
    assert few.counts_V.sum() == sum(len(target) for _, target in pairs[::4])


def test_a_bounded_table_leaves_out_the_rarest_couples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_COUPLES", 200)
    pairs = invent(400)
    shards = shards_of(pairs, tmp_path)
    whole, bounded = table(learn(shards, SIZES)), table(learn(shards, SIZES, entries=250))
    assert 0 < len(bounded) <= 250 < len(whole)
    assert bounded.keys() < whole.keys()
    met = Counter((e, f) for source, target in pairs for e in source for f in target)
    assert all(couple in bounded for couple, _ in met.most_common(50)), "what meets often stays"
    for e in range(4, 15):
        assert max(t for (other, _), t in bounded.items() if other == e) == bounded[e, e + 5]


def test_a_table_without_room_for_anything_ends_well(tmp_path: Path) -> None:
    """Where all couples are equally rare, none is better than another."""
    learnt = learn(shards_of([([4, 5], [6, 7]), ([8, 9], [10, 11])], tmp_path), SIZES, entries=3)
    assert [ids.tolist() for ids in learnt.best(5)] == [[]] * SIZES[0]


def test_the_same_pairs_give_the_same_table(tmp_path: Path) -> None:
    pairs = invent(200)
    one, other = (learn(shards_of(pairs, tmp_path, cuts), SIZES) for cuts in (2, 2))
    assert np.array_equal(one.t_E, other.t_E)
