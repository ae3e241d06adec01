"""Which batches each update takes, from any place in the run on."""

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from mtkit.data.batching import epoch_indices, plan
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
    """

    batches: list[Batch]
    target_tokens: int
    epoch: int
    first: int
    last: int
    next_epoch: int
    next_batch: int

    @property
    def place(self) -> str:
        """Epoch and batches in words, counted as in the log."""
        batches = f"batch {self.first}" if self.first == self.last else f"batches {self.first} to {self.last}"
        return f"epoch {self.epoch}, {batches}"


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
) -> Generator[Update]:
    """Yield the updates from batch `batch` (from 0) of `epoch` on; a pure function of recipe, data, place and ranks.

    An update takes `training.accumulate` batches a rank; the ranks take them in turn, so that no pair is seen twice.
    The last update of an epoch takes the batches that are left. Ends after `training.max_epochs`, if that is set.
    With `tokenizer.bpe_dropout`, which needs the `tokenizers`, every epoch cuts the stored pairs into other pieces.
    Raises TrainingError when there is nothing to train on.
    """
    corpora, sizes = recipe.data.train, _corpus_sizes(recipe.data.train, stored)
    seed, size, begin = recipe.training.seed, recipe.training.accumulate * ranks.world, batch
    while recipe.training.max_epochs is None or epoch < recipe.training.max_epochs:
        chosen = epoch_indices(sizes, [corpus.weight for corpus in corpora], seed, epoch)
        if len(chosen) == 0:
            raise TrainingError("there are no training pairs", "see what `mtkit binarize` dropped, and corpus weights")
        data = _cut_anew(recipe, stored, tokenizers, epoch)
        order = plan(data.source_lengths[chosen], data.target_lengths[chosen], recipe.batching, seed, epoch)
        groups = [order[first : first + size] for first in range(begin, len(order), size)]
        shares = [group[ranks.rank :: ranks.world] for group in groups]
        with closing(prefetch(data, [chosen[indices] for share in shares for indices in share])) as stream:
            for group, share in zip(groups, shares, strict=True):
                tokens = sum(int(data.target_lengths[chosen[indices]].sum()) for indices in group)
                first, last = begin + 1, begin + len(group)
                after = (epoch + 1, 0) if last == len(order) else (epoch, last)
                yield Update([next(stream) for _ in share], tokens, epoch, first, last, *after)
                begin = last
        epoch, begin = epoch + 1, 0


def _cut_anew(recipe: Recipe, stored: PairData, tokenizers: Tokenizers | None, epoch: int) -> PairData:
    """The pairs of an epoch under BPE-dropout; the stored ones without it."""
    rate = recipe.tokenizer.bpe_dropout
    if rate == 0:
        return stored
    assert tokenizers is not None
    began, shards = perf_counter(), []
    for number, shard in enumerate(stored.shards):
        assert isinstance(shard, Shard)
        key = (recipe.training.seed, epoch, number)
        shards.append(resegment(shard, tokenizers, rate, recipe.filters.max_length, *key))
    log.info("epoch %d: BPE-dropout, %s pairs in %s", epoch, f"{len(stored):,}", duration(perf_counter() - began))
    return PairData(shards)


def _corpus_sizes(corpora: Sequence[Corpus], data: PairData) -> list[int]:
    sizes = {corpus.name: 0 for corpus in corpora}
    for shard in data.shards:
        sizes[shard.header["corpus"]] += len(shard)
    return list(sizes.values())
