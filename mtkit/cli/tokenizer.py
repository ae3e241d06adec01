"""`mtkit tokenizer`: the recipe's vocabulary, learnt from its training corpora."""

from pathlib import Path

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe


def tokenizer(recipe: RecipeArgument, overrides: SetOption = []) -> None:  # noqa: B006
    """Train the BPE tokenizer of a recipe into its run folder, replacing an older one only when all went well.

    The settings are the recipe's `tokenizer` section: vocab_size in entries, special ids included; max_sentences in
    sentences of both languages together. The corpora are checked first: unequal line counts and bad UTF-8 are refused;
    so is a run folder with checkpoints of another tokenizer.

    Example: mtkit tokenizer recipes/quickstart.yaml --set tokenizer.vocab_size=4000
    """
    from mtkit.stages import make_tokenizer

    loaded = load_recipe(recipe, overrides)
    for path, made in make_tokenizer(loaded).files(Path(loaded.run_dir)):
        print(f"{path}: {made.size} entries, {made.normalization}, sha256 {made.sha256}")
