"""`mtkit bench`: how fast this machine is at what a recipe asks for."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe


def train(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    updates: Annotated[
        int, typer.Option("--updates", "-n", min=1, max=1_000_000, help="Updates that are measured.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, max=1_000_000, help="Updates before these, which do not count.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the speed of training: tokens/s, padding, memory, arithmetic, and where the time goes.

    Trains from the recipe's start as mtkit train does, without validating. Nothing is written into the run folder; its
    tokenizer and shards are used where they are up to date, otherwise made in a temporary folder. Tokens are real ones,
    EOS included. The share of the peak is the model's arithmetic, counted by formula at real positions, over the
    quickest matrix product measured in the same run.

    Example: mtkit bench train recipes/multi30k-en-de.yaml --set training.precision=fp32 --set training.threads=2
    """
    from mtkit.bench.train import bench_train
    from mtkit.data.progress import bar

    loaded = load_recipe(recipe, overrides)
    with bar("measuring", updates + warmup, " updates") as progress:
        speed = bench_train(loaded, updates, warmup, progress.update)
    print(json.dumps(speed.to_json(), indent=2) if as_json else speed.render())


HELP = """Measure the speed of this machine.

Example: mtkit bench train recipes/quickstart.yaml

Example: mtkit bench COMMAND --help
"""

COMMANDS: dict[str, Callable[..., None]] = {"train": train}
"""The commands of the group."""
