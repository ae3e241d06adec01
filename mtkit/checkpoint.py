"""The run folder and the model folder: what lies where, written whole or not at all, loaded without running code.

    RUN/recipe.yaml  tokenizer.model  shards/  metrics.jsonl  lock
    RUN/checkpoints/step-00012000/model.safetensors  state.safetensors  state.json  scores.json
    RUN/model/model.safetensors  recipe.yaml  tokenizer.model  lineage.json

A checkpoint's model.safetensors holds the weights to translate with (the moving average where one is kept);
state.safetensors holds what only training needs, state.json the numbers beside it and the hashes of both files.
"""

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkit.errors import DataError, ModelError
from mtkit.files import atomic_folder, atomic_write, read_json, sha256_file, write_json
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

FORMAT_VERSION = 1
WEIGHTS_FILE = "model.safetensors"
STATE_TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
SCORES_FILE = "scores.json"
RECIPE_FILE = "recipe.yaml"
LINEAGE_FILE = "lineage.json"
_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths inside a run folder. The tokenizers lie in the folder itself."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe of the training run."""
        return self.path / RECIPE_FILE

    @property
    def shards(self) -> Path:
        """Folder of the binarized corpora."""
        return self.path / "shards"

    @property
    def metrics(self) -> Path:
        """What happened, one JSON object a line; only ever appended to."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The model folder, which is self-contained."""
        return self.path / "model"

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after update `step`."""
        return self.checkpoints / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The updates after which there is a checkpoint, ascending."""
        if not self.checkpoints.is_dir():
            return []
        matches = [_STEP.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir()]
        return sorted(int(match[1]) for match in matches if match)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, a shared one once, under its first name."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def save_checkpoint(
    run: RunFolder,
    step: int,
    weights: Mapping[str, Tensor],
    state_tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    scores: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `step` as a folder that appears whole; returns it."""
    folder = run.checkpoint(step)
    with atomic_folder(folder) as new:
        _save_tensors(new / WEIGHTS_FILE, weights)
        _save_tensors(new / STATE_TENSORS_FILE, state_tensors)
        write_json(new / SCORES_FILE, dict(scores))
        hashes = {name: sha256_file(new / name) for name in (WEIGHTS_FILE, STATE_TENSORS_FILE, SCORES_FILE)}
        write_json(new / STATE_FILE, {"format": FORMAT_VERSION, "step": step, **state, "sha256": hashes})
    return folder


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """The weights, the state tensors and the state of a checkpoint, on the CPU, after checking every hash.

    Raises ModelError naming the file that is missing, damaged or of a newer format.
    """
    state = checkpoint_state(folder)
    for name, expected in state["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise ModelError(f"{path}: missing from the checkpoint", "take another checkpoint, or restore the file")
        if sha256_file(path) != expected:
            raise ModelError(f"{path}: its contents do not match their hash; the checkpoint is damaged")
    return load_tensors(folder / WEIGHTS_FILE), load_tensors(folder / STATE_TENSORS_FILE), state


def checkpoint_state(folder: Path) -> dict[str, Any]:
    """The state.json of a checkpoint. Raises ModelError when it is missing, damaged or of a newer format."""
    path = folder / STATE_FILE
    try:
        state = read_json(path)
    except DataError as error:
        raise ModelError(error.message, "the checkpoint is not whole; take another one") from None
    if not isinstance(state, dict) or not isinstance(state.get("sha256"), dict):
        raise ModelError(f"{path}: is not the state of a checkpoint")
    _check_format(path, state)
    return state


def remove_checkpoint(run: RunFolder, step: int) -> None:
    """Delete a checkpoint; a kill half-way leaves a folder that no longer counts as one."""
    folder = run.checkpoint(step)
    doomed = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(run: RunFolder) -> None:
    """Delete what writes and deletions that were killed half-way have left behind."""
    for folder in (run.path, run.checkpoints):
        if folder.is_dir():
            for entry in folder.iterdir():
                if entry.name.startswith(".") and entry.suffix in (".part", ".old"):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def save_model(
    folder: Path, weights: Mapping[str, Tensor], recipe: Recipe, tokenizers: Tokenizers, lineage: Mapping[str, Any]
) -> None:
    """Write a model folder, replacing an older one whole."""
    with atomic_folder(folder) as new:
        _save_tensors(new / WEIGHTS_FILE, weights)
        with atomic_write(new / RECIPE_FILE) as stream:
            stream.write(recipe.dump())
        tokenizers.save(new)
        hashes = {"weights_sha256": sha256_file(new / WEIGHTS_FILE), "tokenizer_sha256": tokenizers.sha256}
        write_json(new / LINEAGE_FILE, {"format": FORMAT_VERSION, **lineage, **hashes})


def find_model(folder: Path) -> tuple[Path, Path]:
    """Where the weights are, and where recipe and tokenizers are, for a model, run or checkpoint folder.

    Raises ModelError when there is no model.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder", "give a model folder, for example runs/quickstart/model")
    if (folder / WEIGHTS_FILE).is_file():
        home = folder if (folder / RECIPE_FILE).is_file() else folder.parent.parent
        if (home / RECIPE_FILE).is_file():
            return folder / WEIGHTS_FILE, home
        raise ModelError(f"{folder}: has weights but no {RECIPE_FILE}", "a model folder holds both; copy it whole")
    inner = RunFolder(folder).model
    if (inner / WEIGHTS_FILE).is_file() and (inner / RECIPE_FILE).is_file():
        return inner / WEIGHTS_FILE, inner
    hint = (
        f"make it with: mtkit average {folder}"
        if RunFolder(folder).steps()
        else "give a model folder, for example runs/quickstart/model"
    )
    raise ModelError(f"{folder}: there is no {WEIGHTS_FILE}, this is not a model folder", hint)


