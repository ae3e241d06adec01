"""`mtkit export`: a model in the format of another toolkit, verified."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mtkit.errors import UsageError
from mtkit.loading import load_torch

QuantizationOption = Annotated[
    Literal["float32", "int8", "int16", "float16", "bfloat16"] | None,
    typer.Option(
        "--quantization",
        help="With --to ctranslate2: how weights are stored. Default: float32.",
        show_default=False,
    ),
]


def export(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model folder, a run folder or a checkpoint.", show_default=False),
    ],
    to: Annotated[Literal["ctranslate2", "huggingface"], typer.Option("--to", help="The toolkit.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder to write. Default: MODEL-TOOLKIT.", show_default=False
        ),
    ] = None,
    quantization: QuantizationOption = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Source lines to compare both toolkits on. Default: the recipe's first validation corpus.",
            show_default=False,
        ),
    ] = None,
    verify_lines: Annotated[
        int, typer.Option("--verify-lines", min=0, help="How many of its first lines; 0: do not verify.")
    ] = 100,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, max=1024, help="CPU threads to verify with. Default: one a core.", show_default=False
        ),
    ] = None,
) -> None:
    """Export a model for CTranslate2 or Hugging Face transformers, and compare the two on some lines.

    ctranslate2 (extra: mtkit[ctranslate2]) holds every architecture. README.md in the folder says which options of
    translate_batch equal the recipe's search; `mtkit translate --engine ctranslate2` needs no export by hand.

    huggingface writes a MarianMT model for AutoModelForSeq2SeqLM and pipeline("translation"): post-norm, sinusoidal
    positions; other architectures are refused. It is verified where transformers is installed (extra:
    mtkit[huggingface]). What its generation config cannot hold is told, and left out.

    Both are asked on the CPU. Printed are identical translations, the largest difference of their scores, target tokens
    a second and the size of the weights of both. A folder is replaced only if it is an export of mtkit's, and whole.

    Examples:
      mtkit export runs/quickstart/model --to ctranslate2 --quantization int8
      mtkit export runs/mine/model --to huggingface --output opus-mt-mine --verify valid.en
    """
    load_torch()
    from mtkit.convert.export import Wish, export_model
    from mtkit.runtime import set_threads

    if quantization is not None and to != "ctranslate2":
        raise UsageError(f"--quantization {quantization} is an option of --to ctranslate2", "leave it out")
    set_threads(threads)
    wish = Wish(model, to, output, quantization or "float32", verify, verify_lines, threads)
    for line in export_model(wish):
        print(line, flush=True)
