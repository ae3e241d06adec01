"""Cutting a line that is too long for the model into pieces: at sentence ends, then clause marks, spaces, tokens.

Torch-free, stands on row 0: it knows a tokenizer only as the function that it is given.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

Encode = Callable[[list[str]], list[list[int]]]

_CLOSERS = "\"'”’»›」』）)】〉》］\\]"
# Wide marks end a sentence or clause wherever they stand. The others do so only before a space: 3.5, 12:30 and 1,000
# stay whole.
_SENTENCE = re.compile(rf"[。！？｡]+[{_CLOSERS}]*|[.!?…؟۔।።]+[{_CLOSERS}]*(?=\s)")
_CLAUSE = re.compile(rf"[，、；：…]+[{_CLOSERS}]*|[,;:،؛–—]+[{_CLOSERS}]*(?=\s)")
_SPACE = re.compile(r"\s+")

# Languages written without spaces between sentences or words, by primary subtag (ISO 639-1 and 639-3).
_UNSPACED = re.compile("zh|zho|cmn|yue|wuu|lzh|nan|ja|jpn|th|tha|lo|lao|km|khm|my|mya|bo|bod|dz|dzo")


def joiner(language: str) -> str:
    """What stands between two translated pieces in this language: nothing where it is written without spaces.

    >>> joiner("en"), joiner("zh-Hant")
    (' ', '')
    """
    return "" if _UNSPACED.fullmatch(re.split("[-_]", language.lower())[0]) else " "


def split(text: str, limit: int, encode: Encode) -> list[list[int]]:
    """Token ids of the pieces of `text`, in order, each of 1 to `limit` tokens; no piece when there are no tokens.

    A text within the limit is one piece. A longer one is cut at every sentence end, for models are trained on
    sentences; a longer sentence into as few runs of clauses as fit, a longer clause into runs of words, a longer word
    by tokens. Nothing between the pieces is lost but white space. `encode` gives the ids of each text of a list.
    """
    return _split(text, encode([text])[0], limit, encode, 0)


def _split(text: str, ids: list[int], limit: int, encode: Encode, level: int) -> list[list[int]]:
    if len(ids) <= limit:
        return [ids] if ids else []
    match level:
        case 0:
            parts = _cut(text, [match.end() for match in _SENTENCE.finditer(text) if not _goes_on(text, match.end())])
        case 1:
            parts = _packed(text, [match.end() for match in _CLAUSE.finditer(text)], limit, encode)
        case 2:
            parts = _packed(text, [match.start() for match in _SPACE.finditer(text)], limit, encode)
        case _:
            return [ids[start : start + limit] for start in range(0, len(ids), limit)]
    if len(parts) == 1:
        return _split(text, ids, limit, encode, level + 1)
    encoded = zip(parts, encode(parts), strict=True)
    return [piece for part, part_ids in encoded for piece in _split(part, part_ids, limit, encode, level + 1)]


def _goes_on(text: str, end: int) -> bool:
    """Whether a lower-case letter follows: "approx. five", "Really?" he said. No sentence starts so."""
    return text[end : end + 2].strip()[:1].islower()


def _cut(text: str, ends: Sequence[int]) -> list[str]:
    """The parts of `text` that end at `ends` and at its own end."""
    bounds = [0, *ends, len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


def _packed(text: str, ends: Sequence[int], limit: int, encode: Encode) -> list[str]:
    """The parts that end at `ends`, neighbours joined while their tokens together stay within `limit`."""
    runs: list[str] = []
    room = 0
    for part, ids in zip(parts := _cut(text, ends), encode(parts), strict=True):
        if runs and len(ids) <= room:
            runs[-1] += part
            room -= len(ids)
        else:
            runs.append(part)
            room = limit - len(ids)
    return runs