def load_model(folder: str | Path, device: torch.device) -> tuple[Transformer, Recipe, Tokenizers]:
    """The model of a model, run or checkpoint folder, in evaluation mode on `device`, its recipe and tokenizers.

    Raises ModelError, naming the file, when something is missing, damaged or does not fit together.
    """
    weights_path, home = find_model(Path(folder))
    lineage_path = home / LINEAGE_FILE
    if lineage_path.is_file():
        _check_format(lineage_path, read_lineage(home))
    recipe = Recipe.load(home / RECIPE_FILE)
    tokenizers = Tokenizers.load(home)
    model = build_model(recipe, tokenizers)
    set_weights(model, load_tensors(weights_path), weights_path)
    return model.to(device).eval(), recipe, tokenizers


def read_lineage(folder: Path) -> dict[str, Any]:
    """The lineage.json of a model folder. Raises ModelError when it is missing or damaged."""
    try:
        lineage = read_json(folder / LINEAGE_FILE)
    except DataError as error:
        raise ModelError(error.message, error.hint) from None
    if not isinstance(lineage, dict):
        raise ModelError(f"{folder / LINEAGE_FILE}: is not a model's lineage")
    return lineage


def build_model(recipe: Recipe, tokenizers: Tokenizers) -> Transformer:
    """A model of the recipe's shape for these vocabularies, with random weights."""
    return Transformer(recipe.model, tokenizers.source.size, tokenizers.target.size)


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: Path) -> None:
    """Copy `weights` into the model (mutates it). Raises ModelError for a missing, surplus or misshapen tensor."""
    own = dict(model.named_parameters())
    for name in sorted(own.keys() | weights.keys()):
        here = tuple(own[name].shape) if name in own else None
        there = tuple(weights[name].shape) if name in weights else None
        if here != there:
            raise ModelError(
                f"{origin}: tensor {name} is {there or 'missing'}, the recipe and tokenizer beside it want {here}",
                "weights, recipe and tokenizer must come from one run",
            )
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises ModelError when it is missing or damaged."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as safetensors ({error})", "the file is damaged") from None


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, without reading the numbers. Raises ModelError as `load_tensors` does."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as safetensors ({error})", "the file is damaged") from None


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def _check_format(path: Path, document: Mapping[str, Any]) -> None:
    version = document.get("format")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelError(
            f"{path}: has format {version}, this mtkit reads up to {FORMAT_VERSION}", "update mtkit to read it"
        )
