"""Measuring training: what the figures are made of, and that a measurement leaves nothing behind."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from toy_run import Runs

from mtkit.bench import peak
from mtkit.bench.flops import training_flops
from mtkit.bench.peak import Products, matrix_peaks
from mtkit.bench.train import PHASES, bench_train
from mtkit.cli.bench import train as command
from mtkit.model.transformer import Transformer
from mtkit.sections.model import Model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_SIZES", {"cpu": (64,)})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=15, deadline=None)
@given(
    source=st.integers(1, 12),
    target=st.integers(1, 12),
    rows=st.integers(1, 3),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    width=st.sampled_from([8, 16]),
)
def test_the_formula_counts_what_torch_counts(
    source: int, target: int, rows: int, layers: tuple[int, int], width: int
) -> None:
    """But for causal attention, of which torch counts both halves, and the formula the half that is needed."""
    section = Model(
        d_model=width, heads=2, d_ff=3 * width, encoder_layers=layers[0], decoder_layers=layers[1], dropout=0.0
    )
    model = Transformer(section, 50, 50)
    ids = [torch.full((rows, length), 5) for length in (source, target)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.logits(model(*ids))
    forward = counter.get_total_flops()
    unneeded = layers[1] * rows * 4 * width * (target * target - target * (target + 1) // 2)
    counted = training_flops(section, 50, np.full(rows, source), np.full(rows, target))
    assert counted == 3 * (forward - unneeded)


def test_peaks_are_measured_for_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "autocast_dtype", lambda precision, device: None)
    assert list(matrix_peaks(CPU, 0.01)) == ["fp32"]
    monkeypatch.setattr(peak, "autocast_dtype", lambda precision, device: torch.bfloat16)
    peaks = matrix_peaks(CPU, 0.01)
    assert list(peaks) == ["fp32", "bf16"]
    assert all(found.flops_per_second > 1e6 for found in peaks.values())
    products = Products(CPU, torch.float32, peaks["fp32"].size)
    products.run(0.02)
    assert products.seconds >= 0.01
    assert products.flops % (2 * peaks["fp32"].size ** 3) == 0
    assert products.flops / products.seconds <= products.quickest


@pytest.mark.parametrize("training", [{}, {"accumulate": 2, "ema_decay": 0.9}])
def test_the_figures_add_up_and_nothing_is_written(
    runs: Runs, tmp_path: Path, training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = runs.recipe(training={"max_epochs": 1, **training})
    before = contents(tmp_path)
    ticks: list[int] = []
    speed = bench_train(recipe, count=40, warmup=2, tick=lambda: ticks.append(1))
    assert contents(tmp_path) == before
    assert len(ticks) == 42, "more than an epoch, though the recipe ends after one"
    assert set(speed.seconds) == set(PHASES)
    assert all(seconds >= 0 for seconds in speed.seconds.values())
    assert speed.seconds["backward"] > 0 < speed.seconds["forward"]
    spread = speed.target_tokens_per_second_of_updates
    assert spread["least"] <= spread["median"] <= spread["most"]
    assert spread["least"] <= speed.target_tokens_per_second <= spread["most"]
    assert 0 < speed.padding_share < 0.5
    assert speed.peak_share == speed.flops_per_second / speed.peaks["fp32"]
    assert speed.sustained_share == speed.flops_per_second / speed.sustained_flops_per_second
    assert speed.sustained_flops_per_second > 1e6
    assert speed.loader_alone_target_tokens_per_second > speed.target_tokens_per_second
    assert (speed.precision, speed.device, speed.threads) == ("fp32", "cpu", 1)
    assert f"{speed.target_tokens_per_second:,.0f}" in speed.render()
    json.dumps(speed.to_json(), allow_nan=False)


def test_shards_that_are_missing_are_made_elsewhere(
    runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = runs.recipe(tokenizer={"vocab_size": 100}, filters={"max_length": 90})
    missing = recipe.model_copy(update={"run_dir": str(tmp_path / "nowhere")})
    before = contents(tmp_path)
    with caplog.at_level(logging.INFO):
        for one, told in ((recipe, "are not up to date"), (missing, "there is no tokenizer")):
            assert bench_train(one, count=1, warmup=0).updates == 1
            assert told in caplog.text
    assert contents(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


def test_the_command_prints_json_alone(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = runs.recipe()
    path = runs.folder / "recipe.yaml"
    path.write_text(recipe.dump(), encoding="utf-8")
    command(path, ["training.precision=fp32"], updates=2, warmup=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["updates"], figures["warmup"]) == (2, 1)
    command(path, [], updates=1, warmup=0, as_json=False)
    assert capsys.readouterr().out.startswith("target tokens/s ")
