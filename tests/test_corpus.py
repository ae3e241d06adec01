"""Corpora: what a line is, compression, columns, and how bad files are refused."""

import bz2
import gzip
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtkit.data import corpus as module
from mtkit.data.corpus import Pair, check_corpora, inspect_corpus, read_pairs, read_side
from mtkit.errors import DataError
from mtkit.sections.data import Corpus

TWO_FILES = Corpus(name="c", source="c.source", target="c.target")


def put(folder, source: bytes, target: bytes) -> None:
    (folder / "c.source").write_bytes(source)
    (folder / "c.target").write_bytes(target)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=8))
def test_any_text_without_line_feeds_comes_back_line_by_line(tmp_path_factory, pairs):
    """Some readers take U+2028, U+0085, VT, FF or a lone CR for a line end; files of equal `wc -l` then part."""
    folder = tmp_path_factory.mktemp("any")
    pairs = [(source.replace("\n", "\r"), target.replace("\n", "\x85")) for source, target in pairs]
    put(folder, *("".join(f"{side}\n" for side in sides).encode() for sides in zip(*pairs, strict=True)))
    expected = []
    for number, sides in enumerate(pairs, 1):
        # A CR right before the LF is part of the line end, and a byte order mark opens a file, not a sentence.
        source, target = (side.removesuffix("\r") for side in sides)
        if number == 1:
            source, target = source.removeprefix("\ufeff"), target.removeprefix("\ufeff")
        expected.append(Pair(source, target, number))
    assert list(read_pairs(TWO_FILES, folder)) == expected
    assert [pair.target for pair in expected] == list(read_side(TWO_FILES, folder, "target"))


def test_line_ends_byte_order_mark_and_a_missing_last_line_feed_make_no_difference(tmp_path):
    text = "one a\n\ntwo\u2028b\nthree"
    variants = {
        "plain": f"{text}\n".encode(),
        "unterminated": text.encode(),
        "crlf": f"{text}\n".replace("\n", "\r\n").encode(),
        "mark": f"\ufeff{text}\n".encode(),
    }
    seen = set()
    for name, content in variants.items():
        (tmp_path / name).mkdir()
        put(tmp_path / name, content, content)
        assert [pair.source for pair in read_pairs(TWO_FILES, tmp_path / name)] == text.split("\n")
        seen.add(inspect_corpus(TWO_FILES, tmp_path / name))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_compressed_files_hold_the_same_corpus(tmp_path, suffix, compress):
    source, target = b"a b\nc\xe2\x80\xa8d\n", "ä\nß\n".encode()
    put(tmp_path, source, target)
    (tmp_path / f"c.source{suffix}").write_bytes(compress(source))
    corpus = Corpus(name="c", source=f"c.source{suffix}", target="c.target")
    assert inspect_corpus(corpus, tmp_path) == inspect_corpus(TWO_FILES, tmp_path)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
@pytest.mark.parametrize("fault", ["cut", "foreign", "flipped"])
def test_a_damaged_archive_is_refused_by_name(tmp_path, suffix, compress, fault):
    whole = compress(b"".join(b"line %d\n" % random.Random(n).getrandbits(64) for n in range(3000)))
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 20]) + whole[middle + 20 :]
    content = {"cut": whole[:middle], "foreign": b"plain text\n", "flipped": flipped}[fault]
    (tmp_path / f"c{suffix}").write_bytes(content)
    corpus = Corpus(name="c", source=f"c{suffix}", target=f"c{suffix}")
    # Changed bytes may come out as text before the archive's own checksum is reached.
    complaint = "(the file is damaged|.*not UTF-8)" if fault == "flipped" else "the file is damaged"
    with pytest.raises(DataError, match=rf"c{suffix}:\d+: {complaint}"):
        check_corpora([corpus], tmp_path)


def test_tsv_columns_are_chosen_and_the_rest_ignored(tmp_path):
    (tmp_path / "c.tsv").write_bytes("7\ta b\tä\r\n8\t\tß\textra\n".encode())
    corpus = Corpus(name="c", tsv="c.tsv", source_column=3, target_column=2)
    assert list(read_pairs(corpus, tmp_path)) == [Pair("ä", "a b", 1), Pair("ß", "", 2)]
    assert list(read_side(corpus, tmp_path, "target")) == ["a b", ""]
    assert check_corpora([corpus], tmp_path) == [2]


def test_a_tsv_row_with_too_few_columns_is_refused_by_line(tmp_path):
    (tmp_path / "c.tsv").write_bytes(b"a\tb\nc d\ne\tf\n")
    with pytest.raises(DataError, match=r"c\.tsv:2: has 1 tab-separated columns, corpus c needs column 2"):
        check_corpora([Corpus(name="c", tsv="c.tsv")], tmp_path)


