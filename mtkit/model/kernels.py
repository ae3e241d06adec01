"""Linear maps on a CPU: the one place that knows torch's own kernels for them. `product` is for training; the rest is
prepared for decoding.

Three precisions, each of the weights and the products; what goes in and comes out is float32:

- float32: the matrix packed by oneDNN into the order in which its kernels read it, where that is worth it (see
  `_worth_packing`);
- bfloat16: the same in half the memory, input and result rounded to bfloat16; where the processor has no products of
  such numbers, those of float32 are rounded alike;
- int8: a scale a row of the matrix; of the input one scale for all where its range is known beforehand (Bhandare et
  al. 2019), else a scale a row, found anew for every row. Either way no row's result depends on the rows beside it.
  Without VNNI a small matrix and few rows take no less time in int8 than in float32; these matrices are rounded to
  int8 and multiplied in float32.

`available` says which kernels this torch has; where one is missing, another of the same arithmetic takes its place.

Shapes: M rows, I inputs, O outputs; x may have any leading dimensions.
"""

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Precision = Literal["float32", "bfloat16", "int8"]
Use = Literal["whole", "rows"]
"""Whether a matrix is always multiplied whole, or some of its rows may be picked out of it."""
Rows = Literal["many", "few"]
"""How many rows are multiplied at once: few in a step of decoding, which a map's fixed cost weighs upon."""
LinearMap = Callable[[Tensor], Tensor]
"""x (..., I) to x W^T + b (..., O)."""

_LEVELS = 127
# Entries from which a float32 matrix is packed. At 128 x 384 a call takes 10 us less without, and the first one with
# another number of rows 0.4 ms less; at 512 x 512 products are 1.2 to 1.4 times as fast packed, with AVX-512.
_WORTH_PACKING = 1 << 17
# The same for processors with AVX2 alone, where torch's BLAS is MKL, and several threads. Of what oneDNN takes for 1 to
# 256 rows MKL takes 0.5 to 1.0 from 256 to 768 numbers, 0.6 to 1.0 from 512 to 512, 0.6 to 0.9 from 1,024 to 256; from
# 512 to 1,536 and 2,048 with two threads 0.9 to 2.1. With one thread it takes 0.65 to 0.75 there for one row, 0.9 to
# 1.0 for 128 and more (from 2,048 to 512 0.8 to 0.85), and only for 2 to 16 rows more, 1.05 to 1.5.
_WORTH_PACKING_AVX2 = 1 << 19
# Outputs from which a matrix is packed for one thread there: MKL lays out one to a vocabulary anew each time. Where it
# has left the processor's cache, 16, 32, 64, 128 and 256 rows take 0.77, 0.77, 0.91, 0.91 and 0.91 times as long packed
# from 128 to 6,000 numbers, 0.75, 0.78, 0.81, 0.86 and 0.91 from 512 to 8,000; one row takes 1.7 times.
_MANY_OUTPUTS = 1 << 12
# Entries from which a map of few rows is quicker in int8 than in float32, without VNNI. Where the range of the inputs
# is known: at 64 x 64 and 4, 64 and 256 rows int8 takes 1.04, 1.07 and 1.09 times as long, at 128 x 128 0.84, 0.77 and
# 0.82 times (for one row 1.16). Where it is not: at 128 x 256 2.0, 1.14 and 0.98 times, at 256 x 256 1.23, 0.89, 0.88.
_WORTH_INT8_FIXED = 1 << 14
_WORTH_INT8 = 1 << 16
# A row of zeros is divided by this.
_TINY = 1e-30


