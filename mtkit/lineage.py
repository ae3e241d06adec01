"""Content hashes that say which files belong together: corpora, tokenizer, shards, checkpoints, model, scores."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtkit.errors import DataError
from mtkit.files import sha256_file
from mtkit.sections.data import Corpus

_SETTLED = 2.0  # seconds after which a file system's clock has surely moved on
_KNOWN: dict[Path, tuple[tuple[int, ...], str]] = {}


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def text_sha256(lines: Iterable[str]) -> str:
    """Hex SHA-256 of lines of text, each with an LF: that of the file, where it is plain text with LF throughout."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys at which two nested mappings differ, each with its old and new value.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    {'a.c': (2, 3)}
    """
    before, after = _flat(old), _flat(new)
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def corpus_names(corpora: Iterable[Corpus]) -> list[str]:
    """The files of these corpora as the recipe names them, each once, in its order."""
    names = [name for corpus in corpora for name in (corpus.source, corpus.target, corpus.tsv) if name is not None]
    return list(dict.fromkeys(names))


def corpus_hashes(corpora: Iterable[Corpus], root: Path) -> dict[str, str]:
    """SHA-256 of every file of these corpora, by its name in the recipe. Raises DataError for a missing file."""
    hashes = {}
    for name in corpus_names(corpora):
        path = root / name
        if not path.is_file():
            raise DataError(
                f"{path}: no such file",
                f"relative paths start at {Path.cwd()}; --set data.root=DIR points the recipe elsewhere, "
                "`mtkit fetch` downloads what the recipe lists",
            )
        hashes[name] = known_sha256(path)
    return hashes


def known_sha256(path: Path) -> str:
    """SHA-256 of a file, read once in the life of this process while the file stays as it is.

    As it is: size, inode, and the times of the last change of contents and of state, of which no program can set the
    latter. A file that has changed in the last two seconds is read anew, for another change may get the same times.
    Between processes nothing is remembered, as time stamps may be wrong after a move or a restore; 10 GB take about six
    seconds.
    """
    before = path.stat()
    mark = (before.st_size, before.st_ino, before.st_dev, before.st_mtime_ns, before.st_ctime_ns)
    place = path.absolute()
    if place in _KNOWN and _KNOWN[place][0] == mark:
        return _KNOWN[place][1]
    settled = time.time() - max(before.st_mtime, before.st_ctime) > _SETTLED
    sha256 = sha256_file(path)
    if settled:
        _KNOWN[place] = (mark, sha256)
    return sha256
