"""A chunk of pairs to arrays of ids: the work that binarization gives to its processes."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mtkit.data.corpus import Pair
from mtkit.data.filters import reject
from mtkit.data.shards import id_dtype
from mtkit.ids import UNK
from mtkit.lines import Occurrences
from mtkit.sections.data import Filters
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.words import WordMemory

_CHUNK_PAIRS = 2048
_CHUNK_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive pairs of a corpus; `repeated` marks those that were seen before in it (None: not looked for)."""

    first_line: int
    sources: list[str]
    targets: list[str]
    repeated: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """The kept pairs of a chunk, ids end to end, and what was dropped."""

    read: int
    source_ids: np.ndarray
    target_ids: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    line_numbers: np.ndarray
    dropped: dict[str, Occurrences]
    source_unknown: int
    target_unknown: int


@dataclass(frozen=True)
class Encoder:
    """All that a process needs to encode chunks of one corpus; can be pickled.

    `filters` None keeps every pair that has a token on each side, as validation does. `tag_ids` go before each source.
    """

    tokenizers: Tokenizers
    filters: Filters | None
    tag_ids: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """The dtype of ids in the shards."""
        return id_dtype(max(self.tokenizers.source.size, self.tokenizers.target.size))

    @functools.cached_property
    def _memories(self) -> tuple[WordMemory, WordMemory]:
        source = WordMemory(self.tokenizers.source)
        return source, source if self.tokenizers.joint else WordMemory(self.tokenizers.target)

    def __call__(self, chunk: Chunk) -> Encoded:
        """Encode and filter a chunk; the same chunk gives the same arrays in every process."""
        source_rows, target_rows = [], []
        lines: list[int] = []
        dropped: dict[str, Occurrences] = {}
        tags = list(self.tag_ids)
        encoded = zip(
            chunk.sources,
            chunk.targets,
            self._memories[0].encode_batch(chunk.sources),
            self._memories[1].encode_batch(chunk.targets),
            strict=True,
        )
        for place, (source, target, bare_source_ids, target_ids) in enumerate(encoded):
            source_ids = tags + bare_source_ids if tags else bare_source_ids
            if self.filters is not None:
                reason = reject(source, target, source_ids, target_ids, self.filters, len(tags))
            else:
                reason = None if bare_source_ids and target_ids else "empty"
            if reason is None and chunk.repeated is not None and chunk.repeated[place]:
                reason = "duplicate"
            if reason is None:
                source_rows.append(source_ids)
                target_rows.append(target_ids)
                lines.append(chunk.first_line + place)
            else:
                dropped.setdefault(reason, Occurrences()).add(chunk.first_line + place)
        source_flat, source_lengths = _flatten(source_rows, self.dtype)
        target_flat, target_lengths = _flatten(target_rows, self.dtype)
        return Encoded(
            read=len(chunk.sources),
            source_ids=source_flat,
            target_ids=target_flat,
            source_lengths=source_lengths,
            target_lengths=target_lengths,
            line_numbers=np.array(lines, dtype=np.uint64),
            dropped=dropped,
            source_unknown=int(np.count_nonzero(source_flat == UNK)),
            target_unknown=int(np.count_nonzero(target_flat == UNK)),
        )


def cut(
    pairs: Iterable[Pair], repeated: Callable[[int, int], np.ndarray] | None = None, size: int = _CHUNK_PAIRS
) -> Iterator[Chunk]:
    """Cut a corpus, in order, into chunks of at most `size` pairs and about a million characters.

    `repeated(line, count)` tells which of `count` lines from `line` on are repetitions.
    """
    sources: list[str] = []
    targets: list[str] = []
    first = characters = 0

    def chunk() -> Chunk:
        return Chunk(first, sources, targets, repeated(first, len(sources)) if repeated else None)

    for pair in pairs:
        if not sources:
            first, characters = pair.line_number, 0
        sources.append(pair.source)
        targets.append(pair.target)
        characters += len(pair.source) + len(pair.target)
        if len(sources) == size or characters >= _CHUNK_CHARACTERS:
            yield chunk()
            sources, targets = [], []
    if sources:
        yield chunk()


def _flatten(rows: Sequence[Sequence[int]], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows end to end, and their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=int(lengths.sum())), lengths
