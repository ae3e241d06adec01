"""A heat map as an SVG picture: readable in light and dark, a tooltip on every cell, the alignment outlined."""

import html
import re

from mtkit.heatmaps.maps import View
from mtkit.heatmaps.terminal import cells

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CELL = 20
_LETTER = 8.8
_GAP = 8
_TITLE = 30
_STYLE = (
    ":root{color-scheme:light dark;--paper:#fcfcfb;--ink:#1d1d1b;--soft:#6b6a66;--heat:#1f6fc4;--mark:#c2410c}"
    "@media(prefers-color-scheme:dark){"
    ":root{--paper:#191918;--ink:#ececea;--soft:#a3a29c;--heat:#6fb1f2;--mark:#ff9a5c}}"
    "svg{background:var(--paper)}"
    "text{font:13px system-ui,'Noto Sans','Noto Sans CJK SC',sans-serif;fill:var(--ink)}"
    ".t{font-weight:600}.s{fill:var(--soft)}.c{fill:var(--heat)}.m{fill:none;stroke:var(--mark);stroke-width:2}"
)


def render(view: View) -> str:
    """The picture as text. Labels are escaped; nothing outside is referred to."""
    left = round(max(cells(name) for name in view.rows) * _LETTER) + _GAP
    top = _TITLE + round(max(cells(name) for name in view.columns) * _LETTER) + _GAP
    width, height = left + _CELL * len(view.columns), top + _CELL * len(view.rows)
    whole = max(width + _GAP, round(cells(view.title) * _LETTER) + 2 * _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{height + _GAP}" '
        f'viewBox="0 0 {whole} {height + _GAP}" role="img" aria-label="{escape(view.title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{whole}" height="{height + _GAP}" fill="var(--paper)"/>',
        f'<text class="t" x="{_GAP}" y="20">{escape(view.title)}</text>',
    ]
    for column, name in enumerate(view.columns):
        x = left + _CELL * column + _CELL * 0.7
        kind = "" if column in view.aligned_columns else ' class="s"'
        parts.append(
            f'<text{kind} x="{x:g}" y="{top - _GAP}" transform="rotate(-90 {x:g} {top - _GAP})">{escape(name)}</text>'
        )
    for row, name in enumerate(view.rows):
        kind = "" if row in view.aligned_rows else ' class="s"'
        y = top + _CELL * row + _CELL * 0.72
        parts.append(f'<text{kind} x="{left - _GAP}" y="{y:g}" text-anchor="end">{escape(name)}</text>')
    parts += [
        _cell(view, row, column, left, top) for row in range(len(view.rows)) for column in range(len(view.columns))
    ]
    for column, row in view.alignment():
        x = left + _CELL * (column + view.aligned_columns.start)
        y = top + _CELL * (row + view.aligned_rows.start)
        parts.append(f'<rect class="m" x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(view: View, row: int, column: int, left: int, top: int) -> str:
    weight = float(view.weights_RC[row, column])
    tip = f"{view.rows[row]} ← {view.columns[column]}: {weight:.3f}"
    place = f'x="{left + _CELL * column}" y="{top + _CELL * row}" width="{_CELL - 1}" height="{_CELL - 1}"'
    return f'<rect class="c" {place} fill-opacity="{max(weight, 0.02):.3f}"><title>{escape(tip)}</title></rect>'


def escape(text: str) -> str:
    """Text for XML, also inside quotes; the few characters that XML cannot hold become U+FFFD."""
    return html.escape(_NOT_XML.sub("\ufffd", text), quote=True)
