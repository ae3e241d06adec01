"""A proposal as a recipe in YAML, with the reason of each choice in a comment beside or above it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkit.proposal.choose import Choice, Machine, Proposal, in_words
from mtkit.proposal.hold_out import HeldOut
from mtkit.proposal.survey import Survey
from mtkit.sections.data import Corpus
from mtkit.strict_yaml import dump_yaml

_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Texts:
    """Languages and corpora as the recipe will name them."""

    languages: tuple[str, str]
    root: str
    parts: Mapping[str, Sequence[Corpus]]


def recipe_text(
    name: Path, texts: Texts, found: Survey, proposal: Proposal, machine: Machine, held: HeldOut | None
) -> str:
    """The whole recipe file."""
    source, target = texts.languages
    mean = f"{found.source_words:.1f} and {found.target_words:.1f} words a sentence"
    lines = [
        f"# {source} to {target}: {found.pairs:,} training pairs, {mean} on average.",
        "#",
        f"#   mtkit run {name}",
        "#",
        *_wrapped(f"Proposed by mtkit init for {machine}. {_time(proposal)}Change what you know better."),
        *_wrapped("What the settings mean, and all others: mtkit recipe schema; mtkit recipe show RECIPE."),
        "",
        "languages:",
        f"  source: {_scalar(source)}",
        f"  target: {_scalar(target)}",
        "",
        "data:",
        f"  root: {_scalar(texts.root)} # itself from the folder in which mtkit is called",
    ]
    for part, corpora in texts.parts.items():
        if part == "valid" and held is not None:
            lines += _wrapped(_held(held), "  ")
        lines.append(f"  {part}:" if corpora else f"  {part}: []")
        for corpus in corpora:
            lines += [
                f"    - name: {_scalar(corpus.name)}",
                f"      source: {_scalar(corpus.source)}",
                f"      target: {_scalar(corpus.target)}",
            ]
    for section, choices in proposal.sections.items():
        lines += ["", f"{section}:", *(line for choice in choices for line in _setting(choice))]
    return "\n".join(lines) + "\n"


def _held(held: HeldOut) -> str:
    dropped = f"; {held.dropped:,} pairs that share a sentence with them are in neither" if held.dropped else ""
    return f"{held.valid_pairs:,} pairs held out of the corpus, of which no sentence is left in training{dropped}"


def _time(proposal: Proposal) -> str:
    words = in_words(proposal.seconds)
    return f"{words[0].upper()}{words[1:]}. " if words else ""


def _setting(choice: Choice) -> list[str]:
    """A line of the recipe with its reason behind it, or above it where that would be too long."""
    line = f"  {choice.key}: {_scalar(choice.value)}"
    if not choice.why:
        return [line]
    beside = f"{line} # {choice.why}"
    return [beside] if len(beside) <= _WIDTH else [*_wrapped(choice.why, "  "), line]


def _wrapped(text: str, indent: str = "") -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False)


def _scalar(value: object) -> str:
    return dump_yaml({"key": value}).removeprefix("key:").strip()
