"""A search over a shortlist's target tokens is the search over all of them, as far as it holds what counts."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from conftest import TinyCorpus
from test_prepared import ARCHITECTURES, RULES, SOURCES, choices, walk
from torch import Tensor
from torch_model import build, framed, random_rows
from toy_models import CopyModel, CopyState, save_untrained
from toy_run import Runs

from mtkit.cli.app import exit_code_of
from mtkit.cli.engine import Searcher
from mtkit.cli.shortlist import shortlist as command
from mtkit.engine import Batch, ModelEngine
from mtkit.errors import ModelError, UsageError
from mtkit.folders import SHORTLIST_FILE, RunFolder
from mtkit.model.kernels import Precision
from mtkit.model.prepared import PreparedTransformer
from mtkit.model.transformer import Transformer
from mtkit.pipeline import average
from mtkit.pool import PoolEngine, can_fork
from mtkit.search.narrow import Narrowed
from mtkit.search.protocol import Hypothesis
from mtkit.sections.search import Beam, Greedy, Sampling, Search
from mtkit.shortlist import Shortlist, load_shortlist
from mtkit.shortlist_engine import ShortlistEngine
from mtkit.shortlist_stage import Size, changed_lines, make_shortlist, validation_recall
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

VOCABULARY = 200
SPECIAL = {0, 1, 2, 3}


def listing(lists: dict[int, Sequence[int]], size: int = VOCABULARY, always: Sequence[int] = ()) -> Shortlist:
    """A shortlist with these lists; source tokens that are not named have none."""
    rows = [np.array(lists.get(token, ()), np.uint32) for token in range(size)]
    return Shortlist(
        targets_C=np.concatenate(rows),
        ends_S=np.cumsum([len(row) for row in rows]).astype(np.uint32),
        always_A=np.array(sorted({*SPECIAL, *always}), np.uint32),
        target_size=size,
        tokenizer_sha256="",
        per_token=0,
        frequent=0,
    )


FULL = listing({token: range(VOCABULARY) for token in range(4, VOCABULARY)})


def batches(sources: Sequence[list[int]], size: int, prefixes: Sequence[list[int]] | None = None) -> list[Batch]:
    found = []
    for at in range(0, len(sources), size):
        rows = [[*row, 3] for row in sources[at : at + size]]
        given = None if prefixes is None else prefixes[at : at + size]
        found.append(Batch(rows, range(at, at + len(rows)), given))
    return found


def ids_of(engine: Any, work: list[Batch], config: Search, attention: bool = False) -> list[list[list[int]]]:
    """The ids of all hypotheses of all sentences."""
    return [[one.ids for one in hypotheses] for hypotheses in found_by(engine, work, config, attention)]


def found_by(engine: Any, work: list[Batch], config: Search, attention: bool = False) -> list[list[Hypothesis]]:
    found = dict(engine.search(work, config, attention))
    return [hypotheses for place in range(len(work)) for hypotheses in found[place]]


# The lists


def test_a_union_is_sorted_and_holds_the_lists_of_all_tokens() -> None:
    lists = {4: [9, 7], 5: [7, 150], 6: [], 199: [199]}
    short = listing(lists, always=[42])
    for rows in ([[4, 5, 3]], [[5, 3], [4, 4, 3]], [[199, 6, 3], [3]], []):
        wanted = SPECIAL | {42} | {target for row in rows for token in row for target in lists.get(token, ())}
        assert short.union(rows).tolist() == sorted(wanted)
    assert short.union([[6]], also=[[100], [], [4, 100]]).tolist() == [0, 1, 2, 3, 4, 42, 100]


def save_some(folder: Path, tokenizers: Tokenizers) -> tuple[Path, Shortlist]:
    lists = [np.array([token, 7 + token % 50]) for token in range(tokenizers.source.size)]
    made = Shortlist.of(lists, np.array([50, 60]), tokenizers, 2, 2)
    made.save(folder / SHORTLIST_FILE)
    return folder / SHORTLIST_FILE, made


def test_a_file_gives_the_same_lists_again(tmp_path: Path, tiny_tokenizers: Tokenizers) -> None:
    path, _ = save_some(tmp_path, tiny_tokenizers)
    again = Shortlist.load(path, tiny_tokenizers)
    for token in range(tiny_tokenizers.source.size):
        assert again.union([[token]]).tolist() == sorted({*SPECIAL, 50, 60, token, 7 + token % 50})
    assert (again.per_token, again.frequent, again.target_size) == (2, 2, tiny_tokenizers.target.size)
    before = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [SHORTLIST_FILE]
    assert again.always_A.dtype == again.targets_C.dtype == again.ends_S.dtype == np.uint32


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path, tiny_tokenizers: Tokenizers) -> None:
    path, _ = save_some(tmp_path, tiny_tokenizers)
    whole = path.read_bytes()
    for place in range(0, len(whole), 17):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ModelError, match="shortlist") as caught:
            Shortlist.load(path, tiny_tokenizers)
        assert str(path) in caught.value.message
        assert caught.value.hint
    for content in (b"", whole[:100], whole[:-1], b"{}"):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="damaged"):
            Shortlist.load(path, tiny_tokenizers)


def test_a_shortlist_of_another_tokenizer_is_refused(tmp_path: Path, tiny_tokenizers: Tokenizers) -> None:
    path, made = save_some(tmp_path, tiny_tokenizers)
    other = Tokenizers(tiny_tokenizers.source, tiny_tokenizers.source.with_model(tiny_tokenizers.source.model))
    assert other.sha256 != tiny_tokenizers.sha256  # two files are not one joint one
    with pytest.raises(ModelError, match=rf"{made.tokenizer_sha256}.*{other.sha256}"):
        Shortlist.load(path, other)


# The narrowed model


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize(
    "options",
    [one for one in ARCHITECTURES if {"share_embeddings", "output_bias"} & one.keys()],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("per_source", [1, 3])
def test_a_narrowed_model_gives_the_logits_of_its_tokens(
    options: dict[str, Any], precision: Precision, per_source: int
) -> None:
    model = PreparedTransformer(build(**options, seed=3), precision, narrowing=True)
    ids_U = torch.tensor([0, 1, 2, 3, 5, 8, *range(11, 50)])
    source_BS = framed(random_rows([5, 9, 1, 4, 4], 50, 3))
    wanted = walk(Narrowed(model, ids_U), source_BS, per_source, 7, len(ids_U))
    for got, one in zip(walk(model.narrowed(ids_U), source_BS, per_source, 7, len(ids_U)), wanted, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-5, atol=1e-5)


def test_narrowing_keeps_a_second_matrix_only_where_the_output_is_not_tied() -> None:
    for share in choices("share_embeddings"):
        model = PreparedTransformer(build(share_embeddings=share), "float32", narrowing=True)
        own = model._rows_VD is not None and model._rows_VD.data_ptr() != model.target_embedding.table_VD.data_ptr()
        assert own == (share == "none")
    assert PreparedTransformer(build(share_embeddings="none"))._rows_VD is None


# The engine


@pytest.fixture(scope="module")
def untrained() -> Transformer:
    return build(vocab=VOCABULARY, seed=4, encoder_layers=1, decoder_layers=1, norm="pre")


@pytest.mark.parametrize("beam_size", [1, 4, 5, 8])
def test_with_all_tokens_on_the_lists_the_text_is_the_same(untrained: Transformer, beam_size: int) -> None:
    config: Search = Greedy(method="greedy", rules=RULES) if beam_size == 1 else Beam(beam_size=beam_size, rules=RULES)
    plain = ModelEngine(PreparedTransformer(untrained, narrowing=True))
    short = ShortlistEngine(plain, FULL)
    wanted = ids_of(plain, batches(SOURCES, 64), config)
    assert len(wanted) == 1000
    assert ids_of(short, batches(SOURCES, 64), config) == wanted
    assert ids_of(short, batches(SOURCES[::5], 7), config) == wanted[::5]
    assert ids_of(short, batches(SOURCES[::20], 1), config) == wanted[::20]
    other = ShortlistEngine(ModelEngine(untrained), FULL)  # as on other devices
    assert ids_of(other, batches(SOURCES[::10], 20), config) == wanted[::10]


@pytest.mark.skipif(not can_fork(), reason="needs fork, as the pool does")
def test_two_workers_search_over_a_shortlist_as_one_does(untrained: Transformer) -> None:
    config, work = Beam(beam_size=4, rules=RULES), batches(SOURCES[::10], 7)
    short = ShortlistEngine(ModelEngine(PreparedTransformer(untrained, narrowing=True)), CHOSEN)
    pool = PoolEngine(short, 2)
    try:
        assert ids_of(pool, work, config) == ids_of(short, work, config)
    finally:
        pool.close()


CHOSEN = listing({token: [token, (7 * token) % 190 + 5, (3 * token) % 190 + 5] for token in range(4, VOCABULARY)})


@pytest.mark.parametrize("precision", get_args(Precision))
def test_greedy_search_wants_no_more_than_what_it_chooses(untrained: Transformer, precision: Precision) -> None:
    """The likeliest of all tokens is the likeliest of any of them that hold it."""
    plain = ModelEngine(PreparedTransformer(untrained, precision, narrowing=True))
    config, sources = Greedy(method="greedy", rules=RULES), SOURCES[::10]
    wanted = ids_of(plain, batches(sources, 16), config)
    lists: dict[int, set[int]] = {}
    for source, [ids] in zip(sources, wanted, strict=True):
        lists.setdefault(source[0], set()).update(ids)
    short = listing({token: sorted(ids) for token, ids in lists.items()})
    assert ids_of(ShortlistEngine(plain, short), batches(sources, 16), config) == wanted


CONFIGS: list[Search] = [
    Greedy(method="greedy", rules=RULES.model_copy(update={"no_repeat_ngram": 1, "min_length": 3})),
    Beam(beam_size=4, n_best=4, groups=2, diversity=0.3, coverage_penalty=0.2, rules=RULES),
    Sampling(method="sampling", samples=3, rules=RULES.model_copy(update={"repetition_penalty": 1.3})),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.method)
def test_what_comes_out_stands_on_the_lists_and_is_what_the_plain_form_gives(
    untrained: Transformer, config: Search
) -> None:
    """Scores, attention, prefixes and every rule go through the narrowed numbers and back."""
    sources = SOURCES[-40:]
    prefixes = [[5 + place, 6] if place % 3 else [] for place in range(40)]
    work = batches(sources, 8, prefixes)
    fast = ShortlistEngine(ModelEngine(PreparedTransformer(untrained, narrowing=True)), CHOSEN)
    plain = ShortlistEngine(ModelEngine(untrained), CHOSEN)
    found = found_by(fast, work, config, attention=True)
    for place, (mine, others) in enumerate(zip(found, found_by(plain, work, config, attention=True), strict=True)):
        batch = work[place // 8]
        allowed = set(CHOSEN.union(batch.rows, batch.prefixes or ()).tolist()) - SPECIAL
        assert [one.ids for one in mine] == [other.ids for other in others]
        for one, other in zip(mine, others, strict=True):
            assert set(one.ids) <= allowed
            assert one.ids[: len(prefixes[place])] == prefixes[place]
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.attention is not None
            assert len(one.attention) == len(one.ids) + one.finished


def test_a_union_is_that_of_the_whole_batch_even_when_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """Cutting a batch in halves must not change what its sentences may say."""

    class Narrow(CopyModel):
        def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> CopyState:
            if len(source_BS) > 2:
                raise MemoryError
            return super().start(source_BS, per_source, attention)

    # Each token stands on the list of another one, which is in the other half of the batch.
    crossed = listing({4: [6], 5: [7], 6: [4], 7: [5]})
    sources = [[4], [5, 4], [6], [7, 7, 6]]
    [batch] = batches(sources, 4)
    config = Greedy(method="greedy")
    assert ids_of(ShortlistEngine(ModelEngine(Narrow(VOCABULARY)), crossed), [batch], config) == [[s] for s in sources]
    assert "in halves" in caplog.text
    alone = ids_of(ShortlistEngine(ModelEngine(CopyModel(VOCABULARY)), crossed), batches(sources[:1], 1), config)
    assert alone != [[sources[0]]], "what 4 becomes is not on its list"


# From shards to text


@pytest.fixture
def trained_run(runs: Runs) -> tuple[Any, RunFolder]:
    """A recipe and its run folder, with a model."""
    run = runs.train(training={"max_steps": 6})
    average(run, "last", 1)
    return runs.recipe(training={"max_steps": 6}), run


def test_a_run_gets_its_shortlist_and_translates_with_it(
    trained_run: tuple[Any, RunFolder], tiny_corpus: TinyCorpus
) -> None:
    recipe, run = trained_run
    weights = (run.model / "model.safetensors").read_bytes()
    path, made = make_shortlist(recipe, Size(per_token=500, frequent=0))
    assert path == run.model / SHORTLIST_FILE
    recall = validation_recall(recipe, made)
    assert recall is not None
    assert recall.covered_tokens == recall.tokens > 0, "every validation token occurs beside its sentence's in training"
    assert recall.covered_sentences == recall.sentences == 40

    path, small = make_shortlist(recipe, Size(per_token=1, frequent=0))
    less = validation_recall(recipe, small)
    assert less is not None
    assert 0 < less.covered_tokens < less.tokens
    assert less.listed < recall.listed
    union = [set(small.union([ids]).tolist()) for ids in load_ids(run, tiny_corpus.folder / "valid.source")]
    references = load_ids(run, tiny_corpus.folder / "valid.target")
    assert less.covered_tokens == sum(t in each for each, ids in zip(union, references, strict=True) for t in ids)
    assert less.covered_sentences == sum(set(ids) <= each for each, ids in zip(union, references, strict=True))

    lines = tiny_corpus.source[:9]
    translator, plain = Translator.load(run.model, "cpu", shortlist=True), Translator.load(run.model, "cpu")
    allowed = small.union(translator.tokenizers.source.encode_batch(lines))
    for text in translator.translate(lines):
        assert set(translator.tokenizers.target.encode(text)) <= set(allowed.tolist()) | {1}
    valid = (tiny_corpus.folder / "valid.source").read_text("utf-8").split("\n")[:-1]
    both = zip(translator.translate(valid[:15]), plain.translate(valid[:15]), strict=True)
    assert changed_lines(recipe, 15) == (sum(one != other for one, other in both), 15)
    assert (run.model / "model.safetensors").read_bytes() == weights

    checkpoint = run.checkpoint(run.steps()[-1])
    assert np.array_equal(load_shortlist(checkpoint, translator.tokenizers).targets_C, small.targets_C)
    assert np.array_equal(load_shortlist(run.path, translator.tokenizers).targets_C, small.targets_C)


def load_ids(run: RunFolder, path: Path) -> list[list[int]]:
    return Tokenizers.load(run.path).source.encode_batch(path.read_text("utf-8").split("\n")[:-1])


def test_the_command_prints_recall_and_changed_lines(
    trained_run: tuple[Any, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = trained_run
    (tmp_path / "own.yaml").write_text(recipe.dump(), "utf-8")
    assert exit_code_of(lambda: command(tmp_path / "own.yaml", per_token=5, frequent=7, lines=12)) == 0
    first, second, third = capsys.readouterr().out.rstrip("\n").split("\n")
    assert first.startswith(f"{run.model / SHORTLIST_FILE}: ")
    assert "recall on 40 validation pairs: " in second
    assert third.startswith("translated otherwise with it: ")
    assert " of 12 validation lines (" in third


def test_what_a_shortlist_cannot_do_is_refused(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    model = save_untrained(tmp_path / "model", tiny_corpus, tiny_tokenizers, 1)
    with pytest.raises(ModelError, match="has no shortlist") as caught:
        Translator.load(model, "cpu", shortlist=True)
    assert "mtkit shortlist" in str(caught.value.hint)
    save_some(model, tiny_tokenizers)
    assert Translator.load(model, "cpu", shortlist=True).translate(["the red baker"])
    with pytest.raises(UsageError, match="ensemble"):
        Translator.load(model, "cpu", [model], shortlist=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ensemble": [Path("other")]}, "--shortlist is for one model, and --ensemble other adds another"),
        ({"engine": "ctranslate2"}, "--shortlist: --engine ctranslate2 cannot do that"),
    ],
)
def test_translate_names_what_does_not_go_with_a_shortlist(options: dict[str, Any], said: str) -> None:
    given = {field.name: None for field in fields(Searcher)} | {"engine": "mtkit", "ensemble": [], "shortlist": True}
    Searcher(**given).refuse_clashes(None)
    with pytest.raises(UsageError) as caught:
        Searcher(**given | options).refuse_clashes(None)
    assert caught.value.message == said


def test_without_model_or_shards_there_is_no_shortlist(runs: Runs) -> None:
    recipe = runs.recipe()
    with pytest.raises(ModelError, match="no model yet"):
        make_shortlist(recipe, Size())
    run = runs.train(training={"max_steps": 2})
    average(run, "last", 1)
    (run.shards / "report.json").unlink()
    with pytest.raises(ModelError, match=r"report\.json"):
        make_shortlist(recipe, Size())
