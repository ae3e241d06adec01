"""From corpora to shards: faithful, filtered, the same for any number of processes, all or nothing."""

import gzip
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from mtkit.data import binarize as module
from mtkit.data.binarize import binarize
from mtkit.data.encode import cut
from mtkit.data.report import Report
from mtkit.data.shards import find_shards, open_shard
from mtkit.errors import DataError, ModelError
from mtkit.files import sha256_file
from mtkit.recipe import Recipe


def recipe_of(folder, train, valid=(), filters=None) -> Recipe:
    """A recipe on corpora given as {name: lines of (source, target)}, written into `folder`."""
    data = {"root": str(folder)}
    for part, corpora in (("train", train), ("valid", dict(valid))):
        data[part] = []
        for name, pairs in corpora.items():
            for place, side in enumerate(("source", "target")):
                text = "".join(f"{pair[place]}\n" for pair in pairs)
                (folder / f"{part}.{name}.{side}").write_bytes(text.encode())
            data[part].append({"name": name, "source": f"{part}.{name}.source", "target": f"{part}.{name}.target"})
    values = {"languages": {"source": "en", "target": "xx"}, "data": data, "filters": filters or {}}
    return Recipe.model_validate(values)


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pairs_in(folder, part, corpus) -> list[tuple[int, list[int], list[int]]]:
    shards = [open_shard(path) for path in find_shards(folder / part, corpus)]
    return [
        (int(shard.line_numbers[i]), shard.source(i).tolist(), shard.target(i).tolist())
        for shard in shards
        for i in range(len(shard))
    ]


def test_shards_hold_the_encoded_corpora(tiny_corpus, tiny_tokenizers, tmp_path):
    report = binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "shards", workers=1)
    encode = tiny_tokenizers.source.encode
    expected = [
        (number, encode(source), encode(target))
        for number, (source, target) in enumerate(zip(tiny_corpus.source, tiny_corpus.target, strict=True), 1)
    ]
    assert pairs_in(tmp_path / "shards", "train", "tiny") == expected
    assert len(pairs_in(tmp_path / "shards", "valid", "tiny")) == 40
    train, valid = report.corpora
    assert (train.part, train.pairs, train.kept, dict(train.dropped)) == ("train", 600, 600, {})
    assert train.source_tokens == sum(len(source) for _, source, _ in expected)
    assert train.target_tokens == sum(len(target) for _, _, target in expected)
    assert (valid.part, valid.pairs, valid.kept) == ("valid", 40, 40)
    assert not (tmp_path / "shards" / "test").exists()


def test_header_ties_a_shard_to_corpus_and_tokenizer(tiny_corpus, tiny_tokenizers, tmp_path):
    report = binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "shards", workers=1)
    (path,) = find_shards(tmp_path / "shards" / "train", "tiny")
    header = open_shard(path).header
    assert header["tokenizer_sha256"] == tiny_tokenizers.sha256 == report.tokenizer_sha256
    assert header["source_sha256"] == report.corpora[0].source_sha256
    assert (header["corpus"], header["part"], header["dtype"]) == ("tiny", "train", "uint16")
    assert report.corpora[0].shards[0].sha256 == sha256_file(path)


