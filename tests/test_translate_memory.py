"""What `mtkit translate` holds of the machine's memory, whatever the number of lines."""

import os
import platform
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import TinyCorpus, invent_pairs
from toy_models import save_untrained

from mtkit.model import prepared_state
from mtkit.model.prepared_state import Memory, Past
from mtkit.runtime import bound_kernel_caches
from mtkit.text.tokenizer import Tokenizers

linux = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's memory that is tuned")

# The noise of sampling lets the sentences of an untrained model end one by one, as those of a trained one do.
SEARCH = [
    "--method",
    "sampling",
    "--max-length",
    "40",
    "--max-length-ratio",
    "0",
    "--max-length-offset",
    "40",
    "--workers",
    "1",
]


def peak(model: Path, lines: list[str], folder: Path) -> float:
    """The most resident memory, in MiB, of a process that translates these lines."""
    given, found = folder / "given", folder / "found"
    given.write_bytes("".join(line + "\n" for line in lines).encode())
    process = subprocess.Popen(
        [sys.executable, "-m", "mtkit", "-q", "translate", model, *SEARCH, "-i", given, "-o", found],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert found.read_bytes().count(b"\n") == len(lines)
    return usage.ru_maxrss / 1024


@linux
def test_more_lines_take_no_more_memory(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path) -> None:
    """Ten times the lines: once the kernels of each shape of a product were kept, and 10,000 lines took half as much
    again as 1,000.
    """
    model = save_untrained(tmp_path / "model", tiny_corpus, tiny_tokenizers, 1)
    chance = random.Random(1)
    words = [word for source, _ in invent_pairs(200, 4) for word in source.split()]
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 25))) for _ in range(2000)]
    longest_first = sorted(lines, key=len, reverse=True)
    few = [*longest_first[:64], *longest_first[64::15]]
    assert len(few) < len(lines) / 9
    assert peak(model, lines, tmp_path) < peak(model, few, tmp_path) + 24


def step(row: float, rows: int = 3) -> torch.Tensor:
    """Keys and values of one step and layer, of heads of 2 x 3 numbers."""
    return torch.full((rows, 2, 2, 3), row)


@pytest.mark.parametrize("at_once", [1, 1 << 10, 1 << 20])
def test_rows_that_leave_make_room_for_steps(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered stays where it is, and needs no more memory until it fills what it had."""
    monkeypatch.setattr(prepared_state, "_AT_ONCE", at_once)
    past = Past(torch.randn(16, 2, 2, 12, 2, 3))
    before, place = past.buffer_CL2NHE.clone(), past.buffer_CL2NHE.data_ptr()
    rows_N = torch.tensor([8, 1, 5])
    past.keep(rows_N, 10)
    assert torch.equal(past.buffer_CL2NHE[:10], before[:10, :, :, rows_N])
    for length in range(10, 16 * 12 // 3):
        past.append(0, step(-1.0), length)
        seen = past.append(1, step(float(length)), length)
    assert torch.equal(seen.keys[:10], before[:10, 1, 0, rows_N])
    assert torch.equal(seen.values[:10], before[:10, 1, 1, rows_N])
    assert seen.keys[10:, 0, 0, 0].tolist() == list(range(10, 64))
    assert past.buffer_CL2NHE.data_ptr() == place
    past.append(0, step(0.0), 64)
    assert torch.equal(past.buffer_CL2NHE[:10], before[:10, :, :, rows_N])
    past.keep(torch.arange(3).repeat(9), 60)
    assert torch.equal(past.buffer_CL2NHE[:10], before[:10, :, :, rows_N].repeat(1, 1, 1, 9, 1, 1))


@pytest.mark.parametrize("width", [3, 4])
def test_rows_that_move_take_all_their_numbers_along(width: int) -> None:
    """They are copied four numbers at a time, where the width of a head allows it."""
    past = Past(torch.randn(6, 2, 2, 5, 2, width))
    before = past.buffer_CL2NHE.clone()
    past.move(torch.tensor([0, 3]), torch.tensor([4, 0]), 5)
    assert torch.equal(past.buffer_CL2NHE[:5], before[:5, :, :, torch.tensor([4, 1, 2, 0, 4])])
    assert torch.equal(past.buffer_CL2NHE[5:], before[5:])


def test_batches_hand_on_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system gives is cleared first, which took 8 % of a narrow model's time."""
    monkeypatch.setattr(prepared_state, "_LARGE", 1)
    memory, shape = Memory(), (2, 3, 2, 3)
    past = Past.begin(memory, 8, shape)
    assert len(past.buffer_CL2NHE) >= 8
    place = past.buffer_CL2NHE.data_ptr()
    other = Past.begin(memory, 8, shape)  # while the first is in use
    assert other.buffer_CL2NHE.data_ptr() != place
    del past
    again = Past.begin(memory, 4, (1, 7, 1, 5))
    assert again.buffer_CL2NHE.data_ptr() == place
    assert again.buffer_CL2NHE.shape[1:] == (1, 2, 7, 1, 5)
    del again
    assert len(Past.begin(memory, 100, shape).buffer_CL2NHE) >= 100  # which there would be no room for


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process that may have translated: what one of them wrote was there in all of them."""
    monkeypatch.setattr(prepared_state, "_LARGE", 1)
    memory = Memory()
    Past.begin(memory, 8, (1, 3, 2, 3))
    past = Past.begin(memory, 8, (1, 3, 2, 3))
    past.buffer_CL2NHE.fill_(1.0)
    child = os.fork()
    if child == 0:
        past.buffer_CL2NHE.fill_(2.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert bool((past.buffer_CL2NHE == 1.0).all())


def test_the_user_may_bound_the_caches_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    bound_kernel_caches()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("7", "128")
