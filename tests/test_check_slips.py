"""Where lines slipped: found near the place it was planted, and nowhere in corpora that are well."""

import numpy as np
import pytest
from conftest import invent_pairs

from mtkit.check.slips import Slip, correlation, find_slips, told


def lengths(count: int, seed: int, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of sentences and of their translations, in characters: log-normal, as in real corpora."""
    rng = np.random.default_rng(seed)
    source = np.round(rng.lognormal(4.2, 0.6, count)) + 1
    target = np.round(1.1 * source * rng.lognormal(0, noise, count)) + 1
    return source.astype(np.int32), target.astype(np.int32)


INVENTED = tuple(np.array([len(pair[side]) for pair in invent_pairs(3000, 9)]) for side in (0, 1))
CORPORA = {
    "real-like": lengths(3000, 1),
    "noisy": lengths(3000, 2, 0.35),
    "invented": INVENTED,
    "tiny": lengths(120, 3),
}


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_lost_line_is_found_where_counts_differ(name, place, lost):
    source, target = CORPORA[name]
    line = int(place * len(source))
    if lost == "source":
        source = np.delete(source, line)
    else:
        target = np.delete(target, line)
    (slip,) = find_slips(source, target)
    assert slip.shift == (1 if lost == "source" else -1)
    assert abs(slip.first_line - (line + 1)) <= 15


@pytest.mark.parametrize("name", ["real-like", "noisy", "invented"])
@pytest.mark.parametrize("shift", [1, -1, 3, -5])
def test_a_shift_in_the_middle_is_found_where_counts_agree(name, shift):
    """One side loses lines and gets as many others back further on: line counts alone say that all is well."""
    source, target = CORPORA[name]
    first, last = 1000, 1600
    if shift < 0:
        target = np.concatenate([target[:first], target[first - shift : last], [40] * -shift, target[last:]])
    else:
        target = np.concatenate([target[:first], [40] * shift, target[first : last - shift], target[last:]])
    assert len(target) == len(source)
    (slip,) = find_slips(source, target)
    assert slip.shift == shift
    assert abs(slip.first_line - (first + 1)) <= 15
    assert abs(slip.last_line - last) <= 15


def test_a_whole_corpus_that_is_off_by_one_is_found():
    source, target = CORPORA["real-like"]
    (slip,) = find_slips(source, np.concatenate([[12], target[:-1]]))
    assert (slip.first_line, slip.shift) == (1, 1)
    assert slip.last_line >= len(source) - 15


def test_two_slips_are_found_in_order():
    source, target = CORPORA["real-like"]
    first, second = find_slips(source, np.delete(target, [700, 2000]))
    assert (first.shift, second.shift) == (-1, -2)
    assert abs(first.first_line - 701) <= 15
    assert abs(second.first_line - 2000) <= 15


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", ["well", "shuffled", "sorted", "sorted by target", "constant", "a few bad pairs"])
def test_nothing_is_found_where_nothing_slipped(seed, how):
    source, target = lengths(4000, 100 + seed)
    rng = np.random.default_rng(seed)
    if how == "shuffled":
        target = rng.permutation(target)
    elif how == "sorted":
        order = np.argsort(source, kind="stable")
        source, target = source[order], target[order]
    elif how == "sorted by target":
        order = np.argsort(target, kind="stable")
        source, target = source[order], target[order]
    elif how == "constant":
        source = np.full_like(source, 30)
    elif how == "a few bad pairs":
        bad = rng.choice(4000, 200, replace=False)
        target[bad] = rng.permutation(target[bad])
        target[1500:1504] = 900
    assert find_slips(source, target) == []


def test_blank_lines_on_one_side_are_no_slip():
    source, target = CORPORA["noisy"]
    target = target.copy()
    target[500:520] = 0
    assert find_slips(source, target) == []


@pytest.mark.parametrize(("source", "target"), [(5, 4), (0, 3), (1, 2), (20, 3), (3, 40), (200, 90)])
def test_any_unequal_counts_have_an_answer(source, target):
    one, other = lengths(source, 1)[0], lengths(target, 2)[1]
    assert any(slip.shift == target - source for slip in find_slips(one, other))


def test_no_lines_are_no_slip():
    empty = np.empty(0, np.int32)
    assert find_slips(empty, empty) == []
    assert correlation(empty, empty) == 0


def test_a_long_block_that_is_missing_is_found():
    source, target = CORPORA["real-like"]
    slips = find_slips(source, np.delete(target, slice(900, 1000)))
    assert slips[-1].shift == -100
    assert abs(slips[0].first_line - 901) <= 15


def test_slips_in_words():
    assert told([Slip(1200, 1500, 2, 9.0)]) == "from about line 1,200 to line 1,500, the target is 2 lines too late"
