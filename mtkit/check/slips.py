"""Where two files stop lining up, told from the lengths of their lines alone.

A translation is about as long as its source (Gale and Church 1993): with c target characters a source character,
z = (t - c s) / sqrt(t + c s) is small for a pair that belongs together, and large for two lines that do not. For each
line, the log-ratio of the two likelihoods is compared between the pairs as they stand and the pairs that one side moved
by d lines would make. A stretch of lines where the moved ones win by far more than chance allows has slipped by d.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

_REACH = 8  # lines; larger shifts are found where they explain unequal counts
_ODD = 0.05  # share of pairs whose lengths say nothing; bounds what one line can weigh to 3 nats
_MARGIN = 20.0  # nats beyond what chance may bring over all lines and shifts
_LEAST_GAIN = 0.05  # nats a line that a stretch must bring; texts sorted by length, or not parallel at all, bring less
_MOST_SLIPS = 5
_WINDOW = 500
_LEAST_LINES = 8
_NEAR_THE_END = 100


@dataclass(frozen=True, slots=True)
class Slip:
    """From `first_line` to `last_line` of the source, the partner of line i is about line i + `shift` of the target.

    `weight` says by how many nats the lengths prefer that.
    """

    first_line: int
    last_line: int
    shift: int
    weight: float


def find_slips(source: np.ndarray, target: np.ndarray) -> list[Slip]:
    """Stretches that have slipped, in their order; empty where the files line up, or lengths cannot tell.

    `source` and `target` are the lengths of all lines of the two files, in characters. Where the files are of unequal
    length, the stretch at the end that is moved by the difference is always among the answers, however weak the
    evidence: a line must be missing somewhere.
    """
    surplus = len(target) - len(source)
    shifts = [shift for distance in range(1, _REACH + 1) for shift in (distance, -distance)]
    if surplus and surplus not in shifts:
        shifts.append(surplus)
    lines = min(len(source), len(target))
    if lines < _LEAST_LINES:
        return [Slip(1, len(source), surplus, 0.0)] if surplus else []
    likeness = _Likeness(source, target, [0, *shifts])
    straight = likeness(0)
    gains = {shift: likeness(shift) - straight for shift in shifts}
    tail = _tail(gains[surplus], surplus) if surplus else None
    chance = np.log(len(source) * len(shifts))
    found = _strongest({shift: gain - _LEAST_GAIN for shift, gain in gains.items()}, chance + _MARGIN)
    end = len(source) - _NEAR_THE_END
    if tail is not None and not any(slip.shift == surplus and slip.last_line > end for slip in found):
        found.append(tail)
    return _settle(sorted(found, key=lambda slip: slip.first_line), gains)


def correlation(source: np.ndarray, target: np.ndarray) -> float:
    """Pearson's correlation of the lengths of the two sides, over the lines that both have; 0 where one is constant."""
    lines = min(len(source), len(target))
    if lines < 2:
        return 0.0
    x, y = source[:lines].astype(np.float64), target[:lines].astype(np.float64)
    x -= x.mean()
    y -= y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale else 0.0


