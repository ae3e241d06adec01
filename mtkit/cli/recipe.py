"""`mtkit recipe`: look at recipes: the schema for editors, what one resolves to, how two differ."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mtkit.cli.options import RecipeArgument, SetOption, as_utf8

_LOG = logging.getLogger(__name__)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def schema() -> None:
    """Print the JSON Schema of recipes, with the meaning and bounds of every setting.

    Editors with a YAML language server complete and check recipes by it. Write it into a file, and name that in the
    first line of a recipe: # yaml-language-server: $schema=schema.json

    Example: mtkit recipe schema > schema.json
    """
    from mtkit.recipe_view import json_schema

    print(json.dumps(json_schema(), ensure_ascii=False, indent=2))


def show(recipe: RecipeArgument, overrides: SetOption = [], as_json: JsonOption = False) -> None:  # noqa: B006
    """Print a recipe with every setting written out, and where each value comes from.

    The origin stands in a comment: default, file:line (also of a file that is extended), or the --set. The output is a
    recipe itself; units and meaning of the settings are in mtkit recipe schema.

    With --json, a list of objects with key (dotted), value and origin.

    Example: mtkit recipe show recipes/quickstart.yaml --set training.max_steps=2000
    """
    from mtkit.recipe import load_with_source
    from mtkit.recipe_view import render, settings

    resolved, source = load_with_source(recipe, [as_utf8(override) for override in overrides])
    if as_json:
        rows = [{"key": row.key, "value": row.value, "origin": row.origin} for row in settings(resolved, source)]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        print(render(resolved, source), end="")


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A recipe, a YAML file.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Print the settings at which two recipes differ once they are resolved: A's with -, B's with +.

    Order, comments and spelling do not count, nor whether a value is written out or the default. A RUN/recipe.yaml is a
    recipe too. Equal recipes print nothing. The exit code is 0 either way.

    With --json, a list of objects with key, first and second, each null or an object of value and origin.

    Example: mtkit recipe diff recipes/quickstart.yaml runs/quickstart/recipe.yaml
    """
    from mtkit.recipe import load_with_source
    from mtkit.recipe_view import compare, render_differences, settings

    found = compare(settings(*load_with_source(first)), settings(*load_with_source(second)))
    if as_json:
        rows = [
            {
                "key": row.key,
                "first": row.first and {"value": row.first.value, "origin": row.first.origin},
                "second": row.second and {"value": row.second.value, "origin": row.second.origin},
            }
            for row in found
        ]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    print(render_differences(found), end="")
    if not found:
        _LOG.info("%s and %s resolve to the same settings", first, second)


HELP = """Look at recipes: what one resolves to, how two differ, the JSON Schema for editors.

Example: mtkit recipe show recipes/quickstart.yaml

Example: mtkit recipe COMMAND --help
"""

COMMANDS: dict[str, Callable[..., None]] = {"show": show, "diff": diff, "schema": schema}
"""The commands of the group."""
