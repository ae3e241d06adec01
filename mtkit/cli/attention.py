"""`mtkit attention`: what a model looked at, as heat maps and alignments."""

import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtkit.cli.options import as_utf8
from mtkit.cli.output import open_output
from mtkit.cli.texts import open_lines
from mtkit.cli.translate_options import DeviceOption, ModelArgument, OutputOption, TagOption, ThreadsOption
from mtkit.errors import DataError, UsageError
from mtkit.files import atomic_write
from mtkit.formats import dump_json_line
from mtkit.lines import LineReader, count_lines
from mtkit.loading import load_torch

if TYPE_CHECKING:
    from mtkit.heatmaps.maps import AttentionMaps, View

_LOG = logging.getLogger(__name__)

Format = Literal["text", "pharaoh", "json", "svg", "png"]
_PICTURES: dict[str, Format] = {".svg": "svg", ".png": "png"}
_PAIR_HINT = "line n of TARGET is the translation of line n of SOURCE"
SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="File of sources, one a line; - reads stdin.", show_default=False)
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="File of their translations, aligned by line. Default: the model translates.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="Default: by the suffix of --output, else text.", show_default=False),
]
KindOption = Annotated[
    Literal["cross", "encoder", "decoder"],
    typer.Option("--kind", help="From target to source, within the source, within the target."),
]
LayerOption = Annotated[
    int | None, typer.Option("--layer", min=0, help="Counted from 0. Default: the last.", show_default=False)
]
HeadOption = Annotated[
    int | None, typer.Option("--head", min=0, help="Counted from 0. Default: the mean of all.", show_default=False)
]
WordsOption = Annotated[
    bool,
    typer.Option("--words", help="By words instead of the model's pieces: sums over source words, means over target."),
]


