"""Which pairs stay in training, by reason."""

from collections.abc import Sequence

from mtkit.sections.data import Filters
from mtkit.text.normalize import normalize

REASONS = ("empty", "too_short", "too_long", "ratio", "identical", "duplicate")


def reject(
    source: str,
    target: str,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    filters: Filters,
    tags: int = 0,
) -> str | None:
    """Why a pair is left out, or None to keep it; the first reason that applies.

    "empty": a side has no token; "too_short", "too_long": a side has fewer or more tokens than allowed; "ratio": the
    longer side has too many tokens for each of the shorter; "identical": the normalised texts are equal.
    `tags` is the number of corpus tags before the sentence in `source_ids`: they count for the greatest length, which
    bounds what the model sees, and for nothing else. ("duplicate" needs the whole corpus: mtkit.data.duplicates.)

    >>> reject("a b", "c", [5, 6], [7], Filters(max_ratio=1.5))
    'ratio'
    """
    source_length, target_length = len(source_ids) - tags, len(target_ids)
    shorter, longer = sorted((source_length, target_length))
    if shorter == 0:
        return "empty"
    if shorter < filters.min_length:
        return "too_short"
    if max(len(source_ids), target_length) > filters.max_length:
        return "too_long"
    if filters.max_ratio is not None and longer > filters.max_ratio * shorter:
        return "ratio"
    if filters.drop_identical and normalize(source) == normalize(target):
        return "identical"
    return None
