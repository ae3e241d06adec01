"""A comparison as text for a terminal and as JSON."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from mtkit.compare.analysis import FEW, METRICS, Breakdown, Comparison, Habit, Sentence

_NAMED = 8
_INDENT = "    "


def render(found: Comparison, count: int) -> str:
    """All tables, then the `count` sentences in which B gains and loses most."""
    names = found.names
    blocks = [
        [f"A: {names['a']}", f"B: {names['b']}", f"reference: {names['reference']}"],
        found.contest.render().split("\n"),
        [tally(found)],
        *(_breakdown(one) for one in found.breakdowns),
        _orders(found),
        _habits(found.habits),
    ]
    if count:
        blocks.append(_sentences("where B gains most (sentence chrF, A -> B)", found.gains(count)))
        blocks.append(_sentences("where B loses most (sentence chrF, A -> B)", found.losses(count)))
    return "\n\n".join("\n".join(block) for block in blocks)


def tally(found: Comparison) -> str:
    """In how many sentences which system is better, in words."""
    better, worse, same = found.tally()
    return f"by sentence chrF, B is better in {better} sentences, worse in {worse}, the same in {same}"


def printable(text: str) -> str:
    """The text on one line of a terminal, control characters made visible.

    >>> printable("a\\x1b[1mb\\tc")
    'a\\\\x1b[1mb c'
    """
    return "".join(
        " " if one == "\t" else ascii(one)[1:-1] if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one
        for one in text
    )


def as_dict(found: Comparison, count: int) -> dict[str, Any]:
    """The same for JSON, unrounded, with the chrF of every sentence."""
    better, worse, same = found.tally()
    names = {"reference": found.names["reference"], "A": found.names["a"], "B": found.names["b"]}
    return {
        **names,
        **found.contest.as_dict(),
        "sentences": {"better": better, "worse": worse, "same": same},
        "breakdowns": [
            {
                "title": one.title,
                "unit": one.unit,
                "buckets": [
                    {"label": bucket.label, "sentences": bucket.sentences}
                    | {name: {"A": a, "B": b} for name, (a, b) in bucket.scores.items()}
                    for bucket in one.buckets
                ],
            }
            for one in found.breakdowns
        ],
        "ngrams": [
            {"order": one.order, "precision": _pair(one.precision), "recall": _pair(one.recall)} for one in found.orders
        ],
        "habits": [
            {"name": one.name, "meaning": one.meaning, "total": one.total, **_pair(one.values)}
            | ({} if one.total is None else {"lines": _pair([list(lines) for lines in one.lines])})
            for one in found.habits
        ],
        "gains": [_sentence(one) for one in found.gains(count)],
        "losses": [_sentence(one) for one in found.losses(count)],
        "sentence_chrf": {
            "A": [one.chrf_a for one in found.sentences],
            "B": [one.chrf_b for one in found.sentences],
        },
    }


def _pair(values: Sequence[Any]) -> dict[str, Any]:
    return {"A": values[0], "B": values[1]}


def _sentence(one: Sentence) -> dict[str, Any]:
    source = {} if one.source is None else {"source": one.source}
    texts = {"reference": one.reference, "A": one.a, "B": one.b}
    return {"line": one.line, **source, **texts, "chrf": {"A": one.chrf_a, "B": one.chrf_b}}


def _breakdown(found: Breakdown) -> list[str]:
    labels = {"bleu": "BLEU", "chrf": "chrF2"}
    head = [found.unit, "sentences"]
    for name in METRICS:
        head += [f"{labels[name]} A", "B", "B - A"]
    rows = [head]
    for bucket in found.buckets:
        row = [bucket.label, f"{bucket.sentences}{' (few)' if bucket.sentences < FEW else ''}"]
        for name in METRICS:
            a, b = bucket.scores[name]
            row += [f"{a:.2f}", f"{b:.2f}", f"{b - a:+.2f}"]
        rows.append(row)
    return [found.title, *table(rows)]


def _orders(found: Comparison) -> list[str]:
    rows = [["order", "precision A", "B", "B - A", "recall A", "B", "B - A"]]
    for one in found.orders:
        row = [str(one.order)]
        for a, b in (one.precision, one.recall):
            row += [f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}"]
        rows.append(row)
    return ["by n-gram order: per cent of the system's n-grams right, and of the reference's found", *table(rows)]


def _habits(found: Iterable[Habit]) -> list[str]:
    rows = [["habit", "A", "B", "of", "what is counted"]]
    for one in found:
        rows.append(
            [one.name, *map(value, (one, one), one.values), "" if one.total is None else str(one.total), one.meaning]
        )
    lines = ["habits", *table(rows, left=(0, 4))]
    for one in found:
        for side, numbers in zip("AB", one.lines, strict=True):
            if numbers:
                more = ", ..." if len(numbers) > _NAMED else ""
                lines.append(f"{_INDENT}{one.name}, {side}: line {', '.join(map(str, numbers[:_NAMED]))}{more}")
    return lines


def value(habit: Habit, number: float) -> str:
    """A count as it is, a ratio with three decimals."""
    return f"{number:.3f}" if habit.total is None else str(int(number))


def _sentences(title: str, sentences: Sequence[Sentence]) -> list[str]:
    lines = [title]
    for one in sentences:
        lines.append(f"line {one.line}: {one.chrf_a:.1f} -> {one.chrf_b:.1f} ({one.difference:+.1f})")
        rows = [] if one.source is None else [("source", one.source)]
        for label, text in (*rows, ("reference", one.reference), ("A", one.a), ("B", one.b)):
            lines.append(f"{_INDENT}{label:<10} {printable(text)}".rstrip())
    return lines if sentences else [title, f"{_INDENT}none"]


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """The rows with aligned columns, numbers to the right but for the columns in `left`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        _INDENT
        + "  ".join(
            f"{cell:<{width}}" if column in left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
