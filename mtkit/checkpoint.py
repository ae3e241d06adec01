"""Checkpoints and model folders: written whole or not at all, loaded without running code. See `mtkit.folders`."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mtkit.errors import ModelError
from mtkit.files import atomic_folder, atomic_write, give_usual_mode, sha256_file, write_json
from mtkit.folders import (
    FORMAT_VERSION,
    HASHED_FILES,
    LINEAGE_FILE,
    RECIPE_FILE,
    SCORES_FILE,
    STATE_FILE,
    STATE_TENSORS_FILE,
    WEIGHTS_FILE,
    RunFolder,
    check_checkpoint,
    checkpoint_state,
    find_model,
    read_lineage,
    read_tensor_table,
    seal,
    weights_sha256,
)
from mtkit.model.transformer import Transformer
from mtkit.quantized import SCALE, restored_weights
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

_OS_ERROR = re.compile(r"os error (\d+)")


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
    """Write the checkpoint of `step` as a folder that appears whole; returns it. Raises OSError, as for a full disk."""
    folder = run.checkpoint(step)
    with atomic_folder(folder) as new:
        _save_tensors(new / WEIGHTS_FILE, weights)
        _save_tensors(new / STATE_TENSORS_FILE, state_tensors)
        write_json(new / SCORES_FILE, dict(scores))
        hashes = {name: sha256_file(new / name) for name in HASHED_FILES}
        write_json(new / STATE_FILE, seal({"format": FORMAT_VERSION, "step": step, **state, "sha256": hashes}))
    return folder


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """The weights, the state tensors and the state of a checkpoint, on the CPU. Raises as `check_checkpoint` does."""
    state = check_checkpoint(folder)
    return load_tensors(folder / WEIGHTS_FILE), load_tensors(folder / STATE_TENSORS_FILE), state


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


def load_model(folder: str | Path, device: torch.device) -> tuple[Transformer, Recipe, Tokenizers]:
    """The model of a model, run or checkpoint folder, in evaluation mode on `device`, its recipe and tokenizers.

    Raises ModelError, naming the file, when something is missing, damaged or does not fit together.
    """
    model, weights, recipe, tokenizers = open_model(folder)
    for name, weight in model.named_parameters():
        weight.data = weights[name]
    return model.to(device), recipe, tokenizers


def open_model(folder: str | Path) -> tuple[Transformer, "StoredWeights", Recipe, Tokenizers]:
    """As `load_model`, on the CPU, for a model too large to be in memory twice.

    The model's weights hold nothing. Those that are returned fit it and are to replace them, one by one.
    """
    weights_path, home = find_model(Path(folder))
    recipe = Recipe.load(home / RECIPE_FILE)
    tokenizers = Tokenizers.load(home)
    _check_tokenizer(weights_path.parent, home, tokenizers)
    weights = StoredWeights(weights_path)
    _check_weights(weights_path)
    with _Hollow():
        model = build_model(recipe, tokenizers)
    _check_shapes(model, weights.shapes, weights_path)
    return model.eval(), weights, recipe, tokenizers


class StoredWeights(Mapping[str, Tensor]):
    """The weights in a safetensors file, each read when it is asked for; in float32, also where they are in int8.

    `shapes` tells what there is.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelError when it is missing or damaged."""
        self._path = path
        table = read_tensor_table(path)
        self._quantized = {name for name in table if name + SCALE in table}
        scales = {name + SCALE for name in self._quantized}
        self.shapes = {name: info.shape for name, info in table.items() if name not in scales}

    def __getitem__(self, name: str) -> Tensor:
        names = [name, name + SCALE] if name in self._quantized else [name]
        if name not in self.shapes:
            raise KeyError(name)
        # Opened anew each time: what was read of an open file stays in memory.
        with _reading(self._path), safe_open(self._path, "pt") as file:
            found = {each: file.get_tensor(each) for each in names}
            restored = restored_weights(found)[name]
            return torch.empty(restored.shape).copy_(restored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class _Hollow(TorchFunctionMode):
    """Where weights have a shape and no memory, until they are replaced: drawing random ones takes longer than loading.

    (As on torch's device "meta", whose machinery takes a second to import.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            return torch.zeros(1).expand(*args)
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            Tensor.normal_,
            Tensor.uniform_,
            Tensor.fill_,
        ):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _check_tokenizer(folder: Path, home: Path, tokenizers: Tokenizers) -> None:
    """Raise ModelError when the weights in `folder` were trained with other tokenizers than `home` holds."""
    if (folder / LINEAGE_FILE).is_file():
        expected = read_lineage(folder).get("tokenizer_sha256")
    elif (folder / STATE_FILE).is_file():
        expected = checkpoint_state(folder).get("tokenizer_sha256")
    else:
        return
    if expected != tokenizers.sha256:
        names = " and ".join(str(path) for path, _ in tokenizers.files(home))
        raise ModelError(
            f"{folder / WEIGHTS_FILE} and {names} do not belong together: the weights belong to the tokenizer with "
            f"SHA-256 {expected}, this one has {tokenizers.sha256}",
            "weights, recipe and tokenizer must come from one run; copy the model folder whole",
        )


def _check_weights(path: Path) -> None:
    """Raise ModelError when the weights are not those that the papers beside them tell of."""
    expected = weights_sha256(path.parent)
    if expected is None:
        return
    found = sha256_file(path)
    if found != expected:
        papers = path.with_name(LINEAGE_FILE if path.with_name(LINEAGE_FILE).is_file() else STATE_FILE)
        raise ModelError(
            f"{path} and {papers} do not belong together: the weights' SHA-256 is {found}, there it is {expected}",
            "the weights are damaged or were replaced; copy the folder whole, or make it again: mtkit average RUN",
        )


def build_model(recipe: Recipe, tokenizers: Tokenizers) -> Transformer:
    """A model of the recipe's shape for these vocabularies, with random weights."""
    return Transformer(recipe.model, tokenizers.source.size, tokenizers.target.size)


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str | os.PathLike[str]) -> None:
    """Copy `weights` into the model (mutates it). Raises ModelError for a missing, surplus or misshapen tensor."""
    _check_shapes(model, {name: tuple(weight.shape) for name, weight in weights.items()}, origin)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])


def _check_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], origin: str | os.PathLike[str]) -> None:
    """Raise ModelError for a missing, surplus or misshapen tensor."""
    own = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    for name in sorted(own.keys() | shapes.keys()):
        here, there = own.get(name), shapes.get(name)
        if here != there:
            raise ModelError(
                f"{origin}: tensor {name} is {there or 'missing'}, the recipe and tokenizer beside it want "
                f"{here or 'no such tensor'}",
                "weights, recipe and tokenizer must come from one run",
            )


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU. Raises ModelError when it is missing or damaged."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file", "copy the model folder whole")
    with _reading(path):
        return load_file(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ModelError for what goes wrong when the file is read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as safetensors ({error})", "the file is damaged") from None


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Raises OSError where the system refuses, which safetensors reports as its own kind."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
        give_usual_mode(path)
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None
