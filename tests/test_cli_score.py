"""`mtkit score`: every way a pair can be lost or shifted between two files and stdout, and every option."""

import bz2
import gzip
import json
import lzma
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from in_process import Ended, Run, run_command
from toy_models import RULES, save_untrained

from mtkit.force import Scorer
from mtkit.scored import text_line
from mtkit.text.tokenizer import Tokenizers

SOURCES = ["the baker sees the river.", "", "the tall child follows the horse today.", "the river.", "the river"]
TARGETS = ["kort mirulo taskel.", "", "sibba lisho hinta pelgra eska.", " ", "taskel"]


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its buffers are small, so that any input takes several."""
    search = {"method": "beam", "rules": RULES, "lines": {"buffer_size": 3}}
    path = tmp_path_factory.mktemp("untrained") / "model"
    return save_untrained(path, tiny_corpus, tiny_tokenizers, 1, search=search)


@pytest.fixture(scope="module")
def scorer(model: Path) -> Scorer:
    return Scorer.load(model, "cpu")


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `mtkit score MODEL SOURCE TARGET ...` in this process; stdin is a file."""

    def score(*arguments: object, stdin: bytes = b"") -> Ended:
        command = ["score", str(model), "--device", "cpu", *map(str, arguments)]
        return run_command(command, stdin, tmp_path, monkeypatch, capfdbinary)

    return score


