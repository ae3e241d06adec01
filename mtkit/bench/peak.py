"""The most floating-point operations a second that this machine does in a matrix product, measured."""

import time

import torch

from mtkit.runtime import autocast_dtype

_SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192), "mps": (2048, 4096)}


def matrix_peaks(device: torch.device, seconds: float = 0.5) -> dict[str, float]:
    """FLOP/s of the quickest square product in fp32, and in bf16 where the hardware has it; some seconds of work.

    Uses the threads, and on a GPU the TF32 setting, that are in force.
    """
    kinds = {"fp32": torch.float32}
    if autocast_dtype("auto", device) is not None:
        kinds["bf16"] = torch.bfloat16
    return {
        name: max(_speed(device, dtype, size, seconds) for size in _SIZES[device.type]) for name, dtype in kinds.items()
    }


def _speed(device: torch.device, dtype: torch.dtype, size: int, seconds: float) -> float:
    """The quickest of several products of that size, within so many seconds."""
    one, other, product = (torch.rand(size, size).to(device, dtype) for _ in range(3))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        began = time.perf_counter()
        torch.mm(one, other, out=product)
        synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was told to; a CPU has, always."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
