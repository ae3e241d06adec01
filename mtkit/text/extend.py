"""More user-defined symbols for a tokenizer that exists: they come after its pieces, whose ids stay.

A SentencePiece model is a protocol buffer, in which a repeated field may go on anywhere, and a message that occurs
twice is merged, so what is added can be written behind what is there.
"""

from collections.abc import Sequence

from mtkit.errors import RecipeError
from mtkit.text.listed import ListedTokenizer
from mtkit.text.model_file import with_symbols
from mtkit.text.tokenizer import Tokenizer
from mtkit.text.train import check_symbols


def extended(tokenizer: Tokenizer, symbols: Sequence[str]) -> Tokenizer:
    """The tokenizer with those of `symbols` that it lacks; itself when it has them all.

    Raises RecipeError for a symbol that cannot be found in text, or is an ordinary piece of the tokenizer.
    """
    check_symbols(symbols)
    new = [symbol for symbol in symbols if symbol not in tokenizer.symbols]
    if not new:
        return tokenizer
    for symbol in new:
        if tokenizer.has_piece(symbol):
            raise RecipeError(
                f"tokenizer.user_defined_symbols: {symbol!r} is an ordinary piece of the tokenizer of "
                "training.initialize_from, and cannot become a symbol of it",
                "choose a symbol that text does not hold, such as <news>",
            )
    if isinstance(tokenizer, ListedTokenizer):
        return tokenizer.with_symbols(new)
    return tokenizer.with_model(with_symbols(tokenizer.model, new, tokenizer.size + len(new)))
