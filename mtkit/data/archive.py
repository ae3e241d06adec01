"""Single files out of tar and zip archives. Nothing is unpacked but what is named, to where the caller says."""

import contextlib
import difflib
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from tqdm import tqdm

from mtkit.errors import DataError
from mtkit.files import atomic_write

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

_CHUNK = 1 << 20
_MEMBERS = "correct the members of this download in the recipe"
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)


def unpack(archive: Path, members: Mapping[str, Path], force: bool) -> Iterator[tuple[Path, bool]]:
    """Write each of `members` (name inside the archive -> path to write) and yield its path and whether it is new.

    A path in the archive has no say in where a file goes, so it cannot lead outside. Each file appears whole or not
    at all. One that exists with the same bytes is left; with other bytes it is refused unless `force`. Raises
    DataError for a missing member, one that is not a file, a damaged archive, or a full disk.
    """
    wanted = {posixpath.normpath(name): path for name, path in members.items()}
    seen: list[str] = []
    try:
        with contextlib.closing(_files(archive, wanted, seen)) as files:
            for name, size, content in files:
                yield wanted[name], _place(archive, name, size, content, wanted[name], force)
                del wanted[name]
                if not wanted:
                    return
    except _DAMAGED as error:
        raise DataError(f"{archive}: the archive is damaged ({error})", "delete it and fetch it again") from error
    missing = next(iter(wanted))
    near = difflib.get_close_matches(missing, seen, 1) or difflib.get_close_matches(
        posixpath.basename(missing), map(posixpath.basename, seen), 1
    )
    raise DataError(f"{archive}: has no member {missing!r}", f"the nearest name in it is {near[0]!r}" if near else None)


def _files(archive: Path, wanted: Iterable[str], seen: list[str]) -> Generator[tuple[str, int, IO[bytes]]]:
    """Normalised name, size and content of each wanted member; the names passed by are added to `seen`."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as bundle:
            for entry in bundle.infolist():
                name = posixpath.normpath(entry.filename)
                seen.append(name)
                if name in wanted:
                    if entry.is_dir() or entry.flag_bits & 1:
                        what = "a folder" if entry.is_dir() else "encrypted"
                        raise DataError(f"{archive}: member {name!r} is {what}, a plain file is expected", _MEMBERS)
                    with bundle.open(entry) as content:
                        yield name, entry.file_size, content
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            seen.append(name)
            if name in wanted:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is None:
                    raise DataError(
                        f"{archive}: member {name!r} is a folder or a link, a plain file is expected", _MEMBERS
                    )
                with stream:
                    yield name, member.size, stream


def _place(archive: Path, name: str, size: int, content: IO[bytes], path: Path, force: bool) -> bool:
    """Write one member to `path`; False when the same bytes are there already."""
    with tqdm(desc=path.name, total=size, unit="B", unit_scale=True, unit_divisor=1024, delay=2, disable=None) as bar:
        if path.exists() and not force:
            with open(path, "rb") as present:
                while chunk := content.read(_CHUNK):
                    if present.read(len(chunk)) != chunk:
                        break
                    bar.update(len(chunk))
                if not chunk and not present.read(1):
                    return False
            raise DataError(
                f"{path}: is there already, and differs from {name!r} in {archive}",
                "--force replaces it; or move it away and run this again",
            )
        with atomic_write(path, "wb") as stream:
            while chunk := content.read(_CHUNK):
                stream.write(chunk)
                bar.update(len(chunk))
    return True
