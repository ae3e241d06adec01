"""Weights in int8: a quarter of the size of float32, and what `mtkit.model.kernels` computes with.

A matrix NAME is kept as int8, with a scale for each of its rows in NAME.scale; all else stays as it is.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mtkit.model.kernels import quantize

SCALE = ".scale"


def quantized_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model with its matrices in int8; tables of positions, vectors and numbers as they are."""
    small: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and "positions" not in name:
            small[name], small[name + SCALE] = quantize(weight.float())
        else:
            small[name] = weight
    return small


def restored_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32 again, from what `quantized_weights` gave; other weights unchanged.

    Quantizing them once more gives the same int8 numbers.
    """
    weights = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8 and name + SCALE in tensors:
            weights[name] = tensor.float().mul_(tensors[name + SCALE][:, None])
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in tensors):
            weights[name] = tensor
    return weights
