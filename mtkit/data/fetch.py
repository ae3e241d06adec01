"""Brings the public files that a recipe names: each one downloaded, verified against its hash, unpacked where asked."""

import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

from mtkit.data.archive import SUFFIXES, unpack
from mtkit.data.download import Network, download
from mtkit.errors import DataError, RecipeError
from mtkit.files import sha256_file
from mtkit.recipe import Recipe
from mtkit.sections.data import Download

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file of the recipe, what was done for it, and its size."""

    path: Path
    status: Literal["downloaded", "unpacked", "up to date"]
    bytes: int


def fetch(recipe: Recipe, *, force: bool = False, network: Network | None = None) -> list[Fetched]:
    """Bring every file of `recipe.data.downloads` into `data.root`, and say what was done for each.

    A file that is there with the right hash is left as it is, so that a second call needs no network. Raises
    RecipeError for a path that leads out of `data.root`, and DataError for a file that is there with another hash
    (before anything is downloaded; with `force` it is replaced) and for all that can go wrong on the way.
    """
    done = []
    for item in fetch_each(recipe, force=force, network=network):
        if item.status != "up to date":
            logger.info("%s: %s, %d bytes", item.path, item.status, item.bytes)
        done.append(item)
    return done


def fetch_each(recipe: Recipe, *, force: bool = False, network: Network | None = None) -> Iterator[Fetched]:
    """`fetch` in silence, one file at a time: yields each as soon as it is there."""
    root = Path(recipe.data.root)
    _check_paths(recipe)
    present = [_is_present(item, root / item.path, force) for item in recipe.data.downloads]
    for item, is_there in zip(recipe.data.downloads, present, strict=True):
        path = root / item.path
        if not is_there:
            download(item.url, path, item.sha256, network or Network())
        yield Fetched(path, "up to date" if is_there else "downloaded", path.stat().st_size)
        yield from _unpack(item, root, is_fresh=not is_there, force=force)


def _is_present(item: Download, path: Path, force: bool) -> bool:
    """Whether the right file is there. Raises DataError when another one is, unless `force`."""
    if path.is_dir():
        raise DataError(
            f"{path}: is a folder, and the recipe's download wants to be a file there",
            "move the folder away, or choose another data.root",
        )
    if not path.exists():
        return False
    got = sha256_file(path)
    if got != item.sha256 and not force:
        raise DataError(
            f"{path}: is there already with SHA-256 {got}, the recipe expects {item.sha256}; it was not overwritten",
            "--force replaces it with the recipe's file; --set data.downloads=[] uses the files as they are",
        )
    return got == item.sha256


def _unpack(item: Download, root: Path, is_fresh: bool, force: bool) -> Iterator[Fetched]:
    """Bring the archive's members: all of them when the archive is new or by force, else those that are missing."""
    wanted = {name: root / target for name, target in item.members.items()}
    kept = {} if is_fresh or force else {name: path for name, path in wanted.items() if path.is_file()}
    for path in kept.values():
        yield Fetched(path, "up to date", path.stat().st_size)
    missing = {name: path for name, path in wanted.items() if name not in kept}
    if not missing:
        return
    try:
        for path, is_new in unpack(root / item.path, missing, force):
            yield Fetched(path, "unpacked" if is_new else "up to date", path.stat().st_size)
    except OSError as error:
        hint = "free some space and run this again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        raise DataError(f"{root / item.path}: cannot be unpacked ({error})", hint) from error


def _check_paths(recipe: Recipe) -> None:
    """Raise RecipeError unless every file goes to a place of its own inside `data.root`."""
    owners: dict[PurePosixPath, str] = {}
    for number, item in enumerate(recipe.data.downloads):
        key = f"data.downloads.{number}"
        if item.members and not item.path.lower().endswith(SUFFIXES):
            raise RecipeError(
                f"{key}.members: {item.path!r} is not an archive by its name", f"known are {', '.join(SUFFIXES)}"
            )
        targets = {f"{key}.path": item.path} | {f"{key}.members.{name}": to for name, to in item.members.items()}
        for where, text in targets.items():
            path = PurePosixPath(text)
            windows = PureWindowsPath(text)
            if path.is_absolute() or windows.drive or windows.root or ".." in windows.parts or not path.parts:
                raise RecipeError(
                    f"{where}: {text!r} does not name a file inside data.root", "paths start at data.root"
                )
            if path in owners:
                raise RecipeError(
                    f"{where}: {text!r} is also the place of {owners[path]}", "each file needs a path of its own"
                )
            owners[path] = where
