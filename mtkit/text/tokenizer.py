"""Text to ids and back: SentencePiece BPE (Sennrich et al. 2016; Kudo and Richardson 2018), load, encode, decode.

The SentencePiece model is the whole vocabulary; there is no second file. `mtkit.text.train` makes one.

What is text and what is not:

- The four special ids come from nothing that can be written. Their pieces are named "< s >" and the like, with a real
  space, which normalised text never has inside SentencePiece. So `<s>`, `</s>`, `<unk>`, `<pad>`, `<0x41>` in a
  sentence are ordinary characters in training, `encode` and `decode`.
- A user-defined symbol is the opposite: it is found wherever its characters stand in the text, and is one piece. A tag
  such as `<news>` can thus be given by typing it before the sentence.
- A character outside the vocabulary becomes UNK, a run of them a single one, and decodes as U+FFFD. That sign was
  chosen because NFC and NFKC leave it alone, so `decode(encode(decode(ids))) == decode(ids)`; SentencePiece's own
  " ⁇ " brings new spaces and NFKC turns it into "??". With byte fallback there is no UNK.
"""

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import sentencepiece

from mtkit.errors import ModelError
from mtkit.files import atomic_write
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.text.model_file import read_facts
from mtkit.text.normalize import normalize

UNKNOWN_SURFACE = "\ufffd"
JOINT_FILE, SOURCE_FILE, TARGET_FILE = "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model"
JOINT_LIST, SOURCE_LIST, TARGET_LIST = (
    "tokenizer.pieces.json",
    "tokenizer.source.pieces.json",
    "tokenizer.target.pieces.json",
)
_SPECIAL_NAMES = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
_WORD_START = "\u2581"
_WORTH_A_BATCH = 16  # texts; SentencePiece starts a thread for each batch
_REMEDY = "train it again with: mtkit tokenizer RECIPE"
_seeding = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Batches that SentencePiece samples in here depend on `seed` alone; one thread of the process at a time.

    SentencePiece has one seed for the process, read when a batch's thread starts: another thread that sets its own in
    between would give this one other pieces.
    """
    with _seeding:
        sentencepiece.set_random_generator_seed(seed % (2**32 - 1))  # the largest seed means: none
        yield


class Tokenizer:
    """One vocabulary: text to ids and back. Immutable; can be pickled and used from several threads."""

    def __init__(self, model: bytes, origin: str = "tokenizer") -> None:
        """`model` is a serialized SentencePiece model, `origin` its name in errors. Raises ModelError."""
        self._model = model
        self._origin = origin
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor()
            self._processor.load_from_serialized_proto(model)
            self._facts = read_facts(model)
        except (RuntimeError, ValueError):
            raise ModelError(f"{origin}: is not a SentencePiece model, or is damaged", _REMEDY) from None
        self.size: int
        self.sha256: str
        self._symbol_ids: dict[str, int]
        self._take_ids()

    def _take_ids(self) -> None:
        """Take the ids that the SentencePiece model gives. Raises ModelError when the special ones are others."""
        found = {
            "pad": self._processor.pad_id(),
            "unk": self._processor.unk_id(),
            "bos": self._processor.bos_id(),
            "eos": self._processor.eos_id(),
        }
        expected = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
        if found != expected:
            raise ModelError(f"{self._origin}: its special ids are {found}, mtkit needs {expected}", _REMEDY)
        self.size = self._processor.get_piece_size()
        self.sha256 = hashlib.sha256(self._model).hexdigest()
        self._symbol_ids = {symbol: self._processor.piece_to_id(symbol) for symbol in self._facts.symbols}
        self._word_start = self._processor.piece_to_id(_WORD_START)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._model, self._origin)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """The tokenizer in a file. Raises ModelError when it is missing, damaged or has other special ids."""
        try:
            return cls(Path(path).read_bytes(), str(path))
        except OSError as error:
            raise ModelError(f"{path}: the tokenizer cannot be read ({error.strerror})", _REMEDY) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file, atomically; the bytes are those that were loaded."""
        with atomic_write(path, "wb") as stream:
            stream.write(self._model)

    @property
    def normalization(self) -> str:
        """The normalisation stored in the model: "nfc", "nfkc", or a foreign model's own rule name."""
        return "nfc" if self._facts.normalization_rule == "identity" else self._facts.normalization_rule

    @property
    def model(self) -> bytes:
        """The serialized SentencePiece model."""
        return self._model

    def with_model(self, model: bytes) -> "Tokenizer":
        """Another tokenizer of the same name in errors. Raises ModelError."""
        return Tokenizer(model, self._origin)

    def has_piece(self, piece: str) -> bool:
        """Whether this very string is a piece."""
        return bool(self._processor.id_to_piece(self._processor.piece_to_id(piece)) == piece)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The user-defined symbols, in order."""
        return self._facts.symbols

    def encode(self, text: str) -> list[int]:
        """The ids of one normalised sentence, without special ids; empty for blank text.

        A symbol that opens the text comes without the bare word start SentencePiece puts before it, so that a typed
        tag equals one put there by its id: encode("<a><b> c") == [symbol_id("<a>"), symbol_id("<b>"), *encode("c")].
        """
        return self._open_with_symbol(self._processor.encode(normalize(text)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, quicker for many; in one thread."""
        if len(texts) < _WORTH_A_BATCH:
            return [self.encode(text) for text in texts]
        return self.open_with_symbol(self.encode_words([normalize(text) for text in texts]))

    def encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts as SentencePiece gives them: a symbol that opens one comes after a word start."""
        encoded: list[list[int]] = self._processor.encode(list(texts), num_threads=1)
        return encoded

    def open_with_symbol(self, encoded: list[list[int]]) -> list[list[int]]:
        """What `encode` gives for these texts, from what `encode_words` gives."""
        return [self._open_with_symbol(ids) for ids in encoded] if self._symbol_ids else encoded

    def encodes_by_words(self) -> bool:
        """Whether the ids of any normalised text are those of its words, by `encode_words`, in a row.

        So it is with BPE whose pieces never reach over a space, as `mtkit.text.train` makes it. Not with normalisation
        inside the model, which may bring spaces, nor with other kinds of models.
        """
        numbers = range(self._processor.get_piece_size())
        pieces = [self._processor.id_to_piece(number) for number in numbers]
        within = all(_WORD_START not in piece[1:] for piece in pieces) and self.has_piece(_WORD_START)
        ranked = all(self._processor.get_score(number).is_integer() for number in numbers)  # BPE: -rank, not log p
        starts = self._processor.encode("a", out_type=str)[:1] != ["a"]
        return self.normalization == "nfc" and within and ranked and starts

    def sample_batch(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """`encode` of each text with BPE-dropout (Provilkov et al. 2020): merges left out with probability `rate`.

        SentencePiece's own: a merge that was left out is not tried again in the same word. Depends on texts, rate and
        seed alone; sets SentencePiece's random seed, which nothing else here uses.
        """
        normalized = [normalize(text) for text in texts]
        with seeded(seed):
            # A batch gets a thread of its own, whose random state begins at the seed.
            sampled = self._processor.encode(normalized, enable_sampling=True, nbest_size=-1, alpha=rate, num_threads=1)
        return [self._open_with_symbol(ids) for ids in sampled]

    def _open_with_symbol(self, ids: list[int]) -> list[int]:
        opens = len(ids) > 1 and ids[0] == self._word_start and ids[1] in self._symbol_ids.values()
        return ids[1:] if opens else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ids vanish, but for UNK, a run of which becomes one U+FFFD.

        The result is normalised: it holds no line end and no control character whatever the ids. Where nothing was
        unknown, decode(encode(x)) == normalize(x) (with "nfkc": the NFKC form of that).
        """
        numbers = [int(number) for number in ids]
        if UNK in numbers:
            numbers = [this for before, this in pairwise([PAD, *numbers]) if this != UNK or before != UNK]
        return normalize(self._processor.decode(numbers))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, for people to read: "▁" marks a word start, specials are <pad>, <unk>, <s>, </s>."""
        return [_SPECIAL_NAMES.get(number) or self._processor.id_to_piece(int(number)) for number in ids]

    def symbol_id(self, symbol: str) -> int:
        """The id of a user-defined symbol. Raises ModelError when the vocabulary was made without it."""
        if symbol not in self._symbol_ids:
            known = ", ".join(self.symbols) or "none"
            raise ModelError(
                f"{self._origin}: {symbol!r} is not one of its symbols ({known})",
                "list it in tokenizer.user_defined_symbols or in a corpus's tags, then train the tokenizer again",
            )
        return self._symbol_ids[symbol]

    def unknown_count(self, ids: Sequence[int]) -> int:
        """How many of the ids are UNK."""
        return list(ids).count(UNK)


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """The vocabularies of both sides; `source is target` when they share one."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.source is self.target

    @property
    def sha256(self) -> str:
        """One hash for both: the model file's when joint, else a hash of the two hashes."""
        if self.joint:
            return self.source.sha256
        return hashlib.sha256(f"{self.source.sha256} {self.target.sha256}".encode()).hexdigest()

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Tokenizers":
        """The tokenizers in a folder: `tokenizer.model`, or `tokenizer.source.model` and `tokenizer.target.model`.

        Imported ones have lists of pieces beside them, which number the pieces: see `mtkit.text.listed`.
        Raises ModelError when neither is there, one is damaged, or its special ids are not 0, 1, 2, 3.
        """
        from mtkit.text.listed import load_tokenizer  # which builds on this module

        folder = Path(folder)
        if (folder / JOINT_FILE).exists():
            both = load_tokenizer(folder / JOINT_FILE, [folder / JOINT_LIST])
            return cls(both, both)
        if not (folder / SOURCE_FILE).exists() and not (folder / TARGET_FILE).exists():
            raise ModelError(f"{folder}: holds neither {JOINT_FILE} nor {SOURCE_FILE} and {TARGET_FILE}", _REMEDY)
        return cls(
            load_tokenizer(folder / SOURCE_FILE, [folder / SOURCE_LIST, folder / JOINT_LIST]),
            load_tokenizer(folder / TARGET_FILE, [folder / TARGET_LIST, folder / JOINT_LIST]),
        )

    def files(self, folder: str | os.PathLike[str]) -> list[tuple[Path, Tokenizer]]:
        """Each model file that `save` writes, with the tokenizer in it."""
        folder = Path(folder)
        if self.joint:
            return [(folder / JOINT_FILE, self.source)]
        return [(folder / SOURCE_FILE, self.source), (folder / TARGET_FILE, self.target)]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model files into a folder, made when missing; files of the other kind there are removed."""
        from mtkit.text.listed import lists_of

        written = self.files(folder)
        for path, tokenizer in written:
            tokenizer.save(path)
        lists = lists_of(self)
        for name, listed in lists.items():
            listed.save(Path(folder) / name)
        kept = {path.name for path, _ in written} | lists.keys()
        for name in {JOINT_FILE, SOURCE_FILE, TARGET_FILE, JOINT_LIST, SOURCE_LIST, TARGET_LIST} - kept:
            (Path(folder) / name).unlink(missing_ok=True)
