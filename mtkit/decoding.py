"""The form in which a trained model decodes: prepared for a CPU, or as it is, in low precision where asked for."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mtkit.errors import UsageError
from mtkit.folders import find_model, read_tensor_table
from mtkit.model.kernels import Precision
from mtkit.model.prepared import PreparedTransformer
from mtkit.model.transformer import Transformer
from mtkit.search.protocol import SearchModel


def decoding_model(
    model: Transformer,
    device: torch.device,
    precision: Precision,
    narrowing: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> SearchModel:
    """The model in the form in which its `device` decodes fastest in this precision.

    `narrowing`: it will be asked for parts of its vocabulary; `weights`: those of a model that has none yet, see
    `PreparedTransformer`, for a CPU only.
    Raises UsageError where the device does not have the precision.
    """
    if device.type == "cpu":
        return PreparedTransformer(model, precision, narrowing, weights)
    if precision == "int8":
        raise UsageError(
            f"precision int8 is for decoding on a CPU, and the device is {device}",
            "use precision bfloat16 or float32, or device cpu",
        )
    return model


def stored_precision(folder: Path, device: torch.device) -> Precision:
    """The precision of a model's weights as they are stored: int8 (on a CPU, where it decodes) or float32."""
    table = read_tensor_table(find_model(folder)[0])
    return "int8" if device.type == "cpu" and any(info.dtype == "I8" for info in table.values()) else "float32"


def decoding_dtype(device: torch.device, precision: Precision) -> torch.dtype | None:
    """The low precision in which to run the model that `decoding_model` gives; None: it has its own."""
    return torch.bfloat16 if precision == "bfloat16" and device.type != "cpu" else None
