"""`mtkit train`: a recipe's model, from the start or from where the last call stopped."""

import typer

from mtkit.cli.options import FreshOption, RecipeArgument, SetOption, load_recipe


def train(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    fresh: FreshOption = False,
) -> None:
    """Train a recipe's model; tokenizer and shards are made first where they are missing or stale.

    The same command again continues from the newest checkpoint. In between, only settings may change that leave
    what was computed as it is, such as training.max_steps; others are named and refused. Ctrl-C (or SIGTERM, or a
    terminal that closes) finishes the update, saves a checkpoint and exits 130 (143, 129); twice, it stops at once.
    Under nohup or after disown, training goes on without its terminal. Steps are updates of the weights; tok/s are
    target tokens a second; loss and perplexity are per target token.

    Example: mtkit train recipes/quickstart.yaml --set training.max_steps=2000
    """
    from mtkit import pipeline

    outcome = pipeline.train(load_recipe(recipe, overrides), fresh=fresh)
    if outcome.signal_number is not None:
        raise typer.Exit(128 + outcome.signal_number)