def prepare(
    weight_OI: Tensor,
    bias_O: Tensor | None,
    precision: Precision,
    use: Use = "whole",
    nonnegative: bool = False,
    rows: Rows = "many",
) -> LinearMap:
    """The linear map with this matrix and bias (None: none), in a form that is fast and keeps no reference to them.

    `nonnegative`: no input will be below 0, which may make it faster.
    """
    weight_OI = weight_OI.detach()
    bias_O = None if bias_O is None else bias_O.detach().clone()
    if precision == "int8":
        if use == "whole" and available("int8"):
            if _slower_in_int8(weight_OI, rows, _WORTH_INT8):
                return Plain(_rounded(weight_OI), bias_O)
            return Int8(*quantize(weight_OI), bias_O, nonnegative)
        return Int8Wide(*quantize(weight_OI), bias_O)
    if precision == "float32" and not _worth_packing(weight_OI):
        return Plain(weight_OI, bias_O)
    return Packed(weight_OI, bias_O, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def prepare_int8(
    weight_OI: Tensor, bias_O: Tensor | None, within: "Range", relu: bool = False, rows: Rows = "many"
) -> LinearMap:
    """As `prepare` for int8 and inputs `within` a range; with `relu`, max(0, result). Needs `available("int8")`."""
    weight_OI = weight_OI.detach()
    bias_O = None if bias_O is None else bias_O.detach().clone()
    if _slower_in_int8(weight_OI, rows, _WORTH_INT8_FIXED):
        return Plain(_rounded(weight_OI), bias_O, relu)
    return Int8Fixed(*quantize(weight_OI), bias_O, within, relu)


def onto(base: Tensor, linear: LinearMap, x: Tensor) -> Tensor:
    """`base`, contiguous, plus the map of x; may be in the memory of `base`, which is of no use afterwards.

    The BLAS adds a product to what is there in the time of the product alone.
    """
    return linear.onto(base, x) if isinstance(linear, Plain) else linear(x).add_(base)


def _worth_packing(weight_OI: Tensor) -> bool:
    """Whether products with this float32 matrix take less time packed, with as many threads as there are now.

    It takes more than the processor's kind to know for sure, but timing it would let chance choose how results are
    rounded.
    """
    mkl = torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if mkl and torch.get_num_threads() == 1:
        return weight_OI.shape[0] >= _MANY_OUTPUTS
    return weight_OI.numel() >= (_WORTH_PACKING_AVX2 if mkl else _WORTH_PACKING)


def _slower_in_int8(weight_OI: Tensor, rows: Rows, least: int) -> bool:
    """Whether products of so many rows take less time in float32: with less than `least` entries, without VNNI."""
    return rows == "few" and weight_OI.numel() < least and _levels() < _LEVELS


def _rounded(weight_OI: Tensor) -> Tensor:
    """The matrix as int8 has it, in float32."""
    quantized_OI, scale_O = quantize(weight_OI)
    return quantized_OI * scale_O[:, None]


def direct_calls() -> AbstractContextManager[None]:
    """Inside, operators do not ask their arguments for `__torch_function__`, which subclasses of Tensor may have.

    A packed matrix answers by an exception in C++, which is caught and thrown on: 12 us of the 17 us of a small map.
    """
    return torch._C.DisableTorchFunctionSubclass()


def product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN, with the matrix as it lies, which may be transposed; needs `available("product")`."""
    return torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")


def quantize(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix as int8, and the scale_O of each of its rows: weight = int8 * scale, rounded to nearest."""
    scale_O = (weight_OI.abs().amax(1) / _LEVELS).clamp_min(_TINY)
    return (weight_OI / scale_O[:, None]).round().to(torch.int8), scale_O


class Plain:
    """x W^T + b, as it is; with `relu`, max(0, result)."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, relu: bool = False) -> None:
        # By inputs most products are faster, with one row up to twice; but a large matrix is read for one row in 0.7 of
        # the time where it lies in the longer rows.
        outputs, inputs = weight_OI.shape
        if inputs > outputs and weight_OI.numel() >= _WORTH_PACKING_AVX2:
            self.weight_IO = weight_OI.clone(memory_format=torch.contiguous_format).t()
        else:
            self.weight_IO = weight_OI.t().clone(memory_format=torch.contiguous_format)
        self.bias_O = bias_O
        self.relu = relu

    def __call__(self, x: Tensor) -> Tensor:
        # As F.linear, whose own way there costs 1 us, a tenth of a product of few rows.
        x_MI = x if x.dim() == 2 else x.flatten(0, -2)
        y = torch.mm(x_MI, self.weight_IO) if self.bias_O is None else torch.addmm(self.bias_O, x_MI, self.weight_IO)
        if self.relu:
            y = y.relu_()
        return y if x.dim() == 2 else y.unflatten(0, x.shape[:-1])

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        """Add the map of x to `base`, which must be contiguous, in its place; returns it."""
        assert not self.relu
        base_MO = base.view(-1, base.shape[-1])
        if self.bias_O is not None:
            base_MO.add_(self.bias_O)
        base_MO.addmm_(x if x.dim() == 2 else x.flatten(0, -2), self.weight_IO)
        return base


class Packed:
    """x W^T + b with a matrix that oneDNN has packed; matrix, bias, x and result rounded to `dtype`."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.kept = dtype if available("bfloat16") else torch.float32
        weight_OI = weight_OI.to(dtype).to(self.kept)
        self.bias_O = None if bias_O is None else bias_O.to(dtype).to(self.kept)
        self.packed = available("pack")
        # The hint is the usual number of rows; any number works.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, 64) if self.packed else weight_OI.clone()

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype).to(self.kept)
        if self.packed:
            y = product(x, self.weight, self.bias_O)
        else:
            y = F.linear(x, self.weight, self.bias_O)
        return y.to(self.dtype).float()


