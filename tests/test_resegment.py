"""BPE-dropout: other pieces, the same text; a function of seed and epoch; plans and token counts follow the pieces."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from conftest import TinyCorpus
from toy_run import Runs

from mtkit.checkpoint import load_tensors
from mtkit.data.loader import PairData
from mtkit.data.resegment import HeldShard, resegment
from mtkit.data.shards import Shard
from mtkit.folders import RunFolder
from mtkit.ids import EOS, UNK
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.updates import open_pairs, updates

TEXTS = [
    "the red baker sees the river today.",
    "<news> the tall horse paints the window.",
    "the Ω baker ΩΩ sees.",
    "a",
]


@pytest.fixture
def stored(prepared_run: Path, tiny_corpus: TinyCorpus) -> tuple[PairData, Tokenizers]:
    recipe = tiny_corpus.recipe()
    return open_pairs(prepared_run / "shards" / "train", recipe.data.train), Tokenizers.load(prepared_run)


def rows(shard: Shard | HeldShard, side: str) -> list[list[int]]:
    ids, offsets = getattr(shard, f"{side}_ids"), getattr(shard, f"{side}_offsets").astype(int)
    return [ids[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.99])
def test_samples_say_the_same(tiny_tokenizers: Tokenizers, rate: float) -> None:
    """Symbols stay whole, and unknown characters unknown."""
    tokenizer = tiny_tokenizers.source
    for seed in range(5):
        for text, ids in zip(TEXTS, tokenizer.sample_batch(TEXTS, rate, seed), strict=True):
            assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(text))
            assert (ids[0] == tokenizer.symbol_id("<news>")) == text.startswith("<news>")
            assert tokenizer.unknown_count(ids) == tokenizer.unknown_count(tokenizer.encode(text))


def test_samples_depend_on_the_seed_alone(tiny_tokenizers: Tokenizers) -> None:
    tokenizer, texts = tiny_tokenizers.source, TEXTS * 20
    first = tokenizer.sample_batch(texts, 0.2, 1)
    assert first != tokenizer.sample_batch(texts, 0.2, 2)
    assert first == tokenizer.sample_batch(texts, 0.2, 1)
    assert tokenizer.sample_batch(texts, 0.0, 1) == tokenizer.encode_batch(texts)
    assert tokenizer.sample_batch(texts, 0.2, 2**32 - 1) == tokenizer.sample_batch(texts, 0.2, 0), "never unseeded"


def test_samples_depend_on_no_other_thread(tiny_tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training left unfinished in the same process still sampled in its loader's thread, and set its own seed."""

    def set_slowly(seed: int, set_seed: Any = sentencepiece.set_random_generator_seed) -> None:
        set_seed(seed)
        time.sleep(0.005)

    monkeypatch.setattr(sentencepiece, "set_random_generator_seed", set_slowly)
    tokenizer, texts = tiny_tokenizers.source, TEXTS * 5
    alone = [tokenizer.sample_batch(texts, 0.5, seed) for seed in range(20)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda seed: tokenizer.sample_batch(texts, 0.5, seed), range(20))) == alone


def test_a_shard_keeps_its_text_and_gets_more_pieces(
    stored: tuple[PairData, Tokenizers], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, tokenizers = stored
    (shard,) = data.shards
    assert isinstance(shard, Shard)
    monkeypatch.setattr("mtkit.data.resegment.CHUNK", 7)
    new = resegment(shard, tokenizers, 0.2, 1000, 1, 0, 0)
    assert len(new) == len(shard)
    for side in ("source", "target"):
        before, after = rows(shard, side), rows(new, side)
        tokenizer = getattr(tokenizers, side)
        assert [tokenizer.decode(row) for row in after] == [tokenizer.decode(row) for row in before]
        assert [len(row) for row in after] == getattr(new, f"{side}_lengths").tolist()
        assert sum(map(len, after)) > 1.1 * sum(map(len, before))
        assert UNK not in {number for row in after for number in row}


def test_nothing_grows_beyond_the_longest(stored: tuple[PairData, Tokenizers]) -> None:
    data, tokenizers = stored
    (shard,) = data.shards
    assert isinstance(shard, Shard)
    limit = int(np.median(shard.source_lengths)) + 8
    new = resegment(shard, tokenizers, 0.5, limit, 1, 0, 0)
    kept = new.source_lengths > limit
    assert bool((new.source_lengths[kept] == shard.source_lengths[kept]).all()), "as stored, though longer"
    assert 20 < int((new.source_lengths != shard.source_lengths).sum()) < len(shard) - 20


def epoch_of(runs: Runs, stored: tuple[PairData, Tokenizers], epoch: int, batch: int = 0, **sections: Any) -> list[Any]:
    recipe = runs.recipe(training={"max_epochs": epoch + 1, **sections})
    dropout = recipe.tokenizer.model_copy(update={"bpe_dropout": 0.2})
    found = updates(recipe.model_copy(update={"tokenizer": dropout}), stored[0], epoch, batch, tokenizers=stored[1])
    return list(found)


def test_epochs_differ_and_each_is_found_again(runs: Runs, stored: tuple[PairData, Tokenizers]) -> None:
    def ids(found: list[Any]) -> list[Any]:
        return [batch.source_BS.tolist() for update in found for batch in update.batches]

    def texts(found: list[Any]) -> list[str]:
        matrix = [row for batch in ids(found) for row in batch]
        return sorted(stored[1].source.decode(row[: row.index(EOS)]) for row in matrix)

    first, second = (epoch_of(runs, stored, epoch) for epoch in (0, 1))
    assert ids(first) == ids(epoch_of(runs, stored, 0))
    assert ids(first)[5:] == ids(epoch_of(runs, stored, 0, batch=5))
    assert sorted(map(str, ids(first))) != sorted(map(str, ids(second)))
    assert texts(first) == texts(second), "every epoch has all pairs"
    assert ids(first) != ids(epoch_of(runs, stored, 0, seed=2))


def test_batches_keep_the_budget_and_count_the_new_tokens(runs: Runs, stored: tuple[PairData, Tokenizers]) -> None:
    for update in epoch_of(runs, stored, 0, accumulate=2):
        assert update.target_tokens == sum(batch.kept for batch in update.batches)
        for batch in update.batches:
            assert batch.kept == int((batch.target_out_BT != 0).sum())
            assert max(batch.source_BS.numel(), batch.target_out_BT.numel()) <= 512


def test_the_recipe_turns_it_on_without_another_tokenizer(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    def weights(run: RunFolder) -> list[bytes]:
        saved = load_tensors(run.checkpoint(run.steps()[-1]) / "model.safetensors")
        return [weight.numpy().tobytes() for _, weight in sorted(saved.items())]

    brief = {"max_steps": 3}
    plain = runs.train("plain", training=brief)
    with caplog.at_level("INFO"):
        dropped = runs.train("dropped", training=brief, tokenizer={"bpe_dropout": 0.2})
    assert weights(plain) != weights(dropped)
    assert "tokenizer: up to date" in caplog.text
    assert "shards: up to date" in caplog.text
    assert "epoch 0: BPE-dropout, 600 pairs in " in caplog.text
