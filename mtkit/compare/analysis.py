"""Two systems against one reference: in which sentences, and in what kinds of sentence, one is better."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from mtkit.compare.features import addresses, is_copied, loops, numbers, words
from mtkit.evaluate import check_script, measure, strip_ends
from mtkit.metrics import make_metrics
from mtkit.sections.data import Evaluation
from mtkit.significance import Contest, Trial, score_systems

FEW = 30
"""Scores of fewer sentences than this mean little."""
_LENGTHS = (0, 10, 20, 30, 40, 60)
_FREQUENCIES = (-1, 0, 1, 4, 9, 99, 999)
_SHORT, _LONG = 0.5, 2.0
METRICS = ("bleu", "chrf")


@dataclass(frozen=True, slots=True)
class Texts:
    """What is compared, lines of equal number. `names` are what to call reference, A, B and source."""

    reference: Sequence[str]
    a: Sequence[str]
    b: Sequence[str]
    source: Sequence[str] | None = None
    names: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with its chrF in A and in B; `line` counts from 1."""

    line: int
    source: str | None
    reference: str
    a: str
    b: str
    chrf_a: float
    chrf_b: float

    @property
    def difference(self) -> float:
        """What B gains."""
        return self.chrf_b - self.chrf_a


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sentences of one kind: A's and B's corpus scores over them alone, by metric."""

    label: str
    sentences: int
    scores: dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Buckets of one kind of difference between sentences; `unit` is what the labels count."""

    title: str
    unit: str
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """N-grams of one order, as BLEU splits words: per cent of them right, and per cent of the reference's found."""

    order: int
    precision: tuple[float, float]
    recall: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Habit:
    """Something counted in A and in B out of `total`; `lines` are where, in A and in B.

    `total` None stands for a ratio, which is no count and has no lines.
    """

    name: str
    meaning: str
    values: tuple[float, float]
    total: int | None
    lines: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was found; `sentences` are all of them in order, A the first system of `contest` and B the second."""

    names: Mapping[str, str]
    contest: Contest
    sentences: tuple[Sentence, ...]
    breakdowns: tuple[Breakdown, ...]
    orders: tuple[Order, ...]
    habits: tuple[Habit, ...]

    def gains(self, count: int) -> list[Sentence]:
        """The sentences in which B gains most, the most first."""
        best = sorted(self.sentences, key=lambda one: (-one.difference, one.line))
        return [one for one in best[:count] if one.difference > 0]

    def losses(self, count: int) -> list[Sentence]:
        """The sentences in which B loses most, the most first."""
        worst = sorted(self.sentences, key=lambda one: (one.difference, one.line))
        return [one for one in worst[:count] if one.difference < 0]

    def tally(self) -> tuple[int, int, int]:
        """In how many sentences B is better, worse, and the same, by chrF."""
        better = sum(one.difference > 0 for one in self.sentences)
        worse = sum(one.difference < 0 for one in self.sentences)
        return better, worse, len(self.sentences) - better - worse


def compare(
    texts: Texts,
    section: Evaluation,
    target_language: str | None = None,
    frequencies: Mapping[str, int] | None = None,
) -> Comparison:
    """Everything about A and B; `frequencies` are those of the words in the training text, see `count_words`.

    `section` sets BLEU's tokenizer, case, and the resamples of the paired bootstrap (0: no interval, no p-value). The
    lines were checked to be of equal number. Raises what `evaluate.score` raises for the language.
    """
    section = section.model_copy(update={"metrics": METRICS})
    check_script([texts.reference], section, target_language)
    metrics = make_metrics(section, target_language)
    names = {"reference": "reference", "a": "A", "b": "B", "source": "source"} | dict(texts.names or {})
    resamples = section.resamples
    trial = Trial("bootstrap", resamples) if resamples else None
    contest = score_systems(metrics, {"A": texts.a, "B": texts.b}, [texts.reference], resamples, trial)

    def scores(lines: Sequence[int]) -> dict[str, tuple[float, float]]:
        reference = [[texts.reference[index] for index in lines]]
        found = [measure(metrics, [side[index] for index in lines], reference).metrics for side in (texts.a, texts.b)]
        return {name: (found[0][name].score, found[1][name].score) for name in METRICS}

    breakdowns = [_by_length(texts, scores)]
    if frequencies is not None:
        breakdowns.append(_by_rarest_word(texts.reference, frequencies, scores))
    bleu = metrics["bleu"]
    assert isinstance(bleu, BLEU)
    return Comparison(
        names=names,
        contest=contest,
        sentences=tuple(_sentences(texts, section.lowercase)),
        breakdowns=tuple(breakdowns),
        orders=tuple(_orders(bleu, texts)),
        habits=tuple(_habits(bleu, texts)),
    )


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word stands in a text, without regard to case."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(words(line))
    return counts


def _sentences(texts: Texts, lowercase: bool) -> Iterable[Sentence]:
    metric = CHRF(lowercase=lowercase)
    for index, reference in enumerate(texts.reference):
        a, b = texts.a[index], texts.b[index]
        chrf_a, chrf_b = (float(metric.sentence_score(one.rstrip(), [reference.rstrip()]).score) for one in (a, b))
        source = None if texts.source is None else texts.source[index]
        yield Sentence(index + 1, source, reference, a, b, chrf_a, chrf_b)


def _by_length(texts: Texts, scores: Callable[[Sequence[int]], dict[str, tuple[float, float]]]) -> Breakdown:
    lines, side = (texts.reference, "reference") if texts.source is None else (texts.source, "source")
    buckets = _buckets([len(words(line)) for line in lines], _LENGTHS, scores)
    return Breakdown(f"by {side} length", f"words of the {side}", buckets)


def _by_rarest_word(
    reference: Sequence[str],
    frequencies: Mapping[str, int],
    scores: Callable[[Sequence[int]], dict[str, tuple[float, float]]],
) -> Breakdown:
    rarest = [min((frequencies.get(word, 0) for word in words(line)), default=None) for line in reference]
    buckets = _buckets(rarest, _FREQUENCIES, scores)
    return Breakdown("by training frequency of the reference's rarest word", "times in the training text", buckets)


def _buckets(
    values: Sequence[int | None],
    bounds: Sequence[int],
    scores: Callable[[Sequence[int]], dict[str, tuple[float, float]]],
) -> tuple[Bucket, ...]:
    """Sentences by value: over one bound, up to the next; last those without one. Empty buckets are left out."""
    members: dict[str, list[int]] = {
        _label(low, high): [] for low, high in zip(bounds, [*bounds[1:], None], strict=True)
    }
    members = {"0": [], **members} if bounds[0] == 0 else members
    members["no words"] = []
    for index, value in enumerate(values):
        if value is None or value <= bounds[0]:
            members["no words" if value is None else "0"].append(index)
        else:
            position = max(number for number, low in enumerate(bounds) if value > low)
            members[_label(bounds[position], (*bounds, None)[position + 1])].append(index)
    return tuple(Bucket(label, len(lines), scores(lines)) for label, lines in members.items() if lines)


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low + 1}+"
    return f"{high}" if high == low + 1 else f"{low + 1}-{high}"


def _orders(bleu: BLEU, texts: Texts) -> Iterable[Order]:
    """Recall is precision with hypothesis and reference in each other's place."""
    reference, sides = strip_ends(texts.reference), (strip_ends(texts.a), strip_ends(texts.b))
    precisions = [bleu.corpus_score(side, [reference]) for side in sides]
    recalls = [bleu.corpus_score(reference, [side]) for side in sides]

    def percent(score: Any, order: int) -> float:
        return 100 * score.counts[order] / score.totals[order] if score.totals[order] else 0.0

    for order in range(bleu.max_ngram_order):
        found = [(percent(score[0], order), percent(score[1], order)) for score in (precisions, recalls)]
        yield Order(order + 1, *found)


