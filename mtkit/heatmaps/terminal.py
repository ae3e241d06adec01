"""A heat map for a terminal: percentages, shaded where colours are wanted.

Rows look, columns are looked at; `*` stands behind the largest percentage that an alignment takes.
"""

import unicodedata
from collections.abc import Sequence

from mtkit.heatmaps.maps import View

_CELL = 4
_LABEL = 24
_COLOURS = (None, 17, 18, 19, 20, 26, 32, 38, 44, 50)
"""Of the xterm palette, from dark to bright, one a tenth."""


def render(view: View, width: int | None = None, colours: bool = False) -> str:
    """The heat map as lines of text: weights in percent, those below half a percent as a dot.

    Columns beyond `width` character cells go into another block below. `colours` shades by escape sequences.
    """
    label = min(_LABEL, max(map(cells, view.rows)))
    most = len(view.columns) if width is None else max(1, (width - label) // _CELL)
    strongest = {(row, column) for column, row in view.alignment()}
    lines = [view.title]
    for first in range(0, len(view.columns), most):
        shown = range(first, min(first + most, len(view.columns)))
        lines += ["", *_header([view.columns[column] for column in shown], label)]
        for row, name in enumerate(view.rows):
            text = _padded(name, label, right=True)
            for column in shown:
                marked = (row - view.aligned_rows.start, column - view.aligned_columns.start) in strongest
                text += _cell(float(view.weights_RC[row, column]), marked, colours)
            lines.append(text.rstrip())
    return "\n".join(lines) + "\n"


def _cell(weight: float, marked: bool, colours: bool) -> str:
    percent = round(100 * weight)
    text = f"{percent if percent else '·':>3}{'*' if marked else ' '}"
    colour = _COLOURS[min(9, int(10 * weight))]
    if not colours or colour is None:
        return text
    ink = 231 if weight < 0.5 else 16
    return f"\x1b[48;5;{colour};38;5;{ink}m{text}\x1b[0m"


def _header(columns: Sequence[str], label: int) -> list[str]:
    """The labels of the columns written downwards, ending right above their column."""
    names = [_graphemes(name)[:_LABEL] for name in columns]
    height = max(map(len, names))
    lines = []
    for line in range(height):
        text = " " * label
        for name in names:
            place = line - (height - len(name))
            text += _padded(name[place] if place >= 0 else "", _CELL - 1, right=True) + " "
        lines.append(text.rstrip())
    return lines


def _graphemes(text: str) -> list[str]:
    """The characters, each with the marks that combine with it."""
    found: list[str] = []
    for character in text:
        if found and cells(character) == 0:
            found[-1] += character
        else:
            found.append(character)
    return found


def cells(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide character, none for one that combines.

    >>> cells("né"), cells("北京")
    (2, 4)
    """
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _padded(text: str, width: int, right: bool) -> str:
    """The text in exactly `width` cells, cut where it is longer."""
    parts = _graphemes(text)
    if cells(text) > width:
        while cells("".join(parts)) > width - 1:
            parts.pop()
        parts.append("…")
    blank = " " * (width - cells("".join(parts)))
    return blank + "".join(parts) if right else "".join(parts) + blank
