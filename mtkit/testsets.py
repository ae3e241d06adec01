"""sacreBLEU's own test sets by name: fetched by sacreBLEU on first use, kept where it keeps them."""

import contextlib
import difflib
import socket
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import portalocker
from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from mtkit.errors import MtkitError, UsageError
from mtkit.evaluate import relayed_warnings
from mtkit.files import read_lines

_SECONDS = 30  # without an answer
_FAILURES = (
    OSError,
    EOFError,
    SystemExit,  # how sacreBLEU ends where a hash or certificate is wrong
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    portalocker.exceptions.BaseLockException,
)


@dataclass(frozen=True, slots=True)
class PublicSet:
    """A public test set: its sources, and one full list of lines for each reference."""

    name: str
    pair: str
    source: list[str]
    references: list[list[str]]

    @property
    def target_language(self) -> str:
        """The language that is translated into."""
        return self.pair.split("-")[1]


def load(name: str, pair: str) -> PublicSet:
    """sacreBLEU's test set `name` for a language pair such as en-de, downloaded where it is not there yet.

    Raises UsageError for a name or pair that sacreBLEU does not have, MtkitError when it cannot be fetched.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 4, 0.5) or sorted(DATASETS)[-4:]
        raise UsageError(
            f"sacreBLEU has no test set {name!r}", f"near it are {', '.join(near)}; all of them: sacrebleu --list"
        )
    data = DATASETS[name]
    if pair not in data.langpairs:
        near = difflib.get_close_matches(pair, data.langpairs, 4, 0.5)
        known = near or list(data.langpairs)[:12]
        raise UsageError(
            f"the test set {name} has no language pair {pair!r}",
            f"it has {', '.join(known)}{'' if len(known) == len(data.langpairs) else ', ...'}; "
            f"all of them: sacrebleu --list -t {name}",
        )
    try:
        with _impatient(), relayed_warnings():
            source_file, reference_files = data.get_source_file(pair), data.get_reference_files(pair)
    except _FAILURES as error:
        reason = "sacreBLEU gave up" if isinstance(error, SystemExit) else error
        raise MtkitError(
            f"the test set {name}, {pair}, cannot be fetched ({reason})",
            "try again with a network, or give the reference files instead of --test-set; what a broken download "
            f"has left lies in {Path(SACREBLEU_DIR) / name}",
        ) from error
    return PublicSet(name, pair, list(read_lines(source_file)), [list(read_lines(file)) for file in reference_files])


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """A server that does not answer is given up, which sacreBLEU would wait for."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
