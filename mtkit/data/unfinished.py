"""The folder in which shards are made, beside the one that they will be in: what a call that was cut short has finished
there, the next call keeps.

Beside each finished shard lies a note: what the shard depends on, as a fingerprint, the last line that was read for it,
and all that was counted up to there. A shard is kept when note and bytes are whole and the fingerprint is the same.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtkit.data.encode import Encoded
from mtkit.data.report import ShardFile
from mtkit.errors import DataError
from mtkit.files import put_in_place, read_json, sha256_file, write_json
from mtkit.lines import Occurrences

NOTES = "unfinished"
"""The folder of the notes, in the folder of the shards."""


@dataclass(slots=True)
class Progress:
    """How far a corpus has come: lines read from its top, what was counted in them, and the shards they went into."""

    read: int = 0
    kept: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    source_unknown: int = 0
    target_unknown: int = 0
    drops: dict[str, Occurrences] = field(default_factory=dict)
    shards: list[ShardFile] = field(default_factory=list)

    def add(self, encoded: Encoded) -> None:
        """Count one more chunk; changes the progress."""
        self.read += encoded.read
        self.kept += len(encoded.line_numbers)
        self.source_tokens += len(encoded.source_ids)
        self.target_tokens += len(encoded.target_ids)
        self.source_unknown += encoded.source_unknown
        self.target_unknown += encoded.target_unknown
        for reason, drop in encoded.dropped.items():
            self.drops.setdefault(reason, Occurrences()).merge(drop)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Progress":
        """The progress that `asdict` gave."""
        drops = {reason: Occurrences(**drop) for reason, drop in values["drops"].items()}
        return cls(**{**values, "drops": drops, "shards": [ShardFile(**shard) for shard in values["shards"]]})


@contextlib.contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """The folder to make shards in; it takes the place of `folder` when the block ends well.

    When it does not, finished shards stay for the next call; without any the working folder is removed. Raises
    DataError when another process is at work there.
    """
    work = folder.with_name(f".{folder.name}.unfinished")
    work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work, os.O_RDONLY)
    try:
        _lock(descriptor, work)
        (work / NOTES).mkdir(exist_ok=True)
        try:
            yield work
            shutil.rmtree(work / NOTES)
            work.chmod(folder.parent.stat().st_mode & 0o777)
            put_in_place(work, folder)
        except BaseException:
            if not list((work / NOTES).glob("*.json")):
                shutil.rmtree(work, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int, work: Path) -> None:
    """Lock an open folder; the system lets go when the process ends, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.path.samestat(os.fstat(descriptor), os.stat(work))
    except (BlockingIOError, FileNotFoundError):
        there = False
    if not there:
        raise DataError(f"{work}: another process is making these shards", "wait until it has ended, or stop it")


def note(work: Path, key: str, progress: Progress) -> None:
    """Write down that the newest shard of a corpus is finished."""
    write_json(_note_of(work, progress.shards[-1].file), {"key": key, "progress": asdict(progress)})


def _note_of(work: Path, file: str) -> Path:
    return work / NOTES / f"{file.replace('/', '-')}.json"


def kept(work: Path, key: str, names: Iterable[str]) -> Progress:
    """How far a corpus has come: up to the last of its shards, which are named `names`, from which on all are whole."""
    newest = Progress()
    for file in names:
        path = _note_of(work, file)
        if not path.is_file() or not (work / file).is_file():
            return newest
        try:
            document = read_json(path)
            progress = Progress.from_dict(document["progress"])
            same = document["key"] == key and [shard.file for shard in progress.shards][-1:] == [file]
        except (DataError, KeyError, TypeError, AttributeError):
            return newest
        if not same or progress.shards[-1].sha256 != sha256_file(work / file):
            return newest
        newest = progress
    return newest


def clear_rest(work: Path, shards: Iterable[ShardFile], also: Iterable[Path] = ()) -> None:
    """Delete everything in the working folder but these shards with their notes, and `also`."""
    files = [shard.file for shard in shards]
    keep = {*also, *(work / file for file in files), *(_note_of(work, file) for file in files)}
    for path in work.rglob("*"):
        if path.is_file() and path not in keep:
            path.unlink()
