"""Tokenizers whose ids are places in a list of pieces: imported vocabularies, which SentencePiece models do not number.

Marian's models share one vocabulary between two SentencePiece models, one a language. Those cut text into pieces and
put pieces together; which id a piece has is said by the list alone, in `tokenizer.pieces.json` (or one such file a
side):

    {"format": 1, "pieces": ["<pad>", "<unk>", "<s>", "</s>", "▁the", ...], "symbols": [">>deu<<"]}

The first four are the special ids, never looked up by name. A piece that is not in the list is UNK. `symbols` are
pieces that are found wherever they stand in a text, before SentencePiece sees it.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtkit.errors import DataError, ModelError, RecipeError
from mtkit.files import atomic_write, read_json
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import JOINT_LIST, SOURCE_LIST, TARGET_LIST, UNKNOWN_SURFACE, Tokenizer, Tokenizers, seeded

FORMAT = 1
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_HINT = "import the model again with: mtkit import"


class PieceList:
    """The pieces in the order of their ids, and those that are symbols. Immutable."""

    def __init__(self, pieces: Sequence[str], symbols: Sequence[str] = (), origin: str = "pieces") -> None:
        """`pieces` begin with the four special ones. Raises ModelError for a list that cannot be a vocabulary."""
        self.pieces = tuple(pieces)
        self.symbols = tuple(symbols)
        self.ids = {piece: number for number, piece in enumerate(self.pieces) if number >= len(SPECIALS)}
        if self.pieces[: len(SPECIALS)] != SPECIALS:
            raise ModelError(f"{origin}: its first pieces are not {', '.join(SPECIALS)}", _HINT)
        if len(self.ids) != len(self.pieces) - len(SPECIALS):
            raise ModelError(f"{origin}: a piece is listed twice", _HINT)
        unknown = [symbol for symbol in self.symbols if symbol not in self.ids]
        if unknown:
            raise ModelError(f"{origin}: the symbol {unknown[0]!r} is not among the pieces", _HINT)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PieceList":
        """The list in a file. Raises ModelError when it is missing, damaged or of a newer format."""
        try:
            document = read_json(path)
        except DataError as error:
            raise ModelError(error.message, _HINT) from None
        version = document.get("format") if isinstance(document, dict) else None
        if not isinstance(version, int) or not {"pieces", "symbols"} <= document.keys():
            raise ModelError(f"{path}: is not a list of pieces", _HINT)
        if version > FORMAT:
            raise ModelError(
                f"{path}: has format {version}, this mtkit reads up to {FORMAT}", "update mtkit to read it"
            )
        lists = [document["pieces"], document["symbols"]]
        if not all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in lists):
            raise ModelError(f"{path}: is not a list of pieces", _HINT)
        return cls(lists[0], lists[1], str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the list, atomically."""
        with atomic_write(path) as stream:
            stream.write(self._text())

    def _text(self) -> str:
        document = {"format": FORMAT, "pieces": self.pieces, "symbols": self.symbols}
        return json.dumps(document, ensure_ascii=False, indent=0) + "\n"

    @property
    def sha256(self) -> str:
        """Of the file that `save` writes."""
        return hashlib.sha256(self._text().encode("utf-8")).hexdigest()

    def with_symbols(self, symbols: Sequence[str]) -> "PieceList":
        """The list with more symbols at its end."""
        return PieceList((*self.pieces, *symbols), (*self.symbols, *symbols))


