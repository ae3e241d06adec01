"""`mtkit binarize`: the recipe's corpora as shards, and what was dropped and why."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe


def binarize(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, max=1024, help="Processes that encode.", show_default="one a core"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Encode a recipe's training and validation corpora into the shards of its run folder; print a report.

    All corpora are checked before anything is written: unequal line counts and bad UTF-8 are refused by file and line.
    Lengths are in tokens, without BOS and EOS; lines are counted from 1. The shards do not depend on --workers.

    Example: mtkit binarize recipes/quickstart.yaml --set filters.max_ratio=4 --set filters.drop_duplicates=true
    """
    from mtkit.stages import make_shards
    from mtkit.text.tokenizer import Tokenizers

    loaded = load_recipe(recipe, overrides)
    report = make_shards(loaded, Tokenizers.load(Path(loaded.run_dir)), workers)
    print(json.dumps(report.to_json(), ensure_ascii=False, indent=2) if as_json else report.render())
