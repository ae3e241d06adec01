"""Shard files: encoded pairs on disk, read through a memory map.

    8 bytes   b"MTKSHARD"
    4 bytes   version, little-endian
    4 bytes   length of the JSON header
    ...       the header, JSON in UTF-8: version, dtype, pairs, source_tokens, target_tokens, arrays, content_sha256,
              and what the writer tells of corpus and tokenizer
    ...       the arrays, little-endian, each at the next multiple of 64: source_ids, target_ids (uint16 or uint32),
              source_offsets, target_offsets (uint64, pairs + 1), line_numbers (uint64)

Pair i has the source ids source_ids[source_offsets[i] : source_offsets[i + 1]]; ids are bare, without BOS and EOS.
"""

import functools
import hashlib
import json
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtkit.errors import ModelError
from mtkit.files import atomic_write

VERSION = 1
_MAGIC = b"MTKSHARD"
_START = struct.Struct("<8sII")
_ALIGNMENT = 64
_REMEDY = "make the shards again with: mtkit binarize RECIPE"
_ID_DTYPES = ("<u2", "<u4")


class Shard:
    """One open shard. Its arrays are views of a read-only memory map; nothing is read before it is used.

    Lengths are in tokens without BOS and EOS, as int64. Line numbers count from 1 in the corpus's files.
    """

    def __init__(self, path: Path, header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Use `open_shard`."""
        self.path = path
        self.header = header
        self.source_ids = arrays["source_ids"]
        self.target_ids = arrays["target_ids"]
        self.source_offsets = arrays["source_offsets"]
        self.target_offsets = arrays["target_offsets"]
        self.line_numbers = arrays["line_numbers"]

    def __len__(self) -> int:
        return int(self.header["pairs"])

    @functools.cached_property
    def source_lengths(self) -> np.ndarray:
        """Source tokens of each pair."""
        return np.diff(self.source_offsets.astype(np.int64))

    @functools.cached_property
    def target_lengths(self) -> np.ndarray:
        """Target tokens of each pair."""
        return np.diff(self.target_offsets.astype(np.int64))

    def longer_lengths(self, block: int = 1 << 16) -> Iterator[np.ndarray]:
        """The length of each pair's longer side, so many pairs at a time; keeps nothing of them in memory."""
        for begin in range(0, len(self), block):
            edges = slice(begin, begin + block + 1)
            sides = (np.diff(offsets[edges].astype(np.int64)) for offsets in (self.source_offsets, self.target_offsets))
            yield np.maximum(*sides)
            self.release()

    def source(self, index: int) -> np.ndarray:
        """The source ids of one pair."""
        return self.source_ids[int(self.source_offsets[index]) : int(self.source_offsets[index + 1])]

    def target(self, index: int) -> np.ndarray:
        """The target ids of one pair."""
        return self.target_ids[int(self.target_offsets[index]) : int(self.target_offsets[index + 1])]

    def release(self) -> None:
        """Let go of the pages that were read, which count as this process's memory; they are read again when needed."""
        memory = getattr(self.source_ids, "_mmap", None)
        if isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED)

    def verify(self) -> None:
        """Read the whole shard and compare it with its checksum. Raises ModelError when a byte has changed."""
        arrays = (self.source_ids, self.target_ids, self.source_offsets, self.target_offsets, self.line_numbers)
        if _content_sha256(arrays) != self.header["content_sha256"]:
            raise ModelError(f"{self.path}: its contents do not match its checksum; the file is damaged", _REMEDY)


@dataclass(frozen=True, slots=True)
class HeldShard:
    """Pairs in memory, in the form of a shard; lengths are without EOS."""

    source_ids: np.ndarray
    source_offsets: np.ndarray
    source_lengths: np.ndarray
    target_ids: np.ndarray
    target_offsets: np.ndarray
    target_lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.source_lengths)


def id_dtype(vocab_size: int) -> str:
    """The narrowest dtype for ids below `vocab_size`: "uint16" up to 65,536 entries, else "uint32"."""
    return "uint16" if vocab_size <= 65_536 else "uint32"


