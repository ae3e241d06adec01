"""Learning rates: values by hand, the paper's equation, and what all schedules share."""

import itertools
from typing import Any, get_args

import pytest

from mtkit.sections.training import Constant, Cosine, InverseSquareRoot, Linear, Schedule
from mtkit.training.schedule import learning_rate

KINDS = get_args(get_args(Schedule)[0])


def make(kind: type, warmup_steps: int) -> Any:
    """A schedule whose peak is 0.01."""
    return kind(name=get_args(kind.model_fields["name"].annotation)[0], rate=0.01, warmup_steps=warmup_steps)


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_is_a_line_to_the_peak(kind: type) -> None:
    schedule = make(kind, 40)
    rates = [learning_rate(schedule, step, 200, 64) for step in range(1, 41)]
    assert rates == pytest.approx([0.01 * step / 40 for step in range(1, 41)])


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_warm_up_the_rate_never_rises(kind: type) -> None:
    rates = [learning_rate(make(kind, 40), step, 200, 64) for step in range(40, 400)]
    assert all(later <= rate for rate, later in itertools.pairwise(rates))
    assert min(rates) >= 0
    assert (rates[0] == rates[-1]) == (kind is Constant)


@pytest.mark.parametrize("kind", KINDS)
def test_least_warm_up(kind: type) -> None:
    least = 1 if kind is InverseSquareRoot else 0
    rates = [learning_rate(make(kind, least), step, 200, 64) for step in (1, 2)]
    assert rates[0] == pytest.approx(0.01, rel=0.01)
    assert rates[1] <= rates[0]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_beyond_the_last_step(kind: type) -> None:
    rates = [learning_rate(make(kind, 300), step, 200, 64) for step in range(1, 201)]
    assert rates == pytest.approx([0.01 * step / 300 for step in range(1, 201)])


@pytest.mark.parametrize("warmup", [1, 4000])
def test_inverse_square_root_is_equation_3_of_the_paper(warmup: int) -> None:
    schedule = InverseSquareRoot(warmup_steps=warmup)
    for step in (1, 2, 1000, 3999, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(schedule, step, 100_000, 512) == pytest.approx(paper, rel=1e-12)


def test_inverse_square_root_by_hand() -> None:
    schedule = InverseSquareRoot(rate=0.01, warmup_steps=100)
    assert learning_rate(schedule, 50, 1, 1) == pytest.approx(0.005)
    assert learning_rate(schedule, 400, 1, 1) == pytest.approx(0.005)
    assert learning_rate(schedule, 10_000, 1, 1) == pytest.approx(0.001)
    assert learning_rate(InverseSquareRoot(), 4000, 1, 512) == pytest.approx(6.987712e-4)


def test_linear_by_hand() -> None:
    schedule = Linear(name="linear", rate=0.01, warmup_steps=100, final_rate=0.002)
    rates = [learning_rate(schedule, step, 300, 64) for step in (100, 150, 200, 300, 5000)]
    assert rates == pytest.approx([0.01, 0.008, 0.006, 0.002, 0.002])


def test_cosine_by_hand() -> None:
    schedule = Cosine(name="cosine", rate=0.01, warmup_steps=100, final_rate=0.002)
    rates = [learning_rate(schedule, step, 400, 64) for step in (100, 200, 250, 300, 400, 5000)]
    assert rates == pytest.approx([0.01, 0.008, 0.006, 0.004, 0.002, 0.002])


def test_constant_by_hand() -> None:
    schedule = Constant(name="constant", rate=0.01)
    assert [learning_rate(schedule, step, 10, 64) for step in (1, 10, 999)] == [0.01] * 3
