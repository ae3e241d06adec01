"""Translating in several processes: two real ones over gloo, whose result must be that of one, byte for byte."""

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from toy_job import Pair, Starter
from toy_models import save_untrained

from mtkit.cli.app import main
from mtkit.cli.job import follows
from mtkit.engine import Batch
from mtkit.errors import ModelError, ToldError
from mtkit.ranked_engine import RankedEngine, refuse_unlike
from mtkit.ranks import Ranks
from mtkit.sections.search import Greedy
from mtkit.text.tokenizer import Tokenizers


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_untrained(tmp_path_factory.mktemp("untrained") / "model", tiny_corpus, tiny_tokenizers, 1)


@pytest.fixture(scope="module")
def text(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty lines: blank ones, one of control characters, one that is cut into pieces, and the last without its LF."""
    lines = [
        *tiny_corpus.source[:20],
        "",
        "\u2028\x0b",
        " ".join(tiny_corpus.source[20:28]),
        *tiny_corpus.source[28:45],
    ]
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes("\n".join(lines).encode())
    return path


def command(model: Path, *arguments: object) -> list[str]:
    limits = ["--batch-size", "4", "--max-source-length", "40", "--max-length", "12"]
    return ["translate", str(model), "--device", "cpu", *limits, *map(str, arguments)]


@pytest.mark.parametrize("how", [["--json"], ["--method", "sampling", "--samples", "2"], ["--batch-size", "1"]])
def test_two_processes_write_what_one_writes(
    starter: Starter,
    model: Path,
    text: Path,
    how: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From stdin to stdout, and from a file to a file."""
    monkeypatch.setattr(logging.getLogger("mtkit"), "handlers", [])
    with open(text, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        for source, target in ((text, "alone"), ("-", "alone.piped")):
            monkeypatch.setattr(sys, "argv", ["mtkit", *command(model, *how, "-i", source, "-o", tmp_path / target)])
            with pytest.raises(SystemExit, match="0"):
                main()
    piped = Pair.of(starter, command(model, *how), tmp_path / "piped", stdin=str(text))
    filed = Pair.of(starter, command(model, *how, "-i", text, "-o", tmp_path / "filed"), tmp_path / "job")
    for pair in (piped, filed):
        first, second = pair.ended()
        assert (first.code, second.code) == (0, 0), first.err + second.err
        assert "40 lines in, 40 out (2 blank)" in first.err
        assert second.err == ""
    assert (tmp_path / "filed").read_bytes() == (tmp_path / "alone").read_bytes()
    assert (tmp_path / "piped.out0").read_bytes() == (tmp_path / "alone.piped").read_bytes()
    assert (tmp_path / "piped.out1").read_bytes() == b""


FAILS = """
import os, signal
from mtkit.engine import ModelEngine
from mtkit.errors import ModelError

def fails(*_):
    if os.environ["RANK"] == "1":
        {deed}
    return real(*_)

real, ModelEngine.search_batch = ModelEngine.search_batch, fails
"""


def test_an_error_on_a_rank_ends_all_with_one_message(
    starter: Starter, model: Path, text: Path, tmp_path: Path
) -> None:
    before = FAILS.format(deed='raise ModelError("no room", "make some")')
    pair = Pair.of(starter, command(model, "-i", text, "-o", tmp_path / "out"), tmp_path / "job", before)
    first, second = pair.ended()
    assert (first.code, second.code) == (1, 1)
    assert first.complaints == ["mtkit: error: rank 1: no room"]
    assert second.err == ""
    assert not list(tmp_path.glob("*out"))
    assert not list(tmp_path.glob(".*"))


def test_a_rank_that_dies_ends_the_job(starter: Starter, model: Path, text: Path, tmp_path: Path) -> None:
    before = FAILS.format(deed="os.kill(os.getpid(), signal.SIGKILL)")
    first, second = Pair.of(starter, command(model, "-i", text), tmp_path / "job", before).ended()
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "the connection to another rank is lost" in first.complaints[0]
    assert "Traceback" not in first.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "ctranslate2"], "--engine ctranslate2 searches in one process"),
        (["--workers", "2"], "--workers 2 under torchrun"),
        (["--n-best", "9", "--beam-size", "4"], "n_best (9) cannot exceed beam_size (4)"),
    ],
)
def test_options_that_cannot_be_end_all_at_once(
    starter: Starter, model: Path, text: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    """None of them is left to wait for the others."""
    for end in Pair.of(starter, command(model, *arguments, "-i", text), tmp_path / "job").ended():
        assert end.code == 2
        assert told in end.complaints[0]


def test_an_error_of_the_input_ends_all(starter: Starter, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"one\nt\xffo\n")
    arguments = command(model, "--bad-utf8", "error", "-i", tmp_path / "bad")
    first, second = Pair.of(starter, arguments, tmp_path / "job").ended()
    assert (first.code, second.code) == (1, 1)
    assert "bad:2" in first.complaints[0]
    assert second.err == ""


# Without processes


@dataclass(frozen=True)
class FakeRanks(Ranks):
    """Three ranks, of which the others answer what the test says; what is handed out is noted."""

    answers: Any = ()
    handed: list[Any] = field(default_factory=list)

    def hand_out(self, values: Sequence[Any] | None) -> Any:
        assert values is not None
        assert len(values) == self.world
        self.handed.append(values)
        return values[0]

    def hand_in(self, value: Any) -> list[Any]:
        others = [[f"found {order.batch.keys}"] if order.batch else None for order in self.handed[-1][1:]]
        return [value, *(self.answers or others)]

    def collect(self, value: Any) -> list[Any]:
        return [value, *self.answers]


class Own:
    """An engine that only says which batch it was given."""

    def search(self, batches: Any, config: Any, attention: bool, scores: bool = True) -> Any:
        for place, batch in enumerate(batches):
            yield place, [f"found {batch.keys}"]


def batches(count: int) -> Iterator[Batch]:
    for number in range(count):
        yield Batch([[5, 3]], [number], None)


def test_batches_go_round_in_order_and_none_is_taken_ahead() -> None:
    ranks = FakeRanks(world=3)
    taken: list[int] = []

    def stream() -> Iterator[Batch]:
        for batch in batches(7):
            taken.append(batch.keys[0])
            yield batch

    found = []
    for place, answer in RankedEngine(Own(), ranks).search(stream(), Greedy(method="greedy"), False):
        found.append((place, answer))
        assert len(taken) <= 3 * (place // 3 + 1)
    assert found == [(place, [f"found {[place]}"]) for place in range(7)]
    assert [[order.batch is None for order in orders] for orders in ranks.handed][-1] == [False, True, True]


def test_an_error_names_its_rank() -> None:
    ranks = FakeRanks(world=3, answers=(None, ModelError("no room")))
    with pytest.raises(ModelError, match="rank 2: no room"):
        list(RankedEngine(Own(), ranks).search(batches(2), Greedy(method="greedy"), False))


def test_other_weights_are_refused() -> None:
    refuse_unlike(["a"], FakeRanks(world=2, answers=(["a"],)))
    with pytest.raises(ModelError, match="rank 1 has other weights"):
        refuse_unlike(["a"], FakeRanks(world=2, answers=(["b"],)))
    with pytest.raises(ToldError):
        refuse_unlike(["b"], FakeRanks(rank=1, world=2, answers=(["a"],)))


@pytest.mark.parametrize(
    ("world", "rank", "expected"), [("2", "1", True), ("2", "0", False), ("1", "1", False), (None, "1", False)]
)
def test_who_follows(world: str | None, rank: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    assert follows() is expected