@pytest.mark.parametrize("workers", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_processes(tiny_corpus, tiny_tokenizers, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(module, "_WORTH_A_PROCESS", 100)
    monkeypatch.setattr(module, "_SHARD_PAIRS", 150)
    monkeypatch.setattr(module, "cut", lambda pairs, repeated: cut(pairs, repeated, size=40))
    recipe = tiny_corpus.recipe(filters={"drop_duplicates": True, "max_length": 24, "max_ratio": 1.3})
    reports = [binarize(recipe, tiny_tokenizers, tmp_path / str(n), workers=n) for n in (1, workers)]
    assert contents(tmp_path / "1") == contents(tmp_path / str(workers))
    assert reports[0] == reports[1]
    assert len(reports[0].corpora[0].shards) > 1
    assert {"too_long", "ratio", "duplicate"} <= reports[0].corpora[0].dropped.keys()
    lines = [line for line, _, _ in pairs_in(tmp_path / "1", "train", "tiny")]
    assert lines == sorted(set(lines))
    assert len(lines) == reports[0].corpora[0].kept


def test_a_corpus_is_cut_into_several_shards_by_pairs_and_by_tokens(
    tiny_corpus, tiny_tokenizers, tmp_path, monkeypatch
):
    whole = binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "one", workers=1).corpora[0]
    monkeypatch.setattr(module, "cut", lambda pairs, repeated: cut(pairs, repeated, size=50))
    for name, value in (("_SHARD_PAIRS", 200), ("_SHARD_TOKENS", whole.source_tokens // 2)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            report = binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / name, workers=1)
        assert len(report.corpora[0].shards) >= 3
        assert sum(shard.pairs for shard in report.corpora[0].shards) == 600
        assert pairs_in(tmp_path / name, "train", "tiny") == pairs_in(tmp_path / "one", "train", "tiny")


def test_every_drop_is_counted_by_reason_with_its_first_lines(tiny_tokenizers, tmp_path):
    good = ("the baker sees the river.", "kort mirulo taskel.")
    pairs = [good] * 3 + [("", "x"), ("▁ \u2028", "kort"), ("the baker", "the  baker")] + [("river", "kort")] * 20
    pairs += [("the baker sees " * 40, "kort mirulo " * 40), ("river", "kort mirulo taskel " * 5)]
    filters = {"min_length": 1, "max_length": 80, "max_ratio": 9, "drop_identical": True, "drop_duplicates": True}
    recipe = recipe_of(tmp_path, {"c": pairs}, {"v": [*pairs[:6], *pairs[-2:]]}, filters)
    report = binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    train, valid = report.corpora
    assert {reason: (drop.count, drop.first_lines) for reason, drop in train.dropped.items()} == {
        "empty": (2, (4, 5)),
        "too_long": (1, (27,)),
        "ratio": (1, (28,)),
        "identical": (1, (6,)),
        "duplicate": (21, (2, 3, 8, 9, 10)),
    }
    assert train.kept + sum(drop.count for drop in train.dropped.values()) == train.pairs == 28
    assert [line for line, _, _ in pairs_in(tmp_path / "shards", "train", "c")] == [1, 7]
    assert {reason: drop.first_lines for reason, drop in valid.dropped.items()} == {"empty": (4, 5)}
    text = report.render()
    assert "dropped from train c: 21 (75.00 %) duplicate: the pair came before; lines 2, 3, 8, 9, 10, ..." in text
    assert "dropped from valid v: 2 (25.00 %) empty: a side has no token; lines 4, 5" in text
    assert Report.load(tmp_path / "shards") == report


def test_tags_go_before_the_source_and_count_for_the_length(tiny_corpus, tiny_tokenizers, tmp_path):
    data = tiny_corpus.values()["data"]
    data["train"] = [{**data["train"][0], "tags": ["<news>"]}, {**data["train"][0], "name": "bare"}]
    longest = max(len(tiny_tokenizers.source.encode(source)) for source in tiny_corpus.source)
    recipe = tiny_corpus.recipe(data=data, filters={"max_length": longest})
    report = binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    tag = tiny_tokenizers.source.symbol_id("<news>")
    tagged, bare = (pairs_in(tmp_path / "shards", "train", name) for name in ("tiny", "bare"))
    assert tagged == [(line, [tag, *source], target) for line, source, target in bare if len(source) < longest]
    assert report.corpora[0].dropped["too_long"].count == len(bare) - len(tagged) > 0


def test_a_tag_the_tokenizer_does_not_know_is_refused_before_anything_is_written(
    tiny_corpus, tiny_tokenizers, tmp_path
):
    data = tiny_corpus.values()["data"]
    data["train"][0] = {**data["train"][0], "tags": ["<sport>"]}
    with pytest.raises(ModelError, match="'<sport>' is not one of its symbols"):
        binarize(tiny_corpus.recipe(data=data), tiny_tokenizers, tmp_path / "shards")
    assert list(tmp_path.iterdir()) == []


def test_unknown_tokens_are_counted(tiny_tokenizers, tmp_path):
    pairs = [("the \U00012000 baker \U00012001\U00012002", "kort \U0001f34e"), ("river", "taskel")]
    report = binarize(recipe_of(tmp_path, {"c": pairs}), tiny_tokenizers, tmp_path / "shards", workers=1)
    assert (report.corpora[0].source_unknown, report.corpora[0].target_unknown) == (2, 1)


def test_compression_line_ends_and_a_byte_order_mark_do_not_change_a_byte(tiny_tokenizers, tmp_path):
    pairs = [("the baker\u2028sees", "kort mirulo"), ("", ""), ("river", "tas\x85kel")]
    made = []
    for name, change in {
        "plain": lambda raw: raw,
        "crlf": lambda raw: b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n").removesuffix(b"\r\n"),
        "gz": gzip.compress,
    }.items():
        (tmp_path / name).mkdir()
        recipe = recipe_of(tmp_path / name, {"c": pairs})
        suffix = ".gz" if name == "gz" else ""
        for side in ("source", "target"):
            path = tmp_path / name / f"train.c.{side}"
            path.with_name(path.name + suffix).write_bytes(change(path.read_bytes()))
        corpus = recipe.data.train[0].model_copy(
            update={side: f"train.c.{side}{suffix}" for side in ("source", "target")}
        )
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": (corpus,)})})
        binarize(recipe, tiny_tokenizers, tmp_path / name / "shards", workers=1)
        made.append(contents(tmp_path / name / "shards"))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("fault", ["count", "bytes", "missing", "test"])
def test_bad_corpora_are_refused_and_the_old_shards_stay(tiny_corpus, tiny_tokenizers, tmp_path, fault):
    """The fault is in the last corpus, so that a check on the way would already have written the others."""
    good = {"c": [("the baker", "mirulo")] * 3}
    recipe = recipe_of(tmp_path, good, good)
    binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    before = contents(tmp_path / "shards")
    path = tmp_path / "valid.c.target"
    if fault == "count":
        path.write_bytes(b"a\nb\n")
    elif fault == "bytes":
        path.write_bytes(b"a\nb\n\xff\n")
    elif fault == "missing":
        path.unlink()
    else:
        (tmp_path / "bad").write_bytes(b"\xff\n")
        test = recipe.data.train[0].model_copy(update={"source": "bad"})
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": (test,)})})
    message = {"count": "3 lines.* 2;", "bytes": r"valid\.c\.target:3", "missing": "no such file", "test": "bad:1: "}
    with pytest.raises(DataError, match=message[fault]):
        binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    assert contents(tmp_path / "shards") == before
    with pytest.raises(DataError):
        binarize(recipe, tiny_tokenizers, tmp_path / "fresh" / "shards", workers=1)
    assert not (tmp_path / "fresh").exists()


def test_a_corpus_of_which_nothing_is_left_is_refused_with_the_reasons(tiny_tokenizers, tmp_path):
    recipe = recipe_of(tmp_path, {"c": [("the baker", "mirulo")] * 3 + [("", "")]}, filters={"min_length": 100})
    with pytest.raises(DataError, match=r"corpus c \(train\): none of its 4 pairs is left: empty 1, too_short 3"):
        binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    assert not (tmp_path / "shards").exists()


def test_a_file_that_changes_under_way_is_noticed(tiny_tokenizers, tmp_path, monkeypatch):
    recipe = recipe_of(tmp_path, {"c": [("the baker", "mirulo")] * 3})
    inspect = module.inspect_corpora
    monkeypatch.setattr(module, "inspect_corpora", lambda *args: [replace(one, pairs=4) for one in inspect(*args)])
    with pytest.raises(DataError, match="files changed while they were read"):
        binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)


def test_large_vocabularies_take_four_bytes(tiny_tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_tokenizers.target, "size", 70_000)
    pairs = [("the baker", "mirulo")]
    report = binarize(recipe_of(tmp_path, {"c": pairs}), tiny_tokenizers, tmp_path / "shards", workers=1)
    assert report.dtype == "uint32"
    encode = tiny_tokenizers.source.encode
    assert pairs_in(tmp_path / "shards", "train", "c") == [(1, encode("the baker"), encode("mirulo"))]


def test_a_foreign_report_is_refused_by_name(tmp_path):
    (tmp_path / "report.json").write_bytes(b'{"corpora": [{}]}')
    with pytest.raises(ModelError, match=r"report\.json: is not a report"):
        Report.load(tmp_path)


def test_an_interrupt_ends_the_processes_and_leaves_nothing(tiny_corpus, tiny_tokenizers, tmp_path, monkeypatch):
    from mtkit.data import workers

    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda encoder: started.append(start(encoder)) or started[-1])
    monkeypatch.setattr(module, "_WORTH_A_PROCESS", 100)

    def slow(pairs, repeated):
        for chunk in cut(pairs, repeated, size=10):
            time.sleep(0.05)
            yield chunk

    monkeypatch.setattr(module, "cut", slow)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        binarize(tiny_corpus.recipe(), tiny_tokenizers, tmp_path / "shards", workers=2)
    timer.join()
    assert started
    assert all(child.returncode is not None for child in started)
    assert list(tmp_path.iterdir()) == []
