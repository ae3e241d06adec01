"""The recipe's training corpora to its tokenizers."""

from collections.abc import Iterator
from pathlib import Path

from mtkit.data.corpus import check_corpora, read_side
from mtkit.data.progress import follow
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train


def train_tokenizer(recipe: Recipe, folder: Path) -> Tokenizers:
    """Learn the recipe's tokenizers from its training corpora and save them in `folder`.

    Each corpus counts once, whatever its weight. All corpora are checked first, so that nothing is written from text
    that binarization would refuse. Raises DataError and RecipeError.
    """
    root = Path(recipe.data.root)
    total = sum(check_corpora(recipe.data.train, root))

    def lines(side: str) -> Iterator[str]:
        every = (line for corpus in recipe.data.train for line in read_side(corpus, root, side))
        return follow(every, f"reading {side}", total, " lines")

    return train(recipe.tokenizer, lines("source"), lines("target"), recipe.symbols(), folder)
