"""What lies where in a run folder and a model folder, and how to read about it without torch.

    RUN/recipe.yaml  tokenizer.model  shards/  stages.json  metrics.jsonl  budget.json  scores.json  test/  lock
    RUN/checkpoints/step-00012000/model.safetensors  state.safetensors  state.json  scores.json
    RUN/model/model.safetensors  recipe.yaml  tokenizer.model  lineage.json  shortlist.safetensors (where one was made)

A checkpoint's model.safetensors holds the weights to translate with (the moving average where one is kept);
state.safetensors holds what only training needs, state.json the numbers beside it, the hashes of the other files, and a
hash of itself.
"""

import contextlib
import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.errors import DataError, ModelError
from mtkit.files import read_json, sha256_file
from mtkit.lineage import fingerprint

FORMAT_VERSION = 1
WEIGHTS_FILE = "model.safetensors"
STATE_TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
SCORES_FILE = "scores.json"
SHORTLIST_FILE = "shortlist.safetensors"
RECIPE_FILE = "recipe.yaml"
LINEAGE_FILE = "lineage.json"
HASHED_FILES = (WEIGHTS_FILE, STATE_TENSORS_FILE, SCORES_FILE)
"""The files of a checkpoint whose hashes its state holds."""

_STEP = re.compile(r"step-(\d{8,})")
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1}
_LARGEST_HEADER = 100_000_000


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
    def stages(self) -> Path:
        """What each finished stage has read."""
        return self.path / "stages.json"

    @property
    def metrics(self) -> Path:
        """What happened, one JSON object a line; only ever appended to."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def budget(self) -> Path:
        """What was measured for `batching.max_tokens: auto`."""
        return self.path / "budget.json"

    @property
    def tensorboard(self) -> Path:
        """Folder of the log for TensorBoard, where the recipe asks for one."""
        return self.path / "tensorboard"

    @property
    def model(self) -> Path:
        """The model folder, which is self-contained."""
        return self.path / "model"

    @property
    def test(self) -> Path:
        """Folder of the translations of the test corpora."""
        return self.path / "test"

    @property
    def scores(self) -> Path:
        """The scores of the test corpora."""
        return self.path / SCORES_FILE

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after update `step`."""
        return self.checkpoints / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The updates after which there is a checkpoint, ascending."""
        if not self.checkpoints.is_dir():
            return []
        matches = [_STEP.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir()]
        return sorted(int(match[1]) for match in matches if match)


def remove_checkpoint(run: RunFolder, step: int) -> None:
    """Delete a checkpoint; a kill half-way leaves a folder that no longer counts as one."""
    folder = run.checkpoint(step)
    doomed = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def set_aside(run: RunFolder, step: int) -> Path:
    """Rename a checkpoint that cannot be read, so that it no longer counts as one; returns its new place."""
    folder = run.checkpoint(step)
    aside = folder.with_name(f"{folder.name}.unreadable")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.replace(aside)


def remove_leftovers(run: RunFolder) -> None:
    """Delete what writes and deletions that were killed half-way have left behind."""
    for folder in (run.path, run.checkpoints, run.test):
        if folder.is_dir():
            for entry in folder.iterdir():
                if entry.name.startswith(".") and entry.suffix in (".part", ".old"):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def seal(state: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's state with its own hash, as it is written."""
    return {**state, "state_sha256": fingerprint(state)}


def checkpoint_state(folder: Path) -> dict[str, Any]:
    """The state.json of a checkpoint. Raises ModelError when it is missing, damaged or of a newer format."""
    path = folder / STATE_FILE
    if not path.exists() and (folder / LINEAGE_FILE).exists():
        raise ModelError(
            f"{folder}: is a model folder, without {STATE_FILE}: an average has no training state to go on from",
            "resume from the checkpoints of its run",
        )
    state = _read_document(path, "the state of a checkpoint")
    check_format(path, state)
    own = state.pop("state_sha256", None)
    if own != fingerprint(state):
        raise ModelError(
            f"{path}: its contents do not match their hash; the checkpoint is damaged",
            f"take another checkpoint; this one can be deleted: {folder}",
        )
    return state


