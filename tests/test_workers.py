"""Chunks and the processes that encode them: in order, bounded, and gone when they should be."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtkit.data.corpus import Pair
from mtkit.data.encode import Chunk, Encoder, cut
from mtkit.data.workers import encode_all
from mtkit.errors import DataError
from mtkit.sections.data import Filters


def test_chunks_are_consecutive_and_bounded():
    pairs = [Pair("s" * (number % 7 * 40_000), "t", number) for number in range(1, 101)]
    chunks = list(cut(iter(pairs), size=30))
    assert [text for chunk in chunks for text in chunk.sources] == [pair.source for pair in pairs]
    assert [chunk.first_line for chunk in chunks] == [
        1 + sum(len(chunk.sources) for chunk in chunks[:place]) for place in range(len(chunks))
    ]
    assert max(len(chunk.sources) for chunk in chunks) <= 30
    assert max(sum(map(len, chunk.sources)) for chunk in chunks) < 1_240_000


@pytest.fixture
def encoder(tiny_tokenizers) -> Encoder:
    return Encoder(tiny_tokenizers, Filters())


def chunks_of(count: int, size: int = 10) -> list[Chunk]:
    return [Chunk(1 + size * number, ["the baker"] * size, ["mirulo"] * size) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_processes_answer_in_order(encoder, count):
    answers = list(encode_all(iter(chunks_of(count)), encoder, workers=2))
    assert [answer.line_numbers.tolist() for answer in answers] == [
        encoder(chunk).line_numbers.tolist() for chunk in chunks_of(count)
    ]


def test_chunks_far_larger_than_a_pipe_do_not_block(encoder):
    chunks = chunks_of(5, size=20_000)
    answers = encode_all(iter(chunks), encoder, workers=2)
    assert [answer.read for answer in answers] == [20_000] * 5


def test_reading_stays_a_bounded_way_ahead(encoder):
    taken = 0

    def chunks():
        nonlocal taken
        for chunk in chunks_of(50):
            taken += 1
            yield chunk

    answers = encode_all(chunks(), encoder, workers=2)
    for number in range(20):
        next(answers)
        assert taken <= number + 1 + 2
    answers.close()


def test_an_error_in_a_process_is_raised_here(encoder):
    broken = Chunk(1, ["the baker"], [])
    with pytest.raises(ValueError, match="zip") as caught:
        list(encode_all(iter([*chunks_of(1), broken, *chunks_of(1)]), encoder, workers=2))
    assert "encode.py" in caught.value.__notes__[0]


def test_a_killed_process_is_an_error_with_its_signal(encoder, monkeypatch):
    """A process that the kernel kills for its memory must not leave the parent waiting."""
    from mtkit.data import workers

    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda encoder: started.append(start(encoder)) or started[-1])
    answers = encode_all(iter(chunks_of(50)), encoder, workers=2)
    next(answers)
    started[1].kill()
    with pytest.raises(DataError, match="signal SIGKILL"):
        list(answers)
    assert all(child.returncode is not None for child in started)


def test_closing_early_ends_the_processes(encoder, monkeypatch):
    from mtkit.data import workers

    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda encoder: started.append(start(encoder)) or started[-1])
    answers = encode_all(iter(chunks_of(50)), encoder, workers=3)
    next(answers)
    answers.close()
    assert len(started) == 3
    assert all(child.returncode is not None for child in started)


def test_line_numbers_are_wide_enough(encoder):
    (answer,) = encode_all(iter([Chunk(2**40, ["the baker"], ["mirulo"])]), encoder, workers=1)
    assert answer.line_numbers.dtype == np.uint64
    assert answer.line_numbers.tolist() == [2**40]


def test_processes_of_a_killed_parent_end_in_silence(tiny_tokenizers, tmp_path):
    """A parent that is killed cannot end its processes; they notice that nobody listens."""
    code = (
        "import os, signal, sys; from mtkit.data.workers import encode_all; "
        "from mtkit.data.encode import Chunk, Encoder; from mtkit.text.tokenizer import Tokenizers; "
        "chunk = Chunk(1, ['a b'] * 20000, ['c'] * 20000); "
        "answers = encode_all(iter([chunk] * 9), Encoder(Tokenizers.load(sys.argv[1]), None), 2); "
        "next(answers); os.kill(os.getpid(), signal.SIGKILL)"
    )
    tiny_tokenizers.save(tmp_path)
    path = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    # This reads stderr to its end, which comes when the last process that holds it has gone.
    parent = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, env={**os.environ, **path}
    )
    assert parent.returncode == -signal.SIGKILL
    assert parent.stderr == b""
