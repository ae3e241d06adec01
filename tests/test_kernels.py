"""Linear maps prepared for decoding: the plain product, within what each precision promises."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.model import kernels
from mtkit.model.kernels import (
    Int8,
    Int8Fixed,
    Int8Wide,
    Packed,
    Plain,
    Precision,
    Range,
    Use,
    prepare,
    prepare_int8,
    quantize,
)

PRECISIONS = get_args(Precision)
USES = get_args(Use)
# The largest error, relative to the largest result: rounding, 8 bits of mantissa, steps of 1/127 on both sides.
TOLERANCES = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 2e-2}


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


KINDS = {
    "here": {"product", "pack", "bfloat16", "int8", "integers"},
    "older": {"product", "pack", "int8"},
    "plain": set(),
}


@pytest.fixture(params=list(KINDS))
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernels that this processor has, those that it shares with one without VNNI and bfloat16, and none."""
    has = kernels.available
    monkeypatch.setattr(kernels, "available", lambda kernel: kernel in KINDS[request.param] and has(kernel))
    return str(request.param)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(1, 48), (70, 48), (3, 5, 48)])
@pytest.mark.parametrize("outputs", [80, 3000])
def test_equals_the_plain_product(
    processor: str, precision: Precision, use: Use, biased: bool, shape: tuple[int, ...], outputs: int
) -> None:
    weight, x = numbers(outputs, 48, seed=2), numbers(*shape)
    bias = numbers(outputs, seed=3) if biased else None
    before = x.clone()
    y = prepare(weight, bias, precision, use)(x)
    assert y.dtype == torch.float32
    assert error(y, F.linear(x, weight, bias)) < TOLERANCES[precision]
    assert torch.equal(x, before)


@pytest.mark.parametrize(("inputs", "outputs"), [(48, 80), (80, 48)])
@pytest.mark.parametrize("shape", [(1,), (70,), (3, 5)])
def test_a_float32_matrix_may_be_packed_or_not(inputs: int, outputs: int, shape: tuple[int, ...]) -> None:
    weight, bias, x = numbers(outputs, inputs, seed=2), numbers(outputs, seed=3), numbers(*shape, inputs)
    for linear in (Packed(weight, bias, torch.float32), Plain(weight, bias)):
        assert error(linear(x), F.linear(x, weight, bias)) < TOLERANCES["float32"]


