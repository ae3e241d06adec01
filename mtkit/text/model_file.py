"""What a SentencePiece model file says of itself that its Python API does not tell: normalisation and symbols.

The file is a protocol buffer (sentencepiece_model.proto). Only three fields are read, so a reader of two wire rules
does, and no protobuf package is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

# Field numbers of sentencepiece_model.proto.
_TRAINER_SPEC, _NORMALIZER_SPEC = 2, 3  # of ModelProto
_USER_DEFINED_SYMBOLS = 31  # of TrainerSpec
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
