"""Reading lines and writing files so that nothing is lost: LF-only lines, atomic replacement, hashes, JSON lines."""

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from mtkit.errors import DataError

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
BROKEN_ARCHIVE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
"""What reading a damaged compressed file raises, besides OSError."""


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading bytes, decompressing .gz, .xz and .bz2 by their suffix.

    Raises DataError when the path is missing, a folder or unreadable.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file", f"relative paths start at {Path.cwd()}; check the spelling")
    if path.is_dir():
        raise DataError(f"{path}: is a folder, a file is expected", "name a file in it")
    try:
        opener = _OPENERS.get(path.suffix, open)
        return opener(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})", "check its permissions") from error


def read_byte_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield each line of a file as bytes without its LF (and without the CR of a CRLF).

    Only LF ends a line; a last line without LF counts. Compression goes by the suffix.
    Raises DataError for a missing file or a damaged archive, naming the file and the line reached.
    """
    with open_binary(path) as stream:
        number = 0
        while True:
            try:
                line = stream.readline()
            except (*BROKEN_ARCHIVE, OSError) as error:
                raise DataError(
                    f"{path}:{number + 1}: the file is damaged or not what its suffix says ({error})",
                    "unpack it with the tool that made it to see where it breaks, or fetch it again",
                ) from error
            if not line:
                return
            number += 1
            yield strip_line_end(line)


def strip_line_end(line: bytes) -> bytes:
    """The line without a final LF or CRLF. A CR anywhere else is text and stays."""
    if line.endswith(b"\n"):
        line = line[:-1]
        if line.endswith(b"\r"):
            line = line[:-1]
    return line


def decode_line(line: bytes, path: str | os.PathLike[str], number: int) -> str:
    """Decode one line as UTF-8; a byte order mark at the start of line 1 is dropped.

    Raises DataError naming file, line, byte and column when it is not UTF-8.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte 0x{line[error.start]:02X} at column {error.start + 1} is not UTF-8",
            "convert the file, for example with: iconv -f latin1 -t utf-8 OLD > NEW",
        ) from None
    return text.removeprefix("\ufeff") if number == 1 else text


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or compressed, under `read_byte_lines`'s rules."""
    for number, line in enumerate(read_byte_lines(path), 1):
        yield decode_line(line, path, number)


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of the file's bytes as they lie on the disk."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut; a no-op where folders cannot be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it to `path`.

    `mode` is "w" (UTF-8 text, LF) or "wb". When the body raises, `path` is as it was and nothing is left behind.
    """
    assert mode in ("w", "wb")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    text: dict[str, Any] = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
    try:
        with os.fdopen(descriptor, mode, **text) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        give_usual_mode(name)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder beside `path`; on success sync its files and put it in `path`'s place.

    An older `path` is moved aside first and deleted last; a kill in the instant between the two renames leaves none,
    never half of one. When anything raises, `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield part
        put_in_place(part, path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def put_in_place(part: Path, path: Path) -> None:
    """Sync the files of the folder `part`, which lies beside `path`, and put it in the place of `path`.

    An older `path` is moved aside first and deleted last. When anything raises, both are as they were.
    """
    old = None
    try:
        for entry in sorted(part.rglob("*")):
            if entry.is_dir():
                sync_folder(entry)
            else:
                with open(entry, "rb") as stream:
                    os.fsync(stream.fileno())
        part.chmod(0o777 & ~_umask())
        sync_folder(part)
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
            os.replace(path, old / "was")
        os.replace(part, path)
    except BaseException:
        if old is not None and (old / "was").exists() and not path.exists():
            os.replace(old / "was", path)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        raise
    sync_folder(path.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def give_usual_mode(path: str | os.PathLike[str]) -> None:
    """Let those read and write the file who may by the user's umask; temporary files are their owner's alone."""
    os.chmod(path, 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as stream:
        json.dump(value, stream, ensure_ascii=False, indent=2)
        stream.write("\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises DataError naming file, line and column when it is not JSON."""
    with open_binary(path) as stream:
        raw = stream.read()
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}", "restore it, or make it again") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg})", "restore it, or make it again"
        ) from None


def append_json_line(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Append one JSON object as a line; the line is written whole, in one call.

    A last line left unfinished by a kill is closed first, so that what follows stays readable.
    """
    line = json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
    with open(path, "ab+") as stream:
        end = stream.seek(0, os.SEEK_END)
        if end:
            stream.seek(end - 1)
            if stream.read(1) != b"\n":
                line = b"\n" + line
        stream.write(line)


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All objects of a JSON-lines file; a line that is not whole JSON (cut by a kill) is skipped."""
    rows = []
    for line in read_byte_lines(path):
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line.decode("utf-8")))
    return rows
