"""Best entries with ties in a fixed order, against a stable sort."""

import pytest
import torch

from mtkit.search.rank import best, top

VOCABULARIES = [5, 63, 64, 300, 512, 1000, 1024, 4096 + 17]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("step_size", [0.0, 0.5, 100.0], ids=["free", "ties", "all-equal"])
@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize("rows", [6, 130])
def test_top_is_a_stable_sort(vocabulary, step_size, k, rows):
    scores_NV = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary + k))
    if step_size:
        scores_NV = (scores_NV / step_size).round() * step_size
    scores_NV[:, :3] = -torch.inf
    scores_NV[1, 4:] = -torch.inf
    values_NV, ids_NV = scores_NV.sort(dim=1, descending=True, stable=True)
    values_Nk, ids_Nk = top(scores_NV, k)
    assert torch.equal(values_Nk, values_NV[:, :k])
    possible_Nk = values_Nk > -torch.inf
    assert torch.equal(ids_Nk[possible_Nk], ids_NV[:, :k][possible_Nk])
    assert torch.equal(best(scores_NV), ids_NV[:, 0])


def test_a_row_depends_on_itself_alone():
    """Also when a neighbour's ties need the slow way."""
    scores_NV = torch.randn(30, 2000, generator=torch.Generator().manual_seed(1))
    alone = top(scores_NV[:1], 5)
    scores_NV[1:] = 1.0
    together = top(scores_NV, 5)
    assert torch.equal(alone[0], together[0][:1])
    assert torch.equal(alone[1], together[1][:1])
    assert together[1][1:].tolist() == [[0, 1, 2, 3, 4]] * 29