def write_shard(
    path: str | os.PathLike[str],
    source_ids: np.ndarray,
    target_ids: np.ndarray,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    line_numbers: np.ndarray,
    facts: Mapping[str, Any],
) -> None:
    """Write one shard, atomically. `facts` joins the header (JSON values); equal arguments give equal bytes.

    `source_ids` and `target_ids` hold the pairs' ids end to end, both uint16 or both uint32; lengths are in tokens.
    """
    assert source_ids.dtype == target_ids.dtype
    assert source_ids.dtype in (np.uint16, np.uint32)
    assert len(source_lengths) == len(target_lengths) == len(line_numbers)
    arrays = {
        "source_ids": source_ids.astype(source_ids.dtype.newbyteorder("<"), copy=False),
        "target_ids": target_ids.astype(target_ids.dtype.newbyteorder("<"), copy=False),
        "source_offsets": _offsets(source_lengths),
        "target_offsets": _offsets(target_lengths),
        "line_numbers": np.asarray(line_numbers).astype("<u8"),
    }
    assert int(arrays["source_offsets"][-1]) == len(source_ids)
    assert int(arrays["target_offsets"][-1]) == len(target_ids)
    header = {
        **facts,
        "version": VERSION,
        "dtype": source_ids.dtype.name,
        "pairs": len(line_numbers),
        "source_tokens": len(source_ids),
        "target_tokens": len(target_ids),
        "content_sha256": _content_sha256(tuple(arrays.values())),
        "arrays": {name: {"dtype": array.dtype.str, "length": len(array)} for name, array in arrays.items()},
    }
    text = json.dumps(header, ensure_ascii=False).encode("utf-8")
    with atomic_write(path, "wb") as stream:
        stream.write(_START.pack(_MAGIC, VERSION, len(text)) + text)
        for array in arrays.values():
            stream.write(bytes(-stream.tell() % _ALIGNMENT))
            stream.write(_bytes_of(array))


def open_shard(path: str | os.PathLike[str]) -> Shard:
    """Open a shard and check its header and size; `Shard.verify` checks every byte.

    Raises ModelError, naming the file and the remedy, when it is missing, cut short, damaged, not a shard, or written
    by a newer mtkit.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            start = stream.read(_START.size)
            header, data_start = _read_header(path, start, stream.read(_header_length(path, start)))
        memory = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise ModelError(f"{path}: the shard cannot be read ({error.strerror})", _REMEDY) from None
    try:
        arrays = {}
        end = data_start
        for name in ("source_ids", "target_ids", "source_offsets", "target_offsets", "line_numbers"):
            dtype, length = np.dtype(header["arrays"][name]["dtype"]), int(header["arrays"][name]["length"])
            begin = end + -end % _ALIGNMENT
            end = begin + length * dtype.itemsize
            if end > size:
                raise ModelError(f"{path}: cut short: {size} bytes, {end} or more are expected", _REMEDY)
            arrays[name] = memory[begin:end].view(dtype)
        sound = (
            end == size
            and arrays["source_ids"].dtype.str in _ID_DTYPES
            and arrays["source_ids"].dtype == arrays["target_ids"].dtype
            and len(arrays["line_numbers"]) == header["pairs"]
            and all(
                len(arrays[f"{side}_offsets"]) == header["pairs"] + 1
                and arrays[f"{side}_offsets"][0] == 0
                and arrays[f"{side}_offsets"][-1] == len(arrays[f"{side}_ids"])
                for side in ("source", "target")
            )
            and isinstance(header["content_sha256"], str)
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ModelError(f"{path}: header and contents disagree; the file is damaged", _REMEDY)
    return Shard(path, header, arrays)


def shard_name(corpus: str, number: int) -> str:
    """The file name of a corpus's shard, counted from 0."""
    return f"{corpus}-{number:05d}.shard"


def find_shards(folder: str | os.PathLike[str], corpus: str) -> list[Path]:
    """The shard files of one corpus in a folder, in order.

    Raises ModelError when there is none or one is missing between them.
    """
    pattern = re.compile(re.escape(corpus) + r"-(\d{5,})\.shard")
    folder = Path(folder)
    names = os.listdir(folder) if folder.is_dir() else []
    numbers = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    missing = sorted(set(range(max(numbers, default=0) + 1)) - set(numbers))
    if missing:
        raise ModelError(f"{folder / shard_name(corpus, missing[0])}: no such shard", _REMEDY)
    return [folder / shard_name(corpus, number) for number in numbers]


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype="<u8")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _content_sha256(arrays: Sequence[np.ndarray]) -> str:
    content = hashlib.sha256()
    for array in arrays:
        content.update(_bytes_of(array))
    return content.hexdigest()


def _bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, not copied."""
    return np.ascontiguousarray(array).view(np.uint8).data


def _header_length(path: Path, start: bytes) -> int:
    """The length of the JSON header, once the fixed start is a shard's of a version known here."""
    if len(start) < _START.size or start[: len(_MAGIC)] != _MAGIC:
        raise ModelError(f"{path}: is not a shard of mtkit, or is cut short", _REMEDY)
    _, version, length = _START.unpack(start)
    if version > VERSION:
        raise ModelError(
            f"{path}: has format version {version}, this mtkit reads up to {VERSION}", f"update mtkit, or {_REMEDY}"
        )
    return int(length)


def _read_header(path: Path, start: bytes, text: bytes) -> tuple[dict[str, Any], int]:
    """The header and the place where it ends."""
    length = _START.unpack(start)[2]
    if len(text) < length:
        raise ModelError(f"{path}: cut short inside its header", _REMEDY)
    try:
        header = json.loads(text.decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError
    except ValueError:
        raise ModelError(f"{path}: its header is damaged", _REMEDY) from None
    return header, _START.size + length
