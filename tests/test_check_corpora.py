"""What mtkit check counts in corpora: true numbers, whatever the form of the files, and errors that name the place."""

import gzip
import lzma
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import invent_pairs
from slow_check import slow_leaks, slow_pairs, slow_side

from mtkit.check import gather as gather_module
from mtkit.check import reading
from mtkit.check.examine import KINDS, hashes, loose_form, pair_hashes
from mtkit.check.facts import CorpusFacts, find_repeats
from mtkit.check.gather import gather
from mtkit.check.judge import judge
from mtkit.check.leaks import Leak
from mtkit.check.scripts import WrongScript, expected_scripts, script_of
from mtkit.sections.data import Corpus

FAULTS = (
    "",
    "   ",
    "\u3000\u2028",
    "the\x07 baker\x0b sees",
    "line\u2028separator",
    "lone\rreturn here",
    "Добрый день, пекарь",
    "Anna сказала, что придет",
    "我爱北京天安门。",
    "<b>bold</b> words",
    'see <a href="x">this',
    "Tom &amp; Jerry &#39;s",
    "a &quot;word&quot;",
    "half @-@ baked",
    "sub@@ words",
    "\u2581the \u2581baker",
    "lost \ufffd letter",
    "fÃ¤llt auf",
    "itâ€™s late",
    "[[Link]] there",
    "TV",
    "3 < 4 and 5 > 2 & so on",
    "A Baker sees; THE RIVER!",
    "a baker sees the river",
    "cafe\u0301",
    "caf\u00e9",
)
"""Lines that a corpus should not hold, and some that look like it."""


def odd_corpus(seed: int, count: int = 400) -> tuple[bytes, bytes]:
    """A corpus of the invented language with all sorts of faults, as the bytes of its two files."""
    chance = random.Random(seed)
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    pairs = invent_pairs(count, seed)
    for number in range(count):
        pair = list(pairs[number])
        if chance.random() < 0.1:
            pair = list(pairs[chance.randrange(number + 1)])
        if chance.random() < 0.3:
            pair[chance.randrange(2)] = chance.choice(FAULTS)
        if chance.random() < 0.05:
            pair[1] = pair[0]
        for side, text in zip(sides, pair, strict=True):
            line = text.encode("utf-8")
            if chance.random() < 0.02:
                line += b" \xff\xe4"
            side.append(line + (b"\r\n" if chance.random() < 0.1 else b"\n"))
    return b"".join(sides[0]), b"".join(sides[1])


def write(folder: Path, name: str, files: tuple[bytes, bytes]) -> Corpus:
    """Two files in a folder, as a corpus."""
    for side, content in zip(("source", "target"), files, strict=True):
        (folder / f"{name}.{side}").write_bytes(content)
    return Corpus(name=name, source=f"{name}.source", target=f"{name}.target")


def look(
    root: Path, *corpora: tuple[str, Corpus], languages=("en", "de"), **options
) -> tuple[list[CorpusFacts], list[Leak]]:
    """The facts of corpora by part, and the leaks."""
    facts = [CorpusFacts(part, corpus, root) for part, corpus in corpora]
    return facts, gather(facts, languages, **options)


