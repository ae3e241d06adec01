"""Content hashes that say which files belong together: corpora, tokenizer, shards, checkpoints, model, scores."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtkit.errors import DataError
from mtkit.files import sha256_file
from mtkit.sections.data import Corpus


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


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
        hashes[name] = sha256_file(path)
    return hashes
