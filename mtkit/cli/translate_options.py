"""Arguments and options of `mtkit translate`, but for those that the section `search` makes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder, such as runs/NAME/model.", show_default=False)
]
InputOption = Annotated[
    Path | None,
    typer.Option(
        "--input",
        "-i",
        help="File to translate, plain, .gz, .xz or .bz2; - is stdin. Default: stdin.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File for the result, compressed by its suffix; it appears when it is complete; - is stdout. Default: "
        "stdout.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON lines, one object a line of input; see above.")]
AlignmentsOption = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Write the alignment of each best translation in place of its text: Pharaoh i-j; see above.",
    ),
]
JsonInputOption = Annotated[
    bool,
    typer.Option("--json-input", help='Read JSON lines {"text": ..., "prefix": ...}; other keys go to --json output.'),
]
InteractiveOption = Annotated[
    bool,
    typer.Option("--interactive", help="Answer each line before reading the next; the same as --batch-size 1."),
]
BadUtf8Option = Annotated[
    Literal["replace", "error"],
    typer.Option("--bad-utf8", help="Bytes that are not UTF-8: made U+FFFD and reported, or refused."),
]
PrefixOption = Annotated[
    Path | None,
    typer.Option(
        "--prefix-file",
        help="File with a forced start of the translation for each line; a blank one forces nothing.",
        show_default=False,
    ),
]
TagOption = Annotated[
    list[str],
    typer.Option(
        "--tag",
        metavar="SYMBOL",
        help="User-defined symbol put before every source line; may be repeated.",
        show_default=False,
    ),
]
EnsembleOption = Annotated[
    list[Path],
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="One more model that votes; its tokenizer must be the same; may be repeated.",
        show_default=False,
    ),
]
CombineOption = Annotated[
    Literal["arithmetic", "geometric"] | None,
    typer.Option("--combine", help="Mean of an ensemble's probabilities. Default: arithmetic.", show_default=False),
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:N (N counts within CUDA_VISIBLE_DEVICES) or mps.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="CPU threads. Default: one a core.", show_default=False)
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16", "int8"] | None,
    typer.Option(
        "--precision",
        help="Of weights and matrix products; see above. int8 is for CPUs. Default: that of the weights, which is "
        "float32, or int8 after mtkit quantize.",
        show_default=False,
    ),
]
ShortlistOption = Annotated[
    bool,
    typer.Option("--shortlist", help="Search over the target tokens of the model's shortlist alone; see above."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=1024,
        help="Processes that search, on Linux and a CPU; see above. Default: one a core.",
        show_default=False,
    ),
]
