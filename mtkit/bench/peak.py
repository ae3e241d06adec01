"""The most floating-point operations a second that this machine does in a matrix product, measured."""

import time
from typing import NamedTuple

import torch

from mtkit.runtime import autocast_dtype

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192), "mps": (2048, 4096)}


class Peak(NamedTuple):
    """FLOP/s of the quickest product, and the size of its matrices."""

    flops_per_second: float
    size: int


class Products:
    """Square products of one size, one after the other; `flops` and `seconds` of all of them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, size: int) -> None:
        self.device = device
        self._one, self._other, self._product = (torch.rand(size, size).to(device, dtype) for _ in range(3))
        self.flops = 0
        self.seconds = 0.0
        self.quickest = 0.0

    def run(self, seconds: float) -> None:
        """Multiply for so long, once at least; `quickest` is the most FLOP/s of one product."""
        end = time.perf_counter() + seconds
        began = 0.0
        while began < end:
            began = time.perf_counter()
            torch.mm(self._one, self._other, out=self._product)
            synchronize(self.device)
            took = time.perf_counter() - began
            flops = 2 * len(self._one) ** 3
            self.flops += flops
            self.seconds += took
            self.quickest = max(self.quickest, flops / took)


def matrix_peaks(device: torch.device, seconds: float = 0.5) -> dict[str, Peak]:
    """The quickest square product in fp32, and in bf16 where the hardware has it; some seconds of work.

    Uses the threads, and on a GPU the TF32 setting, that are in force.
    """
    found = {}
    for name in ("fp32", "bf16") if autocast_dtype("auto", device) is not None else ("fp32",):
        peaks = []
        for size in _SIZES[device.type]:
            products = Products(device, DTYPES[name], size)
            products.run(seconds)
            peaks.append(Peak(products.quickest, size))
        found[name] = max(peaks)
    return found


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was told to; a CPU has, always."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
