"""A recipe before validation: the file's values with the `--set` overrides merged in, and where each one stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, get_args

from pydantic.fields import FieldInfo

from mtkit.errors import RecipeError
from mtkit.sections.base import Section
from mtkit.strict_yaml import KeyPath, parse_yaml, read_yaml


@dataclass(frozen=True, slots=True)
class Source:
    """Plain dicts and lists. `lines` and `spelled` as in strict_yaml.Document; `overrides`: path -> its `--set`."""

    name: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]
    spelled: dict[KeyPath, str]
    overrides: dict[KeyPath, str]

    def place(self, path: KeyPath) -> str:
        """Where the value at `path`, or the nearest thing around it, was written: `file:line` or `--set key=value`."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return self.overrides[path[:end]]
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return self.name

    def is_written(self, path: KeyPath) -> bool:
        """Whether file or `--set` has a value exactly at `path`."""
        return path in self.lines or path in self.overrides

    def order(self, path: KeyPath) -> tuple[int, int]:
        """A sort key: the file's places from top to bottom, then the overrides in their order."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return 1, list(self.overrides).index(path[:end])
            if path[:end] in self.lines:
                return 0, list(self.lines).index(path[:end])
        return 0, 0


def read_source(path: str | PathLike[str], overrides: Sequence[str] = ()) -> Source:
    """Read a recipe file and merge `section.key=value` overrides, left to right. Raises RecipeError."""
    document = read_yaml(path)
    name = str(path)
    if document.value is None:
        raise RecipeError(f"{name}: the file is empty", "a recipe needs at least the sections languages and data")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{name}:{document.lines[()]}: a recipe is made of sections, `languages:`, `data:` and so on; "
            f"this file holds {'a list' if isinstance(document.value, list) else 'a single value'}"
        )
    source = Source(name, document.value, dict(document.lines), dict(document.spelled), {})
    for override in overrides:
        _merge(source, override)
    return source


def _merge(source: Source, override: str) -> None:
    """Put one override into `source.values`, and note it as the place of all that it sets."""
    label = f"--set {override}"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
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
                raise RecipeError(f"{label}: there is no list at {dotted}; set it whole, as {dotted}=[...]")
            parent[step] = {}
            source.overrides[path] = label
        parent = parent[step]
    for table in (source.lines, source.spelled, source.overrides):
        for old in [old for old in table if old[: len(path)] == path]:
            del table[old]
    source.overrides[path] = label
    source.spelled.update({(*path, *inner): spelled for inner, spelled in document.spelled.items()})


def _step(parent: Any, part: str, path: KeyPath, label: str) -> str | int:
    """The key or index that `part` means in `parent`. Raises RecipeError where there is nothing to go into."""
    if isinstance(parent, dict):
        return part
    dotted = _dotted(path)
    if not isinstance(parent, list):
        raise RecipeError(f"{label}: {dotted} is a single value and has no {part!r} inside")
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