class _Likeness:
    """For each source line, how much better its partner at some shift fits than any line would, in nats."""

    def __init__(self, source: np.ndarray, target: np.ndarray, shifts: Sequence[int]) -> None:
        self._source = source.astype(np.float32) * np.float32(target.sum() / max(1, source.sum()))
        self._target = target.astype(np.float32)
        rolled = np.roll(self._target, len(target) // 2)[: len(source)]
        self._apart_centre, self._apart = _spread(_deviations(self._source[: len(rolled)], rolled))
        self._centre, spread = self._narrowest(shifts)
        self._together = min(self._apart, spread)

    def _narrowest(self, shifts: Sequence[int]) -> tuple[float, float]:
        """Centre and spread of pairs that belong together: those of the best shift, window by window, in the middle."""
        starts = range(0, max(1, min(len(self._source), len(self._target)) - _WINDOW // 2), _WINDOW)
        step = max(1, len(starts) // 400)
        best = []
        for start in starts[::step]:
            windows = [self._window(start, shift) for shift in shifts]
            spreads = [_spread(values) for values in windows if len(values) >= _LEAST_LINES]
            best += [min(spreads, key=lambda one: one[1])] if spreads else []
        if not best:
            return self._apart_centre, self._apart
        centre, spread = np.median(np.array(best), axis=0)
        return float(centre), float(spread)

    def _window(self, start: int, shift: int) -> np.ndarray:
        begin = max(start, -shift)
        source = self._source[begin : start + _WINDOW]
        target = self._target[begin + shift : start + _WINDOW + shift] if begin + shift >= 0 else self._target[:0]
        lines = min(len(source), len(target))
        return _deviations(source[:lines], target[:lines])

    def __call__(self, shift: int) -> np.ndarray:
        """A row a source line; where there is no partner, what a pair that fits not at all would have."""
        likeness = np.full(len(self._source), np.log(_ODD), dtype=np.float32)
        begin, end = max(0, -shift), min(len(self._source), len(self._target) - shift)
        if begin >= end:
            return likeness
        z = _deviations(self._source[begin:end], self._target[begin + shift : end + shift])
        near = np.square((z - np.float32(self._centre)) / np.float32(self._together))
        far = np.square((z - np.float32(self._apart_centre)) / np.float32(self._apart))
        ratio = np.float32(self._apart / self._together) * np.exp(np.minimum((far - near) / 2, 3))
        likeness[begin:end] = np.log((1 - _ODD) * ratio + _ODD)
        return likeness


def _deviations(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    return (target - source) / np.sqrt(target + source + 1)


def _spread(values: np.ndarray) -> tuple[float, float]:
    """Median, and a robust standard deviation."""
    middle = float(np.median(values))
    return middle, max(0.1, 1.4826 * float(np.median(np.abs(values - middle))))


def _strongest(gains: dict[int, np.ndarray], threshold: float) -> list[Slip]:
    """The stretches of largest summed gain, none overlapping, all above the threshold. Changes the gains."""
    found: list[Slip] = []
    best = {shift: _best_stretch(gain) for shift, gain in gains.items()}
    while len(found) < _MOST_SLIPS:
        shift = max(best, key=lambda one: best[one][2])
        begin, end, weight = best[shift]
        if weight < threshold:
            break
        found.append(Slip(begin + 1, end, shift, weight))
        for other, gain in gains.items():
            gain[begin:end] = -np.inf
            first, last, _ = best[other]
            if first < end and begin < last:
                best[other] = _best_stretch(gain)
    return found


def _best_stretch(gain: np.ndarray) -> tuple[int, int, float]:
    """Begin, end and sum of the stretch of largest sum (Kadane), by running sums."""
    sums = np.concatenate([[0.0], np.cumsum(np.maximum(gain, -1e6), dtype=np.float64)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    begin = int(np.argmin(sums[: end + 1]))
    return begin, end, float(sums[end] - sums[begin])


def _settle(slips: list[Slip], gains: dict[int, np.ndarray]) -> list[Slip]:
    """The same stretches, with the border between neighbours where both together gain most.

    Each was stretched as far as it beats the pairs as they stand, which beyond its end are no better.
    """
    settled = slips[:1]
    for after in slips[1:]:
        before = settled[-1]
        if after.first_line - before.last_line > _NEAR_THE_END:
            settled.append(after)
            continue
        begin, end = before.first_line - 1, after.last_line
        kept = np.cumsum(gains[before.shift][begin:end] - gains[after.shift][begin:end], dtype=np.float64)
        border = begin + 1 + int(np.argmax(kept))
        settled[-1] = replace(before, last_line=border)
        settled.append(replace(after, first_line=min(border + 1, end)))
    return settled


def _tail(gain: np.ndarray, surplus: int) -> Slip:
    """The likeliest end of a file that is moved by the surplus."""
    sums = np.concatenate([[0.0], np.cumsum(np.maximum(gain, -1e6), dtype=np.float64)])
    begin = int(np.argmin(sums[: max(0, min(len(gain), len(gain) + surplus)) + 1]))
    return Slip(begin + 1, len(gain), surplus, float(sums[-1] - sums[begin]))


def told(slips: Iterable[Slip]) -> str:
    """Slips in words.

    >>> told([Slip(1042, 2000, -1, 80.0)])
    'from about line 1,042 to line 2,000, the target is 1 line too early'
    """
    parts = []
    for slip in slips:
        lines = f"{abs(slip.shift):,} line{'s' if abs(slip.shift) > 1 else ''}"
        where = "late" if slip.shift > 0 else "early"
        parts.append(
            f"from about line {slip.first_line:,} to line {slip.last_line:,}, the target is {lines} too {where}"
        )
    return "; ".join(parts)
