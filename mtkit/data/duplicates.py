"""Find pairs that came before in the same corpus, in bounded memory."""

import hashlib
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mtkit.data.corpus import Pair
from mtkit.text.normalize import normalize

_PARTITION_PAIRS = 2**20  # pairs sorted at once
_MOST_PARTITIONS = 256  # open files
_ROW = np.dtype([("hash", "S16"), ("line", "<u8")])


class Repetitions:
    """Which lines of a corpus repeat an earlier pair: one bit a line."""

    def __init__(self, bits: np.ndarray) -> None:
        """`bits` is packed as by numpy.packbits, line 1 first."""
        self.bits = bits

    def __call__(self, first_line: int, count: int) -> np.ndarray:
        """For `count` lines from `first_line` on: True where the pair came before."""
        places = np.arange(first_line - 1, first_line - 1 + count)
        return (self.bits[places >> 3] >> (7 - (places & 7)).astype(np.uint8) & 1).astype(bool)


def find_repetitions(pairs: Iterable[Pair], count: int, scratch: Path) -> Repetitions:
    """Read a corpus of `count` pairs and find every pair whose normalised text came before.

    Texts are compared by 128-bit hashes (BLAKE2b), spread over up to 256 files of about a million pairs each in the
    folder `scratch`; they are gone afterwards. Memory: a bit a pair, and some 60 MB to sort the largest file (more only
    beyond 268 million pairs). Disk: 24 bytes a pair.
    """
    bits = np.zeros((count + 7) // 8, dtype=np.uint8)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".duplicates.") as name:
        partitions = min(_MOST_PARTITIONS, 1 + count // _PARTITION_PAIRS)
        paths = [Path(name) / str(number) for number in range(partitions)]
        with ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for pair in pairs:
                text = f"{normalize(pair.source)}\n{normalize(pair.target)}"
                digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
                files[digest[0] % partitions].write(digest + pair.line_number.to_bytes(8, "little"))
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
