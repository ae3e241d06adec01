"""Normalisation: what becomes a space, what stays, and that once is enough."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.text.normalize import normalize

ANY_TEXT = st.text(st.characters(), max_size=60)  # lone surrogates among them
SPACE_LIKE = [
    "\t", "\n", "\x0b", "\x0c", "\r", "\x1c", "\x1f", "\x00", "\x07", "\x7f", "\x80", "\x85", "\x9f", "\xa0",
    "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u2581", "\ufeff",
]  # fmt: skip


@given(ANY_TEXT)
def test_twice_is_once(text):
    assert normalize(normalize(text)) == normalize(text)


@given(ANY_TEXT)
def test_result_is_nfc_with_single_inner_spaces_and_nothing_that_ends_a_line(text):
    result = normalize(text)
    assert unicodedata.is_normalized("NFC", result)
    assert result == " ".join(result.split())
    assert not any(unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") for character in result)
    assert "\u2581" not in result
    result.encode("utf-8")


@given(ANY_TEXT)
def test_only_composition_and_space_like_characters_change(text):
    kept = [c for c in unicodedata.normalize("NFC", text) if not (c.isspace() or unicodedata.category(c) == "Cc")]
    kept = ["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in kept if c not in "\u2581\ufeff"]
    assert normalize(text).replace(" ", "") == "".join(kept)


@pytest.mark.parametrize("character", SPACE_LIKE, ids=lambda character: f"U+{ord(character):04X}")
def test_space_like_characters_part_words(character):
    assert normalize(f"{character}one{character}{character} two{character}") == "one two"


def test_every_white_space_character_of_python_is_a_space():
    for code in range(0x110000):
        if chr(code).isspace():
            assert normalize(f"a{chr(code)}b") == "a b", hex(code)


@pytest.mark.parametrize("text", ["２ ﬁsh … ½ ™ ①", "，。！", "नमस्ते", "می‌خواهم", "👩‍🚀", "Straße İ ı"])
def test_compatibility_characters_joiners_and_case_stay(text):
    assert normalize(text) == text


def test_composes():
    assert normalize("A\u030angstro\u0308m \u212b") == "\u00c5ngström \u00c5"
