"""What is told of a translation: loops, joined parts, counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.translation import BLANK, Line, Tally, TextHypothesis, Translation, has_loop, join


def hypothesis(text: str, logs: list[float], end: float | None = -0.5, **changes: object) -> TextHypothesis:
    """One token a word, aligned one to one."""
    tokens = text.split()
    values: dict[str, object] = {
        "text": text,
        "score": sum(logs) + (end or 0),
        "log_probability": sum(logs) + (end or 0),
        "token_log_probabilities": logs,
        "end_log_probabilities": [] if end is None else [end],
        "finished": end is not None,
        "looped": False,
        "tokens": tokens,
        "alignment": [(place, place) for place in range(len(tokens))],
    }
    return TextHypothesis(**values | changes)  # type: ignore[arg-type]


def translation(number: int = 1, hypotheses: list[TextHypothesis] | None = None, **changes: object) -> Translation:
    values: dict[str, object] = {"parts": 1, "source_tokens": 2, "unknown_tokens": 0, "cut_tokens": 0} | changes
    found = hypotheses or [hypothesis("a b", [-1.0, -1.0])]
    return Translation(number=number, line=Line("x"), hypotheses=found, source_pieces=None, **values)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=16), st.lists(st.integers(4, 9), unique=True, max_size=5))
def test_four_copies_in_a_row_are_a_loop(unit: list[int], frame: list[int]) -> None:
    assert has_loop([*frame, *unit * 4, *frame])


@given(st.lists(st.integers(), unique=True, max_size=40))
def test_what_never_repeats_is_no_loop(ids: list[int]) -> None:
    assert not has_loop(ids)
    assert not has_loop([number for number in ids for _ in range(3)])


def test_a_loop_needs_its_copies_side_by_side() -> None:
    assert not has_loop([1, 2, 9, 1, 2, 8, 1, 2, 7, 1, 2])
    assert has_loop([9, 1, 2, 1, 2, 1, 2, 1, 2])


def test_joining_adds_up_what_the_parts_tell() -> None:
    parts = [hypothesis("a b", [-1.0, -2.0]), hypothesis("", [], -0.25), hypothesis("c", [-3.0], None)]
    joined = join(parts, [3, 1, 2], " ", lambda length: float(length))
    assert joined.text == "a b c"
    assert joined.tokens == ["a", "b", "c"]
    assert joined.alignment == [(0, 0), (1, 1), (4, 2)]
    assert joined.token_log_probabilities == [-1.0, -2.0, -3.0]
    assert joined.end_log_probabilities == [-0.5, -0.25]
    assert joined.log_probability == -6.75
    assert (joined.finished, joined.looped, joined.length) == (False, False, 5)
    # Per-token scores of -3.5, -0.25 and -3 weigh 3, 1 and 1 tokens.
    assert joined.score == pytest.approx((-3.5 * 3 - 0.25 - 3.0) / 5)


def test_joining_without_details_has_none() -> None:
    bare = hypothesis("a", [-1.0], tokens=None, alignment=None)
    joined = join([bare, bare], [1, 1], "", lambda length: 1.0)
    assert (joined.text, joined.tokens, joined.alignment, joined.score) == ("aa", None, None, -3.0)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "ok"),
        ({"parts": 0, "hypotheses": [BLANK]}, "blank"),
        ({"parts": 3}, "split"),
        ({"cut_tokens": 4}, "truncated"),
        ({"cut_tokens": 4, "hypotheses": [hypothesis("", [])]}, "empty"),
    ],
)
def test_the_status_is_the_first_that_holds(changes: dict[str, object], status: str) -> None:
    assert translation(**changes).status == status  # type: ignore[arg-type]


def test_the_tally_names_every_kind_of_trouble_with_its_lines() -> None:
    tally = Tally(wanted=2)
    two = [hypothesis("a b", [-1.0, -1.0]), hypothesis("b a", [-1.0, -2.0])]
    tally.add(translation(1, two))
    tally.add(translation(2, two, parts=3, source_tokens=9))
    tally.add(translation(3, two, cut_tokens=4))
    tally.add(translation(4, [hypothesis("", []), *two]))
    tally.add(translation(5, [hypothesis("a", [-1.0], None), *two]))
    tally.add(translation(6, [hypothesis("a a a a", [-1.0] * 4, looped=True), *two]))
    tally.add(translation(7, two[:1]))
    tally.add(translation(8, two, unknown_tokens=2))
    tally.add(translation(9, [BLANK, BLANK], parts=0, source_tokens=0))
    assert (tally.lines, tally.blank, tally.source_tokens, tally.target_tokens) == (9, 1, 23, 22)
    assert tally.report() == [
        "longer than the model reads, translated in pieces: 1 line: 2",
        "longer than the model reads, cut: 1 line: 3",
        "translation is empty: 1 line: 4",
        "translation stopped at the length limit, without an end: 1 line: 5",
        "translation goes round in a loop: 1 line: 6",
        "fewer than 2 translations are possible: 1 line: 7",
        "unknown source tokens (2 of 23, 8.7 %): 1 line: 8",
    ]
    clean = Tally()
    clean.add(translation())
    assert clean.report() == []
