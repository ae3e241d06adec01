"""Binarization that was cut short: finished shards are kept, and the end is that of an uninterrupted call."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from test_binarize import contents, recipe_of

from mtkit.data import binarize as module
from mtkit.data.binarize import binarize
from mtkit.data.encode import cut
from mtkit.errors import DataError
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

FILTERS = {"drop_duplicates": True, "max_length": 24, "max_ratio": 1.3}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARD_PAIRS", 60)
    monkeypatch.setattr(module, "cut", lambda pairs, repeated: cut(pairs, repeated, size=20))


def work(folder: Path) -> Path:
    return folder / ".shards.unfinished"


def stop_after(
    monkeypatch: pytest.MonkeyPatch, shards: int, error: type[BaseException] = KeyboardInterrupt
) -> list[str]:
    """Break off when so many shards have been written; returns the names of those written."""
    written: list[str] = []
    real = module.write_shard

    def write(path: Path, **arrays: Any) -> None:
        if len(written) == shards:
            raise error
        real(path, **arrays)
        written.append(path.name)

    monkeypatch.setattr(module, "write_shard", write)
    return written


@pytest.mark.parametrize("shards", [1, 3, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_going_on_gives_the_bytes_of_one_call(
    tiny_corpus: TinyCorpus,
    tiny_tokenizers: Tokenizers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
    error: type[BaseException],
) -> None:
    recipe = tiny_corpus.recipe(filters=FILTERS)
    whole = binarize(recipe, tiny_tokenizers, tmp_path / "whole" / "shards", workers=1)
    with monkeypatch.context() as patch:
        stop_after(patch, shards, error)
        with pytest.raises(error):
            binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    assert not (tmp_path / "shards").exists()
    with monkeypatch.context() as patch:
        written = stop_after(patch, 100)
        assert binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1) == whole
    total = sum(len(corpus.shards) for corpus in whole.corpora)
    assert len(written) == total - shards
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole" / "shards")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_duplicates_are_looked_for_once(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    real = module.find_repetitions
    monkeypatch.setattr(module, "find_repetitions", lambda *given: looked.append(1) or real(*given))
    recipe = tiny_corpus.recipe(filters=FILTERS)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    assert looked == [1]


def two_corpora(folder: Path, filters: dict[str, Any]) -> Recipe:
    pairs = [(f"the baker sees {number}", f"kort mirulo {number}") for number in range(200)]
    return recipe_of(folder, {"a": pairs, "b": pairs[::-1]}, filters=filters)


@pytest.mark.parametrize(
    ("change", "kept"), [("nothing", 5), ("text", 4), ("filters", 0), ("tokenizer", 0), ("tags", 4), ("less", 4)]
)
def test_what_has_changed_is_made_again(
    tiny_corpus: TinyCorpus,
    tiny_tokenizers: Tokenizers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    kept: int,
) -> None:
    """Of corpus a all 4 shards are finished, of b one; then what b, or both, depend on changes."""
    recipe, tokenizers = two_corpora(tmp_path, {}), tiny_tokenizers
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            binarize(recipe, tokenizers, tmp_path / "run" / "shards", workers=1)
    if change == "text":
        path = tmp_path / "train.b.source"
        path.write_bytes(path.read_bytes().replace(b"199", b"198"))
    elif change == "filters":
        recipe = two_corpora(tmp_path, {"max_length": 50})
    elif change == "tokenizer":
        from mtkit.sections.data import TokenizerSection
        from mtkit.text.train import train

        section = TokenizerSection(vocab_size=110)
        tokenizers = train(section, tiny_corpus.source, tiny_corpus.target, [], tmp_path / "other")
    elif change in ("tags", "less"):
        a, b = recipe.data.train
        train_ = (a,) if change == "less" else (a, b.model_copy(update={"tags": ("<news>",)}))
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train_})})
    with monkeypatch.context() as patch:
        written = stop_after(patch, 100)
        report = binarize(recipe, tokenizers, tmp_path / "run" / "shards", workers=1)
    assert len(written) == sum(len(corpus.shards) for corpus in report.corpora) - kept
    assert binarize(recipe, tokenizers, tmp_path / "fresh" / "shards", workers=1) == report
    assert contents(tmp_path / "run" / "shards") == contents(tmp_path / "fresh" / "shards")


@pytest.mark.parametrize("damage", ["shard", "note", "missing"])
def test_what_is_damaged_is_made_again_and_all_after_it(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    recipe = tiny_corpus.recipe()
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    name = "train/tiny-00002.shard"
    shard, note = work(tmp_path) / name, work(tmp_path) / "unfinished" / "train-tiny-00002.shard.json"
    match damage:
        case "shard":
            shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
        case "note":
            note.write_bytes(note.read_bytes()[:40])
        case "missing":
            note.unlink()
    with monkeypatch.context() as patch:
        written = stop_after(patch, 100)
        report = binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    assert written[:2] == ["tiny-00002.shard", "tiny-00003.shard"]
    assert binarize(recipe, tiny_tokenizers, tmp_path / "other" / "shards", workers=1) == report


def test_two_processes_do_not_make_the_same_shards(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    work(tmp_path).mkdir()
    descriptor = os.open(work(tmp_path), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DataError, match="another process is making these shards"):
        binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "shards", workers=1)
    os.close(descriptor)
    binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "shards", workers=1)


SLOW = """
import sys, time
from pathlib import Path
from mtkit.data import binarize as module
from mtkit.data.encode import cut
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

def slowly(pairs, repeated):
    for chunk in cut(pairs, repeated, size=20):
        time.sleep(0.05)
        yield chunk

module._SHARD_PAIRS, module.cut = 60, slowly
module.binarize(Recipe.load(sys.argv[1]), Tokenizers.load(sys.argv[2]), Path(sys.argv[3]), workers=1)
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_finished(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    recipe, folder = tiny_corpus.recipe(), tmp_path / "run" / "shards"
    (tmp_path / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tiny_tokenizers.save(tmp_path)
    command = [sys.executable, "-c", SLOW, str(tmp_path / "recipe.yaml"), str(tmp_path), str(folder)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    finished = work(tmp_path / "run") / "unfinished" / "train-tiny-00001.shard.json"
    deadline = time.monotonic() + 60
    while not finished.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert finished.exists()
    shard = work(tmp_path / "run") / "train" / "tiny-00000.shard"
    inode = shard.stat().st_ino
    report = binarize(recipe, tiny_tokenizers, folder, workers=1)
    assert (folder / "train" / "tiny-00000.shard").stat().st_ino == inode, "kept, not made again"
    assert binarize(recipe, tiny_tokenizers, tmp_path / "other", workers=1) == report
    assert contents(folder) == contents(tmp_path / "other")
