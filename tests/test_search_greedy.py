"""Greedy search, and the loop that it shares with sampling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, RecurrentModel, TableModel, pad

from mtkit.errors import ModelError
from mtkit.ids import EOS
from mtkit.search.run import search
from mtkit.sections.search import Beam, Greedy, Rules

GREEDY = Greedy(method="greedy")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([TableModel, RecurrentModel]),
    st.integers(0, 999),
    st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=6), min_size=1, max_size=10),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1.0, 2.0, 0.5]),
    st.integers(0, 4),
    st.integers(1, 9),
)
def test_equals_plain_greedy_search(kind, seed, sources, ngram, penalty, least, most):
    """Tokens, end, log-probabilities and attention of the batch are those of each sentence alone."""
    model = kind(9, seed)
    rules = Rules(no_repeat_ngram=ngram, repetition_penalty=penalty, min_length=least, max_length=most)
    found = search(model, pad(sources), Greedy(method="greedy", rules=rules), attention=True)
    for source, [hypothesis] in zip(sources, found, strict=True):
        path = Oracle(model, source, rules).greedy()
        assert hypothesis.ids == path.ids
        assert hypothesis.finished == path.finished
        assert hypothesis.score == pytest.approx(path.ranked, abs=1e-4)
        assert hypothesis.token_log_probabilities == pytest.approx(path.logs, abs=1e-4)
        torch.testing.assert_close(
            torch.tensor(hypothesis.attention), torch.tensor(path.attention), atol=1e-4, rtol=1e-4
        )
    unscored = search(model, pad(sources), Greedy(method="greedy", rules=rules), attention=True, scores=False)
    for [one], [other] in zip(found, unscored, strict=True):
        assert (one.ids, one.finished, one.attention) == (other.ids, other.finished, other.attention)
        assert len(one.token_log_probabilities) == len(other.token_log_probabilities)
        assert all(map(math.isnan, [other.score, other.log_probability, *other.token_log_probabilities]))


def test_ended_sentences_leave_the_batch():
    """Some at a time, as leaving copies the state; none is computed to the end of the longest."""
    model = TableModel(8, seed=1, scale=3.0)
    sources = [[4 + row % 8] * (1 + row % 5) for row in range(40)]
    model.table[0, :, :, :, EOS] = -9  # sentences that begin with 5 or 10 go on to their limit
    found = search(model, pad(sources), GREEDY)
    lengths = [len(hypothesis.token_log_probabilities) for [hypothesis] in found]
    assert model.calls[0] == 40
    assert len(model.calls) == max(lengths)
    assert sum(model.calls) < sum(lengths) * 1.2


@pytest.mark.parametrize("config", [GREEDY, Beam(rules=Rules(max_length=30), beam_size=3, length_penalty=0.0)])
def test_batches_have_few_sizes(config):
    """What is made for each size is then soon made; once it was kept for any number of sentences left, 560 KB each."""
    sizes = set()
    for seed in range(8):
        model = TableModel(8, seed=seed, scale=3.0)
        model.table[..., EOS] -= 2.0
        search(model, pad([[4 + (row + seed) % 8] * (1 + row % 5) for row in range(61)]), config)
        sizes |= {rows // getattr(config, "beam_size", 1) for rows in model.calls}
    assert 61 in sizes
    assert len(sizes) > 6
    assert sizes <= {61, 56, 48, 40, 32, 28, 24, 20, 16, 14, 12, 10, *range(1, 9)}


def test_ties_go_to_the_lowest_id():
    """On a model of ties: the same for greedy, a beam of 1, and every batch size."""
    model = TableModel(40, seed=1, step_size=3.0)
    sources = [[token, 4] for token in range(4, 24)]
    rules = Rules(max_length=6)
    whole = search(model, pad(sources), Greedy(method="greedy", rules=rules))
    assert whole == [search(model, pad([s]), Greedy(method="greedy", rules=rules))[0] for s in sources]
    beam = search(model, pad(sources), Beam(beam_size=1, length_penalty=0, rules=rules))
    assert [one.ids for [one] in whole] == [one.ids for [one] in beam]
    first = model.table[0, 0, 0, 2, 4:]
    assert (first == first.max()).sum() > 1
    assert whole[1][0].ids[0] == 4 + int(first.argmax())  # the source that begins with 5


def test_no_sentences():
    assert search(TableModel(8, seed=1), torch.zeros(0, 3, dtype=torch.long), GREEDY) == []


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_damaged_model_is_reported(scores, value):
    model = TableModel(8, seed=1)
    model.table[:] = value
    with pytest.raises(ModelError, match="no finite probability"):
        search(model, pad([[4, 5]]), GREEDY, scores=scores)