class Int8:
    """x W^T + b in int8: each row of x is scaled to the range of int8, the products are added up in int32.

    The kernel is the same for any number of rows, where Int8Wide has one made for each: 1 ms at 512 x 2048.
    """

    def __init__(self, quantized_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None, nonnegative: bool = False) -> None:
        self.bias_O = torch.zeros_like(scale_O) if bias_O is None else bias_O
        self.nonnegative = nonnegative
        self.levels = _levels()
        self.packed = _pack_int8(quantized_OI, scale_O)

    def __call__(self, x: Tensor) -> Tensor:
        largest = (x if self.nonnegative else x.abs()).amax(-1, keepdim=True).clamp_min_(_TINY)
        y = _int8_product(x / largest, self.levels, self.packed)
        return torch.addcmul(self.bias_O, y, largest, out=y)


class Range(NamedTuple):
    """Where the inputs of a map lie: from -limit to limit, or from 0 to limit. Beyond they may count as the limit."""

    limit: float
    signed: bool = True


class Int8Fixed:
    """x W^T + b in int8 with the same steps for every input: one kernel does it all."""

    def __init__(
        self, quantized_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None, within: Range, relu: bool = False
    ) -> None:
        # Without VNNI sums of two products are cut off at 2^15. Two neighbours that are both near the limit would reach
        # that, where the matrix is at its limit too; but most numbers are small beside it.
        levels = _LEVELS if _levels() == _LEVELS else 100
        self.step = within.limit / (levels if within.signed else 2 * levels + 1)
        self.zero = levels + 1 if within.signed else 0
        self.kernel = _kernels().relu if relu else _kernels().linear
        self.packed = _pack_int8(quantized_OI, scale_O, bias_O)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.step, self.zero, self.packed)


class Int8Wide:
    """As Int8; needs no copy of the matrix, which can serve as an embedding too, and can pick rows out of it."""

    def __init__(self, quantized_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None) -> None:
        self.weight_IO = quantized_OI.t() if available("integers") else quantized_OI.t().float()
        self.scale_O = scale_O / _LEVELS
        self.bias_O = bias_O

    def __call__(self, x: Tensor) -> Tensor:
        x_MI = x.flatten(0, -2)
        # Of many rows, two passes cost less than the memory for their magnitudes.
        largest_M1 = torch.maximum(x_MI.amax(1, keepdim=True), x_MI.amin(1, keepdim=True).neg_()).clamp_min_(_TINY)
        quantized_MI = (x_MI * (_LEVELS / largest_M1)).round_().to(self.weight_IO.dtype)
        y_MO = _integer_product(quantized_MI, self.weight_IO).mul_(self.scale_O)
        if self.bias_O is None:
            y_MO.mul_(largest_M1)
        else:
            torch.addcmul(self.bias_O, y_MO, largest_M1, out=y_MO)
        return y_MO.unflatten(0, x.shape[:-1])

    def rows(self, ids_U: Tensor) -> "Int8Wide":
        """The map whose output i is output `ids_U[i]` of this one."""
        few = copy.copy(self)
        few.weight_IO = self.weight_IO.t()[ids_U].t()
        few.scale_O = self.scale_O[ids_U]
        few.bias_O = None if self.bias_O is None else self.bias_O[ids_U]
        return few


