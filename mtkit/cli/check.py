"""`mtkit check`: what would go wrong, before anything runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtkit.cli.options import SetOption, load_recipe

if TYPE_CHECKING:
    from mtkit.check.machine import Machine
    from mtkit.recipe import Recipe


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECIPE | SOURCE TARGET",
            help="A recipe; or two files, one sentence a line, plain, .gz, .xz or .bz2.",
            show_default=False,
        ),
    ],
    overrides: SetOption = [],  # noqa: B006
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER",
            help="Use the tokenizer in a run or model folder. Default: the recipe's run folder's, if it is up to date; "
            "else one is learnt for the check. A pair of files has no default.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", metavar="PAIRS", min=1, help="Training pairs to tokenize, drawn at random.")
    ] = 100_000,
    source_language: Annotated[
        str | None,
        typer.Option("--source-language", help="ISO 639 code, for a pair of files. Default: the suffix of SOURCE."),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option("--target-language", help="ISO 639 code, for a pair of files. Default: the suffix of TARGET."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, max=1024, help="Processes that read.", show_default="one a core"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded numbers.")] = False,
) -> None:
    """Check a recipe, or a pair of files, before anything runs; nothing is written.

    Reads all corpora: line counts and where lines slipped, encoding, control characters, blank lines, repetitions,
    odd lengths, other scripts, markup; and test and validation sentences that occur in training. Then tokens a word,
    unknown tokens, what the filters leave out, batches an epoch, parameters, memory, disk, device and precision.
    Lengths are in characters of normalised text or in tokens without EOS; lines count from 1; memory and disk are
    estimates. Exit code 2 when something stands in the way of a run; warnings leave it 0.

    Example: mtkit check recipes/quickstart.yaml

    Example: mtkit check corpus.en.gz corpus.de.gz --json
    """
    from mtkit.check.run import Options, check_pair, check_recipe
    from mtkit.check.text import render
    from mtkit.errors import CheckError, UsageError

    if len(paths) == 1:
        if source_language or target_language:
            raise UsageError("the languages of a recipe stand in the recipe", "--set languages.source=CODE changes it")
        options = Options(tokenizer, sample, workers, _machine)
        report = check_recipe(load_recipe(paths[0], overrides), str(paths[0]), options)
    elif len(paths) == 2:
        if overrides:
            raise UsageError("--set changes a recipe, and there is none", "check a recipe, or leave out --set")
        languages = (source_language or _language(paths[0]), target_language or _language(paths[1]))
        report = check_pair(paths[0], paths[1], languages, Options(tokenizer, sample, workers))
    else:
        raise UsageError(f"{len(paths)} files are given", "give one recipe, or two files: mtkit check SOURCE TARGET")
    print(json.dumps(report.to_json(), ensure_ascii=False, indent=2) if as_json else render(report))
    if report.errors:
        first, more = report.errors[0], len(report.errors) - 1
        rest = f" (and {more} more error{'s' if more > 1 else ''}, see the report)" if more else ""
        raise CheckError(f"{first.where}: {first.message}{rest}", first.remedy)


def _language(path: Path) -> str | None:
    """The language in a file's suffix, as in corpus.de.gz; None unless its script is known."""
    from mtkit.check.scripts import expected_scripts

    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".xz", ".bz2")]
    language = suffixes[-1][1:] if suffixes else None
    return language if expected_scripts(language) else None


def _machine(recipe: "Recipe") -> "Machine":
    """What training would run on. Raises UsageError when its device is not there."""
    import torch

    from mtkit.check.machine import Machine
    from mtkit.check.size import available_memory
    from mtkit.runtime import autocast_dtype, cpu_has_bf16, resolve_device, visible_devices

    device = resolve_device(recipe.training.device)
    dtype = autocast_dtype(recipe.training.precision, device)
    caution = None
    if device.type == "cpu" and dtype == torch.bfloat16 and not cpu_has_bf16():
        caution = "this processor has no bfloat16 arithmetic; emulated, it is slower than float32"
    elif device.type == "cpu" and dtype == torch.float16:
        caution = "float16 on a CPU is slower than float32"
    elif device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(False):
        caution = (
            f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic; emulated, it is slower than float32"
        )
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    precision = str(dtype or torch.float32).removeprefix("torch.")
    return Machine(str(device), device.type, precision, visible_devices(), free, caution)
