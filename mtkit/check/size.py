"""How large a model is and what its training takes of memory and disk: sums, without torch."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtkit.data.shards import id_dtype
from mtkit.recipe import Recipe
from mtkit.sections.model import Model

_FLOAT, _HALF = 4, 2  # bytes
_LOSS_CHUNK = 512  # target positions that mtkit.training.loss projects at a time
_ATTENTION_WRITTEN_OUT = 128 * 128  # queries times keys up to which mtkit.model.attention keeps its weights, in fp32
_PROCESS_BYTES = 400_000_000  # a Python process with torch in it, before it has a model
_TRANSIENT = 1.2  # what the backward pass needs besides what the forward pass has kept, about
_PAIR_BYTES = 24  # of a shard: two offsets and a line number


def parameters(model: Model, source_vocab: int, target_vocab: int) -> int:
    """How many numbers the weights of a model hold, shared matrices counted once."""
    width, inner = model.d_model, model.d_ff
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    matrices = {"all": target_vocab, "target": source_vocab + target_vocab, "none": source_vocab + 2 * target_vocab}
    count = model.encoder_layers * encoder + model.decoder_layers * decoder
    count += matrices[model.share_embeddings] * width
    if model.output_bias:
        count += target_vocab
    if model.norm == "pre":
        count += 2 * norm
    if model.positions == "learned":
        count += 2 * model.max_positions * width
    return count


@dataclass(frozen=True, slots=True)
class Precision:
    """How training computes: on which kind of device, and whether matrix products are in 16 bits."""

    device: str = "cpu"
    low: bool = False


def activation_bytes(model: Model, rows: np.ndarray, source: np.ndarray, target: np.ndarray, how: Precision) -> int:
    """What the forward pass of the largest batch keeps for the backward pass, in bytes, about.

    `rows`, `source` and `target` are the pairs of each batch and its longest sides, in tokens with EOS. Counted by
    hand from the layers: for each position of a layer so many numbers of the model's width, and of the inner width.
    """
    dropout = model.dropout > 0
    if how.low:
        encoder, decoder = (24, 42) if dropout else (20, 36)
    else:
        encoder, decoder = (40, 68) if dropout else (32, 56)
    inner = (_HALF if how.low else _FLOAT) * (1 if model.activation == "relu" else 2)
    if model.activation_dropout:
        inner += _FLOAT if not how.low else _HALF
    ends = (20 if model.norm == "pre" else 12) if dropout else (12 if model.norm == "pre" else 4)
    width = model.d_model
    source_cells, target_cells = rows.astype(np.float64) * source, rows.astype(np.float64) * target
    each = source_cells * (model.encoder_layers * (encoder * width + inner * model.d_ff) + ends * width / 2)
    each = each + target_cells * (model.decoder_layers * (decoder * width + inner * model.d_ff) + ends * width / 2)
    if how.device == "cpu":
        for layers, cells, queries, keys in (
            (model.encoder_layers, source_cells, source, source),
            (model.decoder_layers, target_cells, target, target),
            (model.decoder_layers, target_cells, target, source),
        ):
            written_out = how.low | (queries.astype(np.int64) * keys <= _ATTENTION_WRITTEN_OUT)
            each = each + written_out * (_FLOAT + (_HALF if how.low else 0)) * model.heads * layers * cells * keys
    return int(each.max(initial=0))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that training takes, by what they are for. `process` is torch itself, not counted on a GPU."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    loss: int
    process: int

    @property
    def total(self) -> int:
        """All of it."""
        parts = (self.weights, self.gradients, self.optimizer, self.average, self.activations, self.loss, self.process)
        return sum(parts)


def memory(recipe: Recipe, count: int, vocab: int, activations: int, how: Precision) -> Memory:
    """What training a model of `count` parameters takes, with Adam's two moments, in one process."""
    passes = 2 if recipe.training.r_drop else 1
    return Memory(
        weights=(_FLOAT + (_HALF if how.low else 0)) * count,
        gradients=_FLOAT * count,
        optimizer=2 * _FLOAT * count,
        average=_FLOAT * count if recipe.training.ema_decay is not None else 0,
        activations=int(_TRANSIENT * passes * activations),
        loss=_FLOAT * vocab * (recipe.model.d_model + 3 * _LOSS_CHUNK),
        process=0 if how.device == "cuda" else _PROCESS_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that a run takes on the disk, and what is free there."""

    shards: int
    checkpoint: int
    checkpoints: int
    model: int
    free: int

    @property
    def total(self) -> int:
        """Shards, all checkpoints that are kept, the one that is being written, and the model folder."""
        return self.shards + self.checkpoint * (self.checkpoints + 1) + self.model


def disk(recipe: Recipe, count: int, vocab: int, pairs: float, tokens: float) -> Disk:
    """What a run of these kept pairs and tokens (both sides together) takes."""
    state = 3 * _FLOAT if recipe.training.ema_decay is None else 4 * _FLOAT
    width = np.dtype(id_dtype(vocab)).itemsize
    return Disk(
        shards=int(tokens * width + pairs * _PAIR_BYTES),
        checkpoint=state * count,
        checkpoints=recipe.training.keep_best + recipe.training.keep_last,
        model=_FLOAT * count,
        free=free_space(Path(recipe.run_dir)),
    )


def free_space(folder: Path) -> int:
    """Bytes free on the disk of a folder that may not be there yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def available_memory() -> int | None:
    """Bytes of memory that this process may still take, by the system and its control group; None where unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            rows = dict(line.split(":", 1) for line in stream)
        free = int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text("ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text("ascii"))
    except (OSError, ValueError):
        return free
    return min(free, max(0, limit - used))