def _pack_int8(quantized_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None = None) -> torch.ScriptObject:
    """The matrix in the form of torch's quantized kernels, which quantize the input themselves."""
    zeros_O = torch.zeros(len(scale_O), dtype=torch.long)
    with warnings.catch_warnings():
        # Torch means to drop tensors of this kind one day; `available` will then say so.
        warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)
        weight = torch._make_per_channel_quantized_tensor(quantized_OI, scale_O.double(), zeros_O, 0)
    return torch.ops.quantized.linear_prepack(weight, bias_O)


class _Kernels(NamedTuple):
    linear: Callable[..., Tensor]
    relu: Callable[..., Tensor]


@lru_cache
def _kernels() -> _Kernels:
    """Of (x, step, zero, packed): x rounded to whole steps, as bytes from -zero on; the product as float32.

    The operators themselves: torch's wrapper looks at every argument, which takes as long as the product of one row.
    """
    return _Kernels(
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op,
        torch.ops.quantized.linear_with_input_q_dq_qweight_dq_relu_output_fp32.default._op,
    )


def _int8_product(x: Tensor, levels: int, packed: torch.ScriptObject) -> Tensor:
    """x W^T, each entry of x, within [-1, 1], rounded to one of 2 * levels + 1 steps."""
    return _kernels().linear(x, 1 / levels, levels + 1, packed)


def _integer_product(x_MI: Tensor, weight_IO: Tensor) -> Tensor:
    """The product of two matrices of int8, or of whole numbers in float32, as float32."""
    if x_MI.dtype != torch.int8:
        return x_MI @ weight_IO
    y_MO = torch._int_mm(x_MI, weight_IO)
    # Converted where it lies: half the time that fresh memory would cost.
    return y_MO.view(torch.float32).copy_(y_MO)


@lru_cache
def available(kernel: Literal["product", "pack", "bfloat16", "int8", "integers"]) -> bool:
    """Whether this torch, on this processor, has the kernel: it is tried on a small product."""
    one = torch.eye(32)
    try:
        match kernel:
            case "product":
                y_MO = product(one, one.t())
            case "pack":
                y_MO = product(one, torch.ops.mkldnn._reorder_linear_weight(one, 32))
            case "bfloat16":
                half = one.bfloat16()
                y_MO = product(half, torch.ops.mkldnn._reorder_linear_weight(half, 32)).float()
            case "int8":
                y_MO = _int8_product(one, _LEVELS // 2, _pack_int8(*quantize(one)))
            case "integers":
                y_MO = _integer_product(one.to(torch.int8), one.to(torch.int8))
    except (AttributeError, RuntimeError):  # NotImplementedError is one of the latter
        return False
    right = bool(torch.allclose(y_MO, one, atol=0.02))
    return right and (kernel != "integers" or _integers_are_quick())


def _integers_are_quick() -> bool:
    """Whether products of int8 matrices take less time than those of float32.

    With VNNI they take a small part of it; without, a loop that was written to be right takes 20 times as long.
    """
    whole_MI, weight_IO = torch.ones(32, 256), torch.ones(256, 256)

    def seconds(dtype: torch.dtype) -> float:
        x_MI, y_IO = whole_MI.to(dtype), weight_IO.to(dtype)
        times = []
        for _ in range(4):
            began = time.perf_counter()
            _integer_product(x_MI, y_IO)
            times.append(time.perf_counter() - began)
        return min(times)

    return seconds(torch.int8) < seconds(torch.float32)


def normalised_range(width: int) -> Range:
    """For rows of `width` numbers with mean 0 and variance 1: none can be beyond sqrt(width - 1), few exceed 6."""
    return Range(min((width - 1) ** 0.5, 10.0 if _levels() == _LEVELS else 8.0))


@lru_cache
def _levels() -> int:
    """Steps on either side of 0 for the input of int8 products: 127, or 63 where the sums would overflow.

    Processors without VNNI add two products in 16 bits first, and 2 * 255 * 127 does not fit.
    """
    full = torch.ones(4, 64)
    y_MO = _int8_product(full, _LEVELS, _pack_int8(*quantize(full)))
    return _LEVELS if bool(torch.allclose(y_MO, torch.full_like(y_MO, 64.0), rtol=1e-3)) else _LEVELS // 2
