"""`mtkit fetch`: the recipe's public corpora, downloaded, verified and unpacked."""

from typing import Annotated

import typer

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe


def fetch(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there with other contents than the recipe expects.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=86400, help="Longest wait for an answer.")
    ] = 30.0,
) -> None:
    """Download the files under `data.downloads` of a recipe into its `data.root`.

    Each is verified against the SHA-256 in the recipe before it gets its name. An interrupted download goes on where
    it stopped when you run the command again; files that are there already are verified and left alone.

    Example: mtkit fetch recipes/multi30k-en-de.yaml
    """
    from mtkit.data.download import Network
    from mtkit.data.fetch import fetch_each

    loaded = load_recipe(recipe, overrides)
    if not loaded.data.downloads:
        print(f"{recipe}: no downloads in this recipe; its files are expected in {loaded.data.root}")
    for item in fetch_each(loaded, force=force, network=Network(timeout=timeout)):
        print(f"{item.path}: {item.status}, {item.bytes} bytes", flush=True)
