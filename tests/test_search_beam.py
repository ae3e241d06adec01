"""Beam search: equal to a plain beam search one hypothesis at a time, and to exhaustive search when wide enough."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, RecurrentModel, TableModel, pad

from mtkit.errors import ModelError
from mtkit.ids import EOS
from mtkit.search.run import search
from mtkit.sections.search import Beam, Greedy, Rules

SHORT = {"max_length": 4, "max_length_ratio": 0.0, "max_length_offset": 4}

OPTIONS = {
    "default": {},
    "sum": {"length_penalty": 0.0},
    "plain": {"length_penalty": 1.7},
    "wu": {"length_penalty": 0.8, "length_normalization": "wu"},
    "coverage": {"coverage_penalty": 0.5},
    "groups": {"groups": 2, "diversity": 0.7},
    "least": {"rules": {"min_length": 3}},
    "least_ratio": {"rules": {"min_length_ratio": 0.7}},
    "ngram_1": {"rules": {"no_repeat_ngram": 1}},
    "ngram_2": {"rules": {"no_repeat_ngram": 2}},
    "repetition": {"rules": {"repetition_penalty": 1.9}},
    "reward": {"rules": {"repetition_penalty": 0.5}},
    "unknown": {"rules": {"allow_unknown": True, "max_length": 3}},
}


def random_sources(seed: int, count: int = 5, longest: int = 7) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, 12) for _ in range(draw.randint(1, longest))] for _ in range(count)]


def beam_config(options: dict, **more: object) -> Beam:
    fields = {**options, **more}
    return Beam(**{**fields, "rules": Rules(**{**SHORT, **fields.get("rules", {})})})


def assert_as_oracle(found, wanted) -> None:
    """Hypotheses equal the oracle's paths: tokens, end, score, log-probabilities and attention."""
    assert [hypothesis.ids for hypothesis in found] == [path.ids for path, _ in wanted]
    for hypothesis, (path, score) in zip(found, wanted, strict=True):
        assert hypothesis.finished == path.finished
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        assert hypothesis.token_log_probabilities == pytest.approx(path.logs, abs=1e-4)
        assert hypothesis.log_probability == pytest.approx(sum(path.logs), abs=1e-4)
        torch.testing.assert_close(
            torch.tensor(hypothesis.attention), torch.tensor(path.attention), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_full_width_is_exhaustive_search(options):
    """A beam that never prunes finds the best of all hypotheses, in order, for every option."""
    model = TableModel(6, seed=3)
    width = 256
    config = beam_config(options, beam_size=width, n_best=5)
    sources = [[4, 5, 4, 4], [5], [7, 4, 6]]
    found = search(model, pad(sources), config, attention=True)
    for source, hypotheses in zip(sources, found, strict=True):
        oracle = Oracle(model, source, config.rules)
        paths = [(path, oracle.score(path, config)) for path in oracle.all_paths()]
        assert len(paths) < width // config.groups
        assert_as_oracle(hypotheses, sorted(paths, key=lambda entry: -entry[1])[:5])


@st.composite
def beam_cases(draw):
    """A model, a batch and any mixture of options."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    beam_size = groups * draw(st.integers(1, 3))
    longest = draw(st.integers(1, 6))
    rules = Rules(
        min_length=draw(st.sampled_from([0, 0, 2, 9])),
        min_length_ratio=draw(st.sampled_from([0.0, 0.5])),
        max_length=longest,
        max_length_ratio=draw(st.sampled_from([0.0, 1.0, 2.0])),
        max_length_offset=draw(st.sampled_from([0, 2, 9])),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 1, 2, 3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.7, 0.6])),
        allow_unknown=draw(st.booleans()),
    )
    config = Beam(
        beam_size=beam_size,
        n_best=draw(st.integers(1, beam_size)),
        groups=groups,
        diversity=draw(st.sampled_from([0.0, 0.5, 3.0])),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        length_normalization=draw(st.sampled_from(["wu", "plain"])),
        coverage_penalty=draw(st.sampled_from([0.0, 0.4])),
        patience=draw(st.sampled_from([0.0, 0.0, 1.0, 1.5])),
        rules=rules,
    )
    kind = draw(st.sampled_from([TableModel, RecurrentModel]))
    vocabulary = draw(st.integers(5, 9))
    sources = draw(st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=6), min_size=1, max_size=5))
    token = st.sampled_from([1, *range(4, vocabulary)])
    prefixes = [draw(st.lists(token, max_size=min(2, longest))) for _ in sources]
    return kind(vocabulary, draw(st.integers(0, 999))), sources, prefixes, config


@settings(max_examples=60, deadline=None, derandomize=True)
@given(beam_cases())
def test_equals_plain_beam_search(case):
    """Batched, leaving early, stopping by the bound: the same as the plain one that does none of it."""
    model, sources, prefixes, config = case
    found = search(model, pad(sources), config, prefixes=prefixes, attention=True)
    for source, prefix, hypotheses in zip(sources, prefixes, found, strict=True):
        assert_as_oracle(hypotheses, Oracle(model, source, config.rules, tuple(prefix)).beam(config))


@pytest.mark.parametrize("kind", [TableModel, RecurrentModel])
@pytest.mark.parametrize(
    "rules",
    [{}, {"no_repeat_ngram": 2}, {"repetition_penalty": 1.5}, {"min_length": 4, "max_length": 7}],
    ids=lambda rules: "-".join(rules) or "plain",
)
def test_beam_of_one_is_greedy(kind, rules):
    """The same tokens, and with length_penalty 0 the same score."""
    model, source_BS = kind(40, seed=5), pad(random_sources(1, count=20))
    greedy = search(model, source_BS, Greedy(method="greedy", rules=Rules(**rules)))
    beam = search(model, source_BS, Beam(beam_size=1, length_penalty=0.0, rules=Rules(**rules)))
    for [one], [other] in zip(greedy, beam, strict=True):
        assert one.ids == other.ids
        assert one.finished == other.finished
        assert one.token_log_probabilities == other.token_log_probabilities
        assert one.score == pytest.approx(other.score, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize(
    "extra", [{}, {"coverage_penalty": 0.3}, {"groups": 2}, {"length_normalization": "wu"}, {"patience": 1.0}]
)
def test_best_is_first_of_n_best(alpha, extra):
    """Asking for more hypotheses once changed the best one, when search stopped at the first that ended."""
    model, source_BS = TableModel(12, seed=8), pad(random_sources(2, count=12))
    results = [
        search(model, source_BS, Beam(beam_size=6, n_best=count, length_penalty=alpha, **extra)) for count in (1, 3, 6)
    ]
    for one, three, six in zip(*results, strict=True):
        assert one == three[:1]
        assert three == six[:3]
        assert [h.score for h in six] == sorted((h.score for h in six), reverse=True)


def test_stops_early_where_nothing_alive_can_win():
    """Without length normalisation the bound is log P itself: one translation ends the search early."""
    model = TableModel(8, seed=1, scale=3.0)
    steps = []
    for count in (1, 8):
        model.calls.clear()
        search(model, pad([[4, 5, 6]]), Beam(beam_size=8, n_best=count, length_penalty=0.0))
        steps.append(len(model.calls))
    assert steps[0] < steps[1]


def test_patience_ends_the_search_earlier():
    """With patience 1 a sentence stops with its beam_size-th ended hypothesis, with more patience later."""
    model, source_BS = TableModel(8, seed=1), pad([[4, 5, 6, 7]])
    steps = []
    for patience in (1.0, 2.0, 0.0):
        model.calls.clear()
        search(model, source_BS, Beam(beam_size=4, n_best=4, length_penalty=3.0, patience=patience))
        steps.append(len(model.calls))
    assert steps[0] < steps[1] < steps[2]


def test_goes_on_while_a_longer_hypothesis_can_win():
    """A hypothesis that ends first with a poor normalised score does not end the search."""
    model = TableModel(6, seed=0)
    model.table[:] = -9.0
    model.table[:, 0, :, :, EOS] = 1.0  # ending at once: log P about -0.7
    model.table[:, 0, :, :, 4] = 1.0
    model.table[:, 1:, :, :, 5] = 9.0  # then four certain tokens: normalised about -0.7 / 6
    model.table[:, 5:, :, :, EOS] = 30.0
    for alpha, wanted in ((0.0, []), (1.0, [4, 5, 5, 5, 5])):
        [[best]] = search(model, pad([[4]]), Beam(beam_size=2, length_penalty=alpha))
        assert best.ids == wanted


@pytest.mark.parametrize("kind", [TableModel, RecurrentModel])
@pytest.mark.parametrize(
    "extra",
    [{}, {"coverage_penalty": 0.3}, {"groups": 2, "diversity": 1.0}, {"rules": {"no_repeat_ngram": 2}}],
    ids=["plain", "coverage", "groups", "ngram"],
)
def test_batch_and_order_are_irrelevant(kind, extra):
    """The same hypotheses for batches of 1, 7 and all, and for the lines backwards."""
    model, sources = kind(30, seed=2), random_sources(4, count=15)
    config = beam_config(extra, beam_size=4, n_best=4)
    config = config.model_copy(update={"rules": config.rules.model_copy(update={"max_length": 12})})
    whole = search(model, pad(sources), config, attention=True)
    for size in (1, 7):
        parts = [search(model, pad(sources[at : at + size]), config) for at in range(0, len(sources), size)]
        assert_same(whole, [hypotheses for part in parts for hypotheses in part])
    assert_same(whole, search(model, pad(sources[::-1]), config)[::-1])


def assert_same(some, others) -> None:
    for left, right in zip(some, others, strict=True):
        assert [hypothesis.ids for hypothesis in left] == [hypothesis.ids for hypothesis in right]
        assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-4)


@pytest.mark.parametrize("extra", [{}, {"groups": 2, "diversity": 0.0}, {"groups": 4, "diversity": 5.0}])
def test_exactly_n_best_different_hypotheses(extra):
    """Also where groups agree, and where ties abound."""
    model = TableModel(9, seed=6, step_size=1.0)
    for hypotheses in search(model, pad(random_sources(5, count=10)), Beam(beam_size=8, n_best=8, **extra)):
        assert len(hypotheses) == 8
        assert len({(tuple(h.ids), h.finished) for h in hypotheses}) == 8


def test_fewer_only_where_the_rules_allow_no_more():
    """One token and EOS, at most two tokens: three hypotheses exist, the longest of them cut."""
    rules = Rules(max_length=2)
    [found] = search(TableModel(5, seed=1), pad([[4]]), Beam(beam_size=6, n_best=6, length_penalty=0, rules=rules))
    assert sorted((h.ids, h.finished) for h in found) == [([], True), ([4], True), ([4, 4], False)]


def test_diversity_makes_groups_differ():
    """The first tokens of the groups agree without it, and differ when agreeing costs too much."""
    model, source_BS = TableModel(12, seed=4), pad(random_sources(6, count=8))
    firsts = []
    for diversity in (0.0, 50.0):
        config = Beam(beam_size=4, n_best=4, groups=4, diversity=diversity, rules=Rules(min_length=2))
        firsts.append([len({h.ids[0] for h in hypotheses}) for hypotheses in search(model, source_BS, config)])
    assert all(count == 4 for count in firsts[1])
    assert sum(firsts[0]) < sum(firsts[1])


def test_finished_sentences_leave_the_batch():
    """A sentence whose search is over is no longer computed."""
    model = TableModel(8, seed=1, scale=3.0)
    search(model, pad(random_sources(7, count=16)), Beam(beam_size=3, length_penalty=0.0))
    assert model.calls[0] == 16 * 3
    assert model.calls[-1] < 16 * 3
    assert model.calls == sorted(model.calls, reverse=True)


def test_attention_is_asked_for_only_when_needed():
    """It costs time: only for coverage, or when the caller wants it."""
    asked = []

    class Model(TableModel):
        def start(self, source_BS, per_source, attention=False):
            asked.append(attention)
            return super().start(source_BS, per_source, attention)

    model, source_BS = Model(8, seed=1), pad([[4, 5]])
    assert search(model, source_BS, Beam())[0][0].attention is None
    assert search(model, source_BS, Beam(coverage_penalty=0.1))[0][0].attention is None
    assert search(model, source_BS, Beam(), attention=True)[0][0].attention is not None
    assert asked == [False, True, True]


def test_a_damaged_model_is_reported():
    """Weights that are not numbers give no translation, not a wrong one."""
    model = TableModel(8, seed=1)
    model.table[:] = float("nan")
    with pytest.raises(ModelError, match="no finite probability"):
        search(model, pad([[4, 5]]), Beam())
