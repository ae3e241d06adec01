"""The one rewriting of text before it is encoded, in training and in translation alike; references never see it."""

import re
import unicodedata

# What is read as a space: white space in Python's sense (U+2028, U+0085, VT, a lone CR and U+3000 are among it),
# control characters, the byte order mark, and U+2581, which SentencePiece writes for a space and could not give back.
_SPACES = r"\s\x00-\x1f\x7f-\x9f\u2581\ufeff"
_UNUSUAL = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u2581\ufeff\ud800-\udfff]|  ")
_RUN = re.compile(rf"[{_SPACES}]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def normalize(text: str) -> str:
    """The text in NFC, each run of white space and control characters made one space, no space at either end.

    A lone surrogate, which no file can hold, becomes U+FFFD. Nothing else changes: full-width forms, ligatures and
    letter case stay. Applying it twice is applying it once.

    >>> normalize(" e\\u0301te\\u2028\\u2581  2 ")
    'éte 2'
    """
    text = unicodedata.normalize("NFC", text)
    if _UNUSUAL.search(text):
        text = _RUN.sub(" ", _SURROGATE.sub("\ufffd", text))
    return text.strip(" ")