def attention(
    model: ModelArgument,
    source: SourceArgument = "-",
    target: TargetArgument = None,
    output_path: OutputOption = None,
    form: FormatOption = None,
    kind: KindOption = "cross",
    layer: LayerOption = None,
    head: HeadOption = None,
    words: WordsOption = False,
    tag: TagOption = [],  # noqa: B006
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Show what a model looked at when it chose each word: heat maps, and alignments in Pharaoh format.

    Examples:
      echo 我爱北京。 | mtkit attention runs/quickstart/model
      mtkit attention runs/quickstart/model test.zh test.en --words --format pharaoh > test.align
      echo 我爱北京。 | mtkit attention runs/quickstart/model --layer 2 --head 1 -o heat.svg

    A row of a heat map is the choice of one target token (with --kind encoder, a source token that is read), a column
    what was looked at; the weights of a row sum to 1. Attention tells where the model took information from, which is
    often but not always the word that a human would align, and differs between layers and heads.

    text     weights in percent, with * at the largest of each row
    pharaoh  one line a pair: SOURCE-TARGET, counted from 0, for each target token (or word) the source token with the
             largest weight; a blank line for a blank one. By pieces, or with --words by words between spaces
    json     one object a line: id, line, source, target, own, kind, layer, head, rows, columns, weights, alignment
    svg      a picture in its own file, numbered where there are several lines: heat-1.svg, heat-2.svg, ...
    png      the same; needs the extra: pip install "mtkit[plot]"
    """
    form = _format(form, output_path)
    if form == "pharaoh" and kind != "cross":
        raise UsageError(f"--format pharaoh aligns target and source, --kind {kind} does not", "leave one of them out")
    if source == target == "-":
        raise UsageError("SOURCE and TARGET are both -, and there is one stdin", "give one of them as a file")
    _refuse_unequal(source, target)
    pairs = _pairs(open_lines(source, "error"), None if target is None else open_lines(target, "error"))
    if form == "png":
        from mtkit.heatmaps.png import check

        check()

    load_torch()
    from mtkit.heatmaps.maps import by_words
    from mtkit.heatmaps.record import Recorder
    from mtkit.runtime import set_threads

    set_threads(threads)
    recorder = Recorder.load(model, device)
    tags = [as_utf8(symbol) for symbol in tag]

    def found() -> "Iterator[tuple[int, AttentionMaps | None, View | None]]":
        for number, (text, translation) in enumerate(pairs, 1):
            maps = recorder.record(text, translation, tags, f"line {number}")
            view = None if maps is None else maps.view(kind, layer, head)
            yield number, maps, by_words(view) if view is not None and words else view

    if output_path is not None and form in ("svg", "png"):
        _write_pictures(found(), output_path, form)
        return
    with open_output(output_path) as output, output.whole_lines():
        render = _renderer(form, kind, layer, head, output_path)
        for number, maps, view in found():
            output.refuse_closed()
            output.write(render(number, maps, view))


def _format(form: Format | None, output_path: Path | None) -> Format:
    """What is asked for. Raises UsageError for a picture without a file, or with the suffix of another."""
    by_suffix = None if output_path is None else _PICTURES.get(output_path.suffix.lower())
    form = form or by_suffix or "text"
    if by_suffix not in (None, form):
        raise UsageError(f"--format {form} and --output {output_path} do not go together", "leave out --format")
    if form == "png" and output_path is None:
        raise UsageError("a PNG picture needs a file", "name it: -o heat.png")
    return form


def _renderer(
    form: Format, kind: str, layer: int | None, head: int | None, output_path: Path | None
) -> "Callable[[int, AttentionMaps | None, View | None], str]":
    """The function that writes one pair as lines of output."""
    from mtkit.heatmaps import svg, terminal
    from mtkit.heatmaps.maps import pharaoh
    from mtkit.text.normalize import normalize

    shown = output_path is None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if shown else None

    def render(number: int, maps: "AttentionMaps | None", view: "View | None") -> str:
        if form == "json":
            return dump_json_line(_document(number, maps, view) | {"kind": kind, "layer": layer, "head": head})
        if maps is None or view is None:
            return "\n" if form in ("pharaoh", "text") else ""
        match form:
            case "pharaoh":
                return pharaoh(view.alignment()) + "\n"
            case "svg":
                if number > 1:
                    raise UsageError("there are several lines, and stdout takes one picture", "name files: -o heat.svg")
                return svg.render(view)
            case _:
                texts = f"{number}: {normalize(maps.source)}\n   {normalize(maps.target)}\n"
                return texts + terminal.render(view, width, colours=shown) + "\n"

    return render


def _document(number: int, maps: "AttentionMaps | None", view: "View | None") -> dict[str, object]:
    if maps is None or view is None:
        return {"id": number - 1, "line": number, "rows": [], "columns": [], "weights": [], "alignment": []}
    return {
        "id": number - 1,
        "line": number,
        "source": maps.source,
        "target": maps.target,
        "own": maps.own,
        "rows": list(view.rows),
        "columns": list(view.columns),
        "weights": [[round(float(weight), 6) for weight in row] for row in view.weights_RC],
        "alignment": view.alignment(),
    }


def _write_pictures(found: "Iterator[tuple[int, AttentionMaps | None, View | None]]", path: Path, form: Format) -> None:
    """One file a line; numbered where there are several. Raises DataError when there is nothing to draw."""
    from mtkit.heatmaps import png, svg

    first, second = next(found, None), next(found, None)
    if first is None:
        raise DataError("there are no lines to draw", "is SOURCE the right file?")
    several = second is not None
    for number, _, view in itertools.chain([first], [second] if second else [], found):
        if view is None and not several:
            raise DataError("the line is blank, there is nothing to draw", "give a line of text")
        if view is None:
            _LOG.warning("line %d is blank, and has no picture", number)
            continue
        place = path.with_name(f"{path.stem}-{number}{path.suffix}") if several else path
        with atomic_write(place, "wb") as stream:
            stream.write(png.render(view) if form == "png" else svg.render(view).encode("utf-8"))
        _LOG.info("%s", place)


def _refuse_unequal(source: str, target: str | None) -> None:
    """Raise DataError, before any work, when two files do not have the same number of lines."""
    names = [name for name in (source, target) if name is not None and Path(name).is_file()]
    if len(names) == 2:
        counts = [count_lines(name) for name in names]
        if counts[0] != counts[1]:
            raise DataError(f"{names[0]} has {counts[0]} lines, {names[1]} has {counts[1]}", _PAIR_HINT)


def _pairs(sources: LineReader, targets: LineReader | None) -> Iterator[tuple[str, str | None]]:
    """Each source with its target. Raises DataError when one of the two ends before the other."""
    if targets is None:
        yield from ((source, None) for source in sources)
        return
    for source, target in itertools.zip_longest(sources, targets):
        if source is None or target is None:
            short, long = (sources, targets) if source is None else (targets, sources)
            raise DataError(f"{short.name} ends after {short.count} lines, {long.name} goes on", _PAIR_HINT)
        yield source, target
