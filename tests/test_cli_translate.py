"""`mtkit translate`: every way a line can be lost, doubled or broken between stdin and stdout, and every option.

The model is untrained: what it says means nothing, so nothing but the right path through the command gives it again.
"""

import bz2
import gzip
import json
import lzma
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from in_process import Ended, Run, run_command
from toy_models import save_untrained
from trained_models import save_trained

from mtkit.cli.search_options import search_options
from mtkit.formats import OUTPUT_KEYS
from mtkit.model.prepared import PreparedTransformer
from mtkit.pool import PoolEngine, can_fork
from mtkit.search.run import search as run_search
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

LINES = [
    "the baker sees the river.",
    "",
    "the tall child follows the horse today.",
    " \t",
    "the river paints the window.",
]


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_untrained(tmp_path_factory.mktemp("untrained") / "model", tiny_corpus, tiny_tokenizers, 1)


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return Translator.load(model, "cpu")


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `mtkit translate MODEL ...` in this process; stdin is a file."""

    def translate(*arguments: object, stdin: bytes = b"", folder: Path = model) -> Ended:
        command = ["translate", str(folder), "--device", "cpu", *map(str, arguments)]
        return run_command(command, stdin, tmp_path, monkeypatch, capfdbinary)

    return translate


def text(lines: Sequence[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode("utf-8")


# Lines


def test_stdin_to_stdout_is_what_the_python_api_gives(run: Run, translator: Translator) -> None:
    ended = run(stdin=text(LINES))
    assert (ended.code, ended.lines) == (0, translator.translate(LINES))
    assert [bool(line) for line in ended.lines] == [True, False, True, False, True]
    assert "5 lines in, 5 out (2 blank)" in ended.err


@pytest.mark.parametrize(("stdin", "expected"), [(b"", []), (b"\n", [""]), (b"\n\n\n", [""] * 3), (b" ", [""])])
def test_empty_and_blank_input(run: Run, stdin: bytes, expected: list[str]) -> None:
    ended = run(stdin=stdin)
    assert (ended.code, ended.lines) == (0, expected)


def test_crlf_reads_as_lf_and_a_last_line_needs_no_end(run: Run) -> None:
    plain = run(stdin=text(LINES))
    assert run(stdin=text(LINES, "\r\n")).out == plain.out
    assert run(stdin=text(LINES)[:-1]).out == plain.out


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\r", "\0", "\x1c", "\u2581", "\t"])
def test_only_lf_ends_a_line(run: Run, mark: str) -> None:
    """Every other separator is a space inside its line, and the report says where one was."""
    ended = run(stdin=text(["the river.", f"the{mark}baker sees.", "the horse."]))
    assert ended.lines == run(stdin=text(["the river.", "the baker sees.", "the horse."])).lines
    assert ("in 1 line: 2" in ended.err) == (mark not in "\u2581\t")


def test_bad_utf8_is_replaced_and_reported_by_line(run: Run, translator: Translator) -> None:
    stdin = b"the river.\nthe b\xe4ker sees.\nthe horse.\n\xff\xfe\n"
    ended = run(stdin=stdin)
    assert ended.code == 0
    assert ended.lines == translator.translate(["the river.", "the b\ufffdker sees.", "the horse.", "\ufffd\ufffd"])
    assert "<stdin>: bytes that are not UTF-8 became U+FFFD in 2 lines: 2, 4" in ended.err


def test_bad_utf8_can_be_refused(run: Run) -> None:
    ended = run("--bad-utf8", "error", stdin=b"the river.\nthe b\xe4ker.\n")
    assert (ended.code, ended.out) == (1, b"")
    assert "<stdin>:2: byte 0xE4 at column 6 is not UTF-8" in ended.err


def test_a_byte_order_mark_is_dropped_and_reported(run: Run) -> None:
    ended = run(stdin=b"\xef\xbb\xbf" + text(LINES))
    assert ended.lines == run(stdin=text(LINES)).lines
    assert "a byte order mark was dropped in 1 line: 1" in ended.err


def test_characters_outside_the_vocabulary_are_counted_not_fatal(run: Run) -> None:
    ended = run(stdin=text(["the river.", "𒀀 😀 the <s> </s> <unk> <pad>", "½ ２ …"]))
    assert (ended.code, len(ended.lines)) == (0, 3)
    assert "unknown source tokens" in ended.err
    assert not any(mark in ended.out.decode() for mark in ("<unk>", "<0x", "<s>", "</s>"))


@pytest.mark.parametrize("method", ["greedy", "beam", "sampling"])
def test_no_method_loses_a_line(run: Run, method: str) -> None:
    stdin = text([*LINES, "the \u2028 " * 300, "", "x" * 900, *LINES])
    ended = run("--method", method, "--max-source-length", "40", stdin=stdin)
    assert (ended.code, len(ended.lines)) == (0, 13)
    assert {number for number, line in enumerate(ended.lines) if not line} >= {1, 3, 6, 9, 11}


# Long lines


def test_a_long_line_is_split_and_named_and_its_neighbours_do_not_notice(run: Run) -> None:
    long = "the baker sees the river, the horse follows. " * 40
    ended = run("--max-source-length", "30", stdin=text(["the river.", long, "the horse."]))
    assert ended.code == 0
    assert [ended.lines[0], ended.lines[2]] == run(stdin=text(["the river.", "the horse."])).lines
    assert "line 2: its " in ended.err
    assert "were translated in 20 pieces" in ended.err
    assert "longer than the model reads, translated in pieces: 1 line: 2" in ended.err


def test_many_long_lines_are_counted_but_not_all_named(run: Run) -> None:
    ended = run("--max-source-length", "4", "--method", "greedy", stdin=text(["the river the horse the river"] * 30))
    assert ended.err.count("source tokens were translated in") == 20
    assert "translated in pieces: 30 lines: 1, 2, 3, 4, 5, ..." in ended.err


def test_truncation_says_what_it_cut(run: Run) -> None:
    ended = run("--max-source-length", "4", "--on-long", "truncate", stdin=text(["the river", "the river " * 5]))
    assert "line 2: 6 of its 10 source tokens were cut off" in ended.err


def test_refusing_long_lines_happens_before_any_output_of_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(text(["the river."] * 9 + ["the river " * 50]))
    limits = ["--max-source-length", 10, "--batch-size", 2, "--on-long", "error"]
    ended = run("--input", tmp_path / "in.txt", *limits)
    assert (ended.code, ended.out) == (1, b"")
    assert "line 10 has 100 source tokens" in ended.err
    streamed = run(*limits, stdin=(tmp_path / "in.txt").read_bytes())
    assert (streamed.code, len(streamed.lines)) == (1, 6)


# Files


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_input_and_output_files_are_compressed_by_their_suffix(
    run: Run, tmp_path: Path, suffix: str, opener: Callable[..., Any]
) -> None:
    source, target = tmp_path / f"in.txt{suffix}", tmp_path / "new" / f"out.txt{suffix}"
    with opener(source, "wb") as stream:
        stream.write(text(LINES))
    ended = run("-i", source, "-o", target)
    assert (ended.code, ended.out) == (0, b"")
    with opener(target, "rb") as stream:
        assert stream.read() == run(stdin=text(LINES)).out


def test_an_output_file_appears_only_when_it_is_complete(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    ended = run("-o", target, "--bad-utf8", "error", "--batch-size", "1", stdin=b"the river.\n\xff\n")
    assert ended.code == 1
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.name != "stdin"] == ["out.txt"]


def test_input_and_output_may_be_the_same_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(text(LINES))
    assert run("-i", path, "-o", path).code == 0
    assert path.read_bytes() == run(stdin=text(LINES)).out


def test_a_link_stays_a_link_and_a_device_a_device(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run("-o", tmp_path / "link", stdin=text(LINES)).code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == run(stdin=text(LINES)).out
    assert run("-o", "/dev/null", stdin=text(LINES)).code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(run: Run) -> None:
    ended = run("-o", "/dev/full", stdin=text(LINES))
    assert ended.code == 1
    assert "/dev/full: No space left on device" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["--input", "--prefix-file"])
def test_a_missing_file_is_named_before_the_model_is_loaded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(Translator, "load", None)
    ended = run(option, tmp_path / "missing.txt")
    assert ended.code == 1
    assert "missing.txt: no such file" in ended.err


# Formats


def test_n_best_lists_are_in_the_format_of_moses(run: Run, translator: Translator) -> None:
    ended = run("--n-best", 3, stdin=text(LINES))
    fields = [line.split(" ||| ") for line in ended.lines]
    assert [field[0] for field in fields] == [str(number) for number in range(5) for _ in range(3)]
    best = [field[1] for field in fields[::3]]
    assert best == translator.translate(LINES)
    assert all(len(field) == 4 for field in fields)
    scores = [float(field[3]) for field in fields]
    assert all(
        scores[first : first + 3] == sorted(scores[first : first + 3], reverse=True) for first in range(0, 15, 3)
    )
    name, logprob, length_name, length = fields[0][2].split(" ")
    assert (name, length_name) == ("logprob=", "length=")
    assert float(logprob) / float(length) == pytest.approx(scores[0], abs=1e-5)


def test_n_best_1_is_plain_text_and_samples_make_a_list(run: Run) -> None:
    assert run("--n-best", 1, stdin=text(LINES)).out == run(stdin=text(LINES)).out
    sampled = run("--method", "sampling", "--samples", 2, stdin=text(LINES))
    assert len(sampled.lines) == 10


def test_with_minimum_bayes_risk_only_the_choice_comes_out(run: Run) -> None:
    sampling = ["--method", "sampling", "--samples", 5]
    ended = run(*sampling, "--mbr", "chrf", stdin=text(LINES))
    assert len(ended.lines) == 5
    everything = run(*sampling, stdin=text(LINES)).lines
    for number, line in enumerate(ended.lines):
        assert line in [each.split(" ||| ")[1] for each in everything[5 * number : 5 * number + 5]]


def test_json_tells_everything_about_every_line(run: Run, translator: Translator) -> None:
    lines = ["the river sees\u2028the horse.", "", "the river the horse the river"]
    ended = run("--json", "--n-best", 2, "--max-source-length", 5, stdin=text(lines))
    records = [json.loads(line) for line in ended.lines]
    assert all(set(record) == OUTPUT_KEYS | {"id"} for record in records)
    assert [record["id"] for record in records] == [0, 1, 2]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["source"] for record in records] == lines
    assert [record["status"] for record in records] == ["split", "blank", "split"]
    assert [record["text"] for record in records] == run("--max-source-length", 5, stdin=text(lines)).lines
    for record in records:
        assert [record["n_best"][0][key] for key in record["n_best"][0]] == [record[key] for key in record["n_best"][0]]
        assert len(record["n_best"]) == 2
        for each in record["n_best"]:
            assert len(each["tokens"]) == len(each["token_log_probabilities"])
            total = sum(each["token_log_probabilities"]) + sum(each["end_log_probabilities"])
            assert each["log_probability"] == pytest.approx(total, abs=1e-4)
            links = [link.split("-") for link in each["alignment"].split()]
            assert [int(token) for _, token in links] == list(range(len(each["tokens"])))
            assert all(int(source) < len(record["source_pieces"]) for source, _ in links)


def test_alignments_alone_are_those_of_json_one_line_a_line(run: Run) -> None:
    ended = run("--alignments", stdin=text(LINES))
    records = map(json.loads, run("--json", stdin=text(LINES)).lines)
    assert ended.lines == [record["alignment"] for record in records]
    assert [bool(line) for line in ended.lines] == [True, False, True, False, True]
    assert re.fullmatch(r"\d+-\d+( \d+-\d+)*", ended.lines[0])


def test_two_output_formats_are_refused(run: Run) -> None:
    ended = run("--alignments", "--json", stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "--json and --alignments are two formats" in ended.err


def test_a_dash_is_stdin_and_stdout(run: Run) -> None:
    assert run("-i", "-", "-o", "-", stdin=text(LINES)).out == run(stdin=text(LINES)).out != b""


def test_no_reader_breaks_a_json_line(run: Run) -> None:
    """json.dumps leaves U+2028 and U+0085 raw, and str.splitlines takes them for line ends."""
    ended = run("--json", stdin=text(["the\u2028river\u0085\x7f\ufeffsees\x0b.", "the horse"]))
    decoded = ended.out.decode("utf-8")
    assert len(decoded.splitlines()) == 2
    assert json.loads(ended.lines[0])["source"] == "the\u2028river\u0085\x7f\ufeffsees\x0b."


def test_keys_of_json_input_pass_through(run: Run) -> None:
    records = [
        {"text": "the river.", "id": "a-1", "speaker": {"name": "Ö", "turn": [1, None, 2.5]}},
        {"text": ""},
        {"text": "the horse.\nthe child.", "score": "mine", "prefix": "kort"},
        {"text": "\ud800 the horse", "odd": "\udfff"},
    ]
    ended = run("--json-input", "--json", stdin=text([json.dumps(record) for record in records]))
    answers = [json.loads(line) for line in ended.lines]
    assert [answer["id"] for answer in answers] == ["a-1", 1, 2, 3]
    assert answers[0]["speaker"] == records[0]["speaker"]
    assert answers[2]["text"].startswith("kort")
    assert answers[3]["odd"] == "\udfff"
    assert "replaced by output keys of the same name: score" in ended.err
    plain = run("--json-input", stdin=text([json.dumps(record) for record in records]))
    assert plain.lines == [answer["text"] for answer in answers]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"text": 3}', "not an object"),
        ("[" * 9999, "not JSON"),
    ],
)
def test_json_input_that_is_none_is_refused_by_line(run: Run, line: str, message: str) -> None:
    ended = run("--json-input", stdin=text(['{"text": "a"}', line]))
    assert (ended.code, ended.out) == (1, b"")
    assert "<stdin>:2" in ended.err
    assert message in ended.err


def test_the_prefix_of_json_input_must_be_text(run: Run) -> None:
    ended = run("--json-input", stdin=text(['{"text": "a", "prefix": 1}']))
    assert ended.code == 1
    assert '"prefix" is not a string' in ended.err


# Options


def test_a_prefix_file_forces_the_start_of_each_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_bytes(text(["kort mirulo", "", "", "kort", "nawel"]))
    ended = run("--prefix-file", tmp_path / "prefixes", stdin=text(LINES))
    plain = run(stdin=text(LINES))
    assert ended.lines[0].startswith("kort mirulo")
    assert ended.lines[4].startswith("nawel")
    assert ended.lines[1:4] == plain.lines[1:4]


def test_a_prefix_file_of_another_length_is_refused(run: Run, tmp_path: Path) -> None:
    prefixes, source = tmp_path / "prefixes", tmp_path / "in.txt"
    source.write_bytes(text(LINES))
    for count, word in ((3, "ends after 3 lines"), (7, "goes on after 5 lines")):
        prefixes.write_bytes(text(["kort"] * count))
        streamed = run("--prefix-file", prefixes, stdin=text(LINES))
        assert streamed.code == 1
        assert word in streamed.err
        ended = run("--prefix-file", prefixes, "-i", source)
        assert (ended.code, ended.out) == (1, b"")
        assert f"in.txt has 5 lines, {prefixes} has {count}" in ended.err


def test_tags_reach_the_model(run: Run, translator: Translator) -> None:
    ended = run("--tag", "<news>", "--json", stdin=text(LINES))
    tagged = list(translator.translate_stream(LINES, tags=["<news>"]))
    assert [json.loads(line)["text"] for line in ended.lines] == [each.text for each in tagged]
    assert json.loads(ended.lines[0])["source_pieces"][0] == "<news>"
    assert ended.lines != run("--json", stdin=text(LINES)).lines
    refused = run("--tag", "<sports>", stdin=text(LINES))
    assert (refused.code, refused.out) == (1, b"")
    assert "<sports>" in refused.err


def test_an_ensemble_votes(
    run: Run, model: Path, tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    other = save_untrained(tmp_path / "other", tiny_corpus, tiny_tokenizers, 2)
    for combine in ("arithmetic", "geometric"):
        expected = Translator.load(model, "cpu", [other], combine).translate(LINES)  # type: ignore[arg-type]
        assert run("--ensemble", other, "--combine", combine, stdin=text(LINES)).lines == expected


def test_a_run_folder_stands_for_its_model(run: Run, model: Path) -> None:
    assert run(stdin=text(LINES), folder=model.parent).out == run(stdin=text(LINES)).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-best", "9", "--beam-size", "4"], "n_best (9) cannot exceed beam_size (4)"),
        (["--n-best", "0"], "--n-best 0: expected a whole number from 1 to 256"),
        (["--n-best", "-1"], "--n-best -1: expected a whole number from 1 to 256"),
        (["--beam-size", "0"], "--beam-size 0: expected a whole number from 1 to 256"),
        (["--beam-size", "2", "--groups", "3"], "groups (3) must divide beam_size (2)"),
        (["--temperature", "0.5"], "--temperature 0.5 is an option of sampling, and the method is beam"),
        (["--method", "greedy", "--beam-size", "3"], "--beam-size 3 is an option of beam, and the method is greedy"),
        (["--method", "sampling", "--temperature", "0"], "--temperature 0.0: expected a number above 0"),
        (["--method", "sampling", "--top-p", "nan"], "--top-p nan: expected a number above 0 and at most 1"),
        (["--max-length-ratio", "inf"], "--max-length-ratio inf: expected a number from 0 to 100"),
        (["--method", "greedy", "--mbr", "chrf"], "--mbr chrf is an option of beam or sampling"),
        (["--combine", "geometric"], "--combine geometric is about an ensemble"),
        (["--json-input", "--prefix-file", "x"], "both give prefixes"),
        (["--interactive", "--batch-size", "8"], "--batch-size 8"),
        (["--max-source-length", "3"], "--max-source-length 3: expected a whole number from 4 to 100000"),
        (["--bad-utf8", "maybe"], "--bad-utf8"),
        (["--workers", "2", "--threads", "2"], "--workers 2 have one thread each, and --threads 2 asks for more"),
        (["--workers", "2", "--engine", "ctranslate2"], "--workers 2: --engine ctranslate2 cannot do that"),
        (["--precision", "int8", "--engine", "ctranslate2"], "--precision int8: --engine ctranslate2 cannot do that"),
        (["--workers", "0"], "--workers"),
        (["--precision", "float16"], "--precision"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_options_that_cannot_be_are_refused_before_the_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(Translator, "load", None)
    ended = run(*arguments, stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert message in ended.err


def test_workers_are_refused_where_there_are_other_processes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    ended = run("--workers", 2, stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "--workers 2 under torchrun, which has its own processes" in ended.err
    ended = run("--engine", "ctranslate2", stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "--engine ctranslate2 searches in one process" in ended.err


def test_workers_are_for_a_cpu_and_a_system_that_forks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On such a system nobody gets several by default."""
    monkeypatch.setattr("mtkit.runtime.usable_cores", lambda: 2)
    monkeypatch.setattr("mtkit.pool.can_fork", lambda: False)
    ended = run("--workers", 2, stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "2 workers: this system cannot fork a process" in ended.err
    assert run(stdin=text(LINES)).code == 0
    monkeypatch.setattr("mtkit.translator.resolve_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr("mtkit.translator.load_model", None)
    ended = run("--workers", 2, stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "2 workers on device cuda:0" in ended.err


def test_refusing_takes_no_torch(model: Path) -> None:
    """Importing torch would take seconds."""
    code = (
        "import sys; sys.argv = ['mtkit', 'translate', sys.argv[1], '--beam-size', '4', '--n-best', '9']\n"
        "from mtkit.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as ending: print(ending.code, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=60)
    assert result.stdout == "2 False\n"


def test_python_never_looks_for_garbage_among_what_torch_has_made(model: Path) -> None:
    """It took a third of the time in which a command translates one line."""
    code = (
        "import gc, sys; sys.argv = ['mtkit', '-q', 'translate', sys.argv[1]]\n"
        "from mtkit.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as ending: print(ending.code, gc.get_freeze_count() > 100_000, gc.isenabled())"
    )
    command = [sys.executable, "-c", code, str(model)]
    result = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=60)
    assert result.stdout == "\n0 True True\n"


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_a_model_is_named(run: Run, tmp_path: Path, folder: str) -> None:
    ended = run(folder=tmp_path / folder)
    assert ended.code == 1
    assert str(tmp_path / folder) in ended.err


CHANGES: dict[str, list[str]] = {
    "method": ["--method", "greedy"],
    "beam_size": ["--beam-size", "1"],
    "n_best": ["--n-best", "2"],
    "length_penalty": ["--length-penalty", "0"],
    "length_normalization": ["--length-normalization", "wu"],
    "coverage_penalty": ["--coverage-penalty", "2"],
    "groups": ["--groups", "5"],
    "diversity": ["--groups", "5", "--diversity", "9"],
    "mbr": ["--method", "sampling", "--samples", "5", "--mbr", "chrf"],
    "temperature": ["--method", "sampling", "--temperature", "0.01"],
    "top_k": ["--method", "sampling", "--top-k", "1"],
    "top_p": ["--method", "sampling", "--top-p", "0.01"],
    "min_p": ["--method", "sampling", "--min-p", "0.99"],
    "samples": ["--method", "sampling", "--samples", "2"],
    "seed": ["--method", "sampling", "--seed", "2"],
    "min_length": ["--method", "sampling", "--min-length", "9"],
    "min_length_ratio": ["--method", "sampling", "--min-length-ratio", "1"],
    "max_length": ["--max-length", "2"],
    "max_length_ratio": ["--max-length-ratio", "0.2"],
    "max_length_offset": ["--max-length-offset", "9"],
    "no_repeat_ngram": ["--no-repeat-ngram", "1"],
    "repetition_penalty": ["--repetition-penalty", "9"],
    "allow_unknown": ["--method", "sampling", "--allow-unknown"],
    "max_source_length": ["--max-source-length", "4"],
    "on_long": ["--max-source-length", "4", "--on-long", "truncate"],
}
INVISIBLE = {"max_tokens", "batch_size", "buffer_size", "patience"}


@pytest.fixture(scope="module")
def peaked(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model whose recipe leaves room for each option to change something."""
    search = {"method": "beam", "rules": {"max_length_ratio": 0.5, "max_length_offset": 4}}
    folder = tmp_path_factory.mktemp("options") / "model"
    return save_untrained(folder, tiny_corpus, tiny_tokenizers, 3, search=search)


@pytest.mark.parametrize("name", [name for name in search_options() if name not in INVISIBLE])
def test_every_search_option_changes_the_result(run: Run, peaked: Path, tiny_corpus: TinyCorpus, name: str) -> None:
    """An option that is parsed and then dropped would leave it as it was; the other options given are the same."""
    with_it = CHANGES[name]
    without = with_it[: with_it.index("--" + name.replace("_", "-"))]
    stdin = text(tiny_corpus.source[:24])
    changed, plain = (run("--json", *options, stdin=stdin, folder=peaked) for options in (with_it, without))
    assert (changed.code, plain.code) == (0, 0)
    keep = ("text", "score", "n_best")
    assert [[json.loads(line)[key] for key in keep] for line in changed.lines] != [
        [json.loads(line)[key] for key in keep] for line in plain.lines
    ]


def test_every_search_option_is_documented_with_its_place_and_range(run: Run) -> None:
    shown = " ".join(run("--help").out.decode().split())
    for option in search_options().values():
        assert " ".join(option.help.split()) in shown
        assert option.flag in shown


def test_patience_arrives_at_the_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does there, tests/test_search_beam.py tells; untrained models end hypotheses too seldom to show it."""
    seen: list[float] = []

    def noting(model: Any, source_BS: Any, config: Any, **options: Any) -> Any:
        seen.append(config.patience)
        return run_search(model, source_BS, config, **options)

    monkeypatch.setattr("mtkit.engine.search", noting)
    for options in ([], ["--patience", "1.5"]):
        run(*options, "--workers", 1, stdin=text(["the river sees the horse."]))
    assert seen == [0.0, 1.5]
    assert run("--patience", "0.5").code == 2


def noted_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of all batches that are searched from now on."""
    shapes: list[tuple[int, int]] = []

    def noting(model: Any, source_BS: Any, *arguments: Any) -> Any:
        shapes.append(tuple(source_BS.shape))
        return start(model, source_BS, *arguments)

    start = PreparedTransformer.start
    monkeypatch.setattr(PreparedTransformer, "start", noting)
    return shapes


def test_max_tokens_and_batch_size_bound_the_batches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = noted_shapes(monkeypatch)
    stdin = text(["the river sees the horse."] * 20)
    run("--method", "greedy", "--workers", 1, stdin=stdin)
    assert [rows for rows, _ in shapes] == [20]
    shapes.clear()
    run("--method", "greedy", "--workers", 1, "--batch-size", 8, stdin=stdin)
    assert [rows for rows, _ in shapes] == [8, 6, 6]  # buffers of 8 and 16 lines
    shapes.clear()
    run("--method", "greedy", "--workers", 1, "--max-tokens", 30, stdin=stdin)
    assert max(rows * width for rows, width in shapes) <= 30


def test_buffer_size_bounds_what_is_read_ahead(run: Run) -> None:
    """Of a stream that is refused at line 10 the buffers before come out: two of 4 lines, or one with 8 after it."""
    stdin = text(["the river."] * 9 + ["the river " * 50])
    options = ["--batch-size", 4, "--max-source-length", 20, "--on-long", "error"]
    assert len(run(*options, stdin=stdin).lines) == 4
    assert len(run(*options, "--buffer-size", 4, stdin=stdin).lines) == 8


def test_device_and_threads_are_passed_on(run: Run) -> None:
    ended = run("--device", "cuda:77", stdin=text(LINES))
    assert (ended.code, ended.out) == (2, b"")
    assert "cuda:77" in ended.err
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            assert run("--threads", threads, stdin=b"").code == 0
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [2]),
        (["--workers", 3], [3]),
        (["--workers", 1], []),
        (["--threads", 1], []),
        (["--batch-size", 1], []),
    ],
)
def test_how_many_processes_search(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[object], expected: list[int]
) -> None:
    """One a core where nothing else is asked for, and one alone line by line; the text is the same."""
    started: list[int] = []

    def noting(pool: PoolEngine) -> None:
        started.append(pool.workers)
        real(pool)

    real = PoolEngine._start
    monkeypatch.setattr(PoolEngine, "_start", noting)
    monkeypatch.setattr("mtkit.runtime.usable_cores", lambda: 2)
    stdin = text([*LINES * 3, "the\u2028 river"])
    ended = run("--batch-size", 4, *arguments, stdin=stdin)
    assert (ended.code, started) == (0, expected)
    assert ended.out == run("--workers", 1, stdin=stdin).out


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork")
@pytest.mark.parametrize("how", [["--json", "--n-best", 3], ["--method", "sampling", "--samples", 2]])
def test_several_workers_write_what_one_writes(run: Run, tiny_corpus: TinyCorpus, how: list[object]) -> None:
    stdin = text([*tiny_corpus.source[:30], "", "x" * 300, *tiny_corpus.source[30:50]])
    limits = ["--batch-size", 4, "--max-source-length", 40]
    one, two = (run("--workers", workers, *limits, *how, stdin=stdin) for workers in (1, 2))
    assert (one.code, two.code) == (0, 0)
    assert one.out == two.out
    assert "52 lines in, 52 out (1 blank)" in two.err


# Precision, on a model that has learnt something: near-ties are what low precision turns over.


@pytest.fixture(scope="module")
def trained(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_trained(tmp_path_factory.mktemp("trained") / "model", tiny_corpus, tiny_tokenizers)


def records(run: Run, folder: Path, lines: Sequence[str], *arguments: object) -> list[dict[str, Any]]:
    """What --json says of each line."""
    ended = run("--json", *arguments, stdin=text(lines), folder=folder)
    assert (ended.code, len(ended.lines)) == (0, len(lines))
    return [json.loads(line) for line in ended.lines]


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.03), ("int8", 0.03)])
def test_low_precision_shows_in_the_scores_and_stays_near(
    run: Run, trained: Path, tiny_corpus: TinyCorpus, precision: str, tolerance: float
) -> None:
    """Log-probability a token. Were the option ignored, all would be equal."""
    lines = ["", *tiny_corpus.source[:60]]
    exact, near = (records(run, trained, lines, "--precision", each) for each in ("float32", precision))
    assert near[0]["status"] == "blank"
    same = [(one, other) for one, other in zip(exact, near, strict=True) if one["text"] == other["text"]][1:]
    assert len(same) > 0.9 * len(tiny_corpus.source[:60])
    moved = [abs(one["normalized_score"] - other["normalized_score"]) for one, other in same]
    assert 1e-6 < max(moved) < tolerance


@pytest.mark.parametrize(
    ("precision", "tolerance", "unchanged"), [("float32", 1e-4, 1.0), ("int8", 1e-2, 0.95), ("bfloat16", 1e-2, 0.95)]
)
def test_the_batch_size_moves_no_score_beyond_what_is_stated(
    run: Run, trained: Path, tiny_corpus: TinyCorpus, precision: str, tolerance: float, unchanged: float
) -> None:
    """And no text in float32; in low precision it turns over near-ties, which are many in a model so small."""
    lines = [*tiny_corpus.source[60:120], " ".join(tiny_corpus.source[:3])]
    options = ["--precision", precision, "--threads", 1]
    one, *others = (records(run, trained, lines, *options, "--batch-size", size) for size in (1, 7, 64))
    for other in others:
        same = [(mine, theirs) for mine, theirs in zip(one, other, strict=True) if mine["text"] == theirs["text"]]
        assert len(same) >= unchanged * len(lines)
        for mine, theirs in same:
            assert mine["normalized_score"] == pytest.approx(theirs["normalized_score"], abs=tolerance)


def test_a_named_pipe_is_read_once(run: Run, translator: Translator, tmp_path: Path) -> None:
    """Opened for a look and closed again, it would lose what was written to it."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(text(LINES)))
    writer.start()
    ended = run("-i", tmp_path / "pipe", "--on-long", "error")
    writer.join(60)
    assert (ended.code, ended.lines) == (0, translator.translate(LINES))


def test_a_bar_counts_every_line_of_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[int | None, list[int]]] = []

    class Bar:
        def __init__(self, label: str, total: int | None, unit: str) -> None:
            self.heard: list[int] = []
            bars.append((total, self.heard))
            self.update = self.heard.append

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr("mtkit.cli.translate.bar", Bar)
    (tmp_path / "in.txt").write_bytes(text(LINES))
    run("-i", tmp_path / "in.txt")
    assert [(total, sum(heard)) for total, heard in bars] == [(None, 5)]
    terminal, shown = os.openpty()
    with open(terminal, "rb"), open(shown, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        run("-i", tmp_path / "in.txt")
    assert [(total, sum(heard)) for total, heard in bars[1:]] == [(5, 5)]


# Streams: each test is a process of its own


def command(model: Path, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "mtkit", "translate", str(model), "--device", "cpu", *map(str, arguments)]


# Set to 1 it would hide what is not flushed.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | {"OMP_NUM_THREADS": "1"}


def start(arguments: list[str], **streams: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen(arguments, env=ENVIRONMENT, bufsize=0, **pipes)


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """One line of stdout; fails when it does not come in time."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0], "no answer"
    return process.stdout.readline()


@pytest.mark.parametrize("arguments", [["--interactive"], ["--batch-size", "1"]])
def test_each_answer_comes_before_the_next_line_is_sent(
    model: Path, translator: Translator, arguments: list[str]
) -> None:
    process = start(command(model, *arguments))
    assert process.stdin is not None
    for line, expected in zip(LINES, translator.translate(LINES), strict=True):
        process.stdin.write(line.encode() + b"\n")
        assert read_line(process) == expected.encode() + b"\n"
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "utf-16"},
    ],
)
def test_text_is_utf8_whatever_the_locale(model: Path, translator: Translator, environment: dict[str, str]) -> None:
    lines = ["the río 河 река.", "the \ufffd baker."]
    tagged = [each.text for each in translator.translate_stream(lines, tags=["<news>"])]
    result = subprocess.run(
        command(model, "--tag", "<news>", "--json"),
        input=text(lines),
        capture_output=True,
        env=ENVIRONMENT | environment,
        timeout=60,
    )
    assert result.returncode == 0
    records = [json.loads(line) for line in result.stdout.decode("utf-8").splitlines()]
    assert [record["source"] for record in records] == lines
    assert [record["text"] for record in records] == tagged


def test_a_reader_that_goes_away_ends_the_work_soon_and_quietly(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(text(LINES * 20_000))
    with open(tmp_path / "in.txt", "rb") as source:
        process = start(command(model, "--batch-size", 4), stdin=source)
        read_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert os.lseek(source.fileno(), 0, os.SEEK_CUR) < (tmp_path / "in.txt").stat().st_size


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_an_error(model: Path) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            command(model), input=text(LINES), stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
        )
    assert result.returncode == 1
    assert b"<stdout>: No space left on device" in result.stderr
    assert b"Traceback" not in result.stderr
    assert b"Exception ignored" not in result.stderr


ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), ENDINGS)
def test_a_signal_ends_after_a_whole_line(model: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The pipe on stdout is full, so the signal meets a write that has done part of its work."""
    (tmp_path / "in.txt").write_bytes(text(["the river sees the horse today. " * 40] * 20))
    process = start(command(model, "-i", tmp_path / "in.txt", "--batch-size", 1, "--json", "--n-best", 5))
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0]
    time.sleep(2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.endswith(b"\n")
    assert 1 <= len([json.loads(line) for line in out.split(b"\n")[:-1]]) < 20
    assert b"Traceback" not in err
    assert (b"interrupted" in err) == (number == signal.SIGINT)


@pytest.mark.parametrize(("number", "code"), ENDINGS)
def test_a_signal_leaves_no_output_file(model: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(command(model, "-o", tmp_path / "out.txt", "--interactive"))
    assert process.stdin is not None
    process.stdin.write(text(LINES))
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == code
    assert list(tmp_path.iterdir()) == []


def test_a_bar_is_shown_only_on_a_terminal(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(text(LINES))
    result = subprocess.run(command(model, "-i", tmp_path / "in.txt"), capture_output=True, env=ENVIRONMENT, timeout=60)
    assert b"\r" not in result.stderr
    assert result.stderr.count(b"\n") <= 3
