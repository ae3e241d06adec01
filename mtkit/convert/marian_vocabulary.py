"""The vocabulary of a MarianMT folder: which ids its pieces have, and which rows mtkit's ids are.

source.spm  target.spm    cut text into pieces, their own ids do not count
vocab.json                the id of each piece; target_vocab.json where the target has its own
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.errors import DataError, ModelError
from mtkit.files import read_json
from mtkit.text.listed import SPECIALS, ListedTokenizer, PieceList
from mtkit.text.names import piece_names
from mtkit.text.tokenizer import Tokenizer, Tokenizers

WHOLE_FOLDER = (
    "it must be a MarianMT folder as Hugging Face transformers saves it; fetch it again, all files of one model"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One side. `rows` are the checkpoint's ids in the order of mtkit's; `pieces` their names, special ones as here.

    `start_is_copy`: the decoder starts from one of the other special ids, so that BOS is one row more.
    """

    pieces: list[str]
    rows: list[int]
    unknown: int
    start_is_copy: bool
    symbols: list[str]
    named: list[str]
    """As `pieces`, but special ones by the checkpoint's names."""


def read_vocabularies(folder: Path, config: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    """Both sides' vocabularies, the same object where there is one. Raises ModelError naming the file."""
    told = _object(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    source = _vocabulary(folder / "vocab.json", config, told, config.get("vocab_size"))
    if not told.get("separate_vocabs"):
        return source, source
    size = config.get("decoder_vocab_size") or config.get("vocab_size")
    return source, _vocabulary(folder / "target_vocab.json", config, told, size)


def _object(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except DataError as error:
        raise ModelError(error.message, f"{path.parent} is not a whole MarianMT model") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path}: is not a JSON object", f"{path.parent} is not a MarianMT model")
    return document


def _vocabulary(path: Path, config: Mapping[str, Any], told: Mapping[str, Any], size: Any) -> Vocabulary:
    ids = _object(path)
    if not isinstance(size, int) or not all(isinstance(number, int) and 0 <= number < size for number in ids.values()):
        raise ModelError(f"{path}: its ids are not all below the vocabulary size of config.json, {size}", WHOLE_FOLDER)
    names = dict(zip(ids.values(), ids.keys(), strict=True))
    if len(names) != len(ids):
        raise ModelError(f"{path}: two pieces have one id", WHOLE_FOLDER)
    pad, end = config.get("pad_token_id"), config.get("eos_token_id")
    start = config.get("decoder_start_token_id", pad)
    unknown = ids.get(_text(told.get("unk_token", "<unk>")))
    special = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": start, "the unknown token": unknown}
    for what, number in special.items():
        if not isinstance(number, int) or not 0 <= number < size:
            raise ModelError(f"{path}: {what} is {number}, which is no id below {size}", WHOLE_FOLDER)
    assert isinstance(pad, int)
    assert isinstance(unknown, int)
    first = [pad, unknown, start, end]
    rest = [number for number in range(size) if number not in first]
    pieces = [names.get(number, f"<unused {number}>") for number in rest]
    listed = told.get("additional_special_tokens") or told.get("extra_special_tokens") or ()
    wanted = {_text(one) for one in listed}
    symbols = [piece for piece in pieces if (piece.startswith(">>") and piece.endswith("<<")) or piece in wanted]
    return Vocabulary(
        pieces=[*SPECIALS, *pieces],
        rows=[*first, *rest],
        unknown=unknown,
        start_is_copy=start in (pad, unknown, end),
        symbols=symbols,
        named=[*(str(names.get(number)) for number in first), *pieces],
    )


def _text(token: Any) -> str:
    """A token as the tokenizer's config has it: a string, or an object with its content."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def tokenizers_of(folder: Path, vocabularies: tuple[Vocabulary, Vocabulary]) -> Tokenizers:
    """The tokenizers: SentencePiece's own ids where they are the checkpoint's, else numbered by lists of pieces."""
    models = [_bytes(folder / f"{side}.spm") for side in ("source", "target")]
    plain = [_plain(model, vocabulary) for model, vocabulary in zip(models, vocabularies, strict=True)]
    if plain[0] is not None and plain[1] is not None:
        return Tokenizers(plain[0], plain[0] if models[0] == models[1] else plain[1])
    lists = [PieceList(one.pieces, one.symbols, str(folder / "vocab.json")) for one in vocabularies]
    sides = [
        ListedTokenizer(model, listed, str(folder / f"{side}.spm"))
        for model, listed, side in zip(models, lists, ("source", "target"), strict=True)
    ]
    return Tokenizers(sides[0], sides[0] if models[0] == models[1] and lists[0].sha256 == lists[1].sha256 else sides[1])


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror})", "a MarianMT model has source.spm and target.spm"
        ) from None


def _plain(model: bytes, vocabulary: Vocabulary) -> Tokenizer | None:
    """The SentencePiece model as a tokenizer of its own, if its ids are the vocabulary's."""
    try:
        tokenizer = Tokenizer(model)
    except ModelError:
        return None
    same = not vocabulary.start_is_copy and piece_names(tokenizer) == vocabulary.named
    return tokenizer if same and list(tokenizer.symbols) == vocabulary.symbols else None
