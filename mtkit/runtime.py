"""The machine: allocator, threads, device, precision, seeds. The one place that asks what hardware there is."""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import sys
from pathlib import Path

import torch

from mtkit.errors import UsageError

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4

# Of kernels, each 0.3 MB. A batch that shrinks by the sizes of search/sizes.py needs 5 at each of about 25, at most.
_KERNELS = "128"


def tune_allocator() -> bool:
    """Tell glibc's malloc to keep and reuse memory instead of returning it; True where that took effect.

    Every training step asks for the same large blocks; by default glibc maps and unmaps each of them, and the page
    faults cost a sixth of the step. Harmless elsewhere: other C libraries have no `mallopt`.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    done = [
        libc.mallopt(_M_MMAP_MAX, 0),
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1),
        libc.mallopt(_M_TOP_PAD, 64 * 2**20),
    ]
    return all(done)


def bound_kernel_caches() -> None:
    """Let torch keep few of the kernels that oneDNN makes for every shape of a product, unless the user has a say.

    Both caches, oneDNN's and the one of torch's bindings, hold 1024 by default: 600 MB once a search has met so many
    shapes. They ask for their bound when they are first used, which no product may have been before.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", _KERNELS)


def set_threads(threads: int | None) -> int:
    """Use so many CPU threads, by default OMP_NUM_THREADS or one a core that this process may use; returns how many."""
    count = threads or _openmp_threads() or usable_cores()
    torch.set_num_threads(count)
    return count


def _openmp_threads() -> int:
    """OMP_NUM_THREADS, of which OpenMP also allows a list, one number a nesting level; 0 where it says nothing."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() else 0


def usable_cores() -> int:
    """The cores that this process may use; where the system does not tell (macOS, Windows), all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """The device for auto, cpu, cuda, cuda:N or mps. N counts within CUDA_VISIBLE_DEVICES.

    Where N is left open, each process of a machine takes the GPU of its `local_rank`. Raises UsageError, listing what
    is visible, when the device is not there: there is no silent fall-back.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return resolve_device(f"cuda:{local_rank}")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(f"cuda:{local_rank}" if name == "cuda" else name)
    except RuntimeError:
        raise UsageError(f"device {name!r} is not known", "use auto, cpu, cuda, cuda:N or mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {name} is not there; visible: {visible_devices()}",
            "N counts from 0 within CUDA_VISIBLE_DEVICES; device cpu runs without a GPU",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"device mps is not there; visible: {visible_devices()}", "device cpu runs everywhere")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device {name!r} is not one of mtkit's", "use auto, cpu, cuda, cuda:N or mps")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else torch.device(device.type)


def visible_devices() -> str:
    """The devices this process can use, in words."""
    names = ["cpu"]
    names += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return ", ".join(names)


def cpu_has_bf16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware (AVX512-BF16, AMX or ARM BF16)."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            flags = stream.read()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The low precision of matrix products for fp32, bf16, fp16 or auto on `device`; None is float32 throughout.

    auto is bf16 where the hardware has it; emulated bf16 would be slower than float32.
    """
    if precision == "auto":
        match device.type:
            case "cpu":
                supported = cpu_has_bf16()
            case "cuda":
                supported = torch.cuda.is_bf16_supported(including_emulation=False)
            case _:
                supported = False
        return torch.bfloat16 if supported else None
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(dtype: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Run matrix products in `dtype`; None leaves everything in float32."""
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def key_seed(*key: int | str) -> int:
    """A 63-bit seed that depends on every part of `key` and on nothing else."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def peak_memory(device: torch.device) -> int:
    """Most bytes used so far: of GPU memory on CUDA, else of this process's resident memory; 0 if unknown (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on a GPU or in torch's allocator for the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    told = str(error)
    return isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in told or "can't allocate memory" in told)


def release_memory(device: torch.device) -> None:
    """Let go of GPU memory that torch keeps for later, in pieces that may be too small for what comes next."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def give_back_freed() -> bool:
    """Give memory of the CPU that has been freed, and that `tune_allocator` keeps, back to the system; True: done."""
    if platform.libc_ver()[0] != "glibc":
        return False
    ctypes.CDLL(None).malloc_trim(0)
    return True


def begin_peak(device: torch.device) -> None:
    """Give memory that is not in use back to the system, and let `peak_held_memory` begin anew from here."""
    gc.collect()
    release_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu" and give_back_freed():
        with contextlib.suppress(OSError):  # a system that keeps the old peak: what follows shows where it exceeds it
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def held_memory(device: torch.device) -> int:
    """Bytes that this process holds now: of GPU memory, what torch keeps for later included, or resident memory."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_memory(device)
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_held_memory(device: torch.device) -> int:
    """The most of `held_memory` since `begin_peak`; on MPS, which does not tell, what is held now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return held_memory(device) if device.type == "mps" else max(peak_memory(device), held_memory(device))


def free_memory(device: torch.device) -> int:
    """Bytes that could be taken now besides what this process holds; on a CPU, the limits of its control groups count.

    Where the system does not tell (macOS, Windows), the CPU has 4 GB.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return min([_memory_available(Path("/proc/meminfo")), *_left_in_control_groups(Path("/proc/self/cgroup"))])


def _memory_available(meminfo: Path) -> int:
    with contextlib.suppress(OSError):
        for line in meminfo.read_text(encoding="ascii").split("\n"):
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4 * 10**9


def _left_in_control_groups(membership: Path, root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What each control group that this process is in has left, of versions 1 and 2; a container sees its own as root.

    Files that were read count as used, and are given up for the asking, so that they count as free here.
    """
    try:
        rows = [line.split(":", 2) for line in membership.read_text(encoding="utf-8").split("\n") if line]
    except OSError:
        return []
    left = []
    for _, controllers, path in rows:
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = base / path.lstrip("/")
        for group in (inner, *inner.parents):
            if group == base.parent:
                break
            left += _left(group, *names)
    return left


def _left(group: Path, limit: str, used: str, cached: str) -> list[int]:
    """Limit less use, in bytes; empty where there is no limit."""
    try:
        most, now = ((group / name).read_text(encoding="ascii").strip() for name in (limit, used))
        counts = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").split("\n") if line)
        return [max(0, int(most) - int(now) + sum(int(count) for name, count in counts if name == cached))]
    except (OSError, ValueError):  # the root has no such file, and "max" means no limit
        return []


def job_share() -> int:
    """How many processes of this job share the machine; 1 without torchrun."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def page_faults() -> int:
    """How often the system had to give or map memory to this process so far; 0 if unknown (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