def figures(facts: CorpusFacts) -> dict[str, object]:
    """All that is counted of a corpus, to be compared."""
    return {
        "sides": [
            (side.lines, side.words, side.characters.tolist(), {kind: tally for kind, tally in side.tallies.items()})
            for side in (facts.source, facts.target)
        ],
        "pairs": (facts.identical, facts.half_blank, facts.ratio, facts.long_source, facts.long_target),
        "repeats": [
            (one.count, one.examples)
            for one in (facts.duplicates, facts.repeated_sources, facts.repeated_targets)
            if one
        ],
        "slips": facts.slips,
    }


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some twenty lines, so that a small corpus has many."""
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 600)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_numbers_are_those_of_a_slow_script(tmp_path, small_blocks, seed):
    train, valid = odd_corpus(seed), odd_corpus(seed + 50, 80)
    corpora = ("train", write(tmp_path, "big", train)), ("valid", write(tmp_path, "small", valid))
    (facts, held_out), leaks = look(tmp_path, *corpora)
    for corpus, files in ((facts, train), (held_out, valid)):
        for side, raw, language in zip((corpus.source, corpus.target), files, ("en", "de"), strict=True):
            slow = slow_side(raw, language)
            assert (side.lines, side.words, side.characters.tolist()) == (slow.lines, slow.words, slow.characters)
            assert {kind: side.count(kind) for kind in KINDS if kind != "columns"} == {
                kind: slow.kinds[kind] for kind in KINDS if kind != "columns"
            }
            assert side.bytes == len(raw)
        pairs = slow_pairs(*files)
        assert (corpus.identical.count, corpus.half_blank.count) == (pairs.identical, pairs.half_blank)
        found = (corpus.duplicates, corpus.repeated_sources, corpus.repeated_targets)
        assert [one.count for one in found] == [pairs.duplicate_pairs, pairs.repeated_sources, pairs.repeated_targets]
    assert {(leak.what, leak.form): leak.count for leak in leaks} == slow_leaks(train, valid)
    assert all(leak.count for leak in leaks), "the corpora were made to have some of each"


def test_every_kind_of_fault_is_there_to_be_counted(tmp_path):
    (facts,), _ = look(tmp_path, ("train", write(tmp_path, "big", odd_corpus(1, 2000))))
    assert {kind for kind in KINDS if facts.source.count(kind) and facts.target.count(kind)} == {*KINDS} - {
        "columns",
        "utf16",
    }


def test_examples_are_the_first_lines(tmp_path, small_blocks):
    lines = [b"the baker sees\n"] * 300
    for number in (20, 90, 91, 92, 93, 94, 250):
        lines[number] = b"<b>the</b> baker\n"
    (facts,), _ = look(tmp_path, ("train", write(tmp_path, "big", (b"".join(lines), b"x\n" * 300))))
    assert facts.source.tallies["tags"].count == 7
    assert facts.source.tallies["tags"].lines == [21, 91, 92, 93, 94]


def test_two_processes_count_as_one(tmp_path, small_blocks, monkeypatch):
    corpora = ("train", write(tmp_path, "big", odd_corpus(4))), ("test", write(tmp_path, "small", odd_corpus(5, 60)))
    alone, alone_leaks = look(tmp_path, *corpora, workers=1)
    monkeypatch.setattr(gather_module, "_WORTH_A_PROCESS", 0)
    together, leaks = look(tmp_path, *corpora, workers=2)
    assert [figures(facts) for facts in together] == [figures(facts) for facts in alone]
    assert [(leak.count, leak.examples) for leak in leaks] == [(leak.count, leak.examples) for leak in alone_leaks]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_files_count_as_plain_ones(tmp_path, small_blocks, suffix):
    """Line counts taken on compressed bytes made equal corpora unequal."""
    files = odd_corpus(6)
    (plain,), _ = look(tmp_path, ("train", write(tmp_path, "big", files)))
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    for side, content in zip(("source", "target"), files, strict=True):
        (tmp_path / f"packed.{side}{suffix}").write_bytes(pack(content))
    corpus = Corpus(name="packed", source=f"packed.source{suffix}", target=f"packed.target{suffix}")
    (packed,), _ = look(tmp_path, ("train", corpus))
    assert figures(packed) == figures(plain)


def test_a_tsv_file_counts_as_two_files(tmp_path, small_blocks):
    pairs = [(a, b) for a, b in invent_pairs(200, 7)]
    pairs[10] = ("", "x")
    pairs[20] = ("Tom &amp; Jerry", "<b>x</b>")
    sides = tuple("".join(f"{pair[place]}\n" for pair in pairs).encode() for place in (0, 1))
    (plain,), _ = look(tmp_path, ("train", write(tmp_path, "big", sides)))
    (tmp_path / "big.tsv").write_bytes("".join(f"7\t{b}\t{a}\r\n" for a, b in pairs).encode())
    (table,), _ = look(tmp_path, ("train", Corpus(name="t", tsv="big.tsv", source_column=3, target_column=2)))
    assert table.source.tallies.pop("crlf").count == table.target.tallies.pop("crlf").count == 200
    assert figures(table) == figures(plain)
    texts = reading.fetch(table.corpus, tmp_path, np.array([21, 1]))
    assert texts == {1: pairs[0], 21: pairs[20]}


def test_user_defined_symbols_are_no_markup(tmp_path):
    corpus = write(tmp_path, "big", (b"<news> the baker\n<b> the baker\n", b"x\nx\n"))
    (facts,), _ = look(tmp_path, ("train", corpus), symbols=("<news>",))
    assert facts.source.tallies["tags"].lines == [2]


# Errors


def found(root: Path, corpus: Corpus) -> list[tuple[str, str]]:
    (facts,), _ = look(root, ("train", corpus))
    return [(one.kind, one.message) for one in judge(facts, ("en", "de"), None) if one.severity == "error"]


def test_files_that_cannot_be_read_are_named(tmp_path):
    good = write(tmp_path, "good", (b"a\n", b"b\n"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "fake.gz").write_bytes(b"not a gzip file\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(random.Random(1).randbytes(100_000))[:50_000])
    (tmp_path / "empty").write_bytes(b"")
    for name in ("gone", "folder", "fake.gz", "cut.gz"):
        ((kind, message),) = found(tmp_path, good.model_copy(update={"target": name}))
        assert kind == "file"
        assert str(tmp_path / name) in message
    both = Corpus(name="none", source="empty", target="empty")
    assert found(tmp_path, both) == [("no_lines", f"{tmp_path / 'empty'}: no line")]


def test_bad_bytes_are_errors_with_their_lines(tmp_path):
    lines = [b"the baker\n"] * 12
    lines[4], lines[9] = b"der B\xe4cker\n", b"\xff\xfe\n"
    corpus = write(tmp_path, "big", (b"".join(lines), b"x\n" * 12))
    ((kind, message),) = found(tmp_path, corpus)
    assert (kind, message) == ("bad_utf8", f"{tmp_path / 'big.source'}:5: 2 lines with bytes that are not UTF-8")
    (facts,), _ = look(tmp_path, ("train", corpus))
    assert facts.source.tallies["bad_utf8"].lines == [5, 10]
    assert not facts.usable


def test_a_file_in_utf_16_is_told_how_to_be_converted(tmp_path):
    corpus = write(tmp_path, "big", ("the baker\nthe river\n".encode("utf-16"), b"x\ny\n"))
    (facts,), _ = look(tmp_path, ("train", corpus))
    assert "iconv -f utf-16 -t utf-8" in judge(facts, ("en", "de"), None)[0].remedy


def test_unequal_line_counts_are_an_error_with_both_counts_and_the_place(tmp_path):
    pairs = invent_pairs(400, 3)
    source = "".join(f"{a}\n" for a, _ in pairs).encode()
    target = "".join(f"{b}\n" for number, (_, b) in enumerate(pairs) if number != 299).encode()
    (facts,), _ = look(tmp_path, ("train", write(tmp_path, "big", (source, target))))
    (error,) = [one for one in judge(facts, ("en", "de"), None) if one.severity == "error"]
    assert error.kind == "line_counts"
    assert f"{tmp_path / 'big.source'} has 400 lines, {tmp_path / 'big.target'} has 399 lines" in error.message
    (place,) = error.places
    assert abs(place.line - 300) <= 15


def test_rows_with_too_few_columns_are_an_error(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"a\tb\nalone\nc\td\n")
    ((kind, message),) = found(tmp_path, Corpus(name="t", tsv="t.tsv"))
    assert (kind, message) == ("columns", f"{tmp_path / 't.tsv'}:2: 1 line with too few tab-separated columns")


# Hashes and scripts


def test_nothing_is_equal_to_nothing():
    values = hashes(["", "a", "", "a"])
    assert find_repeats(values).count == 1
    assert find_repeats(values).examples == [(4, 2)]
    assert pair_hashes(values, values)[0] == 0
    assert pair_hashes(values[1:2], values[:1])[0] == 0


def test_pairs_differ_when_a_side_does():
    texts = [f"sentence {number}" for number in range(300)]
    source, target = (side.ravel() for side in np.meshgrid(hashes(texts), hashes(texts)))
    assert len(np.unique(pair_hashes(source, target))) == 300 * 300


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("The baker sees.", "the BAKER sees!", True),
        ("Straße", "STRASSE", True),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width", True),
        ("cafe\u0301", "café", True),
        ("don't", "dont", True),
        ("cafe", "café", False),
        ("3.5", "3.6", False),
        ("नमस्ते", "नमस्त", False),
    ],
)
def test_loose_forms(one, other, same):
    assert (loose_form(one) == loose_form(other)) == same


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("en", {"LATIN"}),
        ("de-AT", {"LATIN"}),
        ("zho_Hans", {"CJK", "BOPOMOFO"}),
        ("sr", {"CYRILLIC", "LATIN"}),
        ("sr-Latn", {"LATIN"}),
        ("jpn", {"CJK", "HIRAGANA", "KATAKANA"}),
        ("xx", None),
        (None, None),
    ],
)
def test_scripts_of_languages(language, scripts):
    assert expected_scripts(language) == scripts


@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("en", "I love Beijing, 北京", False),
        ("en", "北京天安门很大 is big", True),
        ("en", "ΑΒΓ", True),
        ("en", "5 µm, 12 ªº, ½ ①", False),
        ("en", "ｆｕｌｌ ｗｉｄｔｈ", False),
        ("zh", "OK。", False),
        ("zh", "Hello there.", True),
        ("zh", "ㄅㄆㄇ", False),
        ("ja", "東京タワーへ", False),
        ("ru", "Привет, Tom", False),
        ("ar", "مرحبا", False),
        ("th", "สวัสดี", False),
        ("he", "1234 5678 !?", False),
    ],
)
def test_lines_in_another_script(language, text, wrong):
    expected = expected_scripts(language)
    assert expected is not None
    assert WrongScript(expected)(text) == wrong


def test_marks_and_digits_have_no_script():
    assert [script_of(one) for one in "7!\u0301 \u0e34"] == [None] * 5
    assert script_of("ﬁ") == "LATIN"
