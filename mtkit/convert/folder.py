"""Folders of exported models: what they were made from, whether they are whole, and when they may be replaced.

EXPORT/mtkit.json   what it was made from, and the hash of every other file
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mtkit.errors import DataError, MtkitError
from mtkit.files import atomic_folder, read_json, sha256_file, write_json
from mtkit.folders import FORMAT_VERSION
from mtkit.lineage import fingerprint
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

STAMP_FILE = "mtkit.json"

Kind = Literal["ctranslate2", "huggingface"]


@dataclass(frozen=True, slots=True)
class Origin:
    """All that an export depends on: equal origins make equal exports."""

    kind: Kind
    writer: str
    """The version of what writes the format."""
    weights_sha256: str
    tokenizer_sha256: str
    model: Mapping[str, Any]
    quantization: str = "float32"
    positions: int = 0

    @classmethod
    def of(
        cls,
        weights: Path,
        recipe: Recipe,
        tokenizers: Tokenizers,
        *,
        kind: Kind,
        writer: str,
        quantization: str,
        positions: int,
    ) -> "Origin":
        """The origin of an export of the model whose weights lie in this file."""
        model = recipe.model.model_dump(mode="json")
        return cls(kind, writer, sha256_file(weights), tokenizers.sha256, model, quantization, positions)


def is_current(folder: Path, origin: Origin) -> bool:
    """Whether the folder is a whole export of just this; reads all of its files."""
    stamp = _stamp(folder)
    if stamp is None or stamp.get("format") != FORMAT_VERSION or stamp.get("origin_sha256") != _key(origin):
        return False
    files = stamp.get("sha256")
    if not isinstance(files, dict):
        return False
    return all((folder / name).is_file() and sha256_file(folder / name) == value for name, value in files.items())


@contextmanager
def export_folder(folder: Path, origin: Origin) -> Iterator[Path]:
    """Give an empty folder to export into; when the body is done, stamp it and put it in the place of `folder`.

    Raises MtkitError when something lies there that is not an export.
    """
    refuse_foreign(folder)
    with atomic_folder(folder) as new:
        yield new
        files = {str(path.relative_to(new)): sha256_file(path) for path in sorted(new.rglob("*")) if path.is_file()}
        stamp = {"format": FORMAT_VERSION, "origin_sha256": _key(origin), "origin": asdict(origin), "sha256": files}
        write_json(new / STAMP_FILE, stamp)


def refuse_foreign(folder: Path) -> None:
    """Raise MtkitError when the folder holds anything, and is not an export that may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or _stamp(folder) is None:
        raise MtkitError(
            f"{folder}: is there already, and is no export of mtkit's ({STAMP_FILE} is missing)",
            "give another folder with --output, or move it away",
        )


def _key(origin: Origin) -> str:
    return fingerprint(asdict(origin))


def _stamp(folder: Path) -> dict[str, Any] | None:
    """What the folder says of itself; None when it is not an export, or not whole."""
    if not (folder / STAMP_FILE).is_file():
        return None
    try:
        stamp = read_json(folder / STAMP_FILE)
    except DataError:
        return None
    return stamp if isinstance(stamp, dict) and "origin_sha256" in stamp else None


def cached(folder: Path, origin: Origin, write: Callable[[Path], None]) -> bool:
    """Make sure that the folder is a whole export of just this; returns whether `write` was called to make it so."""
    if is_current(folder, origin):
        return False
    with export_folder(folder, origin) as new:
        write(new)
    return True
