"""`mtkit init`: from text files to a commented recipe."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mtkit.cli.options import as_utf8
from mtkit.errors import UsageError

_PAIRS = ("--train", "--valid", "--test")

LanguageOption = Annotated[
    str | None, typer.Option(metavar="CODE", help="ISO 639 code. Default: the suffix of the files.", show_default=False)
]


class PairsCommand(TyperCommand):
    """A command whose options --train, --valid and --test take two files each and may be repeated.

    Typer has no repeated option of two values: `--train A B` is handed on as `--train A --train B`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            spread.append(word)
            if word in _PAIRS and len(rest) > 1 and not rest[1].startswith("--"):
                spread += [rest.pop(0), word, rest.pop(0)]
        return super().parse_args(ctx, spread)


def _files(what: str, default: str) -> Any:
    return typer.Option(metavar="SOURCE TARGET", help=f"{what} May be repeated.{default}", show_default=False)


def init(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="The recipe to write, a YAML file.", show_default=False)
    ],
    train: Annotated[list[str], _files("Two aligned files to train on, plain, .gz, .xz or .bz2.", "")] = [],  # noqa: B006
    valid: Annotated[
        list[str],
        _files("Two files to validate on.", " Default: pairs held out of the training corpus."),
    ] = [],  # noqa: B006
    test: Annotated[list[str], _files("Two files to test on.", "")] = [],  # noqa: B006
    source_language: LanguageOption = None,
    target_language: LanguageOption = None,
) -> None:
    """Write a commented recipe that suits a corpus and this machine.

    The corpus is read once or twice: its size, the lengths of its sentences, a vocabulary tried on a sample of it; of
    the machine, CPU cores and GPU memory. Each choice stands in the recipe with its reason and its source.

    Without --valid up to 1,000 pairs (one in twenty) are held out: the folder RECIPE-data, beside the recipe, gets the
    training and the validation files, and no sentence of the one is in the other. Your files stay as they are, and
    nothing is overwritten.

    Paths are kept as you give them, from the current folder: call mtkit run from the same one.

    Example: mtkit init my.yaml --train corpus.en corpus.de --valid dev.en dev.de --test test.en test.de
    """
    from mtkit.proposal.init import Request, initialize

    given = {"--train": train, "--valid": valid, "--test": test}
    if not train:
        raise UsageError("--train is missing: two aligned files to train on", "--train corpus.en corpus.de")
    for option, names in given.items():
        if len(names) % 2:
            raise UsageError(
                f"{option} takes two files, source and target, and got {names[-1]} alone",
                f"{option} corpus.en corpus.de; several pairs: {option} A B {option} C D",
            )
    parts = [list(zip(map(as_utf8, names[::2]), map(as_utf8, names[1::2]), strict=True)) for names in given.values()]
    request = Request(recipe, parts[0], parts[1], parts[2], source_language, target_language)
    held = initialize(request, _machine())
    print(f"{recipe}: written; next: mtkit run {recipe}")
    if held is not None:
        print(f"{Path(held.valid.source or '').parent}: {held.train_pairs} training pairs, {held.valid_pairs} held out")


def _machine() -> Any:
    """What there is to train on."""
    import torch

    from mtkit.proposal.choose import Machine
    from mtkit.runtime import usable_cores

    if not torch.cuda.is_available():
        return Machine(usable_cores())
    device = torch.cuda.get_device_properties(0)
    return Machine(usable_cores(), device.name, device.total_memory)
