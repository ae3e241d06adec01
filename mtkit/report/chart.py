"""Line charts as inline SVG. Colours and strokes are the page's business: a curve has the class c0, c1 or c2."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from mtkit.report.series import Curve, Panel, Point

WIDTH, HEIGHT = 380, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 8, 24
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` laid along the pixels from `start` to `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    log: bool = False

    def place(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw(panel: Panel) -> str:
    """The chart of a panel: grid, ticks, a path for each curve, a dot for each of few points, a cursor to be moved."""
    x, y = axes(panel)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(summary(panel))}">',
        f'<g class="grid">{_horizontal(y)}</g>',
        f'<g class="ticks">{_labels(x, y)}</g>',
    ]
    for index, curve in enumerate(panel.curves):
        parts.append(f'<path class="curve c{index}" d="{_path(curve.points, x, y)}"/>')
        if len(curve.points) <= 40:
            dots = (f'<circle cx="{x.place(step):.1f}" cy="{y.place(v):.1f}" r="2.2"/>' for step, v in curve.points)
            parts.append(f'<g class="dots c{index}">{"".join(dots)}</g>')
    parts.append(
        f'<line class="cursor" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/>'
    )
    return "".join([*parts, "</svg>"])


def axes(panel: Panel) -> tuple[Axis, Axis]:
    """The axis of steps and the axis of values; neither is empty."""
    steps = [step for curve in panel.curves for step, _ in curve.points]
    values = [value for curve in panel.curves for _, value in curve.points]
    first, last = min(0, *steps), max(1, *steps)
    x = Axis(first, last, LEFT, WIDTH - RIGHT, [tick for tick in nice_ticks(first, last) if first <= tick <= last])
    low, high = min(values), max(values)
    if panel.log and low > 0:
        if high < low * 1.5:
            low, high = low / 1.25, high * 1.25
        return x, Axis(low, high, HEIGHT - BOTTOM, TOP, _log_ticks(low, high), log=True)
    ticks = nice_ticks(min(0.0, low) if low < high * 0.6 else low, high)
    return x, Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, ticks)


def nice_ticks(low: float, high: float) -> list[float]:
    """About five round numbers whose range holds `low` and `high`.

    >>> nice_ticks(0, 42)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    if high <= low:
        spread = abs(low) / 2 or 0.5
        low, high = low - spread, high + spread
    rough = (high - low) / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [float(f"{number * size:.12g}") for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range; where these are few, 2 and 5 times them too; or else round numbers."""
    factors = (1, 2, 5) if high / low < 500 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [tick for tick in nice_ticks(low, high) if low <= tick <= high]


def _horizontal(y: Axis) -> str:
    lines = (round(y.place(tick), 1) for tick in y.ticks)
    return "".join(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:g}" y2="{at:g}"/>' for at in lines)


def _labels(x: Axis, y: Axis) -> str:
    texts = [
        f'<text x="{LEFT - 6}" y="{y.place(tick) + 3.5:.1f}" text-anchor="end">{short(tick)}</text>' for tick in y.ticks
    ]
    for tick in x.ticks:
        anchor = "end" if tick == x.high else "start" if tick == x.low else "middle"
        texts.append(f'<text x="{x.place(tick):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{short(tick)}</text>')
    return "".join(texts)


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{x.place(step):.1f} {y.place(value):.1f}" for step, value in points)


def short(value: float) -> str:
    """A number for a tick: thousands as k, millions as M, small ones in powers of ten.

    >>> [short(value) for value in (0, 0.5, 12, 2500, 1_500_000, 0.0004)]
    ['0', '0.5', '12', '2.5k', '1.5M', '4e-4']
    """
    size = abs(value)
    if size and size < 1e-3:
        number, _, power = f"{value:.1e}".partition("e")
        return f"{float(number):g}e{int(power)}"
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def summary(panel: Panel) -> str:
    """The chart in a sentence, for those who do not see it."""
    ends: Callable[[Curve], str] = lambda one: (  # noqa: E731
        f"{one.name} from {one.points[0][1]:.4g} at step {one.points[0][0]} to {one.points[-1][1]:.4g} "
        f"at step {one.points[-1][0]}"
    )
    return f"{panel.heading}: {'; '.join(map(ends, panel.curves))}"