@pytest.mark.parametrize("missing", ["source", "target"])
def test_unequal_counts_are_refused_with_both_files_both_counts_and_the_corpus(tmp_path, missing):
    source, target = ["s"] * 20, ["t"] * 20
    (source if missing == "source" else target).pop()
    put(tmp_path, "\n".join(source).encode(), "\n".join(target).encode())
    (tmp_path / "good").write_bytes(b"a\nb\n")
    good = Corpus(name="good", source="good", target="good")
    for corpora in ([TWO_FILES], [good, TWO_FILES], [TWO_FILES, good]):
        with pytest.raises(DataError) as caught:
            check_corpora(corpora, tmp_path)
        counts = (19, 20) if missing == "source" else (20, 19)
        assert "corpus c: " in str(caught.value)
        assert f"c.source has {counts[0]} lines, {tmp_path}/c.target has {counts[1]}" in str(caught.value)


@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize("block", [1, 4])
def test_the_place_where_files_part_is_guessed_from_lengths(tmp_path, side, block):
    chance = random.Random(block)
    sizes = [chance.randrange(10, 150) for _ in range(1000)]
    sides = [["s" * (size // 3) for size in sizes], ["t" * (size + chance.randrange(-4, 5)) for size in sizes]]
    del sides[side][699 : 699 + block]
    put(tmp_path, *("\n".join(lines).encode() for lines in sides))
    with pytest.raises(DataError) as caught:
        list(read_pairs(TWO_FILES, tmp_path))
    line = int(caught.value.message.split()[-1])
    assert abs(line - 700) <= 10


@pytest.mark.parametrize("side", ["source", "target"])
def test_bytes_that_are_not_utf8_are_refused_by_file_and_line(tmp_path, side):
    good, bad = b"a\nb\nc\n", b"a\ncaf\xe9\nc\n"
    put(tmp_path, *((bad, good) if side == "source" else (good, bad)))
    with pytest.raises(DataError, match=rf"c\.{side}:2: byte 0xE9 at column 4 is not UTF-8"):
        check_corpora([TWO_FILES], tmp_path)


def test_missing_files_are_all_named_before_any_is_read(tmp_path):
    put(tmp_path, b"\xff\n", b"a\n")
    (tmp_path / "c.target").unlink()
    with pytest.raises(DataError) as caught:
        check_corpora([TWO_FILES, Corpus(name="d", tsv="d.tsv")], tmp_path)
    assert f"corpus c: {tmp_path}/c.target; corpus d: {tmp_path}/d.tsv" in str(caught.value)
    assert "mtkit fetch" in str(caught.value)


def test_a_corpus_without_lines_is_refused(tmp_path):
    put(tmp_path, b"", b"")
    with pytest.raises(DataError, match=r"corpus c: .*c\.source and .*c\.target holds no line"):
        check_corpora([TWO_FILES], tmp_path)


def test_one_file_may_be_both_sides(tmp_path):
    (tmp_path / "in").write_bytes("a\u2028b\n\nc\x85d\n".encode())
    assert check_corpora([Corpus(name="copy", source="in", target="in")], tmp_path) == [3]


PIECES = st.sampled_from(
    [b"a", b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", "ä\u2028".encode(), b"\xff", b"\xc3", b"x" * 50]
)


@settings(max_examples=200, deadline=None)
@given(
    sides=st.tuples(*(st.lists(PIECES, max_size=12).map(b"".join) for _ in range(2))),
    block=st.integers(1, 9),
    suffix=st.sampled_from(["", ".gz"]),
)
def test_reading_in_blocks_tells_what_reading_lines_tells(
    tmp_path_factory: pytest.TempPathFactory, sides: tuple[bytes, bytes], block: int, suffix: str
) -> None:
    """A corpus is checked in large blocks; by a table of columns it is checked line by line."""
    folder = tmp_path_factory.mktemp("c")
    names = [f"{name}{suffix}" for name in ("source", "target")]
    for name, content in zip(names, sides, strict=True):
        (folder / name).write_bytes(gzip.compress(content) if suffix else content)
    corpus = Corpus(name="c", source=names[0], target=names[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        quick = outcome(corpus, folder)
        patch.setattr(module, "_scan", lambda path, tick: None)
        assert quick == outcome(corpus, folder)


def outcome(corpus: Corpus, folder: Path) -> Any:
    try:
        return module.inspect_corpus(corpus, folder)
    except DataError as error:
        return error.message
