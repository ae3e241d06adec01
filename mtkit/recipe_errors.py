"""What is wrong with a recipe, so that it can be mended: file:line, dotted key, value, expectation, nearest key."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from mtkit.errors import RecipeError
from mtkit.recipe_source import EXTENDS, Source
from mtkit.strict_yaml import KeyPath

Node = dict[str, Any]

OTHER_NAMES = {
    "adam_eps": "optimizer.epsilon",
    "alpha": "search.length_penalty",
    "batch_tokens": "batching.max_tokens",
    "beam": "search.beam_size",
    "clip_grad_norm": "optimizer.clip_norm",
    "early_stopping": "training.patience",
    "embedding_size": "model.d_model",
    "feed_forward_size": "model.d_ff",
    "grad_accumulation": "training.accumulate",
    "hidden_size": "model.d_model",
    "learning_rate": "schedule.rate",
    "lr": "schedule.rate",
    "max_epoch": "training.max_epochs",
    "max_updates": "training.max_steps",
    "num_heads": "model.heads",
    "num_layers": "model.encoder_layers",
    "source_language": "languages.source",
    "steps": "training.max_steps",
    "target_language": "languages.target",
    "tie_embeddings": "model.share_embeddings",
    "update_freq": "training.accumulate",
    "vocabulary_size": "tokenizer.vocab_size",
    "warmup": "schedule.warmup_steps",
}
"""Names that others give to our settings; used only to answer "did you mean"."""


def recipe_error(
    source: Source, errors: Sequence[ErrorDetails], flags: Sequence[KeyPath], model: type[BaseModel]
) -> RecipeError:
    """One error that lists every problem, in the order of the file.

    `errors` are pydantic's; `flags` are paths where true or false stands for a number; `model` is the recipe's class.
    """
    schema = _Schema(model.model_json_schema())
    problems: dict[str, tuple[int, int]] = {}
    for flag in flags:
        text = _wrong_value(source, flag, schema.walk(flag)[1], _value_at(source.values, flag))
        problems[text] = source.order(flag)
    for error in errors:
        path, node, tag = schema.walk(error["loc"])
        if path not in flags:
            for where, text in _render(source, schema, error, path, node, tag):
                problems.setdefault(text, source.order(where))
    lines = sorted(problems, key=lambda text: problems[text])
    if len(lines) == 1:
        return RecipeError(lines[0])
    return RecipeError(f"{source.name}: {len(lines)} problems in this recipe\n" + "\n".join(lines))


def _render(
    source: Source, schema: "_Schema", error: ErrorDetails, path: KeyPath, node: Node, tag: str | None
) -> Iterator[tuple[KeyPath, str]]:
    """The problems behind one error of pydantic: where, and the text."""
    kind = error["type"]
    if kind == "extra_forbidden":
        yield from _unknown_key(source, schema, path, tag)
    elif kind == "missing" or (error["input"] is None and "properties" in node):
        place = source.place(path) if len(path) > 1 or source.is_written(path) else source.name
        yield path, f"{place}: {_dotted(path)} is missing, expected {_expected(node)}"
    elif kind in ("value_error", "assertion_error"):
        text = re.sub(r"^(Value|Assertion) error, ", "", error["msg"])
        where = _mentioned(source, path, text)
        yield where, f"{source.place(where)}: {_dotted(path) + ': ' if path else ''}{text}"
    elif kind == "union_tag_invalid":
        name = node["discriminator"]["propertyName"]
        methods = {"enum": list(node["discriminator"]["mapping"])}
        value = error["input"].get(name) if isinstance(error["input"], dict) else error["input"]
        yield (*path, name), _wrong_value(source, (*path, name), methods, value)
    elif kind != "too_short" or not error["input"]:
        # A list of which every item is wrong is also reported as too short: that would be the same fault twice.
        yield path, _wrong_value(source, path, node, error["input"])


def _wrong_value(source: Source, path: KeyPath, node: Node, value: Any) -> str:
    """file:line: key: value is ..., expected ...; did you mean ...?"""
    shown = _shown(value) if isinstance(value, str) else source.spelled.get(path) or _shown(value)
    text = f"{source.place(path)}: {_dotted(path)}: value is {shown}, expected {_expected(node)}"
    choices = [str(choice) for choice in _inner(node).get("enum", ())]
    near = difflib.get_close_matches(str(value), choices, 1)
    if near:
        text += _question(near)
    elif _inner(node).get("type") == "string" and isinstance(value, int | float) and path in source.spelled:
        text += f"; write '{source.spelled[path]}' in quotes"
    return text


def _unknown_key(source: Source, schema: "_Schema", path: KeyPath, tag: str | None) -> Iterator[tuple[KeyPath, str]]:
    """An unknown key with the nearest known one; below an unknown section, also each key that fits nowhere there."""
    key, parent = str(path[-1]), schema.at(path[:-1])
    text = f"{source.place(path)}: {_dotted(path)} is"
    variants = schema.variants(parent)
    owners = [name for name, variant in variants.items() if key in variant["properties"]]
    if tag and owners:
        yield path, f"{text} a setting of {' and '.join(owners)}, not of {tag}"
        return
    section = f"{tag} {_dotted(path[:-1])}" if tag else _dotted(path[:-1]) or "a recipe"
    siblings = list((variants[tag] if tag else parent).get("properties", {}))
    near = _nearest(schema, key, siblings if path[:-1] else [*siblings, EXTENDS])
    yield path, f"{text} not a setting of {section}{_question(near)}"
    value = _value_at(source.values, path)
    if isinstance(value, dict):
        meant = schema.at(tuple(near[0].split("."))) if near else {}
        for inner in value:
            elsewhere = [] if inner in meant.get("properties", {}) else _nearest(schema, inner, [])
            if elsewhere:
                where = (*path, inner)
                yield where, f"{source.place(where)}: {_dotted(where)} is not a setting{_question(elsewhere)}"


def _question(names: list[str]) -> str:
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _nearest(schema: "_Schema", key: str, siblings: list[str]) -> list[str]:
    """Up to three names that `key` may stand for: its siblings bare, settings of other sections dotted.

    A key that is right but in the wrong place comes first, then a misspelt sibling, then a misspelt stranger.
    """
    everywhere = schema.dotted_keys()
    leaves = {dotted: dotted.rpartition(".")[2] for dotted in everywhere}
    exact = [dotted for dotted in everywhere if leaves[dotted] == key]
    if exact or key in OTHER_NAMES:
        return exact[:3] or [OTHER_NAMES[key]]
    close = difflib.get_close_matches(key, siblings, 1)
    if close:
        return close
    near = difflib.get_close_matches(key, [*OTHER_NAMES, *leaves.values()], 1, 0.75)
    if near and near[0] in OTHER_NAMES:
        return [OTHER_NAMES[near[0]]]
    return [dotted for dotted in everywhere if leaves[dotted] in near][:3]


def _mentioned(source: Source, path: KeyPath, text: str) -> KeyPath:
    """The written setting that a cross-check's message speaks of: an override first, or else the first one named."""
    words = re.findall(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*", text)
    written = [where for word in words if source.is_written(where := (*path, *word.split(".")))]
    overridden = [where for where in written if where in source.overrides]
    return (overridden or written or [path])[0]


class _Schema:
    """The recipe's JSON schema, walked by the locations that pydantic reports."""

    def __init__(self, root: Node) -> None:
        self.root = root

    def resolved(self, node: Node) -> Node:
        """The node itself in place of a reference to it."""
        while "$ref" in node:
            node = self.root["$defs"][node["$ref"].rpartition("/")[2]]
        return node

    def variants(self, node: Node) -> dict[str, Node]:
        """The alternatives of a section with several methods, by name; none for any other node."""
        mapping = node["discriminator"]["mapping"] if "discriminator" in node else {}
        return {name: self.resolved({"$ref": reference}) for name, reference in mapping.items()}

    def child(self, node: Node, step: str | int) -> Node:
        """The node below; empty where the schema knows none."""
        if isinstance(step, int):
            return self.resolved(_inner(node).get("items", {}))
        for place in (node, *self.variants(node).values()):
            if step in place.get("properties", {}):
                return self.resolved(place["properties"][step])
        below = node.get("additionalProperties")
        return below if isinstance(below, dict) else {}

    def at(self, path: KeyPath) -> Node:
        """The node at a key path."""
        node = self.root
        for step in path:
            node = self.child(node, step)
        return node

    def walk(self, location: KeyPath) -> tuple[KeyPath, Node, str | None]:
        """Key path and node of a location, and the method whose section directly holds the last key.

        Pydantic's locations name the method, as in ("search", "beam", "beam_size"); key paths do not.
        """
        node, path = self.root, ()  # type: tuple[Node, KeyPath]
        holder: str | None = None
        pending: str | None = None
        for step in location:
            variant = self.variants(node).get(str(step))
            if variant is not None and pending is None:
                node, pending = variant, str(step)
                continue
            if isinstance(step, str) and len(_alternatives(node)) > 1:
                continue  # the alternative that pydantic has tried
            node, path = self.child(node, step), (*path, step)
            holder, pending = pending, None
        return path, node, holder

    def dotted_keys(self) -> list[str]:
        """Every setting, such as model.d_model; what is inside a list gets the index 0."""
        return list(dict.fromkeys(self._below(self.root, "")))

    def _below(self, node: Node, prefix: str) -> Iterator[str]:
        for place in (node, *self.variants(node).values()):
            for key, inner in place.get("properties", {}).items():
                inner = self.resolved(inner)
                item = self.resolved(inner.get("items", {}))
                deeper = item if "properties" in item else inner
                dotted = f"{prefix}{key}"
                if "properties" in deeper or "discriminator" in deeper:
                    yield from self._below(deeper, f"{dotted}.0." if deeper is item else f"{dotted}.")
                else:
                    yield dotted


def _expected(node: Node) -> str:
    """What a setting accepts, in words, with its description."""
    inner = _inner(node)
    text = " or ".join(map(kind_in_words, _alternatives(node)))
    if "anyOf" in node and len(_alternatives(node)) < len(node["anyOf"]):
        text += " or null"
    description = node.get("description", "")
    if not description or "properties" in inner or description in (inner.get("const"), text):
        return text
    return f"{text} ({description})"


def kind_in_words(node: Node) -> str:
    """What values a node of the JSON schema accepts: "a whole number from 1 to 256", "off, chrf or bleu"."""
    if "enum" in node or "const" in node:
        choices = [str(choice) for choice in node.get("enum", [node.get("const")])]
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    if "properties" in node:
        return f"a section with settings such as {', '.join(list(node['properties'])[:3])}"
    if "discriminator" in node:
        name = node["discriminator"]["propertyName"]
        return f"a section with {name}: {kind_in_words({'enum': list(node['discriminator']['mapping'])})}"
    match node.get("type"):
        case "integer" | "number" as kind:
            return ("a whole number" if kind == "integer" else "a number") + _range(node)
        case "boolean":
            return "true or false"
        case "array":
            items = "sections, each begun by a dash" if "$ref" in node["items"] else kind_in_words(node["items"])
            return f"a list {'(not empty) ' if node.get('minItems') else ''}of {items}"
        case "object":
            return "a mapping from text to text"
        case "string" if "pattern" in node:
            alternatives = re.fullmatch(r"\^\(([\w|-]+)\)\$", node["pattern"])
            if alternatives:
                return kind_in_words({"enum": alternatives[1].split("|")})
            return f"text that matches {node['pattern']}{_length(node)}"
        case "string":
            return f"text{_length(node)}"
        case unknown:
            raise AssertionError(f"a setting of a kind that errors cannot describe: {unknown}")


def _range(node: Node) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {_shown(low)} to {_shown(high)}"
    words = [
        f"{word} {_shown(bound)}"
        for word, bound in (("at least", low), ("above", above), ("at most", high), ("below", below))
        if bound is not None
    ]
    return " " + " and ".join(words) if words else ""


def _length(node: Node) -> str:
    low, high = node.get("minLength", 0), node.get("maxLength")
    if high is not None:
        return f" of {low} to {high} characters"
    return " that is not empty" if low else ""


def _alternatives(node: Node) -> list[Node]:
    """What a value may be besides null: the node itself, or each of its alternatives."""
    return [dict(one) for one in node.get("anyOf", [node]) if one.get("type") != "null"]


def _inner(node: Node) -> Node:
    """The node without its "or null"; the first of several alternatives."""
    return _alternatives(node)[0]


def _value_at(values: Any, path: KeyPath) -> Any:
    for step in path:
        values = values[step]
    return values


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _shown(value: Any) -> str:
    """A value as one would write it in the recipe, cut when long."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        value = int(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
