"""`mtkit info`: what a model is."""

import json
from pathlib import Path
from typing import Annotated

import typer


def info(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model folder, a run folder or a checkpoint.", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded numbers.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read weights, tokenizer, shards' report, test translations and corpora, and compare all hashes; "
            "exit 1 when two do not belong together.",
        ),
    ] = False,
) -> None:
    """Show what a model is: languages, sizes, architecture, steps, scores, hashes.

    Parameters count shared matrices once. Training time is wall time, tokens are target tokens, file sizes are in bytes
    of 1000 to the kB. Test scores are shown where the model lies in the run folder they were made in.

    The SHA-256 hashes are a chain: the files of the corpora, their text as it was read, the tokenizer, the shards, the
    checkpoints, the weights, the test translations. Each is written down where the next one is made.

    Example: mtkit info runs/quickstart/model --verify
    """
    from mtkit.describe import describe, render
    from mtkit.describe import verify as check

    facts = describe(model)
    if verify:
        facts["corpus_files"] = check(model)
        facts["verified"] = True
    text = json.dumps(facts, ensure_ascii=False, indent=2) if as_json else render(facts)
    if verify and not as_json:
        text += "\nverified: weights and tokenizer are as they were written"
    print(text)
