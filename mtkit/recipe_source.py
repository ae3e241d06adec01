"""A recipe before validation: the values of the file, of those it extends, and of `--set`, and where each one stands.

`extends: other.yaml` at the top of a recipe puts the values of another one below its own: sections are merged key by
key, everything else, lists too, is replaced whole. `run_dir` is not taken over, or two variants would share a folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from mtkit.errors import RecipeError
from mtkit.sections.base import Section
from mtkit.strict_yaml import KeyPath, parse_yaml, read_yaml

EXTENDS = "extends"
"""The key at the top of a recipe that names the one below it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Plain dicts and lists. By key path, `places` has the `file:line` of what files say, `overrides` its `--set`.

    `spelled` as in strict_yaml.Document; `files` are the recipe, what it extends, and so on.
    """

    name: str
    values: dict[str, Any]
    places: dict[KeyPath, str]
    spelled: dict[KeyPath, str]
    overrides: dict[KeyPath, str]
    files: tuple[str, ...] = ()

    def place(self, path: KeyPath) -> str:
        """Where the value at `path`, or the nearest thing around it, was written: `file:line` or `--set key=value`."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return self.overrides[path[:end]]
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.name

    def is_written(self, path: KeyPath) -> bool:
        """Whether file or `--set` has a value exactly at `path`."""
        return path in self.places or path in self.overrides

    def order(self, path: KeyPath) -> tuple[int, int]:
        """A sort key: the places of the files from top to bottom, what is extended first, then the overrides."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return 1, list(self.overrides).index(path[:end])
            if path[:end] in self.places:
                return 0, list(self.places).index(path[:end])
        return 0, 0


def read_source(path: str | PathLike[str], overrides: Sequence[str] = (), section: type[Section] = Section) -> Source:
    """Read a recipe file and those it extends, and merge `section.key=value` overrides, left to right.

    `section` is the class that the values are to become; see `_drop_foreign`. Raises RecipeError.
    """
    source = _read_file(Path(path), (), section)
    for override in overrides:
        _merge(source, override)
    return source


def _read_file(path: Path, above: tuple[Path, ...], section: type[Section]) -> Source:
    """The values of one file over those of the file it extends; `above` are the files that extend this one."""
    document = read_yaml(path)
    name = str(path)
    if document.value is None:
        raise RecipeError(f"{name}: the file is empty", "a recipe needs at least the sections languages and data")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{name}:{document.lines[()]}: a recipe is made of sections, `languages:`, `data:` and so on; "
            f"this file holds {'a list' if isinstance(document.value, list) else 'a single value'}",
            "is it a recipe? Those of the project lie in recipes/",
        )
    places = {where: f"{name}:{line}" for where, line in document.lines.items()}
    own = Source(name, document.value, places, dict(document.spelled), {}, (name,))
    if EXTENDS not in own.values:
        return own
    base_path = _base_path(own, path, above)
    base = _read_file(base_path, (*above, path), section)
    for table in (own.places, own.spelled):
        table.pop((EXTENDS,), None)
    del own.values[EXTENDS]
    base.values.pop("run_dir", None)
    _forget(base, ("run_dir",))
    _drop_foreign(base, own.values, section)
    values = _overlay(base, own.values, base.values, ())
    places = {where: place for where, place in base.places.items() if where not in own.places} | own.places
    return Source(name, values, places, base.spelled | own.spelled, {}, (name, *base.files))


def _base_path(own: Source, path: Path, above: tuple[Path, ...]) -> Path:
    """The file that `extends` names, from the folder of the file it stands in. Raises RecipeError."""
    text = own.values[EXTENDS]
    place = own.place((EXTENDS,))
    if not isinstance(text, str) or not text:
        raise RecipeError(f"{place}: extends: expected the path of one other recipe", "such as extends: base.yaml")
    base = path.parent / text
    chain = [*above, path]
    if base.resolve() in [one.resolve() for one in chain]:
        circle = " -> ".join(map(str, [*chain, base]))
        raise RecipeError(f"{place}: extends goes round in a circle: {circle}", "one of these must stand by itself")
    if not base.is_file():
        what = "is a folder, a recipe file is expected" if base.is_dir() else "no such file"
        raise RecipeError(f"{place}: extends: {base}: {what}", f"the path starts at the file's folder, {path.parent}")
    return base


def _overlay(base: Source, new: dict[str, Any], old: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """`old` with `new` put over it. What is replaced is forgotten: in `base` its places (mutates it)."""
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            merged[key] = _overlay(base, value, old[key], (*path, key))
        else:
            _forget(base, (*path, key))
            merged[key] = value
    return merged


def _drop_foreign(base: Source, new: dict[str, Any], section: type[Section]) -> None:
    """Where `new` names another method of search or schedule, what the base says that is not of this method goes.

    So a variant of a beam search may say `search: {method: greedy}`, and keeps its rules. Mutates `base`.
    """
    for key, field in section.model_fields.items():
        tag, value, old = field.discriminator, new.get(key), base.values.get(key)
        if not isinstance(tag, str) or not isinstance(value, dict) or not isinstance(old, dict) or tag not in value:
            continue
        variant = _variant(value, field)
        if variant is not None and value[tag] != _named(old, field)[tag]:
            for foreign in [name for name in old if name not in variant.model_fields]:
                del old[foreign]
                _forget(base, (key, foreign))


def _forget(source: Source, path: KeyPath) -> None:
    """Delete the places and spellings of what lies at and below `path`; mutates the source."""
    for table in (source.places, source.spelled, source.overrides):
        for old in [old for old in table if old[: len(path)] == path]:
            del table[old]


def _merge(source: Source, override: str) -> None:
    """Put one override into `source.values`, and note it as the place of all that it sets."""
    label = f"--set {override}"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if parts[0] == EXTENDS:
        raise RecipeError(f"{label}: extends is read from the file alone", "give the other recipe instead of this one")
    if not equals or not all(parts):
        raise RecipeError(
            f"{label}: an override is written section.key=value", "for example --set training.max_steps=2000"
        )
    document = parse_yaml(text, label, numbered=False)
    parent: Any = source.values
    path: KeyPath = ()
    for position, part in enumerate(parts):
        step = _step(parent, part, path, label)
        path = (*path, step)
        if position == len(parts) - 1:
            parent[step] = document.value
        elif isinstance(parent, dict) and parent.get(part) is None:
            if parts[position + 1].isdigit():
                dotted = _dotted(path)
                raise RecipeError(f"{label}: there is no list at {dotted}", f"set it whole: {dotted}=[...]")
            parent[step] = {}
            source.overrides[path] = label
        parent = parent[step]
    _forget(source, path)
    source.overrides[path] = label
    source.spelled.update({(*path, *inner): spelled for inner, spelled in document.spelled.items()})


def _step(parent: Any, part: str, path: KeyPath, label: str) -> str | int:
    """The key or index that `part` means in `parent`. Raises RecipeError where there is nothing to go into."""
    if isinstance(parent, dict):
        return part
    dotted = _dotted(path)
    if not isinstance(parent, list):
        raise RecipeError(f"{label}: {dotted} is a single value and has no {part!r} inside", f"set it: {dotted}=VALUE")
    if not (part.isascii() and part.isdigit() and int(part) < len(parent)):
        last = f"0 to {len(parent) - 1}" if parent else "none, it is empty"
        raise RecipeError(
            f"{label}: {dotted} is a list, and {part!r} is not one of its indices ({last})",
            f"to add to the list set it whole: --set '{dotted}=[...]'",
        )
    return int(part)


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def complete(values: dict[str, Any], section: type[Section], path: KeyPath, flags: list[KeyPath]) -> dict[str, Any]:
    """`values` of a section with what the file may leave out.

    A section that is null (say, all its lines are comments) is left to its default, and one with several methods that
    names none gets the name of the default one. Appends to `flags` the path of each true or false that stands for a
    number: pydantic would take it as 1 or 0.
    """
    result = dict(values)
    for key, field in section.model_fields.items():
        value = result.get(key)
        if key in result and value is None and (field.default_factory is not None or field.default == ()):
            del result[key]
        elif isinstance(value, bool) and {int, float} & {field.annotation, *get_args(field.annotation)}:
            flags.append((*path, key))
        elif isinstance(value, dict):
            if field.discriminator and value.get(str(field.discriminator)) is None:
                value = _named(value, field)
            variant = _variant(value, field)
            result[key] = complete(value, variant, (*path, key), flags) if variant else value
        elif isinstance(value, list):
            result[key] = [
                complete(item, variant, (*path, key, index), flags)
                if isinstance(item, dict) and (variant := _variant(item, field))
                else item
                for index, item in enumerate(value)
            ]
    return result


def _named(value: dict[str, Any], field: FieldInfo) -> dict[str, Any]:
    """The values of a section with several methods, with the default method's name put first."""
    tag = str(field.discriminator)
    default = field.get_default(call_default_factory=True, validated_data={})
    return {tag: getattr(default, tag), **{key: inner for key, inner in value.items() if key != tag}}


def _variant(value: dict[str, Any], field: FieldInfo) -> type[Section] | None:
    """The section class that a mapping at `field`, or in the list there, is to become; None when it is not clear."""
    classes = [field.annotation, *get_args(field.annotation)]
    sections = [found for found in classes if isinstance(found, type) and issubclass(found, Section)]
    if isinstance(field.discriminator, str):
        named = value.get(field.discriminator)
        names = [get_args(found.model_fields[field.discriminator].annotation) for found in sections]
        sections = [
            found for found, own in zip(sections, names, strict=True) if isinstance(named, str) and named in own
        ]
    return sections[0] if sections else None
