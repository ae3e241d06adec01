"""Minimum-Bayes-risk choice."""

import pytest
from sacrebleu.metrics import BLEU, CHRF

from mtkit.search.mbr import choose

CANDIDATES = ["a dog runs", "the dog runs fast", "the dog runs", "a cat sleeps here", "the dog ran", "the dog runs"]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_highest_mean_utility_against_all_others(utility):
    """Against brute force over every ordered pair, occurrences counted one by one."""
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)

    def mean(place):
        others = CANDIDATES[:place] + CANDIDATES[place + 1 :]
        return sum(metric.sentence_score(CANDIDATES[place], [other]).score for other in others) / len(others)

    means = [mean(place) for place in range(len(CANDIDATES))]
    assert choose(CANDIDATES, utility) == means.index(max(means))


def test_the_crowd_wins_and_the_first_of_equals():
    assert choose(["x", "y z", "y z"], "chrf") == 1
    assert choose(["same", "same"], "bleu") == 0
    assert choose(["alone"], "chrf") == 0
    assert choose(["", "", "words"], "chrf") == 0
    assert choose(["ab", "cd"], "bleu") == 0


def test_the_utilities_differ():
    """chrF sees characters, BLEU whole words."""
    candidates = ["translating", "cats sat", "cats translation", "translations"]
    assert choose(candidates, "chrf") != choose(candidates, "bleu")


def test_bleu_can_be_told_the_tokenizer():
    """Without one a Chinese sentence is a single word."""
    candidates = ["他喝茶。", "我今天喝茶。", "我今天喝水。"]
    assert choose(candidates, "bleu") == 0
    assert choose(candidates, "bleu", tokenize="zh") == 1
