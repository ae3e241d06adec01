"""Filters: the reasons, their bounds and their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.data.filters import REASONS, reject
from mtkit.sections.data import Filters


def verdict(source_length: int, target_length: int, tags: int = 0, source="a", target="b", **settings) -> str | None:
    return reject(source, target, [9] * source_length, [9] * target_length, Filters(**settings), tags)


@pytest.mark.parametrize(
    ("lengths", "settings", "reason"),
    [
        ((0, 3), {}, "empty"),
        ((3, 0), {"min_length": 0}, "empty"),
        ((1, 1), {}, None),
        ((1, 5), {"min_length": 2}, "too_short"),
        ((5, 1), {"min_length": 2}, "too_short"),
        ((2, 2), {"min_length": 2}, None),
        ((8, 8), {"max_length": 8}, None),
        ((9, 8), {"max_length": 8}, "too_long"),
        ((8, 9), {"max_length": 8}, "too_long"),
        ((2, 4), {"max_ratio": 2}, None),
        ((4, 2), {"max_ratio": 2}, None),
        ((2, 5), {"max_ratio": 2}, "ratio"),
        ((5, 2), {"max_ratio": 2}, "ratio"),
        ((1, 99), {}, None),
    ],
)
def test_length_filters_at_their_bounds(lengths, settings, reason):
    assert verdict(*lengths, **settings) == reason


def test_a_copy_is_recognised_after_normalisation_and_only_on_request():
    assert verdict(2, 2, source="e\u0301 a", target=" é\u2028a", drop_identical=True) == "identical"
    assert verdict(2, 2, source="é a", target="É a", drop_identical=True) is None
    assert verdict(2, 2, source="a", target="a") is None


def test_tags_count_for_the_greatest_length_alone():
    assert verdict(2, 5, tags=2) == "empty"
    assert verdict(3, 5, tags=2, min_length=2) == "too_short"
    assert verdict(9, 2, tags=1, max_length=8) == "too_long"
    assert verdict(8, 6, tags=2, max_ratio=1) is None


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.integers(1, 5), st.sampled_from([None, 1.0, 1.5]))
def test_kept_pairs_meet_every_filter(source, target, low, high, ratio):
    reason = verdict(source, target, min_length=low, max_length=high, max_ratio=ratio)
    fits = min(source, target) >= max(1, low) and max(source, target) <= high
    fits = fits and (ratio is None or max(source, target) <= ratio * min(source, target))
    assert (reason is None) == fits
    assert reason is None or reason in REASONS
