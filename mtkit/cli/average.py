"""`mtkit average`: checkpoints of a run, averaged into its model folder."""

from pathlib import Path
from typing import Annotated

import typer

from mtkit.errors import ModelError


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)],
    select: Annotated[
        str | None,
        typer.Option(
            "--select",
            metavar="best|last",
            help="Checkpoints by validation score, or the newest. Default: the recipe's average.select.",
            show_default=False,
        ),
    ] = None,
    checkpoints: Annotated[
        int | None,
        typer.Option(
            "--checkpoints",
            min=1,
            help="How many checkpoints are averaged. Default: the recipe's average.checkpoints.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Average the best or the last checkpoints of a run into RUN/model, and print which.

    Sums are kept in float64, one file is read at a time, and the mean of one checkpoint is that checkpoint.

    Example: mtkit average runs/quickstart --select last --checkpoints 3
    """
    from mtkit import pipeline
    from mtkit.folders import RunFolder
    from mtkit.recipe import Recipe

    if select not in (None, "best", "last"):
        raise typer.BadParameter(f"{select!r} is neither best nor last", param_hint="--select")
    folder = RunFolder(run)
    if not folder.recipe.is_file():
        raise ModelError(f"{run}: is not a run folder, it has no recipe.yaml", "train first: mtkit train RECIPE")
    settings = Recipe.load(folder.recipe).average
    steps = pipeline.average(folder, select or settings.select, checkpoints or settings.checkpoints)
    mean = f"step {steps[0]}" if len(steps) == 1 else f"mean of steps {', '.join(map(str, steps))}"
    print(f"{folder.model}: {mean}")
