"""Find pairs that came before in the same corpus, in bounded memory."""

import hashlib
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mtkit.data.corpus import Pair
from mtkit.text.normalize import normalize

_PARTITIONS = 64
_ROW = np.dtype([("hash", "S16"), ("line", "<u8")])


class Repetitions:
    """Which lines of a corpus repeat an earlier pair: one bit a line."""

    def __init__(self, bits: np.ndarray) -> None:
        """`bits` is packed as by numpy.packbits, line 1 first."""
        self._bits = bits

    def __call__(self, first_line: int, count: int) -> np.ndarray:
        """For `count` lines from `first_line` on: True where the pair came before."""
        places = np.arange(first_line - 1, first_line - 1 + count)
        return (self._bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8) & 1).astype(bool)


def find_repetitions(pairs: Iterable[Pair], count: int, scratch: Path) -> Repetitions:
    """Read a corpus of `count` pairs and find every pair whose normalised text came before.

    Texts are compared by 128-bit hashes (BLAKE2b), spread over 64 files in the folder `scratch`, which are gone
    afterwards. Memory: an eighth of a byte a pair, and 24 bytes for each pair of the largest file, about count / 64, so
    100 million pairs take some 12 + 40 MB (twice the latter while sorting) and 2.4 GB of disk.
    """
    bits = np.zeros((count + 7) // 8, dtype=np.uint8)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".duplicates.") as name:
        paths = [Path(name) / str(number) for number in range(_PARTITIONS)]
        with ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for pair in pairs:
                text = f"{normalize(pair.source)}\n{normalize(pair.target)}"
                digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
                files[digest[0] % _PARTITIONS].write(digest + pair.line_number.to_bytes(8, "little"))
        for path in paths:
            places = _later_lines(np.fromfile(path, dtype=_ROW)) - 1
            np.bitwise_or.at(bits, places >> 3, (128 >> (places & 7)).astype(np.uint8))
    return Repetitions(bits)


def _later_lines(rows: np.ndarray) -> np.ndarray:
    """The lines of all rows but the first with each hash; rows come in the order of their lines."""
    order = np.argsort(rows["hash"], kind="stable")
    hashes = rows["hash"][order]
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    return rows["line"][order[again]].astype(np.int64)
