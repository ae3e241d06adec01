"""The page: facts, scores, charts and attention put into one self-contained HTML file."""

import base64
import datetime
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mtkit import __version__
from mtkit.data.report import WHY
from mtkit.figures import duration
from mtkit.report.chart import LEFT, RIGHT, WIDTH, axes, draw
from mtkit.report.facts import Facts, gather, samples, seconds_of, status
from mtkit.report.scores import test_scores
from mtkit.report.series import Event, Panel, panels

SAMPLES, SAMPLE_STEPS, SAMPLE_CHARACTERS = 8, 12, 600
"""Of the validation samples: sentences, points in time, and characters of a text that are shown."""
TABLE_ROWS = 200
"""Most rows of the tables of validations and events."""
_NOTABLE = ("start", "resume", "skip", "spike", "oom", "end")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class Options:
    """What a report is made with: how many sentences have their attention shown (0: none), and on which device."""

    sentences: int = 6
    device: str = "auto"


def build(folder: Path, options: Options) -> str:
    """The report on a run folder as HTML. Raises DataError when it is none."""
    facts = gather(folder)
    scores = test_scores(facts)
    sentences: list[dict[str, Any]] = []
    if options.sentences:
        from mtkit.report.watch import watch

        sentences = watch(facts, options.sentences, options.device)
    drawn = panels(facts.events)
    script, style = _asset("charts.js") + _asset("attention.js"), _asset("page.css")
    words, complete = status(facts.events)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"thousands": lambda number: f"{number:,}", "share": _share, "cut": _cut}
    return environment.from_string(_asset("page.html")).render(
        facts=facts,
        status=words,
        complete=complete,
        tiles=_tiles(facts),
        scores=scores,
        charts=[{"panel": panel, "svg": Markup(draw(panel))} for panel in drawn],
        validations=_spread([row for row in facts.events if row.get("event") == "valid"]),
        notable=[_notable(row) for row in facts.events if row.get("event") in _NOTABLE][-TABLE_ROWS:],
        samples=_by_sentence(facts.events),
        sentences=sentences,
        why=WHY,
        style=Markup(style),
        script=Markup(script),
        hashes={"style": _hash(style), "script": _hash(script)},
        payload=Markup(embedded({"charts": [_chart(panel) for panel in drawn], "sentences": sentences})),
        version=__version__,
        now=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or begins another.

    >>> embedded("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "".join(_UNSAFE.get(character, character) for character in text)


def _asset(name: str) -> str:
    return files("mtkit.report").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The source expression that lets a browser use exactly this style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _tiles(facts: Facts) -> list[tuple[str, str]]:
    """The figures at the top: label and value."""
    tiles = []
    valid = [row for row in facts.events if row.get("event") == "valid" and isinstance(row.get("bleu"), int | float)]
    if valid:
        best = max(valid, key=lambda row: row["bleu"])
        tiles.append(("best validation BLEU", f"{best['bleu']:.2f} at step {best['step']:,}"))
    if facts.model:
        tiles.append(("parameters", f"{facts.model['parameters']:,}"))
        tokens, seconds = facts.model["training_target_tokens"], facts.model["training_seconds"]
        if tokens:
            tiles.append(("target tokens trained on", f"{tokens:,}"))
        if seconds:
            tiles.append(("training time of the model", duration(seconds)))
    elif seconds_of(facts.events):
        tiles.append(("training time", seconds_of(facts.events)))
    return tiles


def _chart(panel: Panel) -> dict[str, Any]:
    """What the page's script needs to read a chart off at a step."""
    x, _ = axes(panel)
    curves = [
        {"name": one.name, "points": [[step, float(f"{v:.5g}")] for step, v in one.points]} for one in panel.curves
    ]
    return {"first": x.low, "last": x.high, "left": LEFT, "right": WIDTH - RIGHT, "curves": curves}


def _notable(row: Event) -> tuple[str, str, int, str]:
    """Time, kind and step of an event, and what else it says."""
    hidden = ("event", "time", "step", "recipe")
    said = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
        if key not in hidden
    ]
    return str(row.get("time", "")), str(row["event"]), row["step"], ", ".join(said)


def _spread(rows: list[Event]) -> list[Event]:
    """At most `TABLE_ROWS` of the rows, evenly spread, first and last among them."""
    if len(rows) <= TABLE_ROWS:
        return rows
    return [rows[round(place * (len(rows) - 1) / (TABLE_ROWS - 1))] for place in range(TABLE_ROWS)]


def _by_sentence(events: list[Event]) -> list[dict[str, Any]]:
    """The validation samples a sentence: source, reference, and the translations over time."""
    sentences: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for step, rows in samples(events, SAMPLES, SAMPLE_STEPS):
        for source, hypothesis, reference in rows:
            sentences.setdefault((source, reference), []).append((step, hypothesis))
    shown = list(sentences.items())[-SAMPLES:]
    return [{"source": source, "reference": reference, "over_time": rows} for (source, reference), rows in shown]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def _cut(text: str) -> str:
    return text if len(text) <= SAMPLE_CHARACTERS else text[:SAMPLE_CHARACTERS] + "…"