def _habits(bleu: BLEU, texts: Texts) -> Iterable[Habit]:
    sides = (texts.a, texts.b)
    ratios = [bleu.corpus_score(strip_ends(side), [strip_ends(texts.reference)]).ratio for side in sides]
    yield Habit("length ratio", "tokens of BLEU for one of the reference", (ratios[0], ratios[1]), None)
    lengths = [len(words(line)) for line in texts.reference]
    yield _where(
        "empty",
        "no text where the reference has some",
        texts,
        lambda _, line, ref: not line.strip() and bool(ref.strip()),
    )
    yield _where(
        "short",
        "fewer than half the reference's words",
        texts,
        lambda n, line, _: len(words(line)) < _SHORT * lengths[n],
    )
    yield _where(
        "long", "more than twice the reference's words", texts, lambda n, line, _: len(words(line)) > _LONG * lengths[n]
    )
    yield _where(
        "repeating",
        "words said again at once, more often than in the reference",
        texts,
        lambda _, line, ref: loops(line) > loops(ref),
    )
    if texts.source is not None:
        source = texts.source
        yield _where(
            "copied source",
            "half of the words taken from the source, against the reference",
            texts,
            lambda n, line, ref: is_copied(line, source[n], ref),
        )
    yield from (_kept("numbers kept", numbers, texts), _kept("URLs kept", addresses, texts))


def _where(name: str, meaning: str, texts: Texts, holds: Callable[[int, str, str], bool]) -> Habit:
    """In which sentences something holds of index, hypothesis and reference."""
    found = [
        tuple(n + 1 for n, line in enumerate(side) if holds(n, line, texts.reference[n])) for side in (texts.a, texts.b)
    ]
    return Habit(name, meaning, (len(found[0]), len(found[1])), len(texts.reference), (found[0], found[1]))


def _kept(name: str, extract: Callable[[str], Counter[str]], texts: Texts) -> Habit:
    """How many of the reference's numbers or addresses, where there is a source of those that it has too, are there.

    The lines are those where one is lost.
    """
    kept, total = [0, 0], 0
    lines: tuple[list[int], list[int]] = ([], [])
    for index, reference in enumerate(texts.reference):
        wanted = extract(reference)
        if texts.source is not None:
            wanted &= extract(texts.source[index])
        total += wanted.total()
        for number, side in enumerate((texts.a, texts.b)):
            there = (extract(side[index]) & wanted).total() if wanted else 0
            kept[number] += there
            if there < wanted.total():
                lines[number].append(index + 1)
    whose = "of those that source and reference share" if texts.source is not None else "of the reference's"
    return Habit(
        name, f"{whose}; the lines are where one is lost", (kept[0], kept[1]), total, (tuple(lines[0]), tuple(lines[1]))
    )
