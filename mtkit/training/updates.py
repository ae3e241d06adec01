"""Which batches each update takes, from any place in the run on."""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np

from mtkit.data.batching import epoch_blocks, epoch_indices, plan
from mtkit.data.loader import Batch, PairData, prefetch
from mtkit.data.resegment import resegment
from mtkit.data.shards import Shard, find_shards, open_shard
from mtkit.errors import TrainingError
from mtkit.figures import duration
from mtkit.ranks import ALONE, Ranks
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """The batches of one update, numbers `first` to `last` (from 1) of `epoch` (from 0), and the place after it.

    `batches` are this rank's share, perhaps none at the end of an epoch; `target_tokens` counts those of all ranks.
    Epochs over large corpora go block by block: then batches count within their block, `first` of `block` and `last` of
    `last_block` (from 1; 0 where the epoch is one block).
    """

    batches: list[Batch]
    target_tokens: int
    epoch: int
    first: int
    last: int
    next_epoch: int
    next_batch: int
    next_block: int = 0
    block: int = 0
    last_block: int = 0

    @property
    def place(self) -> str:
        """Epoch, block and batches in words, counted as in the log."""
        epoch = f"epoch {self.epoch}, block {self.block}" if self.block else f"epoch {self.epoch}"
        if self.block != self.last_block:
            return f"{epoch}, batch {self.first}, to block {self.last_block}, batch {self.last}"
        return (
            f"{epoch}, batch {self.first}"
            if self.first == self.last
            else f"{epoch}, batches {self.first} to {self.last}"
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    """One batch that is known but not made: `indices` into `data`, its number (from 0), and the place after it."""

    data: PairData
    indices: np.ndarray
    block: int
    number: int
    after: tuple[int, int, int]

    @property
    def target_tokens(self) -> int:
        return int(self.data.target_lengths[self.indices].sum())


def open_pairs(folder: Path, corpora: Sequence[Corpus]) -> PairData:
    """The shards of some corpora, laid end to end in the recipe's order, so that corpora can be weighted."""
    return PairData([open_shard(path) for corpus in corpora for path in find_shards(folder, corpus.name)])


def updates(
    recipe: Recipe,
    stored: PairData,
    epoch: int,
    batch: int,
    ranks: Ranks = ALONE,
    tokenizers: Tokenizers | None = None,
    block: int = 0,
) -> Generator[Update]:
    """Yield the updates from batch `batch` of `block` of `epoch` on (all from 0), made ahead in a thread.

    A pure function of recipe, data, place and ranks. An update takes `training.accumulate` batches a rank; the ranks
    take them in turn, so that no pair is seen twice. The last update of an epoch takes the batches that are left. Ends
    after `training.max_epochs`, if that is set.

    Up to `batching.block_size` pairs are planned as one; larger corpora block by block, with one block in memory. With
    `tokenizer.bpe_dropout`, which needs the `tokenizers`, every epoch cuts the stored pairs into other pieces.
    Raises TrainingError when there is nothing to train on.
    """
    with closing(prefetch(_updates(recipe, stored, (epoch, block, batch), ranks, tokenizers), ahead=2)) as stream:
        yield from stream


def _updates(
    recipe: Recipe, stored: PairData, place: tuple[int, int, int], ranks: Ranks, tokenizers: Tokenizers | None
) -> Generator[Update]:
    """The updates, each made when it is asked for."""
    size = recipe.training.accumulate * ranks.world
    while recipe.training.max_epochs is None or place[0] < recipe.training.max_epochs:
        batches = _epoch(recipe, stored, place, tokenizers)
        while group := list(islice(batches, size)):
            made = [one.data.collate(one.indices) for one in group[ranks.rank :: ranks.world]]
            tokens = sum(one.target_tokens for one in group)
            first, last, epoch = group[0], group[-1], place[0]
            place = last.after
            yield Update(
                batches=made,
                target_tokens=tokens,
                epoch=epoch,
                first=first.number + 1,
                last=last.number + 1,
                next_epoch=place[0],
                next_batch=place[2],
                next_block=place[1],
                block=first.block,
                last_block=last.block,
            )
            del group, first, last  # they hold a block of pairs, and the next one may be read now


def _epoch(
    recipe: Recipe, stored: PairData, place: tuple[int, int, int], tokenizers: Tokenizers | None
) -> Iterator[_Planned]:
    """The batches of an epoch from a place in it on; at most one block is in memory here."""
    epoch, block, begin = place
    seed, weights = recipe.training.seed, [corpus.weight for corpus in recipe.data.train]
    sizes = corpus_sizes(recipe.data.train, stored)
    if not sum(sizes):
        raise TrainingError("there are no training pairs", "see what `mtkit binarize` dropped, and corpus weights")
    limit = max(recipe.batching.block_size, recipe.batching.pool_size)
    whole = max(sum(sizes), sum(size * weight for size, weight in zip(sizes, weights, strict=True))) <= limit
    blocks = [] if whole else epoch_blocks(sizes, weights, seed, epoch, limit)
    count = len(blocks) or 1
    while block < count:
        if whole:
            data, chosen = stored, epoch_indices(sizes, weights, seed, epoch)
        else:
            data = stored.hold(blocks[block])
            chosen = np.arange(len(data))
        data = _cut_anew(recipe, data, tokenizers, epoch, block)
        order = plan(data.source_lengths[chosen], data.target_lengths[chosen], recipe.batching, seed, epoch, block)
        after_block = (epoch, block + 1, 0) if block + 1 < count else (epoch + 1, 0, 0)
        for number in range(begin, len(order)):
            after = (epoch, block, number + 1) if number + 1 < len(order) else after_block
            yield _Planned(data, chosen[order[number]], 0 if whole else block + 1, number, after)
        del data, chosen, order
        block, begin = block + 1, 0


def _cut_anew(recipe: Recipe, stored: PairData, tokenizers: Tokenizers | None, epoch: int, block: int) -> PairData:
    """The pairs of an epoch, or of a block of it, under BPE-dropout; the stored ones without it."""
    rate = recipe.tokenizer.bpe_dropout
    if rate == 0:
        return stored
    assert tokenizers is not None
    began, shards = perf_counter(), []
    for number, shard in enumerate(stored.shards):
        key = (recipe.training.seed, epoch, number) if block == 0 else (recipe.training.seed, epoch, number, block)
        shards.append(resegment(shard, tokenizers, rate, recipe.filters.max_length, *key))
    where = f"epoch {epoch}, block {block + 1}" if block else f"epoch {epoch}"
    log.info("%s: BPE-dropout, %s pairs in %s", where, f"{len(stored):,}", duration(perf_counter() - began))
    return PairData(shards)


def corpus_sizes(corpora: Sequence[Corpus], data: PairData) -> list[int]:
    """The stored pairs of each corpus."""
    sizes = {corpus.name: 0 for corpus in corpora}
    for shard in data.shards:
        assert isinstance(shard, Shard)
        sizes[shard.header["corpus"]] += len(shard)
    return list(sizes.values())
