"""`mtkit run`: every stage of a recipe, from its corpora to the test score."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtkit.cli.options import FreshOption, RecipeArgument, SetOption, load_recipe

if TYPE_CHECKING:
    from mtkit.reasons import Step

Stage = Literal["fetch", "tokenizer", "binarize", "train", "average", "test"]


def run(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    fresh: FreshOption = False,
    first: Annotated[
        Stage, typer.Option("--from", help="Begin at this stage; those before it have to be up to date.")
    ] = "fetch",
    last: Annotated[Stage, typer.Option("--until", help="End after this stage.")] = "test",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Do the stages from --from to --until even where up to date; training starts anew, as --fresh.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what each stage would do, and why; nothing is changed.")
    ] = False,
) -> None:
    """Fetch, train the tokenizer, binarize, train, average, and score the test sets: all stages of a recipe.

    A stage is skipped while nothing that it reads has changed, settings and contents of files, and what it wrote is as
    it was; time stamps do not count. Training continues from its newest checkpoint. The scores of the test sets, with
    their signatures, are the output; everything else goes to stderr.

    After --from average an unfinished training will do: what there is of it is averaged and tested.

    Examples:
      mtkit run recipes/quickstart.yaml
      mtkit run recipes/quickstart.yaml --set filters.max_length=40 --dry-run
      mtkit run recipes/quickstart.yaml --from average --force
    """
    from mtkit import pipeline
    from mtkit.reasons import plan
    from mtkit.stages import Selection

    loaded, selection = load_recipe(recipe, overrides), Selection(first, last, force)
    if dry_run:
        print(_render(plan(loaded, selection, fresh)))
        return
    outcome, scores = pipeline.run(loaded, fresh=fresh, selection=selection)
    if outcome is not None and outcome.signal_number is not None:
        raise typer.Exit(128 + outcome.signal_number)
    for name, figures in scores.items():
        print(f"{name}\n{figures.render()}")


def _render(steps: "list[Step]") -> str:
    """One line a stage: its name, whether it would be done, and why."""
    width = max(len(step.stage) for step in steps)
    return "\n".join(f"{step.stage:<{width}}  {'do  ' if step.due else 'skip'}  {step.reason}" for step in steps)
