"""Training whose processes share out the model: two of them over gloo, which must do what two that hold it whole do."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from pydantic import ValidationError
from toy_job import Pair, Starter, wait_for
from toy_run import Runs, events

from mtkit import fsdp as fsdp_module
from mtkit.average import mean
from mtkit.checkpoint import load_checkpoint, load_model, weights_of
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.fsdp import is_shared_out, own, piece_like, whole

LAST, MIDDLE = 11, 6
WAYS = ("ddp", "fsdp")
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"dropout": 0.1, "encoder_layers": 2},
    "optimizer": {"clip_norm": 0.5, "epsilon": 1e-3},
    "training": {
        "max_epochs": 1,
        "max_steps": 1000,
        "ema_decay": 0.9,
        "save_every_steps": 1,
        "validate_every_steps": 5,
        "keep_last": 99,
    },
}
"""An epoch of 21 batches: two processes do 10 updates of two, and one that leaves a process without a batch.

The bias of the keys changes no attention: its gradient is rounding alone, which Adam would make as large as any other
without a larger epsilon.
"""


@pytest.fixture(scope="module")
def shared(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("shared"))


def train(runs: Runs, starter: Starter, name: str, parallel: str, before: str = "", **sections: Any) -> RunFolder:
    """A run of two processes that ends well."""
    training = {**SECTIONS["training"], **sections.pop("training", {}), "parallel": parallel}
    recipe = runs.recipe(name, **{**SECTIONS, **sections, "training": training})
    for end in Pair(starter, recipe, before).ended():
        assert end.code == 0, end.err
    return RunFolder(Path(recipe.run_dir))


@pytest.fixture(scope="module")
def ddp(shared: Runs, starter: Starter) -> RunFolder:
    return train(shared, starter, "ddp", "ddp")


@pytest.fixture(scope="module")
def fsdp(shared: Runs, starter: Starter) -> RunFolder:
    return train(shared, starter, "fsdp", "fsdp")


def assert_alike(one: RunFolder, other: RunFolder, step: int) -> None:
    """Both checkpoints hold the same tensors, whole, and equal within 1e-6, and the same state but for the clock."""
    ours, theirs = (load_checkpoint(run.checkpoint(step)) for run in (one, other))
    for mine, other_tensors in zip(ours[:2], theirs[:2], strict=True):
        assert mine.keys() == other_tensors.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], other_tensors[name], rtol=0, atol=1e-6)
    for key in ("step", "epoch", "batch", "processes"):
        assert ours[2]["train"][key] == theirs[2]["train"][key]


@pytest.mark.parametrize("step", [1, MIDDLE, LAST])
def test_both_ways_compute_the_same(ddp: RunFolder, fsdp: RunFolder, step: int) -> None:
    """Weights, moving average and the optimizer's moments, with dropout and a gradient that is clipped."""
    norms = [row["gradient_norm"] for row in events(ddp, "train")]
    assert max(norms) > SECTIONS["optimizer"]["clip_norm"]
    assert_alike(ddp, fsdp, step)
    assert [row["gradient_norm"] for row in events(fsdp, "train")] == pytest.approx(norms, rel=1e-5)


