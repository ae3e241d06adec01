"""The history of a run out of metrics.jsonl: what still counts, as curves of a bounded number of points."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtkit.files import read_json_lines
from mtkit.folders import RunFolder

MOST_POINTS = 400
"""Of a curve: more than a picture of that width can show."""
Point = tuple[int, float]
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: its name in the legend and its points (step, value) by ascending step."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a heading, the unit of its values, its curves, and whether the values are drawn on a log scale."""

    heading: str
    unit: str
    curves: tuple[Curve, ...]
    log: bool = False


def read_history(run: RunFolder) -> list[Event]:
    """The events of the run that stand; empty when there is no log. See `standing`."""
    if not run.metrics.is_file():
        return []
    rows = [row for row in read_json_lines(run.metrics) if isinstance(row, dict) and isinstance(row.get("step"), int)]
    return standing(rows)


def standing(events: Sequence[Event]) -> list[Event]:
    """The events without those that were undone: all before the last fresh start, and, where a run went on from a
    checkpoint, what it had done after that.

    >>> [row["step"] for row in standing([
    ...     {"event": "start", "step": 0}, {"event": "train", "step": 50}, {"event": "train", "step": 100},
    ...     {"event": "resume", "step": 50}, {"event": "train", "step": 100}])]
    [0, 50, 50, 100]
    """
    kept: list[Event] = []
    for row in events:
        match row.get("event"):
            case "start":
                kept = []
            case "resume":
                kept = [earlier for earlier in kept if earlier["step"] <= row["step"]]
        kept.append(row)
    return kept


def curve(events: Sequence[Event], kind: str, key: str, name: str) -> Curve:
    """The values of a key over the steps of one kind of event, thinned."""
    values = {
        row["step"]: float(row[key])
        for row in events
        if row.get("event") == kind and isinstance(row.get(key), int | float) and math.isfinite(row[key])
    }
    return Curve(name, thinned(sorted(values.items())))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most `most` points: the first and last, and of equal stretches in between the least and the largest.

    So a spike of a single step stays visible.
    """
    if len(points) <= most:
        return tuple(points)
    stretches = (most - 2) // 2
    inner = points[1:-1]
    kept = [points[0]]
    for stretch in range(stretches):
        part = inner[stretch * len(inner) // stretches : (stretch + 1) * len(inner) // stretches]
        extremes = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(extremes)
    return (*kept, points[-1])


def panels(events: Sequence[Event]) -> list[Panel]:
    """The charts of a run, those without any point left out."""
    train, valid = "training", "validation"
    found = [
        Panel(
            "Loss",
            "nats a target token",
            (
                curve(events, "train", "nll", train),
                curve(events, "valid", "nll", valid),
                curve(events, "train", "loss", "training, with label smoothing"),
            ),
        ),
        Panel(
            "Perplexity",
            "log scale",
            (curve(events, "train", "perplexity", train), curve(events, "valid", "perplexity", valid)),
            log=True,
        ),
        Panel(
            "Validation scores",
            "0 to 100",
            (curve(events, "valid", "bleu", "BLEU"), curve(events, "valid", "chrf", "chrF")),
        ),
        Panel("Learning rate", "", (curve(events, "train", "learning_rate", "learning rate"),)),
        Panel("Gradient norm", "before clipping", (curve(events, "train", "gradient_norm", "gradient norm"),)),
        Panel("Speed", "target tokens/s", (curve(events, "train", "target_tokens_per_second", "tokens/s"),)),
    ]
    filled = [
        Panel(panel.heading, panel.unit, tuple(one for one in panel.curves if one.points), panel.log) for panel in found
    ]
    return [panel for panel in filled if panel.curves]
