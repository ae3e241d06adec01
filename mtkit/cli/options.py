"""Arguments and options that several commands share."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtkit.recipe import Recipe

RecipeArgument = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a setting of the recipe, for example training.max_steps=2000; may be repeated.",
        show_default=False,
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Delete the run's checkpoints, model and scores, and start anew.")
]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> "Recipe":
    """The validated recipe with its `--set` overrides merged in. Raises RecipeError with every problem."""
    from mtkit.recipe import Recipe

    return Recipe.load(path, [as_utf8(override) for override in overrides])


def as_utf8(argument: str) -> str:
    """The argument as UTF-8, when an ASCII or Latin-1 locale made Python read its bytes otherwise."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        return argument