def test_both_ways_validate_the_same(ddp: RunFolder, fsdp: RunFolder) -> None:
    rows = [events(run, "valid") for run in (ddp, fsdp)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == [5, 10, 11]
    for one, other in zip(*rows, strict=True):
        for name in ("nll", "bleu", "chrf"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_a_checkpoint_is_whole(fsdp: RunFolder) -> None:
    """It translates in one process, and is averaged with others."""
    folders = [fsdp.checkpoint(step) for step in (MIDDLE, LAST)]
    model = load_model(folders[1], torch.device("cpu"))[0]
    assert weights_of(model).keys() == mean(folders).keys()


@pytest.mark.parametrize(("first", "then"), [("ddp", "fsdp"), ("fsdp", "ddp"), ("fsdp", "fsdp")])
def test_a_run_goes_on_the_other_way(
    shared: Runs, starter: Starter, first: str, then: str, request: pytest.FixtureRequest
) -> None:
    before: RunFolder = request.getfixturevalue(first)
    name = f"{first} then {then}"
    shutil.copytree(before.path, shared.folder / name)
    run = RunFolder(shared.folder / name)
    for step in run.steps():
        if step > MIDDLE:
            shutil.rmtree(run.checkpoint(step))
    train(shared, starter, name, then)
    assert [row["step"] for row in events(run, "resume")] == [MIDDLE]
    assert_alike(before, run, LAST)


def test_whatever_else_touches_gradients(shared: Runs, starter: Starter) -> None:
    """Accumulation, R-Drop, packing, checkpointing, frozen parts, three matrices, from another run's weights."""
    start = train(shared, starter, "start", "ddp", model={"share_embeddings": "none"}, training={"max_steps": 1})
    sections: dict[str, Any] = {
        "model": {"share_embeddings": "none", "encoder_layers": 1},
        "training": {
            "max_steps": 3,
            "accumulate": 3,
            "r_drop": 2.0,
            "word_dropout": 0.1,
            "packing": True,
            "gradient_checkpointing": True,
            "freeze": ["encoder.0", "embeddings"],
            "initialize_from": str(start.checkpoint(1)),
        },
    }
    one, other = (train(shared, starter, f"all {way}", way, **sections) for way in WAYS)
    assert_alike(one, other, 3)
    names = load_checkpoint(other.checkpoint(3))[1]
    assert "optimizer.exp_avg.output.weight" in names
    assert "optimizer.exp_avg.target_embedding.weight" not in names


SPOILT = """
import math, os
from mtkit.training import step

real, calls = step.batch_loss, []

def batch_loss(*arguments):
    loss, nll = real(*arguments)
    calls.append(0)
    return (loss * math.nan, nll) if os.environ["RANK"] == "1" and len(calls) == 2 else (loss, nll)

step.batch_loss = batch_loss
"""


def test_a_bad_number_on_one_rank_skips_the_step_on_both(shared: Runs, starter: Starter) -> None:
    one, other = (train(shared, starter, f"spoilt {way}", way, SPOILT, training={"max_steps": 3}) for way in WAYS)
    assert [row["step"] for row in events(other, "skip")] == [2]
    assert checkpoint_state(other.checkpoint(3))["train"]["skipped_steps"] == 1
    assert_alike(one, other, 3)


FULL = """
import os, torch
from mtkit.training import step

real = step.batch_loss

def batch_loss(model, output, batch, settings):
    if model.training and os.environ["RANK"] == "1":
        raise torch.OutOfMemoryError("CUDA out of memory")
    return real(model, output, batch, settings)

step.batch_loss = batch_loss
"""


def test_memory_that_runs_out_on_one_rank_ends_both(shared: Runs, starter: Starter) -> None:
    recipe = shared.recipe("full", **{**SECTIONS, "training": {**SECTIONS["training"], "parallel": "fsdp"}})
    first, second = Pair(starter, recipe, FULL).ended()
    assert (first.code, second.code) == (1, 1)
    assert "training.parallel: fsdp cannot cut in halves" in second.complaints[0]
    assert "the connection to another rank is lost" in first.complaints[0]
    assert "Traceback" not in first.err + second.err


def test_a_process_that_is_killed_ends_the_other(shared: Runs, starter: Starter) -> None:
    training = {**SECTIONS["training"], "parallel": "fsdp", "max_epochs": None, "max_steps": 10**6, "keep_last": 2}
    recipe = shared.recipe("killed", **{**SECTIONS, "training": training})
    pair = Pair(starter, recipe)
    wait_for(RunFolder(Path(recipe.run_dir)).steps)
    os.kill(pair.processes[1], signal.SIGKILL)
    began = time.monotonic()
    first, second = pair.ended()
    assert time.monotonic() - began < 60
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "Traceback" not in first.err
    assert "the connection to another rank is lost" in first.complaints[0]


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("model", "layer_dropout", 0.1),
        ("training", "compile", True),
        ("training", "precision", "fp16"),
        ("training", "checksum_every_steps", 5),
        ("optimizer", "name", "muon"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    tiny_corpus: TinyCorpus, section: str, setting: str, value: Any
) -> None:
    sections: dict[str, dict[str, Any]] = {"training": {"parallel": "fsdp"}}
    sections[section] = {**sections.get(section, {}), setting: value}
    with pytest.raises(ValidationError, match=f"training.parallel: fsdp does not go together with {section}.{setting}"):
        tiny_corpus.recipe(**sections)
    del sections["training"]["parallel"]
    tiny_corpus.recipe(**sections)


@pytest.mark.parametrize("last", [False, True])
def test_a_pass_exchanges_gradients_only_when_it_is_the_last(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pieces:
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def set_requires_gradient_sync(self, wanted: bool) -> None:
            self.calls.append(wanted)

        def unshard(self) -> None:
            self.calls.append("unshard")

    monkeypatch.setattr(fsdp_module, "FSDPModule", Pieces)
    model: Any = Pieces()
    fsdp_module.prepare_pass(model, last)
    assert model.calls == [last, "unshard"]


def test_whole_tensors_pass_through() -> None:
    tensor = torch.ones(3)
    assert own(tensor) is whole(tensor) is piece_like(tensor, torch.zeros(3)) is tensor
    assert not is_shared_out(torch.nn.Linear(2, 2))
