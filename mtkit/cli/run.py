"""`mtkit run`: every stage of a recipe, from its corpora to the test score."""

import typer

from mtkit.cli.options import FreshOption, RecipeArgument, SetOption, load_recipe


def run(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    fresh: FreshOption = False,
) -> None:
    """Fetch, train the tokenizer, binarize, train, average, and score the test sets: all stages of a recipe.

    A stage whose inputs have not changed is skipped; training continues from its newest checkpoint. The scores of the
    test sets, with their signatures, are the output; everything else goes to stderr.

    Example: mtkit run recipes/quickstart.yaml
    """
    from mtkit import pipeline

    outcome, scores = pipeline.run(load_recipe(recipe, overrides), fresh=fresh)
    if outcome.signal_number is not None:
        raise typer.Exit(128 + outcome.signal_number)
    for name, figures in scores.items():
        print(f"{name}\n{figures.render()}")
