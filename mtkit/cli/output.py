"""Results on stdout or in a file, whole line by whole line."""

import bz2
import contextlib
import gzip
import lzma
import os
import select
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

from mtkit.cli.descriptors import write_all
from mtkit.files import atomic_write
from mtkit.training.signals import orderly_end, terminations

STDOUT = 1


class Output:
    """Takes lines and hands them on at once; never a part of one, unless the world ends in the middle."""

    def __init__(self, write: Callable[[bytes], object], name: str, descriptor: int | None = None) -> None:
        """`write` takes all bytes it is given; `descriptor` is that of a pipe or terminal whose reader may go."""
        self.name = name
        self._write = write
        self._poll = select.poll() if descriptor is not None and not _is_file(descriptor) else None
        if self._poll is not None and descriptor is not None:
            self._poll.register(descriptor, 0)
        self._writing = False
        self._ended_by: int | None = None

    def write(self, lines: str) -> None:
        """Write whole lines. Raises OSError naming the output, BrokenPipeError when its reader has gone.

        Ends after the lines when a signal has come in the middle of them; see `whole_lines`.
        """
        self._writing = True
        try:
            self._write(lines.encode("utf-8"))
        except OSError as error:
            error.filename = self.name
            raise
        finally:
            self._writing = False
        if self._ended_by is not None:
            raise _ending(self._ended_by)

    def refuse_closed(self) -> None:
        """Raise BrokenPipeError when nobody can read what is written any more: then more work is for nothing."""
        if self._poll is not None and self._poll.poll(0):
            raise BrokenPipeError

    @contextlib.contextmanager
    def whole_lines(self) -> Iterator[None]:
        """In this block a first Ctrl-C, SIGTERM or SIGHUP in the middle of a `write` waits for its end.

        They raise KeyboardInterrupt and SystemExit (143, 129). One that is ignored stays so.
        """

        def end(number: int, frame: FrameType | None) -> None:
            if not self._writing or self._ended_by is not None:
                raise _ending(number)
            self._ended_by = number

        numbers = (signal.SIGINT, *terminations())
        before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}
        for number in before:
            signal.signal(number, end)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Output]:
    """An Output to `path`, compressed by a suffix .gz, .xz or .bz2; to stdout where it is None.

    A file appears when the block ends well, complete; otherwise, after a signal too, what was there is left. What is no
    file, such as a named pipe or /dev/null, is written as it stands.
    """
    if path is None:
        yield Output(partial(write_all, STDOUT), "<stdout>", STDOUT)
        return
    path = path.resolve()
    if path.exists() and not path.is_file():
        with open(path, "wb", buffering=0) as device:
            yield Output(partial(write_all, device.fileno()), str(path), device.fileno())
        return
    with orderly_end(), atomic_write(path, "wb") as file, _compressor(file, path.suffix) as stream:
        yield Output(stream.write, str(path))


def _compressor(file: IO[bytes], suffix: str) -> contextlib.AbstractContextManager[Any]:
    match suffix:
        case ".gz":
            return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
        case ".xz":
            return lzma.LZMAFile(file, "wb")
        case ".bz2":
            return bz2.BZ2File(file, "wb")
        case _:
            return contextlib.nullcontext(file)


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
