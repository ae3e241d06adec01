"""What all constructions share: the list of constructions, and where Chinese puts the time.

A construction builds one sentence, Chinese and English together, from one meaning. It takes a `Phrases` and returns
both sides without the capital and the full stop (`sentence` in generate.py adds those); the Chinese of a question
ends in "？". WEIGHTS says how often each one is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

from phrases import Action, Phrases

Pair = tuple[str, str]
Construction = Callable[..., Pair]
WEIGHTS: dict[Construction, int] = {}


def construction(weight: int) -> Callable[[Construction], Construction]:
    """Adds the function below to the grammar, drawn in proportion to `weight`."""

    def add(function: Construction) -> Construction:
        WEIGHTS[function] = weight
        return function

    return add


def timed(g: Phrases, subject: str, time: str, rest: str) -> str:
    """Chinese puts the time before the verb: behind the subject or before it."""
    return f"{subject}{time}{rest}" if g.chance(0.7) else f"{time}{subject}{rest}"


MEALS = {"早饭": "早上", "午饭": "中午", "晚饭": "晚上"}


def when(g: Phrases, times: list[Pair], action: Action) -> Pair:
    """A time that suits the action: no dinner in the morning."""
    part = MEALS.get(action.object_zh)
    wrong = [p for p in ("早上", "下午", "晚上") if part and p != part]
    return g.pick([time for time in times if not any(p in time[0] for p in wrong)])
