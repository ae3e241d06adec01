"""The figures of mtkit check, computed slowly and plainly: one line at a time, Python's own sets, no hashes."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mtkit.text.normalize import normalize

SCRIPTS = {"en": {"LATIN"}, "de": {"LATIN"}, "ru": {"CYRILLIC"}, "zh": {"CJK", "BOPOMOFO"}}


@dataclass
class SlowSide:
    """Figures of one file."""

    lines: int
    words: int
    characters: list[int]
    kinds: Counter[str]


def texts_of(raw: bytes) -> list[tuple[str, bool, bool]]:
    """Text, whether it ended in CRLF, whether it was not UTF-8, of each line."""
    pieces = raw.split(b"\n")
    if pieces[-1] == b"":
        pieces.pop()
    rows = []
    for number, piece in enumerate(pieces):
        carriage = piece.endswith(b"\r")
        piece = piece[:-1] if carriage else piece
        try:
            text, bad = piece.decode("utf-8"), False
        except UnicodeDecodeError:
            text, bad = piece.decode("utf-8", "ignore"), True
        if number == 0 and text.startswith("\ufeff"):
            text = text[1:]
        rows.append((text, carriage, bad))
    return rows


def loose(text: str) -> str:
    """Letters, marks and digits alone, caseless."""
    kept = [one for one in normalize(text) if unicodedata.category(one)[0] in ("L", "M", "N")]
    return "".join(unicodedata.normalize("NFKC", one).casefold() for one in kept)


def is_control(character: str) -> bool:
    return character in "\u2028\u2029" or (unicodedata.category(character) == "Cc" and character not in "\t\n")


def in_wrong_script(text: str, language: str) -> bool:
    """More than half of the letters, and at least three, are of other scripts."""
    letters = [one for one in text if unicodedata.category(one) in ("Lu", "Ll", "Lo")]
    wrong = [one for one in letters if unicodedata.name(one).split()[0] not in SCRIPTS[language]]
    return len(wrong) >= 3 and 2 * len(wrong) > len(letters)


def slow_side(raw: bytes, language: str) -> SlowSide:
    """The figures of one file's bytes."""
    rows = texts_of(raw)
    kinds: Counter[str] = Counter()
    for text, carriage, bad in rows:
        kinds["crlf"] += carriage
        kinds["bad_utf8"] += bad
        kinds["control"] += any(is_control(one) for one in text)
        kinds["empty"] += text == ""
        kinds["blank"] += text != "" and normalize(text) == ""
        kinds["script"] += in_wrong_script(normalize(text), language)
        kinds["replacement"] += "\ufffd" in text
        kinds["tags"] += bool(re.search(r"</?(b|br|p|a href=\"x\")>", text))
        kinds["entities"] += any(one in text for one in ("&amp;", "&#39;", "&quot;"))
        kinds["tokenized"] += "@-@" in text or "@@ " in text or "\u2581" in text
        kinds["mojibake"] += "Ã¤" in text or "â€™" in text
        kinds["markup"] += "[[" in text and "]]" in text
    normal = [normalize(text) for text, _, _ in rows]
    return SlowSide(len(rows), sum(len(one.split()) for one in normal), [len(one) for one in normal], kinds)


def repeats(values: Sequence[object]) -> int:
    """How many values came before; None is no value."""
    seen: set[object] = set()
    count = 0
    for value in values:
        if value is None:
            continue
        count += value in seen
        seen.add(value)
    return count


@dataclass
class SlowPairs:
    """Figures of two files together."""

    identical: int
    half_blank: int
    duplicate_pairs: int
    repeated_sources: int
    repeated_targets: int


def slow_pairs(source: bytes, target: bytes) -> SlowPairs:
    """The figures of two files of equal line counts."""
    ours, theirs = ([normalize(text) for text, _, _ in texts_of(raw)] for raw in (source, target))
    pairs = list(zip(ours, theirs, strict=True))
    return SlowPairs(
        identical=sum(one == other != "" for one, other in pairs),
        half_blank=sum((one == "") != (other == "") for one, other in pairs),
        duplicate_pairs=repeats([pair if all(pair) else None for pair in pairs]),
        repeated_sources=repeats([one or None for one in ours]),
        repeated_targets=repeats([other or None for other in theirs]),
    )


def slow_leaks(train: tuple[bytes, bytes], held_out: tuple[bytes, bytes]) -> dict[tuple[str, str], int]:
    """How many held-out lines occur in training, by what (pair, source, target) and form (exact, loose)."""
    counts = {}
    for form, key in (("exact", normalize), ("loose", loose)):
        known, asked = (
            [tuple(key(text) for text, _, _ in texts_of(raw)) for raw in files] for files in (train, held_out)
        )
        known_pairs, asked_pairs = list(zip(*known, strict=True)), list(zip(*asked, strict=True))
        counts["pair", form] = sum(all(pair) and pair in set(known_pairs) for pair in asked_pairs)
        for place, what in enumerate(("source", "target")):
            counts[what, form] = sum(one != "" and one in set(known[place]) for one in asked[place])
    return counts