class ListedTokenizer(Tokenizer):
    """A SentencePiece model that cuts text, and a list that numbers the pieces."""

    def __init__(self, model: bytes, listed: PieceList, origin: str = "tokenizer") -> None:
        """See Tokenizer. Raises ModelError."""
        self.listed = listed
        super().__init__(model, origin)

    def _take_ids(self) -> None:
        self.size = len(self.listed.pieces)
        self.sha256 = hashlib.sha256(self.model + self.listed.sha256.encode()).hexdigest()
        self._symbol_ids = {symbol: self.listed.ids[symbol] for symbol in self.listed.symbols}
        longest_first = sorted(self._symbol_ids, key=len, reverse=True)
        self._symbol_pattern = re.compile(
            f"({'|'.join(map(re.escape, longest_first))})" if longest_first else r"(?!)()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ListedTokenizer, (self.model, self.listed, self._origin)

    def with_model(self, model: bytes) -> "Tokenizer":
        """See Tokenizer; the list stays."""
        return ListedTokenizer(model, self.listed, self._origin)

    def with_symbols(self, symbols: Sequence[str]) -> "ListedTokenizer":
        """The tokenizer with more symbols, whose ids follow those of all pieces."""
        return ListedTokenizer(self.model, self.listed.with_symbols(symbols), self._origin)

    def has_piece(self, piece: str) -> bool:
        """Whether this very string is a piece."""
        return piece in self.listed.ids

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols, in order."""
        return self.listed.symbols

    def encode(self, text: str) -> list[int]:
        """See Tokenizer."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """See Tokenizer."""
        return self._encode(texts)

    def encodes_by_words(self) -> bool:
        """Never: a list may lack a piece, and SentencePiece's own ids are others."""
        return False

    def sample_batch(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """See Tokenizer. Raises RecipeError for a unigram model, which has no merges to leave out."""
        if not all(self._processor.get_score(place).is_integer() for place in range(self._processor.get_piece_size())):
            raise RecipeError(
                f"tokenizer.bpe_dropout: {rate:g} leaves out merges, and {self._origin} is a unigram model",
                "set tokenizer.bpe_dropout: 0",
            )
        with seeded(seed):
            return self._encode(texts, enable_sampling=True, nbest_size=-1, alpha=rate)

    def _encode(self, texts: Sequence[str], **sampling: Any) -> list[list[int]]:
        """The ids of each text: symbols by themselves, what stands between them cut by SentencePiece, in one call."""
        split = [self._symbol_pattern.split(normalize(text)) for text in texts]
        between = [part for parts in split for part in parts if part not in self._symbol_ids]
        cut = iter(self._processor.encode(between, out_type=str, num_threads=1, **sampling))
        encoded = []
        for parts in split:
            ids: list[int] = []
            for part in parts:
                if part in self._symbol_ids:
                    ids.append(self._symbol_ids[part])
                else:
                    ids += [self.listed.ids.get(piece, UNK) for piece in next(cut)]
            encoded.append(ids)
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer."""
        pieces: list[str] = []
        before = PAD
        for number in map(int, ids):
            if number == UNK and before != UNK:
                pieces.append(UNKNOWN_SURFACE)
            elif number not in (PAD, UNK, BOS, EOS):
                pieces.append(self.listed.pieces[number])
            before = number
        return normalize(self._processor.decode_pieces(pieces))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See Tokenizer."""
        return [self.listed.pieces[int(number)] for number in ids]


def load_tokenizer(model: Path, lists: Sequence[Path]) -> Tokenizer:
    """The tokenizer of a SentencePiece file, numbered by the first of these lists that is there, if any.

    Raises ModelError when a file is missing, damaged or of a newer format.
    """
    for path in lists:
        if path.exists():
            listed = PieceList.load(path)
            try:
                return ListedTokenizer(model.read_bytes(), listed, str(model))
            except OSError as error:
                raise ModelError(f"{model}: the tokenizer cannot be read ({error.strerror})", _HINT) from None
    return Tokenizer.load(model)


def lists_of(tokenizers: Tokenizers) -> dict[str, PieceList]:
    """The lists that number the pieces of these tokenizers, by file name; none where SentencePiece does."""
    source, target = tokenizers.source, tokenizers.target
    sides = {SOURCE_LIST: source, TARGET_LIST: target}
    found = {name: one.listed for name, one in sides.items() if isinstance(one, ListedTokenizer)}
    if len(found) == len(sides) and found[SOURCE_LIST].sha256 == found[TARGET_LIST].sha256:
        return {JOINT_LIST: found[SOURCE_LIST]}
    return found
