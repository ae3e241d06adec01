"""`mtkit import`: a model of another toolkit as a model folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def import_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The other toolkit's folder.", show_default=False)],
    origin: Annotated[
        Literal["huggingface"], typer.Option("--from", help="The toolkit; MarianMT models.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="MODEL", help="Model folder to write. Default: DIR-mtkit.", show_default=False
        ),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option("--source-language", help="Where the folder does not say it.", show_default=False)
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--target-language", help="Where the folder does not say it.", show_default=False)
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify", metavar="FILE", help="Source lines to compare both on; needs transformers.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a model folder of a MarianMT (OPUS-MT) model, which translates as it did and can be fine-tuned.

    DIR holds config.json, model.safetensors (or pytorch_model.bin, whose plain tensors are read and no code is run),
    source.spm, target.spm and vocab.json. The vocabulary is put in the order of mtkit's special ids, in
    tokenizer.pieces.json. Beam size, length penalty and limits become the recipe's search. Language codes such as
    >>deu<< are symbols: type them before the sentence, or give translate --tag.

    To fine-tune, write a recipe with the sections `model` and `tokenizer` of the folder's recipe.yaml, your corpora,
    and training.initialize_from: MODEL.

    Example: mtkit import opus-mt-en-de --from huggingface -o models/en-de
    """
    from mtkit.convert.from_huggingface import Languages, import_huggingface
    from mtkit.convert.import_report import report

    output = output or folder.absolute().with_name(f"{folder.absolute().name}-mtkit")
    import_huggingface(folder, output, Languages(source_language, target_language))
    for line in report(folder, output, verify):
        print(line, flush=True)
