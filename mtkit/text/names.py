"""The pieces of a vocabulary as other toolkits list them: one name an id, and no name twice."""

from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.text.tokenizer import Tokenizer

SPECIAL_NAMES = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
"""What other toolkits call the special ids."""


def piece_names(tokenizer: Tokenizer) -> list[str]:
    """The piece of every id; the special ones have their usual names, unless a piece of the text is written so.

    Such a special id is then written with spaces, as "< /s >", which no piece can hold.
    """
    names = tokenizer.pieces(range(tokenizer.size))
    taken = set(names[len(SPECIAL_NAMES) :])
    for number, name in SPECIAL_NAMES.items():
        names[number] = f"{name[:1]} {name[1:-1]} {name[-1:]}" if name in taken else name
    assert len(set(names)) == len(names), "pieces are all different"
    return names
