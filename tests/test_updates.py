"""Which batches each update takes when a corpus is read block by block."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from toy_run import Runs, assert_same, before_step, signalled

from mtkit.data import batching
from mtkit.data.loader import PairData
from mtkit.folders import RunFolder
from mtkit.ids import EOS
from mtkit.ranks import ALONE, Ranks
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.updates import Update, open_pairs, updates

BLOCKS = {"block_size": 150, "pool_size": 150, "max_tokens": 512}
"""Of 600 pairs: 4 blocks of some 10 batches."""


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "STRETCH", 7)


def opened(recipe: Recipe) -> PairData:
    return open_pairs(RunFolder(Path(recipe.run_dir)).shards / "train", recipe.data.train)


def listed(
    recipe: Recipe, epoch: int = 0, batch: int = 0, block: int = 0, ranks: Ranks = ALONE, **options: Any
) -> list[tuple[Any, ...]]:
    def row(update: Update) -> tuple[Any, ...]:
        after = (update.next_epoch, update.next_batch, update.next_block)
        return update.place, after, update.target_tokens, [batch.source_BS.tolist() for batch in update.batches]

    return [row(update) for update in updates(recipe, opened(recipe), epoch, batch, ranks, block=block, **options)]


def sentences(rows: list[tuple[Any, ...]]) -> list[list[int]]:
    return sorted(line[: line.index(EOS)] for row in rows for batch in row[3] for line in batch)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_pair_once_an_epoch_and_the_same_from_any_place_on(runs: Runs, accumulate: int) -> None:
    recipe = runs.recipe(batching=BLOCKS, training={"accumulate": accumulate, "max_epochs": 2})
    whole = listed(recipe)
    assert {row[1][2] for row in whole} == {0, 1, 2, 3}
    assert whole[-1][1] == (2, 0, 0)
    half = next(number for number, row in enumerate(whole, 1) if row[1] == (1, 0, 0))
    small = runs.recipe(training={"max_epochs": 1})
    assert sentences(whole[:half]) == sentences(whole[half:]) == sentences(listed(small))
    assert whole[0][3] != whole[half][3]
    for place in (1, 4, half - 1, half, half + 5, len(whole) - 1):
        epoch, batch, block = whole[place - 1][1]
        assert listed(recipe, epoch, batch, block) == whole[place:]


def test_an_update_takes_its_batches_across_the_end_of_a_block(runs: Runs) -> None:
    """Otherwise the last update of every block would be a small one."""
    recipe = runs.recipe(batching=BLOCKS, training={"accumulate": 4, "max_epochs": 1})
    whole = listed(recipe)
    assert all(len(row[3]) == 4 for row in whole[:-1])
    assert any(", to block 2, batch " in row[0] for row in whole)
    assert whole[0][0] == "epoch 0, block 1, batches 1 to 4"


def test_ranks_share_the_batches_of_one(runs: Runs) -> None:
    recipe = runs.recipe(batching=BLOCKS, training={"accumulate": 2, "max_epochs": 1})
    alone = listed(recipe.model_copy(update={"training": recipe.training.model_copy(update={"accumulate": 4})}))
    shares = [listed(recipe, ranks=dataclasses.replace(ALONE, rank=rank, world=2)) for rank in (0, 1)]
    assert [row[:3] for row in shares[0]] == [row[:3] for row in shares[1]] == [row[:3] for row in alone]
    for row, first, second in zip(alone, *shares, strict=True):
        assert row[3][::2] == first[3]
        assert row[3][1::2] == second[3]


def test_a_corpus_of_one_block_has_the_batches_of_one_plan(runs: Runs) -> None:
    brief = {"max_epochs": 1}
    plain = listed(runs.recipe(batching={"max_tokens": 512}, training=brief))
    assert (
        listed(runs.recipe(batching={"max_tokens": 512, "block_size": 600, "pool_size": 600}, training=brief)) == plain
    )
    assert listed(runs.recipe(batching={"max_tokens": 512, "block_size": 1}, training=brief)) == plain, "a pool is more"
    assert listed(runs.recipe(batching=BLOCKS, training=brief)) != plain


def test_bpe_dropout_cuts_a_block_at_a_time_and_finds_it_again(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    recipe = runs.recipe(batching=BLOCKS, training={"max_epochs": 1}, tokenizer={"bpe_dropout": 0.2})
    tokenizers = Tokenizers.load(recipe.run_dir)
    whole = listed(recipe, tokenizers=tokenizers)
    place = next(number for number, row in enumerate(whole, 1) if row[1][1:] == (3, 2))
    caplog.clear()
    with caplog.at_level("INFO"):
        assert listed(recipe, 0, 3, 2, tokenizers=tokenizers) == whole[place:]
    cut = [record.getMessage().split(":")[0] for record in caplog.records]
    assert cut == ["epoch 0, block 3", "epoch 0, block 4"], "those before the place are not cut again"
    assert sum(map(len, sentences(whole))) > 1.1 * sum(
        map(len, sentences(listed(runs.recipe(training={"max_epochs": 1}))))
    )


def test_a_run_that_was_stopped_in_a_later_block_goes_on_bit_for_bit(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    settings = {"batching": BLOCKS, "training": {"max_steps": 30, "validate_every_steps": 30, "accumulate": 1}}
    whole = runs.train("whole", **settings)
    before_step(monkeypatch, 17, signalled(signal.SIGINT))
    run = runs.train(**settings)
    assert run.steps() == [17]
    monkeypatch.undo()
    monkeypatch.setattr(batching, "STRETCH", 7)
    runs.train(**settings)
    assert_same(run, whole, 30)
