"""The drawings of a comparison's page, as inline SVG coloured by the page's style."""

from collections.abc import Sequence

_STEP = 10
_STEPS = 100 // _STEP
_WIDTH, _HEIGHT = 26, 120


def histogram(differences: Sequence[float]) -> str:
    """How many sentences lose and gain how much, from -100 to 100; no difference has a bar of its own."""
    counts = [0] * (2 * _STEPS + 1)
    for difference in differences:
        step = int(min(abs(difference), 99.9) / _STEP) + 1
        counts[_STEPS + (0 if difference == 0 else step if difference > 0 else -step)] += 1
    most, total = max(counts) or 1, len(counts) * _WIDTH
    floor = _HEIGHT + 14
    parts = [
        f'<svg class="chart" viewBox="0 0 {total} {floor + 18}" role="img" '
        'aria-label="How many sentences lose and gain how much of sentence chrF">'
    ]
    for number, count in enumerate(counts):
        if not count:
            continue
        side = "same" if number == _STEPS else "gain" if number > _STEPS else "loss"
        low = _STEP * (abs(number - _STEPS) - 1)
        what = "no difference" if number == _STEPS else f"{side} of {low} to {low + _STEP}"
        tall, left = _HEIGHT * count / most, number * _WIDTH
        parts.append(
            f'<rect class="{side}" x="{left + 2}" y="{floor - tall:.1f}" width="{_WIDTH - 4}" height="{tall:.1f}">'
            f"<title>{what}: {count} sentences</title></rect>"
            f'<text x="{left + _WIDTH / 2}" y="{floor - tall - 3:.1f}" text-anchor="middle">{count}</text>'
        )
    parts.append(
        f'<line x1="0" x2="{total}" y1="{floor + 0.5}" y2="{floor + 0.5}"/>'
        f'<text x="0" y="{floor + 14}">B loses</text>'
        f'<text x="{total}" y="{floor + 14}" text-anchor="end">B gains</text></svg>'
    )
    return "".join(parts)


def bar(difference: float, most: float) -> str:
    """A difference as a bar to the right (gain) or left (loss) of a line; `most` fills half the width."""
    length = 50 * min(1.0, abs(difference) / most) if most else 0.0
    start, side = (50.0, "gain") if difference >= 0 else (50 - length, "loss")
    return (
        '<svg width="100" height="12" aria-hidden="true"><line x1="50" x2="50" y1="0" y2="12"/>'
        f'<rect class="{side}" x="{start:.1f}" y="2" width="{length:.1f}" height="8"/></svg>'
    )
