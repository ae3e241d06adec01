"""What can be seen in one sentence: its words, loops, numbers and addresses, and what it took over from its source."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from mtkit.hygiene import UNSPACED_LETTERS

# Python's \w leaves out combining marks, at which words of Hindi, vowelled Arabic or decomposed text would fall apart.
_MARKS = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
_SPACED = rf"(?:[^\W{UNSPACED_LETTERS}][{_MARKS}\u200c\u200d]*)+"
_WORD = re.compile(rf"[{UNSPACED_LETTERS}]|{_SPACED}(?:['’-]{_SPACED})*")
_UNSPACED_WORD = re.compile(f"[{UNSPACED_LETTERS}]")
_NUMBER = re.compile(r"\d(?:[\d.,:'’\u00a0\u202f]*\d)?")
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>\"“”„«»]+|[\w.+-]+@[\w-]+\.[\w.-]+")
_LONGEST_LOOP = 4
COPIED_SHARE = 0.5
_FEWEST_COPIED = 3


def words(text: str) -> list[str]:
    """The words of a text without regard to case; a letter of a script without spaces is a word.

    >>> words("Don't shout, Äpfel-Anna!"), words("我爱 NLP")
    (["don't", 'shout', 'äpfel-anna'], ['我', '爱', 'nlp'])
    """
    return _WORD.findall(text.casefold())


def loops(text: str) -> int:
    """How often a run of 1 to 4 words follows itself at once; of letters of a script without spaces, twice at once.

    >>> loops("the cat the cat sat"), loops("no no no"), loops("看看吧"), loops("看看看吧")
    (1, 2, 0, 1)
    """
    found, tokens = 0, words(text)
    for size in range(1, _LONGEST_LOOP + 1):
        for start in range(size, len(tokens) - size + 1):
            if tokens[start : start + size] != tokens[start - size : start]:
                continue
            before = tokens[start - 2 * size : start - size] if start >= 2 * size else []
            unspaced = all(_UNSPACED_WORD.match(one) for one in tokens[start : start + size])
            shorter = any(_is_loop_of(tokens[start : start + size], inner) for inner in range(1, size))
            found += not shorter and (not unspaced or before == tokens[start - size : start])
    return found


def _is_loop_of(tokens: Sequence[str], size: int) -> bool:
    """Whether the tokens are a shorter run several times over, which is counted as that one's loop."""
    return len(tokens) % size == 0 and list(tokens) == list(tokens[:size]) * (len(tokens) // size)


def numbers(text: str) -> Counter[str]:
    """The numbers of a text by their digits alone, as languages part them differently.

    >>> numbers("3.000 Äpfel für 2,50 €") == numbers("3,000 apples at €2.50")
    True
    """
    return Counter(
        re.sub(r"\D", "", one) for one in _NUMBER.findall(_without_addresses(unicodedata.normalize("NFKC", text)))
    )


def addresses(text: str) -> Counter[str]:
    """The URLs and e-mail addresses of a text, without the punctuation after them.

    >>> addresses("See www.example.org/a, or me@example.org.")
    Counter({'www.example.org/a': 1, 'me@example.org': 1})
    """
    return Counter(one.rstrip(".,;:!?)]}'’、。，；！？）】") for one in _ADDRESS.findall(text))


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub(" ", text)


def is_copied(hypothesis: str, source: str, reference: str) -> bool:
    """Whether a hypothesis is its source, or half of its words, three or all, are the source's and not the reference's.

    >>> is_copied("der Hund bellt laut", "Der Hund bellt laut", "The dog barks loudly")
    True
    >>> is_copied("Anna Meier", "Anna Meier", "Anna Meier")
    False
    """
    own = words(hypothesis)
    if own == words(source) != words(reference):
        return bool(own)
    foreign = Counter(words(source)) - Counter(words(reference))
    copied = sum((Counter(own) & foreign).values())
    return copied >= min(_FEWEST_COPIED, len(own)) and 0 < copied >= COPIED_SHARE * len(own)
