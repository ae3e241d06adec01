"""Search on the real model, untrained: there near-ties are rare and hypotheses run to their limit."""

import random
from typing import get_args

import pytest
import torch
from oracle import pad

from mtkit.ids import BOS, EOS
from mtkit.model.transformer import Transformer
from mtkit.search.run import search
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Greedy, Rules, Sampling

POSITIONS = get_args(Model.model_fields["positions"].annotation)
RULES = Rules(max_length=14, no_repeat_ngram=3)
CONFIGS = {
    "greedy": Greedy(method="greedy", rules=RULES),
    "beam": Beam(beam_size=5, n_best=5, rules=RULES),
    "coverage": Beam(beam_size=4, n_best=4, coverage_penalty=0.3, groups=2, rules=Rules(max_length=14)),
    "sampling": Sampling(method="sampling", samples=2, top_p=0.95, rules=RULES),
}


@pytest.fixture(scope="module", params=POSITIONS)
def model(request):
    torch.manual_seed(5)
    section = Model(
        d_model=32, heads=4, d_ff=64, encoder_layers=2, decoder_layers=2, positions=request.param, max_positions=64
    )
    return Transformer(section, 400, 400).eval()


@pytest.fixture(scope="module")
def sources():
    draw = random.Random(1)
    return [[draw.randrange(4, 400) for _ in range(draw.choice([1, 2, 5, 20]))] for _ in range(9)]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_batch_and_order_are_irrelevant(model, sources, config):
    keys = list(range(len(sources)))
    whole = search(model, pad(sources), config, line_keys=keys)
    results = [search(model, pad(sources[::-1]), config, line_keys=keys[::-1])[::-1]]
    for size in (1, 4):
        results.append([])
        for at in range(0, len(sources), size):
            results[-1] += search(model, pad(sources[at : at + size]), config, line_keys=keys[at : at + size])
    for other in results:
        for some, others in zip(whole, other, strict=True):
            assert [hypothesis.ids for hypothesis in some] == [hypothesis.ids for hypothesis in others]
            assert [h.score for h in some] == pytest.approx([h.score for h in others], abs=1e-4)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_log_probabilities_are_those_of_force_decoding(model, sources, config):
    """The cache of every hypothesis, through all reordering, is what one pass over its tokens gives."""
    found = search(model, pad(sources), config)
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses:
            scored = [*hypothesis.ids, EOS][: len(hypothesis.token_log_probabilities)]
            with torch.no_grad():
                hidden = model(pad([source]), torch.tensor([[BOS, *scored[:-1]]]))
                logs_TV = model.logits(hidden)[0].log_softmax(1)
            values = logs_TV[range(len(scored)), scored].tolist()
            assert hypothesis.token_log_probabilities == pytest.approx(values, abs=1e-4)


def test_beam_of_one_is_greedy(model, sources):
    greedy = search(model, pad(sources), CONFIGS["greedy"], attention=True)
    beam = search(model, pad(sources), Beam(beam_size=1, length_penalty=0.0, rules=RULES), attention=True)
    for source, [one], [other] in zip(sources, greedy, beam, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-5)
        for row, other_row in zip(one.attention, other.attention, strict=True):
            assert len(row) == len(source) + 1
            assert sum(row) == pytest.approx(1.0, abs=1e-4)
            assert row == pytest.approx(other_row, abs=1e-4)
