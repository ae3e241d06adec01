"""Gradient checkpointing: the same numbers, bit for bit, from less memory."""

import dataclasses
from typing import Any

import pytest
import torch
from test_step import ROWS, SETTINGS, Update, batch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mtkit.training.step import StepReport, StepSettings, batch_loss

CHECKPOINTED = dataclasses.replace(SETTINGS, gradient_checkpointing=True)
DROPOUTS = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"dtype": torch.bfloat16},
    "R-Drop": {"r_drop": 2.0, "word_dropout": 0.2},
    "packed": {"packing": True},
}


def updated(settings: StepSettings, section: dict[str, Any]) -> tuple[Update, StepReport]:
    update = Update(**section)
    return update, update([batch(ROWS[:5]), batch(ROWS[5:])], settings=settings)


@pytest.mark.parametrize("section", [{}, {"norm": "pre", "layer_dropout": 0.5, "encoder_layers": 4}], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients_are_the_same_bit_for_bit(variant: str, section: dict[str, Any]) -> None:
    """With every kind of dropout: the second time a layer computes, it draws the same bits."""
    section = {**DROPOUTS, **section}
    plain, checkpointed = (
        updated(dataclasses.replace(settings, **VARIANTS[variant]), section) for settings in (SETTINGS, CHECKPOINTED)
    )
    assert plain[1] == checkpointed[1]
    gradients = plain[0].gradients(), checkpointed[0].gradients()
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_randomness_after_an_update_is_the_same() -> None:
    """What is drawn again is not missing later."""
    states = []
    for settings in (SETTINGS, CHECKPOINTED):
        updated(settings, DROPOUTS)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Held(TorchDispatchMode):
    """Bytes that operations inside have made and that are still there, but for views of a model's weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.weights:
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def bytes(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


def held_after_forward(settings: StepSettings, layers: int) -> int:
    model = Update(encoder_layers=layers, decoder_layers=layers).model
    with Held(model) as held:
        loss = batch_loss(model, model.output, batch(ROWS * 4), settings)
        size = held.bytes()
    loss[0].backward()
    return size


def test_what_a_layer_keeps_for_the_backward_pass_is_its_input() -> None:
    """Measured as growth from 2 + 2 to 6 + 6 layers: four times the two inputs, and next to nothing else."""
    growth = {
        settings: held_after_forward(settings, 6) - held_after_forward(settings, 2)
        for settings in (SETTINGS, CHECKPOINTED)
    }
    one_layer = sum(ids_BT.numel() for ids_BT in (batch(ROWS * 4).source_BS, batch(ROWS * 4).target_in_BT)) * 32 * 4
    assert 4 * one_layer <= growth[CHECKPOINTED] < 4.5 * one_layer
    assert growth[SETTINGS] > 10 * growth[CHECKPOINTED]
