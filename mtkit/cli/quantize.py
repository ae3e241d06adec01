"""`mtkit quantize`: a model folder with its matrices in int8."""

from pathlib import Path
from typing import Annotated

import typer

from mtkit.cli.translate_options import ModelArgument
from mtkit.errors import UsageError
from mtkit.loading import load_torch


def quantize(
    model: ModelArgument,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="The new model folder; it must not exist yet.", show_default=False)
    ],
) -> None:
    """Write a copy of a model whose matrices are int8: a quarter of the size, for decoding on CPUs.

    Each row of a matrix has its own scale. `mtkit translate OUTPUT` decodes in int8 by itself; every other command
    reads it too. `mtkit bench translate` shows speed, memory and BLEU of each precision.

    Example: mtkit quantize runs/quickstart/model quickstart-int8
    """
    if output.exists():
        raise UsageError(f"{output} exists already", "give the name of a new folder")

    load_torch()
    import torch

    from mtkit.checkpoint import load_model, save_model, weights_of
    from mtkit.figures import size
    from mtkit.folders import LINEAGE_FILE, WEIGHTS_FILE, find_model, read_lineage, weights_sha256
    from mtkit.quantized import quantized_weights

    weights_path, _ = find_model(model)
    transformer, recipe, tokenizers = load_model(model, torch.device("cpu"))
    papers = weights_path.parent
    lineage = read_lineage(papers) if (papers / LINEAGE_FILE).is_file() else {}
    lineage = {**lineage, "quantized_from_sha256": weights_sha256(papers)}
    lineage.pop("format", None)
    save_model(output, quantized_weights(weights_of(transformer)), recipe, tokenizers, lineage)
    before, after = (path.stat().st_size for path in (weights_path, output / WEIGHTS_FILE))
    print(f"{output}: int8, {size(after)}; {model}: {size(before)}")
