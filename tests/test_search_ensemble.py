"""Ensembles: the mean of probabilities, and a SearchModel like any other."""

import pytest
import torch
from oracle import RecurrentModel, TableModel, pad

from mtkit.errors import ModelError
from mtkit.ids import BOS
from mtkit.search.ensemble import Ensemble
from mtkit.search.run import search
from mtkit.sections.search import Beam, Greedy, Rules, Sampling

MODELS = [TableModel(9, seed=1), RecurrentModel(9, seed=2), TableModel(9, seed=3)]
SOURCES = [[4, 5], [6], [7, 8, 4]]
SOURCE_BS = pad(SOURCES)
CONFIGS = [
    Greedy(method="greedy"),
    Beam(beam_size=4, n_best=4, coverage_penalty=0.2, rules=Rules(no_repeat_ngram=2)),
    Sampling(method="sampling", samples=3),
]


@pytest.mark.parametrize("combine", ["arithmetic", "geometric"])
def test_probabilities_are_the_mean(combine):
    ids_N = torch.full((3,), BOS)
    probabilities_MNV = torch.stack([model.step(ids_N, model.start(SOURCE_BS, 1)).softmax(1) for model in MODELS])
    mean_NV = probabilities_MNV.mean(0) if combine == "arithmetic" else probabilities_MNV.log().mean(0).exp()
    ensemble = Ensemble(MODELS, combine)
    found_NV = ensemble.step(ids_N, ensemble.start(SOURCE_BS, 1)).softmax(1)
    torch.testing.assert_close(found_NV, mean_NV / mean_NV.sum(1, keepdim=True))


def test_the_means_differ():
    ids_N, results = torch.full((3,), BOS), []
    for combine in ("arithmetic", "geometric"):
        ensemble = Ensemble(MODELS, combine)
        results.append(ensemble.step(ids_N, ensemble.start(SOURCE_BS, 1)).softmax(1))
    assert not torch.allclose(*results)


@pytest.mark.parametrize("combine", ["arithmetic", "geometric"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.method)
def test_of_one_model_with_itself_is_that_model(config, combine):
    one = search(MODELS[1], SOURCE_BS, config, attention=True)
    two = search(Ensemble([MODELS[1]] * 2, combine), SOURCE_BS, config, attention=True)
    for some, others in zip(one, two, strict=True):
        for left, right in zip(some, others, strict=True):
            assert left.ids == right.ids
            assert left.score == pytest.approx(right.score, abs=1e-4)
            torch.testing.assert_close(
                torch.tensor(left.attention), torch.tensor(right.attention), atol=1e-5, rtol=1e-4
            )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.method)
def test_order_of_models_and_batch_are_irrelevant(config):
    """Every state is reordered with the hypotheses."""
    whole = search(Ensemble(MODELS), SOURCE_BS, config)
    turned = search(Ensemble(MODELS[::-1]), SOURCE_BS, config)
    alone = [search(Ensemble(MODELS), pad([s]), config, line_keys=[key])[0] for key, s in enumerate(SOURCES)]
    for results in (turned, alone):
        assert [[h.ids for h in some] for some in whole] == [[h.ids for h in some] for some in results]


def test_vocabularies_must_agree():
    with pytest.raises(ModelError, match="different sizes: 9, 8"):
        Ensemble([MODELS[0], TableModel(8, seed=1)])
