"""What is asked of the machine, on machines that have it and on those that do not."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mtkit import runtime
from mtkit.errors import UsageError
from mtkit.runtime import (
    autocast,
    autocast_dtype,
    begin_peak,
    free_memory,
    give_back_freed,
    held_memory,
    key_seed,
    peak_held_memory,
    peak_memory,
    resolve_device,
    set_threads,
    tune_allocator,
)

CPU = torch.device("cpu")


@pytest.fixture
def threads_kept():
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Model {'AB'[index]}")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "mps"])
def test_an_absent_device_is_an_error_that_lists_what_is_there(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_device(name)
    assert caught.value.message == f"device {name} is not there; visible: cpu"
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.usefixtures("two_gpus")
def test_devices_count_within_the_visible_ones() -> None:
    assert resolve_device("auto") == resolve_device("cuda") == resolve_device("cuda:0") == torch.device("cuda:0")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match=r"cuda:2 is not there; visible: cpu, cuda:0 \(Model A\), cuda:1 \(Model B\)"):
        resolve_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
def test_auto_takes_the_best_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("auto") == resolve_device("cpu") == resolve_device("cpu:0") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("mps") == torch.device("mps")
    with pytest.raises(UsageError, match="visible: cpu, mps"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cuda:-1", "xla", "meta", "CPU "])
def test_names_that_are_no_devices(name: str) -> None:
    with pytest.raises(UsageError, match="device") as caught:
        resolve_device(name)
    assert "cuda:N" in str(caught.value.hint)


def test_hidden_gpus_are_absent() -> None:
    """A real process in which CUDA_VISIBLE_DEVICES hides everything."""
    code = "from mtkit.runtime import resolve_device; resolve_device('cuda')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True
    )
    assert "UsageError: device cuda is not there; visible: cpu" in done.stderr


def test_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, mps = torch.device("cuda"), torch.device("mps")
    for device in (CPU, cuda, mps):
        assert autocast_dtype("fp32", device) is None
        assert autocast_dtype("bf16", device) == torch.bfloat16
        assert autocast_dtype("fp16", device) == torch.float16
    for there, dtype in ((True, torch.bfloat16), (False, None)):
        monkeypatch.setattr(runtime, "cpu_has_bf16", lambda there=there: there)
        assert autocast_dtype("auto", CPU) == dtype
        # Older GPUs emulate bfloat16; auto asks for the real thing.
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True, there=there: there or including_emulation
        )
        assert autocast_dtype("auto", cuda) == dtype
        assert autocast_dtype("auto", mps) is None


def test_autocast_lowers_products_and_nothing_without_a_dtype() -> None:
    x = torch.ones(2, 2)
    with autocast(torch.bfloat16, CPU):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(None, CPU):
        assert (x @ x).dtype == torch.float32


def test_seeds_depend_on_every_part_of_the_key() -> None:
    keys = [(1, "step", 2, 3), (1, "step", 3, 2), (1, "init", 2, 3), (2, "step", 2, 3), (1, "step", 23), (1, "step", 2)]
    seeds = [key_seed(*key) for key in [*keys, ("1", "step", 2, 3)]]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert key_seed(*keys[0]) == seeds[0]
    torch.manual_seed(seeds[0])


def test_a_seed_is_the_same_in_every_process_and_version() -> None:
    """Resumed runs and reproduced samples stand on this number."""
    assert key_seed(1, "step", 2, 0) == 8296452161998459760


@pytest.mark.usefixtures("threads_kept")
def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert (set_threads(3), torch.get_num_threads()) == (3, 3)
    assert (set_threads(None), torch.get_num_threads()) == (2, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert set_threads(None) == 2
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for nothing in ("", "all", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert set_threads(None) == cores
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert set_threads(None) == cores


@pytest.mark.usefixtures("threads_kept")
def test_systems_that_do_not_tell_the_cores_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows have no os.sched_getaffinity."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert set_threads(None) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert set_threads(None) == 1


def test_peak_memory_counts_what_was_used() -> None:
    held = torch.ones(2**22)
    assert peak_memory(CPU) >= held.nbytes
    assert peak_memory(CPU) < 2**40


def test_peak_memory_without_the_resource_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none; the module must load there all the same."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(CPU) == 0


def test_units_of_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux counts in KiB, macOS in bytes."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 5})())
    monkeypatch.setattr(sys, "platform", "linux")
    assert peak_memory(CPU) == 5 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_memory(CPU) == 5


def assert_right(code: str) -> None:
    """The code, in a process of its own, comes to the end, where it prints that it is right."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr


def test_tuning_the_allocator_is_harmless() -> None:
    """In a process of its own, as it lasts: results stay right, and only glibc is touched."""
    code = (
        "import platform, torch; from mtkit.runtime import tune_allocator\n"
        "done = tune_allocator()\n"
        "assert done == (platform.libc_ver()[0] == 'glibc')\n"
        "blocks = [torch.full((300_000,), float(i)) for i in range(20)]\n"
        "del blocks[::2]\n"
        "blocks += [torch.full((500_000,), 100.0 + i) for i in range(5)]\n"
        "assert [float(b.mean()) for b in blocks] == [*range(1, 20, 2), *range(100, 105)]\n"
        "print('right')"
    )
    assert_right(code)


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("no library is loaded")

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert tune_allocator() is False
    assert give_back_freed() is False


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_freed_memory_is_given_back() -> None:
    """Also what lies between pieces that stay: each layer that is prepared for decoding leaves such holes."""
    code = (
        "import torch; from mtkit.runtime import give_back_freed, held_memory, tune_allocator\n"
        "tune_allocator()\n"
        "blocks = [torch.ones(300_000) for i in range(100)]\n"
        "del blocks[::2]\n"
        "before = held_memory(torch.device('cpu'))\n"
        "assert give_back_freed()\n"
        "assert held_memory(torch.device('cpu')) < before - 40e6\n"
        "assert all(bool((block == 1).all()) for block in blocks)\n"
        "print('right')"
    )
    assert_right(code)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        (None, False),
    ],
)
def test_processors_with_bf16(monkeypatch: pytest.MonkeyPatch, tmp_path, cpuinfo: str | None, expected: bool) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo, encoding="utf-8")
    monkeypatch.setattr(runtime, "open", lambda name, encoding: path.open(encoding=encoding), raising=False)
    assert runtime.cpu_has_bf16() is expected


# Memory


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_control_groups_of_version_2_limit_the_memory_of_all_below(tmp_path: Path) -> None:
    """What was read from files is given up for the asking; the root has no limit of its own."""
    group(tmp_path, cgroup__procs="1")
    group(tmp_path / "slurm", memory__max="1000\n", memory__current="400\n", memory__stat="anon 1\ninactive_file 50\n")
    group(tmp_path / "slurm/job/step", memory__max="max\n", memory__current="300\n", memory__stat="inactive_file 9\n")
    group(tmp_path / "slurm/job", memory__max="800\n", memory__current="900\n", memory__stat="inactive_file 9\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/slurm/job/step\n")
    assert sorted(runtime._left_in_control_groups(membership, tmp_path)) == [0, 650]
    membership.write_text("0::/\n")
    assert runtime._left_in_control_groups(membership, tmp_path) == []


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "memory__limit_in_bytes": "1000",
        "memory__usage_in_bytes": "300",
        "memory__stat": "total_inactive_file 7\n",
    }
    group(tmp_path / "memory/docker/x", **files)
    membership = tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n")
    assert runtime._left_in_control_groups(membership, tmp_path) == [707]
    assert runtime._left_in_control_groups(tmp_path / "nowhere", tmp_path) == []


def test_the_least_that_is_left_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:  2000 kB\n")
    assert runtime._memory_available(meminfo) == 2000 * 1024
    assert runtime._memory_available(tmp_path / "nowhere") == 4 * 10**9
    monkeypatch.setattr(runtime, "_left_in_control_groups", lambda path: [10**15, 5])
    assert free_memory(CPU) == 5


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak begins anew on Linux alone")
def test_a_peak_is_that_of_what_follows() -> None:
    torch.ones(50_000_000)
    begin_peak(CPU)
    before = held_memory(CPU)
    assert peak_held_memory(CPU) < before + 50e6
    torch.ones(25_000_000)
    assert 90e6 < peak_held_memory(CPU) - before < 150e6
