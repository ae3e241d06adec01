"""Adam, clipping and the moving average against slow loops."""

from typing import get_args

import pytest
import torch
from torch import nn

from mtkit.sections.training import Optimizer
from mtkit.training.muon import orthogonal
from mtkit.training.optimizer import MovingAverage, clip_gradient, global_norm, make_optimizer, set_rate

CPU = torch.device("cpu")
NAMES = get_args(Optimizer.model_fields["name"].annotation)


def weights(*shapes: tuple[int, ...], seed: int = 1) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_equal_the_papers_algorithm(name: str, decay: float) -> None:
    """Algorithm 1 of Kingma and Ba 2015 in double precision, number by number, with an odd value for each constant.

    What Muon leaves to AdamW is moved likewise.
    """
    section = Optimizer(name=name, beta1=0.7, beta2=0.9, epsilon=1e-3, weight_decay=decay)
    (parameter,) = weights((5,))
    optimizer = make_optimizer(section, [parameter], CPU)
    values = parameter.detach().double()
    mean, square = torch.zeros(5).double(), torch.zeros(5).double()
    for step in range(1, 6):
        rate = 0.1 / step
        set_rate(optimizer, rate)
        parameter.grad = torch.randn(5)
        gradient = parameter.grad.double()
        optimizer.step()
        for i in range(5):
            g = gradient[i] + (decay * values[i] if name == "adam" else 0)
            mean[i] = 0.7 * mean[i] + 0.3 * g
            square[i] = 0.9 * square[i] + 0.1 * g * g
            if name != "adam":
                values[i] -= rate * decay * values[i]
            values[i] -= rate * (mean[i] / (1 - 0.7**step)) / ((square[i] / (1 - 0.9**step)) ** 0.5 + 1e-3)
        torch.testing.assert_close(parameter.detach().double(), values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_equals_torchs_and_leaves_the_rest_to_adamw(decay: float) -> None:
    """Matrices of one shape go together here, one after the other there; both in bfloat16, so that they round apart."""
    shapes = ((6, 4), (4, 6), (6, 4), (5, 5), (7,), (9, 4))
    section = Optimizer(name="muon", weight_decay=decay)
    ours, theirs = weights(*shapes), weights(*shapes)
    optimizer = make_optimizer(section, ours, CPU, ours[:4], torch.bfloat16)
    muon = torch.optim.Muon(theirs[:4], weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    adam = make_optimizer(section.model_copy(update={"name": "adamw"}), theirs[4:], CPU)
    for step in range(1, 5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for each in (optimizer, muon, adam):
            set_rate(each, 0.1 / step)
            each.step()
    for one, other in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.005)
    for one, other in zip(ours[4:], theirs[4:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_orthogonal_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    """And keeps the directions: with the singular vectors of the matrix, the result is nearly diagonal."""
    torch.manual_seed(2)
    matrices_KOI = torch.randn(shape)
    left, values, right = torch.linalg.svd(matrices_KOI, full_matrices=False)
    diagonal = left.mT @ orthogonal(matrices_KOI) @ right.mT
    found = diagonal.diagonal(dim1=1, dim2=2)
    large = values > 0.1 * values.amax(1, keepdim=True)
    assert found[large].min() > 0.6
    assert found.max() < 1.3
    assert (diagonal - torch.diag_embed(found)).abs().max() < 1e-4


def test_muon_without_matrices_or_without_others() -> None:
    """A frozen model may leave either; a weight without a gradient stays."""
    section = Optimizer(name="muon")
    for shape in ((4, 3), (3,)):
        moved, still = weights(shape, shape)
        before = moved.detach().clone(), still.detach().clone()
        optimizer = make_optimizer(section, [moved, still], CPU, [one for one in (moved, still) if one.ndim == 2])
        set_rate(optimizer, 0.1)
        moved.grad = torch.ones(shape)
        optimizer.step()
        assert not torch.equal(moved, before[0])
        assert torch.equal(still, before[1])


def test_nothing_moves_before_a_rate_is_set() -> None:
    (parameter,) = weights((3,))
    before = parameter.detach().clone()
    optimizer = make_optimizer(Optimizer(), [parameter], CPU)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(parameter, before)


def test_global_norm_is_that_of_all_gradients_laid_end_to_end() -> None:
    parameters = weights((3, 4), (5,), (2,))
    parameters[0].grad, parameters[1].grad = torch.randn(3, 4), torch.randn(5)
    expected = sum(float(one) ** 2 for part in parameters[:2] for one in part.grad.flatten()) ** 0.5
    assert global_norm(parameters).item() == pytest.approx(expected)


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_shortens_the_gradient_and_keeps_its_direction(limit: float) -> None:
    parameters = weights((3, 4), (5,), (2,))
    parameters[0].grad, parameters[1].grad = torch.randn(3, 4), torch.randn(5)
    before = [parameter.grad.clone() for parameter in parameters[:2]]
    norm = global_norm(parameters)
    clip_gradient(parameters, norm, limit)
    scale = min(1.0, limit / norm.item())
    for parameter, gradient in zip(parameters, before, strict=False):
        torch.testing.assert_close(parameter.grad, gradient * scale)
    assert global_norm(parameters).item() == pytest.approx(min(limit, norm.item()), rel=1e-5)
    assert parameters[2].grad is None


def test_a_zero_gradient_is_left_alone() -> None:
    (parameter,) = weights((3,))
    parameter.grad = torch.zeros(3)
    clip_gradient([parameter], global_norm([parameter]), 1.0)
    assert (parameter.grad == 0).all()


def test_moving_average_equals_a_slow_loop() -> None:
    parameters = weights((3, 2), (4,))
    average = MovingAverage(parameters, 0.95)
    expected = [parameter.detach().double() for parameter in parameters]
    for step in range(1, 300):
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        average.update(step)
        decay = min(0.95, (1 + step) / (10 + step))
        expected = [
            decay * old + (1 - decay) * new.detach().double() for old, new in zip(expected, parameters, strict=True)
        ]
    for one, other in zip(average.averages, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
        assert not one.requires_grad


def test_moving_average_by_hand() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    average = MovingAverage([parameter], 0.5)
    with torch.no_grad():
        parameter.fill_(11)
    average.update(1)  # decay 2 / 11
    assert average.averages[0].item() == pytest.approx(9)
    average.update(1000)  # decay 0.5
    assert average.averages[0].item() == pytest.approx(10)


def test_swapping_twice_is_the_identity() -> None:
    parameters = weights((3, 2), (4,))
    average = MovingAverage(parameters, 0.9)
    with torch.no_grad():
        parameters[0].add_(1)
    learnt, smooth = ([one.detach().clone() for one in part] for part in (parameters, average.averages))
    average.swap()
    assert all(torch.equal(one, other) for one, other in zip(parameters, smooth, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(average.averages, learnt, strict=True))
    average.swap()
    assert all(torch.equal(one, other) for one, other in zip(parameters, learnt, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(average.averages, smooth, strict=True))


def test_averages_do_not_follow_the_weights_by_themselves() -> None:
    parameters = weights((3,))
    average = MovingAverage(parameters, 0.9)
    before = average.averages[0].clone()
    with torch.no_grad():
        parameters[0].add_(1)
    assert torch.equal(average.averages[0], before)
