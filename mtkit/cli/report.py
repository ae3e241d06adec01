"""`mtkit report`: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from mtkit.cli.translate_options import DeviceOption, ThreadsOption
from mtkit.loading import load_torch


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder, finished or not, such as runs/NAME.", show_default=False)
    ],
    output_path: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: RUN/report.html.", show_default=False),
    ] = None,
    sentences: Annotated[
        int,
        typer.Option("--sentences", min=0, max=100, help="How many have their attention shown; 0 needs no model."),
    ] = 6,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Put a run into one HTML file to look at: recipe, data, curves, samples, scores, attention, lineage.

    The file loads nothing: it can be mailed, archived, or opened from a disk without a network. Of a run that is not
    finished it shows what is there, and says what is missing. Test scores come with sacreBLEU's 95 % interval; where
    that was not computed when the run was tested, it is now, from the recipe's references (relative paths start here).

    The sentences whose attention is shown are taken from evenly spread places of the first test corpus and translated
    by the recipe's search. Together they take 1.2 MB at most; of a large model there may be fewer than asked for.

    Writes the place of the file to stdout.

    Example: mtkit report runs/quickstart
    """
    load_torch()
    from mtkit.files import atomic_write
    from mtkit.report.build import Options, build
    from mtkit.runtime import set_threads

    set_threads(threads)
    page = build(run, Options(sentences, device))
    place = output_path or run / "report.html"
    with atomic_write(place) as stream:
        stream.write(page)
    print(place)
