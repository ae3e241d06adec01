"""What a SentencePiece model file says of itself that its Python API does not tell: normalisation and symbols.

The file is a protocol buffer (sentencepiece_model.proto). Only three fields are read, so a reader of two wire rules
does, and no protobuf package is needed; nor is it for putting more symbols at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Field numbers of sentencepiece_model.proto.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3  # of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of SentencePiece
_USER_DEFINED = 4  # of its types
_VOCAB_SIZE, _USER_DEFINED_SYMBOLS = 4, 31  # of TrainerSpec
_NAME = 1  # of NormalizerSpec


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The name of the normalisation rule ("identity", "nfkc") and the user-defined symbols, in order."""

    normalization_rule: str
    symbols: tuple[str, ...]


def read_facts(model: bytes) -> ModelFacts:
    """The facts of a serialized SentencePiece model. Raises ValueError when the bytes are not one."""
    rule, symbols = "", []
    for number, value in _fields(model):
        if number == _TRAINER_SPEC:
            symbols += [text.decode("utf-8") for inner, text in _fields(value) if inner == _USER_DEFINED_SYMBOLS]
        elif number == _NORMALIZER_SPEC:
            rule = next((text.decode("utf-8") for inner, text in _fields(value) if inner == _NAME), rule)
    return ModelFacts(rule, tuple(symbols))


def with_symbols(model: bytes, symbols: Sequence[str], vocab_size: int) -> bytes:
    """A serialized SentencePiece model with user-defined symbols put after its pieces; `vocab_size` is the new size.

    Everything is appended: of the pieces more may follow, and a second TrainerSpec is merged into the first.
    """
    texts = [symbol.encode("utf-8") for symbol in symbols]
    kind = _number_field(_TYPE, _USER_DEFINED)
    score = _key(_SCORE, 5) + bytes(4)
    pieces = b"".join(_bytes_field(_PIECES, _bytes_field(_PIECE, text) + score + kind) for text in texts)
    listed = b"".join(_bytes_field(_USER_DEFINED_SYMBOLS, text) for text in texts)
    return model + pieces + _bytes_field(_TRAINER_SPEC, _number_field(_VOCAB_SIZE, vocab_size) + listed)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _written_varint(len(value)) + value


def _number_field(number: int, value: int) -> bytes:
    return _key(number, 0) + _written_varint(value)


def _key(number: int, wire: int) -> bytes:
    return _written_varint(number << 3 | wire)


def _written_varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (field number, bytes) of every length-delimited field; numbers are skipped."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        match key & 7:
            case 0:
                _, place = _varint(message, place)
            case 1:
                place += 8
            case 2:
                length, place = _varint(message, place)
                if place + length > end:
                    raise ValueError("a field is cut off")
                yield key >> 3, message[place : place + length]
                place += length
            case 5:
                place += 4
            case wire:
                raise ValueError(f"wire type {wire} is unknown")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A base-128 number, least digit first, and the place after it."""
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
