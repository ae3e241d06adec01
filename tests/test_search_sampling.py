"""Sampling: the exact distribution, noise that belongs to the line, and truncations that do what they say."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, Path, RecurrentModel, TableModel, pad

from mtkit.ids import EOS
from mtkit.search.run import search
from mtkit.search.sampling import draw, row_keys, uniform
from mtkit.sections.search import Greedy, Rules, Sampling


def sampling(**options) -> Sampling:
    return Sampling(method="sampling", **options)


def chi_square_limit(degrees: int, z: float = 4.0) -> float:
    """About the value that chi square exceeds once in 30,000 times (Wilson and Hilferty 1931)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + z * math.sqrt(part)) ** 3


def chi_square(counts: Counter, expected: dict) -> tuple[float, int]:
    """The statistic over all outcomes expected 5 times or more, the others taken together; and degrees of freedom."""
    assert set(counts) <= {outcome for outcome, number in expected.items() if number > 0}
    often = [outcome for outcome, number in expected.items() if number >= 5]
    cells = [(counts[outcome], expected[outcome]) for outcome in often]
    rest = sum(expected.values()) - sum(number for _, number in cells)
    if rest >= 5:
        cells.append((sum(counts.values()) - sum(seen for seen, _ in cells), rest))
    return sum((seen - number) ** 2 / number for seen, number in cells), len(cells) - 1


def truncated(probabilities: list[float], config: Sampling) -> list[float]:
    """The distribution of the next token, one truncation after the other, each renormalised."""
    heated = [p ** (1 / config.temperature) for p in probabilities]
    order = sorted(range(len(heated)), key=lambda token: (-heated[token], token))

    def keep(tokens):
        kept = [heated[token] if token in tokens else 0.0 for token in range(len(heated))]
        return [value / sum(kept) for value in kept]

    if config.top_k:
        order = order[: config.top_k]
    share = keep(order)
    reached = 0
    while reached < len(order) and sum(share[token] for token in order[:reached]) < config.top_p:
        reached += 1
    order = order[:reached]
    share = keep(order)
    return keep([token for token in order if share[token] >= config.min_p * max(share)])


OPTIONS = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "cold": {"temperature": 0.4},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "all": {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.2},
    "seed": {"seed": 2**63 - 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("vocabulary", [7, 70, 320], ids=["small", "chunks", "nucleus-sought-in-vain"])
def test_one_token_has_the_exact_distribution(options, vocabulary):
    draws = 20_000
    logits_V = torch.randn(vocabulary, generator=torch.Generator().manual_seed(3)).double()
    probabilities = logits_V.softmax(0).tolist()
    logs_NV = logits_V.log_softmax(0).float().expand(draws, -1)
    config = sampling(**options)
    ids_N = draw(logs_NV, config, uniform(row_keys(config.seed, range(draws), 1), 5, 1)[:, 0])
    expected = {token: p * draws for token, p in enumerate(truncated(probabilities, config))}
    statistic, degrees = chi_square(Counter(ids_N.tolist()), expected)
    assert statistic < chi_square_limit(degrees)


@pytest.mark.parametrize(
    "rules", [{}, {"min_length": 2}, {"no_repeat_ngram": 1}, {"repetition_penalty": 2.0}, {"allow_unknown": True}]
)
def test_whole_hypotheses_have_the_exact_distribution(rules):
    """Under the rules: the product of the next-token distributions, renormalised over what is allowed."""
    model, source = TableModel(6, seed=1), [4, 5]
    limits = Rules(**{"max_length": 3, **rules})
    oracle = Oracle(model, source, limits)

    def outcomes(path, probability):
        if oracle.ended(path):
            return {path.tokens: probability}
        longer = oracle.extend(path)
        weights = [math.exp(after.ranked - path.ranked) for after in longer]
        result = {}
        for after, weight in zip(longer, weights, strict=True):
            result |= outcomes(after, probability * weight / sum(weights))
        return result

    samples, lines = 1000, 12
    found = search(model, pad([source] * lines), sampling(samples=samples, rules=limits))
    counts = Counter((*h.ids, *([EOS] if h.finished else [])) for hypotheses in found for h in hypotheses)
    expected = {tokens: p * samples * lines for tokens, p in outcomes(Path(), 1.0).items()}
    statistic, degrees = chi_square(counts, expected)
    assert degrees >= 4
    assert statistic < chi_square_limit(degrees)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [TableModel, RecurrentModel])
def test_noise_belongs_to_the_line(kind, options):
    """The same samples whatever the batch, its size, its order, and what the other lines are."""
    model = kind(30, seed=2)
    sources = [[4 + (3 * line) % 20] * (1 + line % 4) for line in range(15)]
    keys = [1000 + line for line in range(15)]
    config = sampling(samples=3, rules=Rules(max_length=10), **options)
    whole = search(model, pad(sources), config, line_keys=keys)
    for size in (1, 7):
        cuts = range(0, len(sources), size)
        parts = [search(model, pad(sources[at : at + size]), config, line_keys=keys[at : at + size]) for at in cuts]
        assert ids_of(whole) == ids_of(hypotheses for part in parts for hypotheses in part)
    assert ids_of(whole)[::-1] == ids_of(search(model, pad(sources[::-1]), config, line_keys=keys[::-1]))


def ids_of(results) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results]


