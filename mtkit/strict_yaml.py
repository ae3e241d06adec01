"""Strict YAML: what a reader expects, or an error that names file and line; and the line of every key.

It departs from YAML 1.1, as PyYAML reads it, where that surprises: `no`, `yes`, `on` and `off` stay text, `1e-4` is a
number, `1:30` and dates are text, `010` is refused. Duplicate keys, tabs, several documents, merge keys and unknown
tags are refused too.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from mtkit.errors import RecipeError

KeyPath = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*|[1-9][0-9]{0,2}(_[0-9]{3})+)")
_FLOAT = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_OTHER_LINE_ENDS = re.compile("\r|\x85|\u2028|\u2029")
_MAX_NODES = 200_000
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as plain values. `lines` and `spelled` go by key path, such as ("data", "train", 0, "name")."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    spelled: dict[KeyPath, str] = field(default_factory=dict)
    """Scalars as they are written, without quotes: 1.10 where the value is the number 1.1."""


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with no opinion on plain scalars: they all arrive with the tag for text."""


_Loader.yaml_implicit_resolvers = {}


class _Dumper(yaml.SafeDumper):
    """PyYAML's emitter, which quotes every text that YAML 1.1 or this module would read as something else."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if _OTHER_LINE_ENDS.search(text) or "\n" in text:
        return dumper.represent_scalar(_TAG + "str", text, style='"')
    plain = isinstance(_plain_value(text), str) and not _LEADING_ZERO.fullmatch(text) and text != "<<"
    return dumper.represent_scalar(_TAG + "str", text, style=None if plain else "'")


_Dumper.add_representer(str, _represent_text)


def read_yaml(path: str | PathLike[str]) -> Document:
    """Read one YAML file under this module's rules. Raises RecipeError with file and, where there is one, line."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(
            f"{path}: no such file", f"relative paths start at {Path.cwd()}; check the spelling"
        ) from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: is a folder, a recipe file is expected", "name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"{path}: cannot be read ({reason})", "check its name and permissions") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{path}:{line}: byte 0x{raw[error.start]:02X} is not UTF-8",
            "is it a recipe, a text file in YAML? In another encoding, convert it: iconv -f latin1 -t utf-8 OLD > NEW",
        ) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str, numbered: bool = True) -> Document:
    """Parse YAML text under this module's rules; an empty text is None.

    `name` stands for the file in errors; `numbered` adds the line to it. Raises RecipeError.
    """
    text = text.replace("\r\n", "\n")

    def place(index: int) -> str:
        return f"{name}:{_line(text, index)}" if numbered else name

    stray = _OTHER_LINE_ENDS.search(text)
    if stray:
        raise RecipeError(
            f"{place(stray.start())}: the character U+{ord(stray[0]):04X} would end a line here",
            f'lines end with LF; inside a text write it as "\\u{ord(stray[0]):04X}" in double quotes',
        )
    builder = _Builder(text, place)
    try:
        nodes = list(_compose_all(text))
        if len(nodes) > 1:
            raise builder.error(
                nodes[1],
                "a second document starts here (after ---); one file is one document",
                "remove it, or put it into a file of its own",
            )
        value = builder.build(nodes[0], ()) if nodes else None
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, place) from None
    except RecursionError:
        raise RecipeError(f"{name}: nested too deeply", "is it a recipe?") from None
    return Document(value, builder.lines, builder.spelled)


def dump_yaml(value: Any) -> str:
    """YAML text of plain values, which `parse_yaml` reads back as equal values."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=False)


def _compose_all(text: str) -> Iterable[yaml.Node]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            yield node
    finally:
        loader.dispose()


def _line(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _plain_value(text: str) -> Any:
    """What an unquoted scalar means."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text):
        # Python refuses to convert more than 4300 digits; such a thing is text, and no setting accepts it.
        return int(text.replace("_", "")) if len(text) < 4000 else text
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class _Builder:
    """Turns nodes into values, and notes where each key stands."""

    def __init__(self, text: str, place: Callable[[int], str]) -> None:
        self.text, self.place = text, place
        self.lines: dict[KeyPath, int] = {}
        self.spelled: dict[KeyPath, str] = {}
        self.open: list[int] = []
        self.nodes = 0

    def line(self, node: yaml.Node) -> int:
        return _line(self.text, node.start_mark.index)

    def error(self, node: yaml.Node, message: str, hint: str | None = None) -> RecipeError:
        return RecipeError(f"{self.place(node.start_mark.index)}: {message}", hint)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """The node's value; the line of the node is noted, unless its key's line already is."""
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise self.error(node, f"more than {_MAX_NODES} values", "is this a recipe?")
        if id(node) in self.open:
            raise self.error(node, "an alias (*) stands inside the value it names", "write the value out")
        self.lines.setdefault(path, self.line(node))
        self.open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
                self.spelled[path] = node.value
                return self.scalar(node)
        finally:
            self.open.pop()
        tag = node.tag.replace(_TAG, "!!")
        raise self.error(node, f"the tag {tag} is not supported", "write the value without a tag; text goes in quotes")

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or (key_node.style is None and key_node.value in ("", "~")):
                raise self.error(key_node, "a key must be text", "put a text that looks like a list in quotes")
            key = key_node.value
            if key == "<<" and key_node.style is None:
                raise self.error(key_node, "merge keys (<<) are not supported", "write the settings out")
            if key in first:
                dotted = ".".join(map(str, (*path, key)))
                raise self.error(key_node, f"{dotted} is set twice, first in line {first[key]}", "remove one of them")
            first[key] = self.line(key_node)
            self.lines[(*path, key)] = first[key]
            result[key] = self.build(value_node, (*path, key))
        return result

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        # Without resolvers an explicit !!str looks like a plain scalar; the text of the file tells them apart.
        if node.style is not None or self.text.startswith("!", node.start_mark.index):
            return text
        if _LEADING_ZERO.fullmatch(text):
            number = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text.replace("_", ""))
            raise self.error(
                node,
                f"{text} may mean an octal number, a decimal number or a text",
                f"write {number} for the number, '{text}' in quotes for the text",
            )
        return _plain_value(text)


def _syntax_error(error: yaml.YAMLError, text: str, place: Callable[[int], str]) -> RecipeError:
    """PyYAML's complaint as file:line: message, with the remedy for the common ones."""
    if isinstance(error, yaml.reader.ReaderError):
        character = f"U+{ord(text[error.position]):04X}"
        return RecipeError(f"{place(error.position)}: the character {character} is not allowed in YAML", "remove it")
    assert isinstance(error, yaml.MarkedYAMLError)
    problem = error.problem or "not valid YAML"
    mark = error.problem_mark
    if mark is None or re.search("expected ':'|stream end|end of stream", problem):
        # Noticed only later or at the end: the fault is where the thing began.
        mark = error.context_mark or mark
    assert mark is not None
    where = place(mark.index)
    if "'\\t'" in problem or text[mark.index : mark.index + 1] == "\t":
        return RecipeError(f"{where}: a tab stands here; YAML is laid out with spaces", "replace tabs by spaces")
    if problem.startswith("mapping values are not allowed"):
        hint = "check the indentation; a text that holds ': ' needs quotes"
    elif "cannot start any token" in problem:
        hint = "a text that starts with this character needs quotes"
    elif "could not find expected ':'" in problem:
        hint = "a setting is written `key: value`, with a space after the colon"
    else:
        hint = "check the indentation and the brackets and quotes nearby; texts with special characters need quotes"
    return RecipeError(f"{where}: not valid YAML: {problem} (column {mark.column + 1})", hint)
