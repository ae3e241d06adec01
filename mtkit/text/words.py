"""Encode many sentences quickly: a word that was met before is looked up, not encoded again.

BPE never joins pieces of two words, so that a sentence's ids are its words' ids in a row. Text has few different words
for its length, and SentencePiece spends most of its time on the frequent ones.
"""

from collections.abc import Sequence

from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizer

LONGEST = 32
"""Characters; what has more without a space, as lines in Chinese have, is hardly ever met again."""

MOST = 2**18
"""Words remembered at a time, of each vocabulary: some 60 MB."""


class WordMemory:
    """A tokenizer that remembers; not for several threads."""

    def __init__(self, tokenizer: Tokenizer, most: int = MOST) -> None:
        self.tokenizer = tokenizer
        self._most = most
        self._ids: dict[str, list[int]] = {}
        self._useful = tokenizer.encodes_by_words()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `Tokenizer.encode_batch`."""
        if not self._useful:
            return self.tokenizer.encode_batch(texts)
        rows = [normalize(text).split(" ") for text in texts]
        new = list({word for row in rows for word in row if word not in self._ids})
        if len(self._ids) + len(new) > self._most:
            self._ids.clear()
            new = list({word for row in rows for word in row})
        ids = self._ids
        ids.update(zip(new, self.tokenizer.encode_words(new), strict=True))
        encoded = [[number for word in row for number in ids[word]] for row in rows]
        for word in new:
            if len(word) > LONGEST:
                del ids[word]
        return self.tokenizer.open_with_symbol(encoded)
