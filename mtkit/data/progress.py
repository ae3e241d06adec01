"""Progress bars: on stderr, only when it is a terminal, and only for work that takes longer than two seconds."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
DELAY = 2  # seconds until a bar is shown


def bar(label: str, total: int | None = None, unit: str = " pairs") -> Any:
    """A tqdm bar; a context manager with `update(n)`."""
    return tqdm(
        desc=label, total=total, unit=unit, unit_scale=True, delay=DELAY, leave=False, file=sys.stderr, disable=None
    )


def follow(items: Iterable[T], label: str, total: int | None = None, unit: str = " pairs") -> Iterator[T]:
    """Yield the items, showing how far they are."""
    with bar(label, total, unit) as progress:
        for item in items:
            yield item
            progress.update()
