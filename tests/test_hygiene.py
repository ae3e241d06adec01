"""What makes a score doubtful is seen in the text, and ordinary text raises no doubt."""

import pytest
from sacrebleu_command import TEXTS

from mtkit.hygiene import doubts, is_unspaced, looks_tokenized


@pytest.mark.parametrize(
    "line",
    [
        "The shed is closed .",
        "Well , no",
        "the sh@@ ed",
        "▁The ▁sh ed",
        "isn &apos;t",
        "x &#91; y &#93;",
        "trailing . ",
    ],
)
def test_signs_of_a_tokenizer(line: str) -> None:
    assert looks_tokenized(line)


@pytest.mark.parametrize(
    "line",
    ["The shed is closed.", "Vraiment ? Oui !", "one, two.", "AT&T", "user@@home", "", "…"],
)
def test_ordinary_text_is_not_taken_for_tokenized(line: str) -> None:
    assert not looks_tokenized(line)


@pytest.mark.parametrize("language", TEXTS)
def test_scripts(language: str) -> None:
    assert is_unspaced(TEXTS[language][1]) == (language in ("zh", "ja"))
    assert not is_unspaced(["", "123"])


def test_nothing_to_doubt() -> None:
    for hypotheses, *references in TEXTS.values():
        full = [line or "Rain." for line in hypotheses]
        assert doubts({"h": full}, [(str(n), lines) for n, lines in enumerate(references)], ["bleu"]) == []


def test_empty_hypotheses_are_named_by_line() -> None:
    (found,) = doubts({"out": ["", "b", " \t"], "full": ["a", "b", "c"]}, [("ref", ["a", "b", "c"])], ["bleu"])
    assert found.startswith("out: 2 of 3 hypotheses are empty (lines 1, 3);")


def test_an_empty_reference_is_what_is_odd_where_both_are_empty() -> None:
    (found,) = doubts({"out": ["", "b"]}, [("ref", ["", "b"])], ["bleu"])
    assert found.startswith("ref: 1 of 2 references are empty (line 1);")
    found = doubts({"out": ["", "b"]}, [("ref1", ["", "b"]), ("ref2", ["a", "b"])], ["bleu"])
    assert [text.split(":")[0] for text in found] == ["out", "ref1"]


def test_few_marked_lines_are_chance_and_many_are_a_habit() -> None:
    plain, marked = ["It is closed."] * 9, ["It is closed ."]
    assert doubts({"out": plain + marked}, [("ref", plain + plain[:1])], ["bleu"]) == []
    (found,) = doubts({"out": plain[:6] + marked * 2}, [("ref", plain[:8])], ["bleu"])
    assert found.startswith("out: 2 of 8 lines look tokenized (lines 7, 8);")
    assert "BLEU will not compare" in found
    (found,) = doubts({"out": plain[:8]}, [("ref", marked * 8)], ["chrf"])
    assert found.startswith("ref: 8 of 8 lines look tokenized (lines 1, 2, 3, 4, 5, ...);")
    assert "the score will not compare" in found
