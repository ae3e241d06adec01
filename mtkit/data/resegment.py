"""BPE-dropout (Provilkov et al. 2020): the pairs of a shard cut into other pieces, anew in every epoch.

Shards hold ids, so these are turned into text and encoded again, all of an epoch (of a block, with large corpora)
before its batches are planned: so lengths, batches and token counts are those of the pieces that are trained on.
"""

import numpy as np

from mtkit.data.shards import HeldShard, Shard
from mtkit.runtime import key_seed
from mtkit.text.tokenizer import Tokenizer, Tokenizers

CHUNK = 4096
"""Sentences encoded at a time."""


def resegment(shard: Shard | HeldShard, tokenizers: Tokenizers, rate: float, longest: int, *key: int) -> HeldShard:
    """The shard with both sides encoded again, each merge left out with probability `rate`; a function of `key` too.

    A sentence that would have more than `longest` tokens keeps the pieces it has in the shard. Holds 4 bytes a token.
    """
    source = _encoded(shard.source_ids, shard.source_offsets, tokenizers.source, rate, longest, *key, "source")
    target = _encoded(shard.target_ids, shard.target_offsets, tokenizers.target, rate, longest, *key, "target")
    return HeldShard(*source, *target)


def _encoded(
    ids: np.ndarray, offsets: np.ndarray, tokenizer: Tokenizer, rate: float, longest: int, *key: int | str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids laid end to end, their offsets, and the length of each sentence."""
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for begin in range(0, len(offsets) - 1, CHUNK):
        edges = offsets[begin : begin + CHUNK + 1].astype(np.int64)
        stored = [row.tolist() for row in np.split(ids[edges[0] : edges[-1]], edges[1:-1] - edges[0])]
        seed = key_seed("bpe_dropout", *key, begin)
        sampled = tokenizer.sample_batch([tokenizer.decode(row) for row in stored], rate, seed)
        rows = [new if len(new) <= longest else old for new, old in zip(sampled, stored, strict=True)]
        lengths += map(len, rows)
        parts.append(np.fromiter((number for row in rows for number in row), dtype=np.int32))
    sizes = np.asarray(lengths, dtype=np.int64)
    flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
    return flat, np.concatenate(([0], np.cumsum(sizes))), sizes
