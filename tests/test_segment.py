"""Splitting over-long lines: nothing is lost, no piece is too long, and cuts fall where a reader would pause."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.segment import joiner, split

# Prose-like text and anything at all, so that every level of the splitter is reached.
TEXT = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["Tea", "is", "good", ".", "。", "!", ",", "、", " ", "“", "”", "3.5", "x" * 30])).map(
        "".join
    ),
)


def letters(texts: list[str]) -> list[list[int]]:
    """One token a character that is not white space."""
    return [[ord(character) for character in text if not character.isspace()] for text in texts]


def words(texts: list[str]) -> list[list[str]]:
    """One token a word: what the pieces say is then easy to read in a test."""
    return [text.split() for text in texts]


def cut(text: str, limit: int) -> list[str]:
    return [" ".join(piece) for piece in split(text, limit, words)]  # type: ignore[arg-type]


def text_of(pieces: list[list[int]]) -> list[str]:
    return ["".join(map(chr, piece)) for piece in pieces]


@given(TEXT, st.integers(1, 20))
def test_nothing_is_lost_and_no_piece_is_empty_or_too_long(text: str, limit: int) -> None:
    pieces = split(text, limit, letters)
    assert "".join(text_of(pieces)) == re.sub(r"\s", "", text)
    assert all(1 <= len(piece) <= limit for piece in pieces)


@given(TEXT, st.integers(1, 20))
def test_a_text_within_the_limit_is_left_whole(text: str, extra: int) -> None:
    [ids] = letters([text])
    assert split(text, len(ids) + extra, letters) == ([ids] if ids else [])


def test_sentences_are_cut_one_by_one_though_several_would_fit() -> None:
    assert cut("It rains. We wait! Who calls? Nobody does.", 5) == [
        "It rains.",
        "We wait!",
        "Who calls?",
        "Nobody does.",
    ]


def test_closing_quotes_and_brackets_stay_with_their_sentence() -> None:
    assert cut('She said: "Go." (He went.) Then silence fell.', 4) == [
        'She said: "Go."',
        "(He went.)",
        "Then silence fell.",
    ]
    text = "他说：“走吧。”我们走了。（真的？）是的！"
    assert text_of(split(text, 10, letters)) == ["他说：“走吧。”", "我们走了。", "（真的？）", "是的！"]


@pytest.mark.parametrize(
    "text", ["It is 3.5 or 4.25 miles away", "at approx. five or ca. six miles", "“Why?” she asked him twice over"]
)
def test_a_point_inside_a_number_or_before_a_small_letter_ends_no_sentence(text: str) -> None:
    """They are longer than the limit, so they are cut at spaces: into two pieces, not at the mark."""
    assert cut(text, 5) == [" ".join(text.split()[:5]), " ".join(text.split()[5:])]


def test_a_long_sentence_is_cut_at_clause_marks_into_as_few_pieces_as_fit() -> None:
    assert cut("one two, three four, five six, seven eight.", 4) == ["one two, three four,", "five six, seven eight."]
    assert cut("at 12:30 for 1,000 men, women and children", 5) == ["at 12:30 for 1,000 men,", "women and children"]


def test_the_wide_clause_marks_of_chinese_need_no_space() -> None:
    pieces = split("我有苹果、梨，还有茶；没有酒", 6, letters)
    assert text_of(pieces) == ["我有苹果、", "梨，还有茶；", "没有酒"]


def test_a_long_clause_is_cut_at_spaces_and_a_long_word_by_tokens() -> None:
    assert cut("a b c d e f g", 3) == ["a b c", "d e f", "g"]
    assert text_of(split("ab cdefghij k", 3, letters)) == ["ab", "cde", "fgh", "ij", "k"]


@pytest.mark.parametrize("mark", "。！？.!?…؟।")
def test_each_sentence_mark_ends_a_sentence(mark: str) -> None:
    assert cut(f"Aa Bb{mark} Cc Dd{mark} Ee", 3) == [f"Aa Bb{mark}", f"Cc Dd{mark}", "Ee"]


def test_a_hundred_thousand_words_are_split_in_a_moment() -> None:
    """One encode call a level, not one a word: a quadratic splitter would take minutes here."""
    calls = 0

    def encode(texts: list[str]) -> list[list[int]]:
        nonlocal calls
        calls += 1
        return letters(texts)

    pieces = split("word " * 100_000, 256, encode)
    assert len(pieces) == 1563  # 64 four-letter words fit a piece
    assert calls < 10


@pytest.mark.parametrize(
    ("language", "expected"), [("en", " "), ("ko", " "), ("zh", ""), ("ja-JP", ""), ("zh_Hant", ""), ("tha", "")]
)
def test_pieces_are_joined_as_the_target_language_is_written(language: str, expected: str) -> None:
    assert joiner(language) == expected
