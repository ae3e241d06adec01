"""Training runs so small that a test can afford several: run folders ready to train in, and how two runs compare."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus

from mtkit import pipeline
from mtkit.checkpoint import load_checkpoint
from mtkit.files import read_json_lines
from mtkit.folders import RunFolder
from mtkit.recipe import Recipe
from mtkit.training import trainer

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1},
    "filters": {"max_length": 100},
    "batching": {"max_tokens": 512},
    "schedule": {"name": "constant", "rate": 0.01},
    "search": {"method": "beam", "beam_size": 2, "rules": {"max_length": 20}},
    "training": {
        "device": "cpu",
        "threads": 1,
        "max_steps": 12,
        "validate_every_steps": 6,
        "validate_sentences": 8,
        "log_every_steps": 5,
        "samples": 0,
        "keep_last": 100,
    },
}
"""About 35 batches an epoch."""

UNLIKE = ("time", "seconds", "target_tokens_per_second", "peak_memory_bytes", "seconds_left")
"""What no two runs have in common."""


def toy_recipe(corpus: TinyCorpus, run_dir: Path, **sections: Any) -> Recipe:
    """A recipe of the smallest model; sections are merged over the ones above, but for those that name their kind."""
    merged = {
        name: values if {"name", "method"} & values.keys() else {**SECTIONS.get(name, {}), **values}
        for name, values in sections.items()
    }
    return corpus.recipe(run_dir=str(run_dir), **{**SECTIONS, **merged})


class Runs:
    """Makes run folders inside one folder, each with tokenizer and shards of the invented corpus."""

    def __init__(self, corpus: TinyCorpus, prepared: Path, folder: Path) -> None:
        self.corpus, self.prepared, self.folder = corpus, prepared, folder

    def recipe(self, name: str = "run", **sections: Any) -> Recipe:
        """A recipe whose run folder is ready to train in; what is there already stays."""
        recipe = toy_recipe(self.corpus, self.folder / name, **sections)
        if not Path(recipe.run_dir).exists():
            shutil.copytree(self.prepared, recipe.run_dir)
        return recipe

    def train(self, name: str = "run", **sections: Any) -> RunFolder:
        """Train, or go on training, in the folder `name`."""
        recipe = self.recipe(name, **sections)
        pipeline.train(recipe)
        return RunFolder(Path(recipe.run_dir))


def prepare(corpus: TinyCorpus, folder: Path) -> Path:
    """Tokenizer and shards of the invented corpus in a run folder."""
    recipe = toy_recipe(corpus, folder)
    pipeline.ensure_shards(recipe, pipeline.ensure_tokenizer(recipe))
    return folder


def before_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """Do something inside the loop, right before the given update is computed."""
    real = trainer.train_step

    def wrapped(*arguments: Any) -> Any:
        if arguments[5] == step:
            act()
        return real(*arguments)

    monkeypatch.setattr(trainer, "train_step", wrapped)


def signalled(number: signal.Signals) -> Callable[[], None]:
    """Sends this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def events(run: RunFolder, *kinds: str) -> list[dict[str, Any]]:
    """The events of a run, of all kinds or some, without what no two runs have in common."""
    rows = read_json_lines(run.metrics)
    return [
        {key: value for key, value in row.items() if key not in UNLIKE}
        for row in rows
        if not kinds or row["event"] in kinds
    ]


def assert_same(first: RunFolder, second: RunFolder, step: int) -> None:
    """The checkpoints after `step` are equal bit for bit: weights, optimizer, moving average, state, scores."""
    ours, theirs = (load_checkpoint(run.checkpoint(step)) for run in (first, second))
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            assert torch.equal(mine[name], other[name]), name
    states = [{**document["train"], "seconds": 0} for document in (ours[2], theirs[2])]
    assert states[0] == states[1]
    assert (first.checkpoint(step) / "scores.json").read_bytes() == (
        second.checkpoint(step) / "scores.json"
    ).read_bytes()


def last_of_each(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Events by kind and step; of what was done twice, because the run was killed in between, the second."""
    return {(row["event"], row["step"]): row for row in rows}
