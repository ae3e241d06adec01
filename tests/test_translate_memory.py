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

from mtkit.model.prepared_state import Past
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


def test_rows_that_leave_make_room_for_steps() -> None:
    """What is remembered stays where it is, and needs no more memory until it fills what it had."""
    past = Past(torch.randn(16, 12, 2, 3), torch.randn(16, 12, 2, 3))
    before, place = past.keys_CNHE.clone(), past.keys_CNHE.data_ptr()
    rows_N = torch.tensor([1, 5, 8])
    past.keep(rows_N, 10)
    assert torch.equal(past.keys_CNHE[:10], before[:10, rows_N])
    for step in range(10, 16 * 12 // 3):
        keys_TNHE = past.append(torch.full((3, 2, 3), float(step)), torch.zeros(3, 2, 3), step).keys
    assert torch.equal(keys_TNHE[:10], before[:10, rows_N])
    assert keys_TNHE[10:, 0, 0, 0].tolist() == list(range(10, 64))
    assert past.keys_CNHE.data_ptr() == place
    past.append(torch.zeros(3, 2, 3), torch.zeros(3, 2, 3), 64)
    assert torch.equal(past.keys_CNHE[:10], before[:10, rows_N])
    past.keep(torch.arange(3).repeat(9), 60)
    assert torch.equal(past.keys_CNHE[:10], before[:10, rows_N].repeat(1, 9, 1, 1))


@pytest.mark.parametrize("width", [3, 4])
def test_rows_that_move_take_all_their_numbers_along(width: int) -> None:
    """They are copied four numbers at a time, where the width of a head allows it."""
    past = Past(torch.randn(6, 5, 2, width), torch.randn(6, 5, 2, width))
    before = past.keys_CNHE.clone(), past.values_CNHE.clone()
    past.move(torch.tensor([0, 3]), torch.tensor([4, 0]), 5)
    for buffer, was in zip((past.keys_CNHE, past.values_CNHE), before, strict=True):
        assert torch.equal(buffer[:5], was[:5, torch.tensor([4, 1, 2, 0, 4])])
        assert torch.equal(buffer[5:], was[5:])


def test_the_user_may_bound_the_caches_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    bound_kernel_caches()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("7", "128")
