"""Training in shares (fully sharded data parallel): every rank holds a piece of each weight, gradient and moment.

Torch's FSDP2 underneath (Zhao et al. 2023): the pieces of a layer are put together right before it computes, and its
gradient is added up and cut again right after. A tensor in pieces is a DTensor, cut along its first dimension; all
functions here take whole tensors as well, and do nothing to them.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def share_out(model: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> None:
    """Cut the weights of `model` among the ranks of the job, layer by layer, on `device` (mutates the model).

    All ranks call it with equal weights. From now on they compute in step: each must make as many forward and backward
    passes, through the same layers, as every other.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*layers, model):
        shares = fully_shard(part, mesh=mesh)
        # Losses are sums over the tokens of all ranks already, so gradients are added up and not averaged.
        shares.set_gradient_divide_factor(1.0)
        shares.set_force_sum_reduction_for_comms(True)


def is_shared_out(model: nn.Module) -> bool:
    """Whether each rank holds a piece of the model's weights, as `share_out` leaves it."""
    return isinstance(model, FSDPModule)


def prepare_pass(model: nn.Module, last: bool) -> None:
    """What comes before a forward and backward pass; gradients are exchanged in the `last` one of an update alone.

    The weights outside the layers are put together, so that the loss, too, can use them.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.unshard()


def own(tensor: Tensor) -> Tensor:
    """This rank's piece, which shares its memory with the tensor in pieces."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; all call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def piece_like(value: Tensor, model: Tensor) -> Tensor:
    """Of a whole tensor, which each rank has, what `model` holds of its like; no rank waits for another."""
    if not isinstance(model, DTensor):
        return value
    return distribute_tensor(value.to(model.device), model.device_mesh, model.placements, src_data_rank=None)
