"""Repeated pairs: the first stays, in any number and order, compared after normalisation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtkit.data import duplicates
from mtkit.data.corpus import Pair
from mtkit.data.duplicates import find_repetitions
from mtkit.text.normalize import normalize

WORDS = st.sampled_from(["", "a", "b", " a ", "e\u0301", "é", "a\u2028"])


@given(st.lists(st.tuples(WORDS, WORDS), max_size=40), st.integers(1, 7))
def test_all_but_the_first_of_equal_pairs_are_marked(tmp_path_factory, pairs, step):
    scratch = tmp_path_factory.mktemp("scratch")
    rows = [Pair(source, target, number) for number, (source, target) in enumerate(pairs, 1)]
    repeated = find_repetitions(iter(rows), len(rows), scratch)
    keys = [(normalize(source), normalize(target)) for source, target in pairs]
    expected = [key in keys[:place] for place, key in enumerate(keys)]
    found = [mark for first in range(0, len(rows), step) for mark in repeated(first + 1, min(step, len(rows) - first))]
    assert found == expected
    assert list(scratch.iterdir()) == []


def test_sides_are_kept_apart(tmp_path):
    rows = [Pair("a b", "c", 1), Pair("a", "b c", 2), Pair("a b c", "", 3), Pair("c", "a b", 4)]
    assert not find_repetitions(rows, 4, tmp_path)(1, 4).any()


def test_many_pairs_over_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_PARTITION_PAIRS", 700)
    chance = np.random.default_rng(1)
    numbers = chance.integers(0, 3000, 5000)
    rows = [Pair(f"s{number}", f"t{number}", line) for line, number in enumerate(numbers, 1)]
    first = set(np.unique(numbers, return_index=True)[1].tolist())
    assert find_repetitions(rows, 5000, tmp_path)(1, 5000).tolist() == [place not in first for place in range(5000)]
