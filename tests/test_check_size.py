"""Parameters, memory and disk, computed without torch, against what torch makes of the same settings."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtkit.check.size import Precision, activation_bytes, disk, memory, parameters
from mtkit.model.transformer import Transformer, count_parameters
from mtkit.recipe import Recipe
from mtkit.sections.model import Model

SMALL: dict[str, Any] = {"d_model": 24, "heads": 2, "d_ff": 40, "encoder_layers": 2, "decoder_layers": 3}


@pytest.mark.parametrize("share", ["all", "target", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_parameters_are_those_of_the_model(share, norm, positions):
    bias = positions == "rotary"
    section = Model(share_embeddings=share, norm=norm, positions=positions, max_positions=50, output_bias=bias, **SMALL)
    source = 70 if share == "all" else 90
    assert parameters(section, source, 70) == count_parameters(Transformer(section, source, 70))


def kept_bytes(section: Model, rows: int, source: int, target: int, low: bool) -> int:
    """What autograd keeps of a forward pass on a CPU, weights apart."""
    model = Transformer(section, 50, 50).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    source_BS, target_BT = torch.randint(4, 50, (rows, source)), torch.randint(4, 50, (rows, target))
    keeping = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with keeping, torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        model(source_BS, target_BT)
    return sum(storage.nbytes() for storage in kept.values())


VARIANTS = [
    {"norm": norm, "dropout": dropout, "activation": activation}
    for norm, dropout, activation in itertools.product(("pre", "post"), (0.0, 0.1), ("relu", "gelu"))
] + [{"activation_dropout": 0.1}]


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("batch", [(60, 24, 36), (4, 150, 130), (4, 200, 60)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_memory_of_a_batch_is_about_what_autograd_keeps(variant, batch, low):
    section = Model(**{"d_model": 64, "heads": 4, "d_ff": 128, "encoder_layers": 3, "decoder_layers": 2, **variant})
    guess = activation_bytes(section, *(np.array([n]) for n in batch), Precision("cpu", low))
    assert guess == pytest.approx(kept_bytes(section, *batch, low), rel=0.15)


def test_the_largest_batch_counts():
    section = Model(**SMALL)
    rows, source, target = np.array([10, 40, 3]), np.array([12, 30, 50]), np.array([10, 28, 60])
    each = [
        activation_bytes(section, *(one[[place]] for one in (rows, source, target)), Precision()) for place in range(3)
    ]
    assert activation_bytes(section, rows, source, target, Precision()) == max(each) == each[1]
    assert activation_bytes(section, rows[:0], source[:0], target[:0], Precision()) == 0


def recipe(folder: Path, **training: Any) -> Recipe:
    corpus = {"name": "x", "source": "a", "target": "b"}
    return Recipe.model_validate(
        {
            "run_dir": str(folder / "not" / "there"),
            "languages": {"source": "en", "target": "de"},
            "data": {"train": [corpus]},
            "training": training,
        }
    )


def test_memory_counts_each_part(tmp_path):
    plain = memory(recipe(tmp_path), 1000, 100, 500, Precision())
    assert (plain.weights, plain.gradients, plain.optimizer, plain.average) == (4000, 4000, 8000, 0)
    low = memory(recipe(tmp_path, ema_decay=0.9), 1000, 100, 500, Precision("cuda", True))
    assert (low.weights, low.average, low.process) == (6000, 4000, 0)
    twice = memory(recipe(tmp_path, r_drop=5), 1000, 100, 500, Precision())
    assert twice.activations == 2 * plain.activations
    assert plain.total > sum((4000, 4000, 8000)) + plain.process


def test_disk_counts_checkpoints_and_shards(tmp_path):
    ours = disk(recipe(tmp_path, keep_best=2, keep_last=3), 1000, 8000, 100, 2500)
    assert (ours.checkpoint, ours.checkpoints, ours.model) == (12_000, 5, 4_000)
    assert ours.shards == 2500 * 2 + 100 * 24
    assert ours.total == ours.shards + 6 * 12_000 + 4_000
    assert ours.free > 0, "of the disk of the nearest folder that is there"
    assert disk(recipe(tmp_path), 1000, 80_000, 100, 2500).shards == 2500 * 4 + 100 * 24


def test_disk_is_what_a_run_takes(runs):
    run = runs.train(training={"ema_decay": 0.9, "keep_best": 1, "keep_last": 1})
    size = sum(file.stat().st_size for file in run.checkpoint(run.steps()[-1]).iterdir())
    count = parameters(runs.recipe().model, 120, 120)
    guess = disk(runs.recipe(training={"ema_decay": 0.9}), count, 120, 0, 0).checkpoint
    assert guess == pytest.approx(size, abs=20_000), "but for names and numbers"
