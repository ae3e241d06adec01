"""Reading a stream of lines: only LF ends one, nothing is read ahead, and what is odd is remembered by its number."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.errors import DataError
from mtkit.files import strip_line_end
from mtkit.lines import LineReader, Occurrences, count_lines

NOT_AN_END = st.characters(exclude_characters="\n", exclude_categories=["Cs"])


@given(st.lists(st.text(NOT_AN_END)))
def test_every_line_comes_back_as_it_is_but_for_a_mark_at_the_start(lines: list[str]) -> None:
    reader = LineReader([line.encode("utf-8") for line in lines], "in")
    expected = [line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)]
    assert list(reader) == expected
    assert reader.count == len(lines)


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line)))
def test_no_bytes_lose_a_line(lines: list[bytes]) -> None:
    reader = LineReader(lines, "in")
    assert len(list(reader)) == len(lines)
    assert any("not UTF-8" in sentence for sentence in reader.report()) == (not all(map(decodes, lines)))


def decodes(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def test_lines_are_taken_one_at_a_time() -> None:
    taken: list[int] = []

    def source() -> Iterator[bytes]:
        for number in range(5):
            taken.append(number)
            yield b"x"

    reader = iter(LineReader(source(), "in"))
    next(reader)
    assert taken == [0]


def test_oddities_are_reported_by_line() -> None:
    lines = [
        b"\xef\xbb\xbfa",
        b"b\0",
        b"\xff",
        b"plain\ttab",
        b"c\rd",
        "e\u2028".encode(),
        b"\0\xff",
        "\ufefff".encode(),
    ]
    reader = LineReader(lines, "in.txt")
    assert [line.encode() for line in reader] == [
        lines[0][3:],
        *lines[1:2],
        b"\xef\xbf\xbd",
        *lines[3:6],
        b"\0\xef\xbf\xbd",
        lines[7],
    ]
    assert reader.report() == [
        "in.txt: a byte order mark was dropped in 1 line: 1",
        "in.txt: bytes that are not UTF-8 became U+FFFD in 2 lines: 3, 7",
        "in.txt: NUL was read as a space in 2 lines: 2, 7",
        "in.txt: a line separator (U+2028, lone CR, ...) or control character was read as a space in 2 lines: 5, 6",
    ]
    clean = LineReader([b"a", "ü ½ ▁".encode()], "in.txt")
    assert len(list(clean)) == 2
    assert clean.report() == []


def test_bad_bytes_can_be_refused_by_line() -> None:
    reader = LineReader([b"a", b"b\xe4"], "in.txt", "error")
    with pytest.raises(DataError, match=r"in.txt:2: byte 0xE4 at column 2") as caught:
        list(reader)
    assert "--bad-utf8 replace" in str(caught.value.hint)


def test_only_the_first_few_numbers_are_kept() -> None:
    many = Occurrences()
    for number in range(1, 1001):
        many.add(number)
    assert str(many) == "1000 lines: 1, 2, 3, 4, 5, ..."


@given(st.lists(st.sampled_from([b"a", b"", b"\r", b"\r\n", b"\n", "\u2028".encode()])))
def test_counting_agrees_with_reading(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "counted.txt"
    path.write_bytes(b"".join(parts))
    with open(path, "rb") as stream:
        assert count_lines(path) == len(list(LineReader(map(strip_line_end, stream), "counted")))
