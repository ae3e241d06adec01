"""Content hashes that say which files belong together: corpora, tokenizer, shards, checkpoints, model, scores."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mtkit.errors import DataError
from mtkit.files import sha256_file
from mtkit.sections.data import Corpus


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def corpus_files(corpora: Iterable[Corpus], root: Path) -> list[Path]:
    """The files of these corpora, each once, in the order of the recipe."""
    names = [name for corpus in corpora for name in (corpus.source, corpus.target, corpus.tsv) if name is not None]
    return [root / name for name in dict.fromkeys(names)]


def corpus_hashes(corpora: Iterable[Corpus], root: Path) -> dict[str, str]:
    """SHA-256 of every file of these corpora, by its name in the recipe. Raises DataError for a missing file."""
    hashes = {}
    for path in corpus_files(corpora, root):
        if not path.is_file():
            raise DataError(
                f"{path}: no such file",
                f"relative paths start at {Path.cwd()}; --set data.root=DIR points the recipe elsewhere, "
                "`mtkit fetch` downloads what the recipe lists",
            )
        hashes[path.relative_to(root).as_posix()] = sha256_file(path)
    return hashes
