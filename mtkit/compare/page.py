"""A comparison as one HTML page that loads nothing, in light and dark."""

import difflib
import re
from collections.abc import Iterable, Sequence
from html import escape

from mtkit.compare.analysis import FEW, METRICS, Breakdown, Comparison, Sentence
from mtkit.compare.charts import bar, histogram
from mtkit.compare.text import printable, tally, value
from mtkit.hygiene import UNSPACED_LETTERS
from mtkit.significance import is_significant

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #63636b; --paper: #fff; --line: #d8d8de; --gain: #17734a;
  --loss: #b3261e; --mark: #fbe3c0; --card: #f6f6f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --soft: #a0a0aa; --paper: #17171a; --line: #3a3a42;
  --gain: #5cc896; --loss: #f28b82; --mark: #5a4316; --card: #212126 } }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
p, dl { margin: .4rem 0 } .soft { color: var(--soft); font-size: .9rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600 } th:first-child, td:first-child, .left { text-align: left }
.gain { color: var(--gain) } .loss { color: var(--loss) }
svg .gain { fill: var(--gain) } svg .loss { fill: var(--loss) } svg .same { fill: var(--soft) }
.chart { width: 100%; max-width: 34rem; height: auto }
svg line { stroke: var(--line) } svg text { fill: var(--soft); font: 11px system-ui, sans-serif }
article { background: var(--card); border-radius: .5rem; padding: .6rem .9rem; margin: .7rem 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem } dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere } mark { background: var(--mark); color: inherit; border-radius: .2rem }
pre { overflow-x: auto; font-size: .8rem; color: var(--soft) }
"""
_CHUNK = re.compile(rf"[{UNSPACED_LETTERS}]|\w+|\s+|.", re.DOTALL)
_LABELS = {"bleu": "BLEU", "chrf": "chrF2"}


def render(found: Comparison, count: int) -> str:
    """The page; `count` gains and losses are shown."""
    names = found.names
    parts = [
        "<h1>Where B is better than A, and where it is worse</h1>",
        f"<p>A: {_text(names['a'])}<br>B: {_text(names['b'])}<br>reference: {_text(names['reference'])}</p>",
        _scores(found),
        f"<h2>Sentence by sentence</h2><p>{escape(tally(found))}.</p>",
        histogram([one.difference for one in found.sentences]),
        *(_breakdown(one) for one in found.breakdowns),
        _orders(found),
        _habits(found),
    ]
    if count:
        parts.append(_sentences("Where B gains most", found.gains(count)))
        parts.append(_sentences("Where B loses most", found.losses(count)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(names['b'])} against {_text(names['a'])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; columns in `left` are set to the left, as is the first."""

    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="left"' if column in left else "" for column in range(len(cells))]
        scope = ' scope="col"' if tag == "th" else ""
        return (
            "<tr>" + "".join(f"<{tag}{scope}{m}>{cell}</{tag}>" for cell, m in zip(cells, marks, strict=True)) + "</tr>"
        )

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="wide" tabindex="0"><table><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _change(a: float, b: float, decimals: int = 2) -> str:
    kind = "gain" if b > a else "loss" if b < a else ""
    return f'<span class="{kind}">{b - a:+.{decimals}f}</span>'


def _scores(found: Comparison) -> str:
    a, b = found.contest.systems
    rows = []
    for name, one in a.scores.metrics.items():
        other, p_value = b.scores.metrics[name], b.p_values.get(name)
        cells = [one.label]
        for figure in (one, other):
            cells.append(f"{figure.score:.2f}" + (f" ({figure.interval})" if figure.interval else ""))
        star = "*" if p_value is not None and is_significant(other.score - one.score, p_value) else ""
        p_cell = "" if p_value is None else f"{p_value:.4f}{star}"
        rows.append([*cells, _change(one.score, other.score), p_cell])
    signatures = "\n".join(f"{one.label}: {one.signature}" for one in a.scores.metrics.values())
    note = escape(". ".join(found.contest.explanation()))
    return (
        f"<h2>Scores of {a.scores.sentences} sentences</h2>{_table(['', 'A', 'B', 'B - A', 'p'], rows)}"
        f'<p class="soft">{note}</p><pre>{escape(signatures)}</pre>'
    )


def _breakdown(found: Breakdown) -> str:
    head = [escape(found.unit), "sentences"]
    for name in METRICS:
        head += [f"{_LABELS[name]} A", "B", "B - A", ""]
    most = {name: max(abs(b - a) for a, b in (one.scores[name] for one in found.buckets)) for name in METRICS}
    rows = []
    for bucket in found.buckets:
        row = [escape(bucket.label), f"{bucket.sentences}{' (few)' if bucket.sentences < FEW else ''}"]
        for name in METRICS:
            a, b = bucket.scores[name]
            row += [f"{a:.2f}", f"{b:.2f}", _change(a, b), bar(b - a, most[name])]
        rows.append(row)
    title = escape(found.title[0].upper() + found.title[1:])
    return f"<h2>{title}</h2>{_table(head, rows)}"


def _orders(found: Comparison) -> str:
    rows = []
    for one in found.orders:
        row = [str(one.order)]
        for a, b in (one.precision, one.recall):
            row += [f"{a:.1f}", f"{b:.1f}", _change(a, b, 1)]
        rows.append(row)
    head = ["order", "precision A", "B", "B - A", "recall A", "B", "B - A"]
    return (
        f"<h2>By n-gram order</h2>{_table(head, rows)}"
        "<p class=\"soft\">Per cent of the system's n-grams that are right, and of the reference's that were found.</p>"
    )


def _habits(found: Comparison) -> str:
    rows = []
    for one in found.habits:
        lines = [
            f"{side}: {', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''}"
            for side, numbers in zip("AB", one.lines, strict=True)
            if numbers
        ]
        total = "" if one.total is None else str(one.total)
        rows.append([one.name, *(value(one, number) for number in one.values), total, one.meaning, "; ".join(lines)])
    return f"<h2>Habits</h2>{_table(['', 'A', 'B', 'of', 'what is counted', 'lines'], rows, left=(4, 5))}"


def _sentences(title: str, sentences: Sequence[Sentence]) -> str:
    parts = [f"<h2>{title}</h2>"]
    if not sentences:
        parts.append("<p>Nowhere.</p>")
    else:
        parts.append('<p class="soft">By sentence chrF, A → B. Marked is what the reference does not have.</p>')
    for one in sentences:
        rows = [] if one.source is None else [("source", _text(one.source))]
        rows += [
            ("reference", _text(one.reference)),
            ("A", _marked(one.a, one.reference)),
            ("B", _marked(one.b, one.reference)),
        ]
        entries = "".join(f'<dt>{label}</dt><dd dir="auto">{text}</dd>' for label, text in rows)
        parts.append(
            f"<article><p>line {one.line}: {one.chrf_a:.1f} → {one.chrf_b:.1f} "
            f"({_change(one.chrf_a, one.chrf_b, 1)})</p><dl>{entries}</dl></article>"
        )
    return "\n".join(parts)


def _marked(hypothesis: str, reference: str) -> str:
    """The hypothesis as HTML, words marked that no alignment with the reference explains."""
    own, other = _CHUNK.findall(hypothesis), _CHUNK.findall(reference)
    matcher = difflib.SequenceMatcher(None, own, other, autojunk=False)
    html = []
    for kind, start, end, *_ in matcher.get_opcodes():
        text = _text("".join(own[start:end]))
        if kind in ("replace", "delete") and text.strip():
            text = f"<mark>{text}</mark>"
        html.append(text)
    return "".join(html)
