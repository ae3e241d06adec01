"""The formulas, by hand."""

import math

import pytest
import torch

from mtkit.search.penalties import coverage_mask, coverage_penalty, length_penalty, penalize_repetition_


def test_length_penalty():
    assert length_penalty(7, 0.0, "plain") == 1.0
    assert length_penalty(7, 1.0, "plain") == 7.0
    assert length_penalty(16, 0.5, "plain") == 4.0
    assert length_penalty(1, 0.6, "wu") == 1.0
    assert length_penalty(7, 2.0, "wu") == pytest.approx(4.0)


@pytest.mark.parametrize("normalization", ["plain", "wu"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 10.0])
def test_length_penalty_never_falls(normalization, alpha):
    """The stopping rule of beam search stands on it."""
    values = [length_penalty(length, alpha, normalization) for length in range(1, 600)]
    assert values == sorted(values)


def test_coverage_penalty():
    """Attention beyond 1 earns nothing; EOS and padding want no cover; none at all is dear but finite."""
    source_NS = torch.tensor([[7, 8, 9, 3, 0], [7, 3, 0, 0, 0]])
    coverage_NS = torch.tensor([[0.5, 2.0, 0.1, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    found = coverage_penalty(coverage_NS, coverage_mask(source_NS), 0.3)
    assert found.tolist() == pytest.approx([0.3 * (math.log(0.5) + math.log(0.1)), 0.3 * math.log(1e-9)])


def test_repetition_penalty():
    """Once a token, however often it was produced; away from being chosen on both sides of 0."""
    logits_NV = torch.tensor([[1.0, 2.0, -3.0, 4.0], [1.0, 2.0, -3.0, 4.0]])
    penalize_repetition_(logits_NV, torch.tensor([[1, 1, 2], [3, 0, 3]]), 2.0)
    assert logits_NV.tolist() == [[1.0, 1.0, -6.0, 4.0], [0.5, 2.0, -3.0, 2.0]]