def text(lines: Sequence[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode("utf-8")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "pairs.source").write_bytes(text(SOURCES))
    (tmp_path / "pairs.target").write_bytes(text(TARGETS))
    return tmp_path / "pairs.source", tmp_path / "pairs.target"


def figures(line: str) -> list[float]:
    return [float(field) for field in line.split("\t")]


# Pairs


def test_the_lines_are_what_the_python_api_gives(run: Run, files: tuple[Path, Path], scorer: Scorer) -> None:
    ended = run(*files)
    expected = scorer.score(zip(SOURCES, TARGETS, strict=True))
    assert (ended.code, ended.lines) == (0, [text_line(pair).removesuffix("\n") for pair in expected])
    assert ended.lines[1] == "nan\tnan"
    for line, pair in zip(ended.lines, expected, strict=True):
        if pair.length:
            total, mean = figures(line)
            assert mean == pytest.approx(total / pair.length, abs=1e-5)


def test_the_corpus_figures_are_on_stderr_alone(run: Run, files: tuple[Path, Path], scorer: Scorer) -> None:
    ended = run(*files)
    scored = [pair for pair in scorer.score(zip(SOURCES, TARGETS, strict=True)) if pair.length]
    total, tokens = sum(pair.log_probability or 0.0 for pair in scored), sum(pair.length for pair in scored)
    assert len(ended.lines) == 5
    assert (
        f"4 of 5 pairs scored (1 blank, 0 too long): log-probability {total:.4f}, {tokens} target tokens with ends, "
        f"perplexity {math.exp(-total / tokens):.4f}" in ended.err
    )
    assert "the target is blank, scored as the empty translation: 1 line: 4" in ended.err


def test_the_summary_alone(run: Run, files: tuple[Path, Path]) -> None:
    total = sum(figures(line)[0] for line in run(*files).lines if line != "nan\tnan")
    ended = run(*files, "--summary-only")
    rows = dict(line.split("\t") for line in ended.lines)
    assert (rows["lines"], rows["sentences"], rows["blank"], rows["empty"]) == ("5", "4", "1", "1")
    assert float(rows["log_probability"]) == pytest.approx(total, abs=1e-4)
    mean = float(rows["log_probability"]) / int(rows["tokens"])
    assert float(rows["perplexity"]) == pytest.approx(math.exp(-mean), rel=1e-4)
    [line] = run(*files, "--summary-only", "--json").lines
    assert {name: str(value) for name, value in json.loads(line).items()}.keys() == rows.keys() | {"model_sha256"}
    assert json.loads(line)["perplexity"] == pytest.approx(float(rows["perplexity"]), rel=1e-5)


def test_json_tells_everything_about_every_pair(run: Run, files: tuple[Path, Path]) -> None:
    records = [json.loads(line) for line in run(*files, "--json").lines]
    assert [record["source"] for record in records] == SOURCES
    assert [record["target"] for record in records] == TARGETS
    assert [record["id"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["status"] for record in records] == ["ok", "blank", "ok", "empty", "ok"]
    for record, line in zip(records, run(*files).lines, strict=True):
        assert len(record["tokens"]) == len(record["token_log_probabilities"])
        if record["status"] == "blank":
            assert record["log_probability"] is None
            continue
        values = [*record["token_log_probabilities"], *record["end_log_probabilities"]]
        assert record["log_probability"] == pytest.approx(sum(values), abs=1e-4)
        assert figures(line) == pytest.approx([record["log_probability"], record["normalized_score"]], abs=1e-5)
        assert record["perplexity"] == pytest.approx(math.exp(-record["normalized_score"]))


def test_no_reader_breaks_a_json_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(text(["the\u2028river\u0085\x0b"]))
    ended = run(tmp_path / "source", "-", "--json", stdin=text(["taskel\u2029\x7f"]))
    assert len(ended.out.decode().splitlines()) == 1
    assert json.loads(ended.lines[0])["source"] == "the\u2028river\u0085\x0b"


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_compression_line_ends_and_stdin_change_nothing(
    run: Run, files: tuple[Path, Path], tmp_path: Path, suffix: str, opener: Callable[..., Any]
) -> None:
    expected = run(*files).out
    with opener(tmp_path / f"packed{suffix}", "wb") as stream:
        stream.write(text(SOURCES, "\r\n"))
    assert run(tmp_path / f"packed{suffix}", files[1]).out == expected
    assert run("-", files[1], stdin=text(SOURCES)).out == expected
    assert run(files[0], "-", stdin=text(TARGETS)[:-1]).out == expected
    output = tmp_path / f"out{suffix}"
    assert run(*files, "-o", output).out == b""
    with opener(output, "rb") as stream:
        assert stream.read() == expected


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\v", "\f", "\r", "\0"])
def test_only_lf_ends_a_line(run: Run, tmp_path: Path, mark: str) -> None:
    """Or every pair after it would be shifted."""
    (tmp_path / "source").write_bytes(text(["the river.", f"the{mark}baker sees.", "the horse."]))
    (tmp_path / "plain").write_bytes(text(["the river.", "the baker sees.", "the horse."]))
    (tmp_path / "target").write_bytes(text(["taskel.", "kort mirulo.", "pelgra."]))
    ended = run(tmp_path / "source", tmp_path / "target")
    assert ended.lines == run(tmp_path / "plain", tmp_path / "target").lines
    assert "in 1 line: 2" in ended.err


def test_no_pairs_at_all(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    ended = run(tmp_path / "empty", tmp_path / "empty")
    assert (ended.code, ended.out) == (0, b"")
    assert "0 of 0 pairs scored" in ended.err


# What does not line up


def test_unequal_files_are_refused_by_name_and_number_before_any_output(
    run: Run, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scorer, "load", None)
    (tmp_path / "short").write_bytes(text(TARGETS[:3]))
    ended = run(files[0], tmp_path / "short")
    assert (ended.code, ended.out) == (1, b"")
    assert f"{files[0]} has 5 lines, {tmp_path / 'short'} has 3" in ended.err


def test_a_stream_of_another_length_is_an_error_when_one_ends(run: Run, files: tuple[Path, Path]) -> None:
    ended = run(files[0], "-", stdin=text(TARGETS[:3]))
    assert ended.code == 1
    assert f"<stdin> ends after 3 lines, {files[0]} goes on" in ended.err
    ended = run("-", files[1], stdin=text([*SOURCES, "more"]))
    assert ended.code == 1
    assert f"{files[1]} ends after 5 lines, <stdin> goes on" in ended.err


def test_a_named_pipe_is_read_once(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    """As a shell's <(...) is: counting its lines beforehand would leave nothing to score."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(text(TARGETS)), daemon=True)
    expected = run(*files).out
    writer.start()
    assert run(files[0], tmp_path / "pipe").out == expected


@pytest.mark.parametrize("place", [0, 1])
def test_bad_utf8_is_refused_by_file_and_line_before_the_model_is_loaded(
    run: Run, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(Scorer, "load", None)
    files[place].write_bytes(b"the river.\nthe b\xe4ker.\n")
    ended = run(*files)
    assert (ended.code, ended.out) == (1, b"")
    assert f"{files[place]}:2: byte 0xE4 at column 6 is not UTF-8" in ended.err
    assert "--bad-utf8 replace" in ended.err


def test_bad_utf8_on_stdin_is_refused_and_can_be_replaced(run: Run, files: tuple[Path, Path]) -> None:
    stdin = text(TARGETS[:4]) + b"task\xffel\n"
    ended = run(files[0], "-", stdin=stdin)
    assert (ended.code, len(ended.lines)) == (1, 3)
    assert "<stdin>:5: byte 0xFF" in ended.err
    replaced = run(files[0], "-", "--bad-utf8", "replace", stdin=stdin)
    assert (replaced.code, len(replaced.lines)) == (0, 5)
    assert "<stdin>: bytes that are not UTF-8 became U+FFFD in 1 line: 5" in replaced.err
    assert "unknown target tokens" in replaced.err


def test_a_missing_file_is_named(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    for pair in ((tmp_path / "nowhere", files[1]), (files[0], tmp_path / "nowhere")):
        ended = run(*pair)
        assert ended.code == 1
        assert "nowhere: no such file" in ended.err


def test_there_is_one_stdin(run: Run) -> None:
    ended = run("-", "-")
    assert ended.code == 2
    assert "both -" in ended.err


# Options


def test_a_long_pair_is_refused_before_any_output_of_files_or_skipped(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(text(["the river."] * 8))
    target.write_bytes(text(["taskel."] * 7 + ["taskel " * 30]))
    ended = run(source, target, "--max-tokens", 16)
    assert (ended.code, ended.out) == (1, b"")
    assert "line 8 has " in ended.err
    assert "target tokens, and at most 15 can be scored" in ended.err
    streamed = run(source, "-", "--max-tokens", 16, stdin=target.read_bytes())
    assert (streamed.code, len(streamed.lines)) == (1, 6)
    skipped = run(source, target, "--max-tokens", 16, "--on-long", "skip")
    assert (skipped.code, len(skipped.lines)) == (0, 8)
    assert skipped.lines[-1] == "nan\tnan"
    assert "too long, not scored: 1 line: 8" in skipped.err
    assert "nan\tnan" not in run(source, target).lines


def test_max_tokens_changes_batches_not_figures(run: Run, tiny_corpus: TinyCorpus) -> None:
    pair = [tiny_corpus.folder / "test.source", tiny_corpus.folder / "test.target"]
    narrow, wide = (run(*pair, "--max-tokens", size).lines for size in (64, 4096))
    for one, other in zip(narrow, wide, strict=True):
        assert figures(one) == pytest.approx(figures(other), abs=1e-4)


def test_tags_reach_the_model(run: Run, files: tuple[Path, Path], scorer: Scorer) -> None:
    ended = run(*files, "--tag", "<news>")
    expected = scorer.score_stream(zip(SOURCES, TARGETS, strict=True), tags=["<news>"])
    assert ended.lines == [text_line(pair).removesuffix("\n") for pair in expected]
    assert ended.lines != run(*files).lines
    refused = run(*files, "--tag", "<sports>")
    assert (refused.code, refused.out) == (1, b"")
    assert "<sports>" in refused.err


def test_threads_are_set(run: Run, files: tuple[Path, Path]) -> None:
    before = torch.get_num_threads()
    try:
        assert run(*files, "--threads", 3).code == 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "15"], "'--max-tokens': Input should be greater than or equal to 16"),
        (["--on-long", "truncate"], "'truncate'"),
        (["--device", "abacus"], "device 'abacus' is not known"),
        (["--threads", "0"], "'--threads'"),
    ],
)
def test_impossible_options_are_usage_errors(
    run: Run, files: tuple[Path, Path], arguments: list[str], message: str
) -> None:
    ended = run(*files, *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert message in ended.err


# Processes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(run: Run, files: tuple[Path, Path]) -> None:
    ended = run(*files, "-o", "/dev/full")
    assert ended.code == 1
    assert "No space left on device" in ended.err


def test_a_closed_pipe_ends_the_work_quietly(model: Path, tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).write_bytes(text(["the river."] * 20_000))
    command = [sys.executable, "-m", "mtkit", "score", str(model), str(tmp_path / "source"), str(tmp_path / "target")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
