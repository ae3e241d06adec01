"""A heat map as a PNG picture, by matplotlib, which the extra `plot` brings."""

import io
import logging
import warnings
from typing import Any

from mtkit.errors import MtkitError
from mtkit.heatmaps.maps import View
from mtkit.heatmaps.terminal import cells

log = logging.getLogger(__name__)

# fmt: off
_FONTS = (
    "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Droid Sans Fallback", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans GB", "Microsoft YaHei", "Noto Sans Arabic", "Noto Sans Devanagari",
)
# fmt: on
_SIZE = 0.26  # inches a cell
_LETTER = 0.1


def check() -> None:
    """Raise MtkitError when there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MtkitError(
            "PNG pictures need matplotlib, which is not installed",
            'pip install "mtkit[plot]"; or --format svg, which needs nothing',
        ) from None


def render(view: View) -> bytes:
    """The picture. Raises MtkitError when there is no matplotlib; warns about characters that no font here has."""
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = len(view.rows), len(view.columns)
    left = max(cells(name) for name in view.rows) * _LETTER
    top = max(cells(name) for name in view.columns) * _LETTER
    size = (left + columns * _SIZE + 1.2, top + rows * _SIZE + 0.8)
    figure = Figure(figsize=(max(size[0], len(view.title) * _LETTER + 0.5), size[1]), dpi=150)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(view.weights_RC, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    font = _font(view)
    axes.set_xticks(range(columns), [_plain(name) for name in view.columns], rotation=90, **font)
    axes.set_yticks(range(rows), [_plain(name) for name in view.rows], **font)
    axes.xaxis.tick_top()
    axes.set_title(view.title, fontsize=10)
    for column, row in view.alignment():
        corner = (column + view.aligned_columns.start - 0.5, row + view.aligned_rows.start - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#c2410c", linewidth=1.4))
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight")
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # already told, once and by its sign
        canvas.print_figure(stream, format="png", bbox_inches="tight")
    return stream.getvalue()


def _plain(name: str) -> str:
    """A label in which no sign starts a formula."""
    return name.replace("$", r"\$")


def _font(view: View) -> dict[str, Any]:
    """The fonts to write labels with: those here that are known to cover much. Warns about what none of them has."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    here = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    families = ["DejaVu Sans", *(name for name in _FONTS if name in here)]
    wanted = {ord(character) for name in (*view.rows, *view.columns) for character in name}
    for family in families:
        wanted -= set(FT2Font(here[family]).get_charmap())
    if wanted:
        signs = "".join(map(chr, sorted(wanted)[:8]))
        log.warning("no font here has %s, which the picture shows as boxes; install one, such as Noto Sans CJK", signs)
    return {"fontfamily": families}
