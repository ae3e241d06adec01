"""`mtkit shortlist`: for each source token the target tokens worth scoring, into the model folder of a run."""

from typing import Annotated

import typer

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe
from mtkit.loading import load_torch


def shortlist(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    per_token: Annotated[
        int, typer.Option("--per-token", "-k", min=1, max=100_000, help="Likeliest target tokens a source token.")
    ] = 100,
    frequent: Annotated[
        int,
        typer.Option("--frequent", "-f", min=0, max=100_000, help="Most frequent target tokens, on every list."),
    ] = 100,
    iterations: Annotated[int, typer.Option("--iterations", min=1, max=100, help="Iterations of EM.")] = 5,
    max_pairs: Annotated[
        int, typer.Option("--max-pairs", min=1, help="Most training pairs to count, evenly spread over the corpora.")
    ] = 1_000_000,
    lines: Annotated[
        int, typer.Option("--lines", min=0, help="Validation lines to translate with and without; 0: none.")
    ] = 500,
) -> None:
    """Make the shortlist of a recipe's trained model, for `mtkit translate --shortlist`, and say what it costs.

    For each source token it holds the target tokens that IBM model 1 (Brown et al. 1993) finds likeliest in the
    training shards; to these come the most frequent target tokens and the special ones. It lies in the run's model
    folder, as shortlist.safetensors; `mtkit average` makes that folder anew, without it.

    Printed are the recall on the validation pairs (the share of reference tokens that are on the lists of their own
    sentence, and of sentences of which all are) and how many of the first --lines validation lines are translated
    otherwise with it, by the recipe's search. Translation never uses a shortlist unless --shortlist asks for it.

    Example: mtkit shortlist recipes/quickstart.yaml --per-token 50 --frequent 50
    """
    load_torch()
    from mtkit.runtime import set_threads
    from mtkit.shortlist_stage import Size, changed_lines, make_shortlist, validation_recall

    loaded = load_recipe(recipe, overrides)
    path, made = make_shortlist(loaded, Size(per_token, frequent, iterations, max_pairs))
    print(
        f"{path}: {len(made.targets_C):,} entries for {len(made.ends_S):,} source tokens, {len(made.always_A):,} always"
    )
    recall = validation_recall(loaded, made)
    if recall is not None:
        print(recall.render(made.target_size))
    if not lines or not loaded.data.valid:
        return
    set_threads(None)
    changed, translated = changed_lines(loaded, lines)
    share = 100 * changed / max(1, translated)
    print(f"translated otherwise with it: {changed:,} of {translated:,} validation lines ({share:.2f} %)")
