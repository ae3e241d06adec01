"""Limits and blocks, each as its description says, under every method."""

import pytest
from oracle import Oracle, RecurrentModel, TableModel, log_softmax, pad

from mtkit.errors import UsageError
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.search.rules import length_limits
from mtkit.search.run import search
from mtkit.sections.search import Beam, Greedy, Rules, Sampling

METHODS = {
    "greedy": lambda rules: Greedy(method="greedy", rules=rules),
    "beam": lambda rules: Beam(beam_size=4, n_best=4, rules=rules),
    "groups": lambda rules: Beam(beam_size=4, n_best=4, groups=2, rules=rules),
    "sampling": lambda rules: Sampling(method="sampling", samples=4, temperature=2.0, rules=rules),
}
SOURCES = [[4, 5, 6, 7, 8], [5], [9, 9], [6, 4, 5]]


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def hypotheses(request):
    """All hypotheses of a method under some rules: sources and hypotheses in pairs."""

    def run(model=None, prefixes=None, **rules):
        found = search(model or loop_model(), pad(SOURCES), request.param(Rules(**rules)), prefixes=prefixes)
        return [(source, h) for source, several in zip(SOURCES, found, strict=True) for h in several]

    return run


def loop_model() -> TableModel:
    """Says the same few tokens again and again, and the special ids most willingly of all."""
    model = TableModel(10, seed=2, scale=0.5)
    model.table[..., [PAD, UNK, BOS]] += 9.0
    model.table[..., [4, 5]] += 4.0
    model.table[..., EOS] -= 3.0
    return model


@pytest.mark.parametrize(
    ("rules", "source", "prefix", "limits"),
    [
        ({}, 10, 0, (0, 50)),
        ({"max_length": 20}, 10, 0, (0, 20)),
        ({"max_length_ratio": 1.15, "max_length_offset": 0}, 20, 0, (0, 23)),
        ({"max_length_ratio": 0.0, "max_length_offset": 0}, 9, 0, (0, 1)),
        ({"max_length_ratio": 0.0, "max_length_offset": 3}, 9, 5, (0, 6)),
        ({"max_length": 5}, 9, 5, (0, 5)),
        ({"min_length": 7, "min_length_ratio": 0.5}, 10, 0, (7, 50)),
        ({"min_length": 3, "min_length_ratio": 0.51}, 10, 0, (6, 50)),
        ({"min_length": 70}, 10, 0, (50, 50)),
    ],
)
def test_length_limits(rules, source, prefix, limits):
    assert length_limits(Rules(**rules), source, prefix) == limits


def test_lengths_keep_their_limits_by_sentence(hypotheses):
    """Relative to each source, not to the longest of the batch; a hypothesis at the limit is cut and says so."""
    rules = {"min_length_ratio": 1.0, "max_length_ratio": 2.0, "max_length_offset": 1}
    pairs = hypotheses(**rules)
    for source, hypothesis in pairs:
        assert len(source) <= len(hypothesis.ids) <= 2 * len(source) + 1
        assert hypothesis.finished == (len(hypothesis.ids) < 2 * len(source) + 1)
        assert len(hypothesis.token_log_probabilities) == len(hypothesis.ids) + hypothesis.finished
    assert {hypothesis.finished for _, hypothesis in pairs} >= {False}


def test_special_ids_never_occur(hypotheses):
    for _, hypothesis in hypotheses():
        assert not {PAD, UNK, BOS, EOS} & set(hypothesis.ids)


def test_unknown_occurs_when_allowed(hypotheses):
    assert any(UNK in hypothesis.ids for _, hypothesis in hypotheses(allow_unknown=True))
    assert not any({PAD, BOS} & set(hypothesis.ids) for _, hypothesis in hypotheses(allow_unknown=True))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_occurs_twice(hypotheses, size):
    """Without the option the model loops; with it EOS stays possible, also when everything else is blocked."""

    def repeats(ids):
        grams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
        return len(set(grams)) < len(grams)

    assert any(repeats(hypothesis.ids) for _, hypothesis in hypotheses())
    found = hypotheses(no_repeat_ngram=size, min_length=500, max_length_offset=500)
    assert not any(repeats(hypothesis.ids) for _, hypothesis in found)
    if size == 1:
        assert all(sorted(hypothesis.ids) == list(range(4, 10)) for _, hypothesis in found)
        assert all(hypothesis.finished for _, hypothesis in found)


def test_repetition_penalty_spares_repetition(hypotheses):
    """It lowers how often tokens recur, and log-probabilities stay the model's own."""

    def repeated(pairs):
        return sum(len(h.ids) - len(set(h.ids)) for _, h in pairs) / len(pairs)

    model = RecurrentModel(30, seed=3)
    penalized = hypotheses(model, repetition_penalty=5.0, max_length=15, min_length=10)
    assert repeated(penalized) < repeated(hypotheses(model, max_length=15, min_length=10))
    for source, hypothesis in penalized:
        oracle = Oracle(model, source, Rules(max_length=15))
        assert hypothesis.token_log_probabilities == pytest.approx(force(oracle, hypothesis), abs=1e-4)


def force(oracle: Oracle, hypothesis) -> list[float]:
    """The model's log-probabilities of a hypothesis, from force-decoding it."""
    tokens = [*hypothesis.ids, *([EOS] if hypothesis.finished else [])]
    return [log_softmax(oracle.force(tuple(tokens[:at]))[0])[token] for at, token in enumerate(tokens)]


@pytest.mark.parametrize("rules", [{}, {"no_repeat_ngram": 2}, {"min_length": 4}, {"allow_unknown": True}])
def test_log_probabilities_are_those_of_force_decoding(hypotheses, rules):
    """No rule changes them: they are the log-softmax of the bare logits."""
    model = RecurrentModel(12, seed=4)
    for source, hypothesis in hypotheses(model, **rules):
        values = force(Oracle(model, source, Rules()), hypothesis)
        assert hypothesis.token_log_probabilities == pytest.approx(values, abs=1e-4)
        assert hypothesis.log_probability == pytest.approx(sum(values), abs=1e-4)


def test_forced_prefixes(hypotheses):
    """By sentence; they may break every other rule, and count in length and score."""
    prefixes = [[], [6, 6, 6], [UNK], [4] * 9]
    model = RecurrentModel(12, seed=4)
    for source, hypothesis in hypotheses(model, prefixes, no_repeat_ngram=1, max_length_ratio=0, max_length_offset=5):
        prefix = prefixes[SOURCES.index(source)]
        assert hypothesis.ids[: len(prefix)] == prefix
        assert len(hypothesis.ids) <= max(5, len(prefix) + 1)
        assert not set(prefix) & set(hypothesis.ids[len(prefix) :])
        values = force(Oracle(model, source, Rules()), hypothesis)
        assert hypothesis.token_log_probabilities == pytest.approx(values, abs=1e-4)


def test_a_prefix_that_does_not_fit_is_refused(hypotheses):
    with pytest.raises(UsageError, match=r"6 tokens, but search\.rules\.max_length is 5"):
        hypotheses(prefixes=[[], [4] * 6, [], []], max_length=5)
    assert all(len(h.ids) <= 5 for _, h in hypotheses(prefixes=[[], [4] * 5, [], []], max_length=5))