def check_checkpoint(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint after checking every hash.

    Raises ModelError naming the file that is missing, damaged or of a newer format.
    """
    state = checkpoint_state(folder)
    for name in HASHED_FILES:
        path = folder / name
        if not path.is_file():
            raise ModelError(f"{path}: missing from the checkpoint", "take another checkpoint, or restore the file")
        if sha256_file(path) != state["sha256"][name]:
            raise ModelError(
                f"{path}: its contents do not match their hash; the checkpoint is damaged",
                f"take another checkpoint; this one can be deleted: {folder}",
            )
    return state


def read_lineage(folder: Path) -> dict[str, Any]:
    """The lineage.json of a model folder. Raises ModelError when it is missing, damaged or of a newer format."""
    path = folder / LINEAGE_FILE
    lineage = _read_document(path, "a model's lineage")
    check_format(path, lineage)
    return lineage


def read_scores(folder: Path) -> dict[str, Any]:
    """The validation scores of a checkpoint; empty when there was none. Raises ModelError when they are damaged."""
    return _read_document(folder / SCORES_FILE, "a checkpoint's scores")


def _read_document(path: Path, what: str) -> dict[str, Any]:
    try:
        document = read_json(path)
    except DataError as error:
        raise ModelError(error.message, f"{path.parent} is not whole; take another one, or restore the file") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path}: is not {what}", f"{path.parent} is not whole; take another one, or restore the file")
    return document


def weights_sha256(folder: Path) -> str | None:
    """What the papers of a model, run or checkpoint folder say its weights' SHA-256 is; None when there are none.

    Raises ModelError when there is no model, or its papers are damaged.
    """
    place = find_model(folder)[0].parent
    if (place / LINEAGE_FILE).is_file():
        return read_lineage(place).get("weights_sha256")
    if (place / STATE_FILE).is_file():
        return str(checkpoint_state(place)["sha256"][WEIGHTS_FILE])
    return None


def check_format(path: Path, document: Mapping[str, Any]) -> None:
    """Raise ModelError when a document was written by a newer mtkit, or is none of mtkit's."""
    version = document.get("format")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelError(
            f"{path}: has format {version}, this mtkit reads up to {FORMAT_VERSION}", "update mtkit to read it"
        )


def find_model(folder: Path) -> tuple[Path, Path]:
    """Where the weights are, and where recipe and tokenizers are, for a model, run or checkpoint folder.

    Raises ModelError when there is no model.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder", "give a model folder, for example runs/quickstart/model")
    if (folder / WEIGHTS_FILE).is_file():
        home = folder if (folder / RECIPE_FILE).is_file() else folder.absolute().parent.parent
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


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a safetensors file says of a tensor: its dtype in the format's own names, such as F32, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {' x '.join(map(str, self.shape)) or 'scalar'}"


def read_tensor_table(path: Path) -> dict[str, TensorInfo]:
    """The tensors in a safetensors file, by name, from its header alone; its size is checked as well.

    Raises ModelError when the file is missing or damaged.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, _LARGEST_HEADER)).decode("utf-8"))
        header.pop("__metadata__", None)
        table = {name: TensorInfo(row["dtype"], tuple(row["shape"])) for name, row in header.items()}
        end = 8 + length + max((row["data_offsets"][1] for row in header.values()), default=0)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file", "copy the model folder whole") from None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise ModelError(f"{path}: cannot be read as safetensors", "the file is damaged") from None
    if end != size:
        raise ModelError(f"{path}: has {size} bytes where its header tells of {end}", "the file is damaged")
    return table


def tensor_bytes(table: Mapping[str, TensorInfo]) -> int:
    """The bytes that the tensors of a model take."""
    return sum(info.numbers * _BYTES.get(info.dtype, 0) for info in table.values())
