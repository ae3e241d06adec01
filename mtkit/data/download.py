"""One file over HTTP: resumed after an interruption, verified, and put in place only when it is right."""

import contextlib
import errno
import http.client
import logging
import os
import re
import socket
import ssl
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from mtkit.errors import DataError
from mtkit.files import sha256_file, sync_folder

try:
    import fcntl
except ImportError:  # Windows: two downloads of one file at a time are not noticed, only found wrong at the end
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_ELSEWHERE = "files that are already somewhere need no download: --set data.root=DIR points the recipe at them"


@dataclass(frozen=True, slots=True)
class Network:
    """How patient to be: seconds without an answer, attempts in all, seconds before the second (then doubled)."""

    timeout: float = 30.0
    attempts: int = 5
    pause: float = 1.0


class _Interrupted(Exception):
    """An attempt that ended early in a way that another one may mend."""


def download(url: str, path: Path, sha256: str, network: Network) -> None:
    """Bring `url` to `path`, replacing what is there.

    Bytes gather in `path` + ".part", which outlives a failure or a kill and is where the next call goes on. Only a
    file with the right hash is renamed to `path`; one with a wrong hash is deleted (fetched once more first when it
    was put together from several answers). Raises DataError naming the URL.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part) as stream:
            transfer = _Transfer(url, stream, part, network)
            transfer.run()
            if transfer.resumed and sha256_file(part) != sha256:
                logger.warning("%s: the parts do not fit together; starting again", url)
                transfer.restart()
                transfer.run()
            got, size = sha256_file(part), os.path.getsize(part)
            if got != sha256:
                _refuse(url, part, got, sha256, size, cut=transfer.total is None)
            os.fsync(stream.fileno())
            if fcntl is None:
                stream.close()  # Windows does not rename open files
            os.replace(part, path)
    except OSError as error:
        raise _disk_error(error, part) from error
    sync_folder(path.parent)


class _Transfer:
    """The state of bringing one URL into an open .part file: where it stands between attempts."""

    def __init__(self, url: str, stream: FileIO, part: Path, network: Network) -> None:
        self.url, self.stream, self.part, self.network = url, stream, part, network
        self.resumed = False
        self.answered = False
        self.total: int | None = None
        self.validator: str | None = None

    def restart(self) -> None:
        """Forget what came so far."""
        self.stream.truncate(0)
        self.resumed = False
        self.validator = None

    def run(self) -> None:
        """Fill the .part file, in several attempts if need be. Raises DataError when they are used up."""
        pause = self.network.pause
        for attempt in range(1, self.network.attempts + 1):
            try:
                self.attempt()
                return
            except _Interrupted as interruption:
                if attempt == self.network.attempts:
                    raise self.failure(f"{interruption}, in the last of {attempt} attempts") from interruption
                logger.warning("%s: %s; trying again in %g s", self.url, interruption, pause)
            time.sleep(pause)
            pause *= 2

    def attempt(self) -> None:
        """One request, which goes on at the end of the .part file. Raises _Interrupted when it ends too early."""
        offset = self.stream.seek(0, os.SEEK_END)
        with contextlib.closing(self.request(offset)) as answer:
            self.answered = True
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
            if answer.status == 416 and offset:
                if answer.headers.get("Content-Range") == f"bytes */{offset}":
                    self.resumed = True
                    return
                self.restart()
                raise _Interrupted(f"the server has no byte {offset} to go on at")
            if answer.status == 206:
                if match is None or int(match[1]) != offset:
                    self.restart()
                    raise _Interrupted("the server sent another part than the one asked for")
                self.resumed = True
                self.total = int(match[2]) if match[2] != "*" else None
            else:
                if offset:
                    logger.info("%s: the server cannot go on at byte %d; starting again", self.url, offset)
                    self.restart()
                self.total = _number(answer.headers.get("Content-Length"))
            tag = answer.headers.get("ETag", "")
            self.validator = tag if tag.startswith('"') else None  # W/ tags do not promise equal bytes
            self.receive(answer)

    def request(self, offset: int) -> Any:
        """The server's answer; statuses 200, 206 and 416 get here. Raises DataError for those that will not change."""
        headers = {"User-Agent": "mtkit", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
            if self.validator:
                headers["If-Range"] = self.validator
        url = urllib.parse.quote(self.url, safe=string.punctuation)
        try:
            answer = _opener().open(urllib.request.Request(url, headers=headers), timeout=self.network.timeout)
        except urllib.error.HTTPError as error:
            if error.code == 416 and offset:
                return error
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            if error.code in _PASSING:
                raise _Interrupted(reason) from error
            raise DataError(f"{self.url}: {reason}", f"check the address; {_ELSEWHERE}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from error
        if answer.status not in (200, 206):
            answer.close()
            raise DataError(
                f"{self.url}: the server answered {answer.status} {answer.reason}, without a file",
                f"check the address; {_ELSEWHERE}",
            )
        return answer

    def unreachable(self, error: OSError | http.client.HTTPException) -> Exception:
        """What to raise when no answer came."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DataError(
                f"{self.url}: the server's certificate is not trusted ({cause.verify_message})",
                "check the clock and the installed certificates (SSL_CERT_FILE names a file of them)",
            )
        if isinstance(cause, http.client.InvalidURL):
            return DataError(f"{self.url}: not a usable address ({cause})", "check data.downloads in the recipe")
        if isinstance(cause, socket.gaierror) and not self.answered:
            return self.failure(self.describe(cause))
        return _Interrupted(self.describe(cause))

    def describe(self, cause: object) -> str:
        """A network fault in words."""
        if isinstance(cause, TimeoutError):
            return f"no answer within {self.network.timeout:g} s"
        return f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__}"

    def receive(self, answer: Any) -> None:
        """Append the answer's bytes to the .part file. Raises _Interrupted when they end before the stated size."""
        size = self.stream.seek(0, os.SEEK_END)
        name = self.part.name.removesuffix(".part")
        with tqdm(
            desc=name, total=self.total, initial=size, unit="B", unit_scale=True, unit_divisor=1024, disable=None
        ) as bar:
            while self.total is None or size < self.total:
                try:
                    chunk = answer.read1(_CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise _Interrupted(f"{self.describe(error)} after {size} bytes") from error
                if not chunk:
                    break
                _write_all(self.stream, chunk)
                size += len(chunk)
                bar.update(len(chunk))
        if self.total is not None and size != self.total:
            raise _Interrupted(f"the answer broke off after {size} of {self.total} bytes")

    def failure(self, reason: str) -> DataError:
        """The error to end with: what is wrong, what is kept, and the way on."""
        size = self.stream.seek(0, os.SEEK_END)
        if size:
            kept = f"{size}{f' of {self.total}' if self.total else ''} bytes are kept in {self.part}"
            return DataError(f"{self.url}: {reason}; {kept}", "run the same command again: it goes on there")
        if self.answered:
            return DataError(f"{self.url}: {reason}", "run the same command again later")
        hint = f"is there a connection to the network? If so, run it again later; {_ELSEWHERE}"
        return DataError(f"{self.url}: {reason}", hint)


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[FileIO]:
    """The .part file, open for appending without a buffer, and for this process alone."""
    with open(part, "ab+", buffering=0) as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken = not (part.exists() and os.path.samestat(os.fstat(stream.fileno()), os.stat(part)))
            except BlockingIOError:
                taken = True
            except OSError:  # a file system without locks
                taken = False
            if taken:
                raise DataError(f"{part}: another process is downloading this file", "wait for it, then run this again")
        try:
            yield stream
        finally:
            if not stream.closed and os.fstat(stream.fileno()).st_size == 0:
                part.unlink(missing_ok=True)


def _write_all(stream: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[stream.write(rest) :]


def _disk_error(error: OSError, part: Path) -> DataError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(
            f"{part}: no room to write more ({reason})",
            "free some space and run the same command again: it goes on there",
        )
    return DataError(f"{part}: cannot be written ({reason})", "data.root must be a folder that you may write to")


def _refuse(url: str, part: Path, got: str, expected: str, size: int, cut: bool) -> NoReturn:
    """Delete a file with the wrong hash and say so; `cut`: the server stated no size, so it may not be whole."""
    with open(part, "rb") as stream:
        is_page = stream.read(256).lstrip().lower().startswith((b"<!doctype html", b"<html"))
    part.unlink()
    hint = "the file has changed at its source, or the recipe's sha256 is wrong: look at it before you trust it"
    if cut:
        hint = f"the server did not say how long the file is, so it may have been cut: run this again; if not, {hint}"
    if is_page:
        hint = "a web page came in place of the file: open the address in a browser; a login or proxy may be in between"
    raise DataError(
        f"{url}: SHA-256 of the {size} bytes received is {got}, the recipe expects {expected}; "
        "they were deleted and nothing was replaced",
        hint,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None


def _opener() -> urllib.request.OpenerDirector:
    """urllib's opener for http and https alone, so that a redirect leads to nothing else."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
