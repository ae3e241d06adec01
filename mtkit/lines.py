"""Lines of text as they come from a user: only LF ends one, and what is odd about a line is remembered by its number.

Reading a corpus refuses bad bytes (`files.read_lines`); a translator that has to answer every line replaces them and
says so. Torch-free, stands on row 1.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from mtkit.errors import DataError
from mtkit.files import decode_line, read_byte_lines

BadUtf8 = Literal["replace", "error"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONTROL = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
EXAMPLES = 5


@dataclass(slots=True)
class Occurrences:
    """How many lines show something, and the numbers of the first few.

    >>> str(Occurrences(2, [3, 7]))
    '2 lines: 3, 7'
    """

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        """Count line `number`."""
        self.count += 1
        if len(self.lines) < EXAMPLES:
            self.lines.append(number)

    def merge(self, later: "Occurrences") -> None:
        """Add the counts of later lines; changes these."""
        self.count += later.count
        self.lines = (self.lines + later.lines)[:EXAMPLES]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.lines)) + (", ..." if self.count > len(self.lines) else "")
        return f"{self.count} line{'s' * (self.count != 1)}: {numbers}"


class LineReader:
    """Iterates over the text of each line; `count` says how many so far, `report` what was odd about them.

    `byte_lines` come without their LF (see `files.strip_line_end`) and are taken one at a time, never ahead. Bytes that
    are not UTF-8 become U+FFFD, or are refused with `bad_utf8="error"`. A byte order mark at the start of line 1 is
    dropped. Every other character stays in the text, U+2028, VT or a lone CR too: normalisation reads them as spaces.
    """

    def __init__(self, byte_lines: Iterable[bytes], name: str, bad_utf8: BadUtf8 = "replace") -> None:
        self.name = name
        self.count = 0
        self._byte_lines = byte_lines
        self._bad_utf8 = bad_utf8
        self._mark, self._bad, self._nul, self._control = (Occurrences() for _ in range(4))

    def __iter__(self) -> Iterator[str]:
        """Yield the lines. Raises DataError, naming line and byte, for bad UTF-8 under `bad_utf8="error"`."""
        for line in self._byte_lines:
            self.count += 1
            yield self._decode(line)

    def report(self) -> list[str]:
        """One sentence for each oddity met so far, with counts and line numbers."""
        kinds = {
            "a byte order mark was dropped": self._mark,
            "bytes that are not UTF-8 became U+FFFD": self._bad,
            "NUL was read as a space": self._nul,
            "a line separator (U+2028, lone CR, ...) or control character was read as a space": self._control,
        }
        return [f"{self.name}: {what} in {lines}" for what, lines in kinds.items() if lines.count]

    def _decode(self, line: bytes) -> str:
        if self.count == 1 and line.startswith(_BYTE_ORDER_MARK):
            self._mark.add(1)
        try:
            text = decode_line(line, self.name, self.count)
        except DataError as error:
            if self._bad_utf8 == "error":
                raise DataError(error.message, f"{error.hint}; or replace such bytes: --bad-utf8 replace") from None
            self._bad.add(self.count)
            text = line.decode("utf-8", "replace")
        if "\0" in text:
            self._nul.add(self.count)
        if _CONTROL.search(text):
            self._control.add(self.count)
        return text


def count_lines(path: str | os.PathLike[str]) -> int:
    """Number of lines of a file, plain or compressed; a last line without LF counts."""
    return sum(1 for _ in read_byte_lines(path))