def test_seed_line_and_sample_number_all_count():
    """Equal lines are sampled differently, other seeds give other samples, and the same seed the same."""
    model, source_BS = TableModel(30, seed=2, scale=0.3), pad([[4, 5]] * 6)
    rules = Rules(max_length=10, min_length=6)
    results = [search(model, source_BS, sampling(samples=4, seed=seed, rules=rules)) for seed in (1, 2, 1)]
    assert results[0] == results[2]
    assert results[0] != results[1]
    texts = {tuple(h.ids) for hypotheses in (*results[0], *results[1]) for h in hypotheses}
    assert len(texts) == 48


def test_noise_never_comes_round():
    """Where every token is as likely, the tokens are the noise: 300 steps of it, made in blocks."""
    model = TableModel(30, seed=2, scale=0.0)
    [[hypothesis]] = search(model, pad([[4]]), sampling(rules=Rules(min_length=300, max_length_offset=300)))
    numbers_T = uniform(row_keys(1, [0], 1), 0, 300)[0]
    allowed = torch.arange(4, 30)
    assert hypothesis.ids[:300] == allowed[(numbers_T * len(allowed)).long()].tolist()


def test_samples_come_likeliest_first():
    for hypotheses in search(TableModel(9, seed=1), pad([[4], [5, 6]]), sampling(samples=8)):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert len(scores) == 8
        assert scores == sorted(scores, reverse=True)
        assert scores == [hypothesis.log_probability for hypothesis in hypotheses]


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"temperature": 1e-3}, {"temperature": 1e-300}, {"temperature": 5e-324}, {"top_p": 1e-9}],
    ids=str,
)
@pytest.mark.parametrize("rules", [{}, {"no_repeat_ngram": 1, "min_length": 50}, {"repetition_penalty": 3.0}], ids=str)
def test_the_limits_are_greedy_search(options, rules):
    """Cold or narrow sampling is greedy search; it makes no infinity or nan on the way."""
    limits = Rules(**rules)
    model, source_BS = RecurrentModel(20, seed=2), pad([[4, 5, 6], [7], [8, 9]])
    found = search(model, source_BS, sampling(samples=2, rules=limits, **options))
    wanted = search(model, source_BS, Greedy(method="greedy", rules=limits))
    for hypotheses, [greedy] in zip(found, wanted, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.ids == greedy.ids
            assert hypothesis.score == pytest.approx(greedy.score, abs=1e-4)
            assert all(math.isfinite(value) for value in hypothesis.token_log_probabilities)


def test_top_k_of_one_breaks_ties_as_greedy_does():
    model, source_BS = TableModel(40, seed=1, step_size=3.0), pad([[token] for token in range(4, 9)])
    found = search(model, source_BS, sampling(top_k=1))
    assert ids_of(found) == ids_of(search(model, source_BS, Greedy(method="greedy")))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([-math.inf, -300.0, -90.0, -1.0, -1e-7, 0.0]), min_size=1, max_size=80),
    st.sampled_from([5e-324, 1e-20, 0.5, 1.0, 100.0]),
    st.integers(0, 90),
    st.sampled_from([1e-12, 0.5, 1.0]),
    st.sampled_from([0.0, 1e-9, 0.999]),
    st.sampled_from([0.0, 2.0**-53, 0.5, 1.0 - 2.0**-53]),
)
def test_a_forbidden_token_is_never_drawn(logs, temperature, top_k, top_p, min_p, noise):
    """At the edges of the noise and of every option."""
    logs = [*logs, -2.0]
    config = sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    [token] = draw(torch.tensor([logs]), config, torch.tensor([noise], dtype=torch.float64)).tolist()
    assert logs[token] > -math.inf
    if top_k == 1:
        assert token == logs.index(max(logs))


def test_no_two_rows_share_a_key():
    """Hashing seed and line alike and adding them once gave seed 1 of line 2 the noise of seed 2 of line 1."""
    keys = torch.cat([row_keys(seed, [*range(100), 2**40, 2**64 - 1, -5], 10) for seed in (*range(10), 2**63 - 1)])
    assert len(keys.unique()) == len(keys)


def test_uniform_numbers_are_uniform():
    """In 64 cells, along lines, samples and steps; and the blocks of steps join."""
    keys_N = row_keys(7, range(50), 20)
    numbers_NT = uniform(keys_N, 0, 64)
    assert torch.equal(numbers_NT[:, 40:], uniform(keys_N, 40, 24))
    assert ((numbers_NT >= 0) & (numbers_NT < 1)).all()
    count = numbers_NT.numel()
    for values in (numbers_NT, numbers_NT[:, 1:] - numbers_NT[:, :-1], numbers_NT[20:] - numbers_NT[:-20]):
        cells = Counter(((values % 1.0) * 64).long().flatten().tolist())
        statistic, degrees = chi_square(cells, dict.fromkeys(range(64), values.numel() / 64))
        assert statistic < chi_square_limit(degrees)
    assert len(numbers_NT.unique()) == count


def test_ended_lines_leave_the_batch():
    model = TableModel(8, seed=1, scale=3.0)
    found = search(model, pad([[4 + row] for row in range(16)]), sampling(samples=3))
    longest = [max(len(h.token_log_probabilities) for h in hypotheses) for hypotheses in found]
    assert model.calls[0] == 48
    assert sum(model.calls) < 3 * sum(longest) * 1.3
