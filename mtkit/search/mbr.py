"""Minimum Bayes risk: the candidate that agrees most with the others (Kumar and Byrne 2004; Eikema and Aziz 2020).

Works on text. Free of torch.
"""

from collections import Counter
from typing import Literal

Utility = Literal["chrf", "bleu"]


def choose(candidates: list[str], utility: Utility, tokenize: str | None = None) -> int:
    """The index of the candidate with the highest mean utility, the other candidates being its references.

    `utility` is chrF2 or BLEU of sentences, as sacrebleu computes them; `tokenize` is BLEU's tokenizer, such as "zh",
    and None its default. A candidate that occurs twice counts twice, and agrees wholly with itself. The first of equals
    wins, and so does the first candidate when it is alone.

    >>> choose(["a dog runs", "the dog runs fast", "the dog runs"], "chrf")
    2
    """
    from sacrebleu.metrics import BLEU, CHRF  # slow to import, and few translations need it

    assert candidates, "nothing to choose from"
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True, tokenize=tokenize)
    counts = Counter(candidates)
    texts = list(counts)  # in order of first occurrence
    if len(texts) == 1:
        return 0

    def gain(hypothesis: str) -> float:
        """The sum of utilities over all candidates but one such as itself."""
        others = (
            metric.sentence_score(hypothesis, [other]).score * counts[other] for other in texts if other != hypothesis
        )
        return 100.0 * (counts[hypothesis] - 1) + sum(others)

    gains = [gain(text) for text in texts]
    return candidates.index(texts[gains.index(max(gains))])
