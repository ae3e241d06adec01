"""What makes a score doubtful and can be seen in the text: tokenized lines, empty lines, scripts without spaces."""

import re
from collections.abc import Mapping, Sequence

UNSPACED_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
"""Of scripts that set no spaces between words, as a regular expression's class of characters."""
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")
_SAMPLE_LINES = 1000
# A comma or full stop that stands alone (French sets other marks apart), marks of subwords, Moses's escapes.
_TOKENIZED = re.compile(r"\w [,.](?= |$)|\w@@(?= |$)|(?:^| )▁\w|&(?:apos|quot|amp|lt|gt|#91|#93);")
_TOKENIZED_SHARE = 0.2
_NAMED = 5


def is_unspaced(lines: Sequence[str]) -> bool:
    """Whether most letters of the first lines are of a script that sets no spaces between words.

    >>> is_unspaced(["我爱北京。"]), is_unspaced(["I love Beijing (北京)."])
    (True, False)
    """
    letters = "".join("".join(filter(str.isalpha, line)) for line in lines[:_SAMPLE_LINES])
    return len(_UNSPACED.findall(letters)) * 2 > len(letters)


def looks_tokenized(line: str) -> bool:
    """Whether a line has signs of a tokenizer's work, such as a full stop set apart.

    >>> looks_tokenized("The end ."), looks_tokenized("C' est tout &apos;"), looks_tokenized("Vraiment ?")
    (True, True, False)
    """
    return _TOKENIZED.search(line.rstrip()) is not None


def doubts(
    systems: Mapping[str, Sequence[str]], references: Sequence[tuple[str, Sequence[str]]], metrics: Sequence[str]
) -> list[str]:
    """What to warn of before believing a score, one sentence each, with names and line numbers.

    `systems` and `references` are lines of equal number by what to call them; `metrics` those that will be computed.
    """
    found = []
    for name, lines in systems.items():
        empty = [number for number, line in enumerate(lines, 1) if not line.strip()]
        wrong = [number for number in empty if any(reference[number - 1].strip() for _, reference in references)]
        if wrong:
            found.append(
                f"{name}: {len(wrong)} of {len(lines)} hypotheses are empty ({_numbers(wrong)}); "
                "each counts as a translation that is wholly wrong"
            )
    for name, reference in references:
        blank = [number for number, line in enumerate(reference, 1) if not line.strip()]
        if blank:
            found.append(
                f"{name}: {len(blank)} of {len(reference)} references are empty ({_numbers(blank)}); "
                "nothing can be right there"
            )
    for name, lines in [*systems.items(), *references]:
        marked = [number for number, line in enumerate(lines, 1) if looks_tokenized(line)]
        if marked and len(marked) >= _TOKENIZED_SHARE * sum(1 for line in lines if line.strip()):
            found.append(
                f"{name}: {len(marked)} of {len(lines)} lines look tokenized ({_numbers(marked)}); detokenize them, "
                f"or {'BLEU' if 'bleu' in metrics else 'the score'} will not compare with published figures"
            )
    return found


def _numbers(numbers: Sequence[int]) -> str:
    """The first line numbers, for a message."""
    shown = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}"