def machine(capability: str, mkl: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch say that it runs on such a processor."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)


@pytest.mark.parametrize(
    ("capability", "mkl", "threads", "least"),
    [
        ("AVX512", True, 1, 1 << 17),
        ("AVX512", True, 2, 1 << 17),
        ("AVX2", False, 1, 1 << 17),
        ("DEFAULT", False, 1, 1 << 17),
        ("AVX2", True, 2, 1 << 19),
    ],
)
def test_large_matrices_are_packed(
    capability: str, mkl: bool, threads: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AVX2 alone MKL multiplies larger ones as they lie in less time."""
    machine(capability, mkl, threads, monkeypatch)
    assert isinstance(prepare(numbers(least // 512 - 1, 512), None, "float32"), Plain)
    assert isinstance(prepare(numbers(least // 512, 512), None, "float32"), Packed)


def test_one_thread_with_avx2_alone_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL multiplies many rows faster as they lie, and one row."""
    machine("AVX2", True, 1, monkeypatch)
    assert isinstance(prepare(numbers(1 << 11, 1 << 10), None, "float32"), Plain)


def test_no_reference_is_kept() -> None:
    for shape in ((1, 5), (5, 1), (4, 5)):
        weight = numbers(*shape)
        linear, x = prepare(weight, None, "float32"), numbers(3, shape[1])
        before = linear(x)
        weight.zero_()
        assert torch.equal(linear(x), before)


@pytest.mark.parametrize("relu", [False, True])
def test_small_maps_of_few_rows_are_in_float32_where_that_is_quicker(
    relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without VNNI, with the same rounded matrix: a step of a narrow model took a fifth longer in int8."""
    if not kernels.available("int8"):
        pytest.skip("this torch has no int8 kernels")
    weight, bias, x = numbers(64, 64, seed=2), numbers(64, seed=3), numbers(9, 64).clamp(-1, 1)
    quantized, scale = quantize(weight)
    wanted = F.linear(x, quantized * scale[:, None], bias)
    larger = numbers(128, 128)
    for levels, fitting in ((63, Plain), (127, Int8Fixed)):
        monkeypatch.setattr(kernels, "_levels", lambda levels=levels: levels)
        few = prepare_int8(weight, bias, Range(1.0), relu, "few")
        assert isinstance(few, fitting)
        assert isinstance(prepare(weight, bias, "int8", rows="few"), Plain if fitting is Plain else Int8)
        assert isinstance(prepare_int8(weight, bias, Range(1.0), relu), Int8Fixed)
        # Where steps are found anew for every row, a map has more to gain before it is worth that.
        assert isinstance(prepare_int8(larger, None, Range(1.0), relu, "few"), Int8Fixed)
        assert isinstance(prepare(larger, None, "int8", rows="few"), Plain if fitting is Plain else Int8)
        assert isinstance(prepare(numbers(1024, 128), None, "int8", rows="few"), Int8)
        if fitting is Plain:
            torch.testing.assert_close(few(x), wanted.relu() if relu else wanted)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_low_precision_has_the_same_result_with_other_kernels(
    precision: Precision, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arithmetic is one, but that a processor without VNNI has one bit less for the input in int8.

    On one without bfloat16 `--precision bfloat16` ended in oneDNN's complaint.
    """
    weight, bias, x = numbers(80, 48, seed=2), numbers(80, seed=3), numbers(70, 48)
    has, found = kernels.available, []
    for kind in KINDS.values():
        monkeypatch.setattr(kernels, "available", lambda kernel, kind=kind: kernel in kind and has(kernel))
        found.append(prepare(weight, bias, precision, use)(x))
    exact = precision == "int8" and kernels._levels() == 127
    for other in found[1:]:
        assert error(other, found[0]) < (1e-5 if exact else 2e-2)


@pytest.mark.parametrize("biased", [True, False])
def test_rows_of_an_int8_map_are_its_outputs(processor: str, biased: bool) -> None:
    whole = prepare(numbers(80, 48, seed=2), numbers(80, seed=3) if biased else None, "int8", "rows")
    assert isinstance(whole, Int8Wide)
    ids, x = torch.tensor([3, 7, 8, 79]), numbers(9, 48)
    assert error(whole.rows(ids)(x), whole(x)[:, ids]) < 1e-6


def test_products_of_integers_are_used_only_where_they_are_quick() -> None:
    """On a processor without VNNI torch's own takes 20 times as long as float32, and so shortlists took."""
    if kernels.available("integers"):
        pytest.skip("here they are")
    weight_IO = prepare(numbers(80, 48), None, "int8", "rows").weight_IO  # type: ignore[attr-defined]
    assert weight_IO.dtype == torch.float32


@pytest.mark.parametrize("use", USES)
def test_a_row_does_not_know_its_neighbours(use: Use) -> None:
    """Bit for bit, also beside a row of huge numbers: or a translation would depend on its batch."""
    layer = prepare(numbers(80, 48, seed=2), numbers(80, seed=3), "int8", use)
    x = numbers(9, 48)
    alone = torch.cat([layer(row[None]) for row in x])
    x_beside = torch.cat((x, 1e4 * numbers(1, 48, seed=4), torch.zeros(1, 48)))
    assert torch.equal(layer(x_beside)[:9], alone)


def test_inputs_without_negative_numbers_need_no_other_result(processor: str) -> None:
    weight, bias, x = numbers(80, 48, seed=2), numbers(80, seed=3), numbers(9, 48).relu()
    one, other = (prepare(weight, bias, "int8", nonnegative=known)(x) for known in (False, True))
    assert torch.equal(one, other)


@pytest.mark.parametrize("use", USES)
def test_a_row_of_zeros_gives_the_bias(use: Use) -> None:
    bias = numbers(80, seed=3)
    assert torch.equal(prepare(numbers(80, 48), bias, "int8", use)(torch.zeros(2, 48)), bias.expand(2, -1))


def test_sums_at_the_limits_of_int8_do_not_overflow() -> None:
    """Processors without VNNI add pairs of products in 16 bits; the input then gets one bit less."""
    weight = torch.ones(64, 512)
    for sign in (1.0, -1.0):
        y = prepare(weight, None, "int8")(torch.full((40, 512), sign))
        torch.testing.assert_close(y, torch.full((40, 64), 512.0 * sign), rtol=1e-3, atol=0)


def test_quantized_rows_are_within_half_a_step() -> None:
    weight = numbers(6, 50) * torch.tensor([1e-3, 1.0, 5.0, 1e3, 0.0, 2.0])[:, None]
    quantized, scale = quantize(weight)
    assert quantized.dtype == torch.int8
    assert quantized.abs().max() == 127
    assert ((quantized * scale[:, None] - weight).abs() <= scale[:, None] / 2 + 1e-6 * weight.abs()).all()


def test_a_wide_matrix_is_not_copied() -> None:
    quantized, scale = quantize(numbers(80, 48))
    if not kernels.available("integers"):
        pytest.skip("this torch has no product of int8 matrices")
    assert Int8Wide(quantized, scale, None).weight_IO.data_ptr() == quantized.data_ptr()
