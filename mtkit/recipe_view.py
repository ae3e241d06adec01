"""A resolved recipe to look at: where each value comes from, how two recipes differ, and the schema for editors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mtkit.recipe import Recipe
from mtkit.recipe_source import EXTENDS, Source
from mtkit.strict_yaml import KeyPath, dump_yaml

DEFAULT = "default"
_COMMENT_COLUMN = 48


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a resolved recipe: dotted key, value, and origin: default, file:line or a `--set`."""

    key: str
    value: Any
    origin: str


def settings(recipe: Recipe, source: Source) -> list[Setting]:
    """Every setting of a recipe, in its order; a list that is not empty gives one for each of its items."""
    return [
        Setting(".".join(map(str, path)), value, origin(source, path))
        for path, value in _leaves(recipe.model_dump(mode="json"), ())
    ]


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not value or not isinstance(value, dict | list):
        yield path, value
        return
    for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*path, step))


def origin(source: Source, path: KeyPath) -> str:
    """Where the resolved value at `path` comes from: file:line, `--set key=value`, or default."""
    value: Any = source.values
    for step in path:
        steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        if step not in steps:
            return DEFAULT
        value = value[step]
    if path == ("run_dir",) and value is None:
        return DEFAULT
    return source.place(path)


def render(recipe: Recipe, source: Source) -> str:
    """The recipe as YAML with the origin of each value in a comment; it loads back as the same recipe."""
    rows = _rows(recipe.model_dump(mode="json"), (), "")
    commented = (text if path is None else _with_comment(text, origin(source, path)) for text, path in rows)
    return "".join(line + "\n" for line in commented)


def _rows(value: Any, path: KeyPath, indent: str) -> Iterator[tuple[str, KeyPath | None]]:
    """The lines of a mapping or list that is not empty; each with its key path where it holds a value."""
    for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
        below = (*path, step)
        start = f"{indent}- " if isinstance(value, list) else f"{indent}{_scalar(step)}: "
        if not inner or not isinstance(inner, dict | list):
            yield start + _scalar(inner), below
        elif isinstance(value, dict):
            yield start.rstrip(), None
            yield from _rows(inner, below, indent + "  ")
        else:
            first, *others = _rows(inner, below, indent + "  ")
            yield start + first[0].lstrip(" "), first[1]
            yield from others


def _scalar(value: Any) -> str:
    """A value on one line, in quotes where it needs them."""
    return dump_yaml({"key": value}).removeprefix("key:").strip()


def _with_comment(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN}}  # {' '.join(comment.split())}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that two recipes do not share; None where one of them has no such setting."""

    key: str
    first: Setting | None
    second: Setting | None


def compare(first: list[Setting], second: list[Setting]) -> list[Difference]:
    """The settings at which two recipes differ, in their order. Run folders named after the recipes do not count."""
    ours, theirs = ({row.key: row for row in rows} for rows in (first, second))
    found = []
    for key in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(key), theirs.get(key)
        named_alike = key == "run_dir" and one and other and one.origin == other.origin == DEFAULT
        if not named_alike and (one is None or other is None or one.value != other.value):
            found.append(Difference(key, one, other))
    return found


def render_differences(found: list[Difference]) -> str:
    """The differences for people: the key, then either side's value and origin, one a line."""
    lines = []
    for row in found:
        lines.append(row.key)
        for mark, setting in (("-", row.first), ("+", row.second)):
            if setting is not None:
                lines.append(f"  {mark} " + _with_comment(_scalar(setting.value), setting.origin).strip())
    return "".join(line + "\n" for line in lines)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipe files, by which editors complete and check them.

    It allows what the loader does: `extends`, and null for a section or list that has a default.
    """
    schema = Recipe.model_json_schema()
    for node in (schema, *schema["$defs"].values()):
        for key, inner in node.get("properties", {}).items():
            if key not in node.get("required", ()):
                node["properties"][key] = _or_null(inner)
    schema["properties"]["run_dir"] |= {"type": ["string", "null"], "default": None}
    text = "Another recipe, whose path starts at the folder of this one; its settings hold where this one has none"
    extends = {EXTENDS: {"type": "string", "minLength": 1, "title": "Extends", "description": text}}
    schema["properties"] = extends | schema["properties"]
    # A variant may leave to the file that it extends what is required of a recipe.
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Recipe of mtkit"}


def _or_null(node: dict[str, Any]) -> dict[str, Any]:
    """The node of a setting that may be left out; where it is a section or a list, null means leaving it out."""
    if node.get("type") == "array":
        return node | {"type": ["array", "null"]}
    core = {key: node[key] for key in ("$ref", "oneOf", "discriminator") if key in node}
    if not core:
        return node
    rest = {key: value for key, value in node.items() if key not in core}
    return {"anyOf": [core, {"type": "null"}], **rest}
