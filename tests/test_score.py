"""Force-decoding: it gives the search's own figures again, whatever the batch, and loses no pair."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from conftest import TinyCorpus
from hypothesis import given, settings
from hypothesis import strategies as st
from test_step import SETTINGS, batch
from torch_model import TINY, build
from toy_models import save_untrained

from mtkit.checkpoint import save_model, weights_of
from mtkit.errors import DataError, ModelError, UsageError
from mtkit.force import Scorer, log_probabilities
from mtkit.ids import BOS, EOS
from mtkit.model.transformer import Transformer
from mtkit.scored import ScoredPair, Summary, json_line, text_line
from mtkit.search.run import search
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Greedy, Rules, Sampling
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.step import batch_loss
from mtkit.translator import Translator

POSITIONS = get_args(Model.model_fields["positions"].annotation)
RULES = Rules(max_length=20, no_repeat_ngram=4)
PENALTIES = Rules(max_length=9, min_length=3, repetition_penalty=1.4)
CONFIGS = {
    "greedy": Greedy(method="greedy", rules=RULES),
    "penalised": Greedy(method="greedy", rules=PENALTIES),
    "beam": Beam(beam_size=5, n_best=5, rules=RULES),
    "coverage": Beam(beam_size=4, n_best=4, groups=2, length_normalization="wu", coverage_penalty=0.3, rules=PENALTIES),
    "sampling": Sampling(method="sampling", samples=3, temperature=1.3, top_p=0.9, rules=RULES),
}


def padded(sources: list[list[int]]) -> torch.Tensor:
    return batch([(source, [4]) for source in sources]).source_BS


def train_a_little(model: Transformer, pairs: list[tuple[list[int], list[int]]]) -> Transformer:
    """30 updates: enough for probabilities to be sharp and for most translations to end by themselves."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for step in range(30):
        rows = batch(pairs[32 * step % len(pairs) :][:32])
        optimizer.zero_grad()
        (batch_loss(model, model.output, rows, SETTINGS)[0] / rows.kept).backward()
        optimizer.step()
    model.eval()
    [group] = search(model, padded([pairs[0][0]]), CONFIGS["sampling"])
    assert any(each.finished for each in group), "or the ends of hypotheses are not compared"
    return model


@pytest.fixture(scope="session")
def encoded(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers) -> list[tuple[list[int], list[int]]]:
    sources = tiny_tokenizers.source.encode_batch(tiny_corpus.source)
    return list(zip(sources, tiny_tokenizers.target.encode_batch(tiny_corpus.target), strict=True))


@pytest.fixture(scope="module", params=[(name, trained) for name in POSITIONS for trained in (False, True)], ids=str)
def model(request: Any, encoded: list[tuple[list[int], list[int]]]) -> Transformer:
    """A real Transformer with each position encoding, untrained and trained a little."""
    positions, trained = request.param
    model = build(120, positions=positions, max_positions=128, norm="pre")
    return train_a_little(model, encoded) if trained else model


@pytest.fixture(scope="module")
def sources(encoded: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Of many lengths, down to one token."""
    return [source[: random.Random(number).choice([1, 3, 40])] for number, (source, _) in enumerate(encoded[:8])]


# Agreement with the search


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_figures_are_those_of_the_search(
    model: Transformer, sources: list[list[int]], config: Greedy | Beam | Sampling
) -> None:
    """Whatever rule changed the ranking; of a hypothesis that was cut at its limit the tokens agree, it has no end."""
    found = search(model, padded(sources), config)
    pairs = [(source, each) for source, group in zip(sources, found, strict=True) for each in group]
    random.Random(3).shuffle(pairs)
    forced = log_probabilities(model, [source for source, _ in pairs], [each.ids for _, each in pairs])
    for (_, hypothesis), values in zip(pairs, forced, strict=True):
        assert len(values) == len(hypothesis.ids) + 1
        scored = values[: len(hypothesis.ids) + hypothesis.finished]
        assert scored == pytest.approx(hypothesis.token_log_probabilities, abs=1e-4)
        assert sum(scored) == pytest.approx(hypothesis.log_probability, abs=1e-4)


def test_one_step_at_a_time_gives_the_same(model: Transformer, encoded: list[tuple[list[int], list[int]]]) -> None:
    """The slow and obvious way: feed each token to the decoder and read off the next one's probability."""
    rows = [*encoded[:5], (encoded[5][0], []), ([7], encoded[6][1])]
    forced = log_probabilities(model, [source for source, _ in rows], [target for _, target in rows])
    for (source, target), values in zip(rows, forced, strict=True):
        with torch.inference_mode():
            state, last, slow = model.start(padded([source]), 1), BOS, []
            for token in [*target, EOS]:
                slow.append(float(model.step(torch.tensor([last]), state).log_softmax(1)[0, token]))
                last = token
        assert values == pytest.approx(slow, abs=1e-4)


def test_neither_batch_nor_order_matters(model: Transformer, encoded: list[tuple[list[int], list[int]]]) -> None:
    rows = [*encoded[:9], (encoded[9][0], []), ([5], encoded[10][1] * 3), (encoded[11][0] * 3, [6])]
    alone = [log_probabilities(model, [source], [target])[0] for source, target in rows]
    for seed in range(3):
        order = random.Random(seed).sample(range(len(rows)), len(rows))
        together = log_probabilities(model, [rows[i][0] for i in order], [rows[i][1] for i in order])
        for place, values in zip(order, together, strict=True):
            assert values == pytest.approx(alone[place], abs=1e-5)


def test_more_positions_than_one_chunk_of_logits(encoded: list[tuple[list[int], list[int]]]) -> None:
    model = build(120)
    sources, targets = [source for source, _ in encoded[:150]], [target for _, target in encoded[:150]]
    assert sum(map(len, targets)) > 3 * 512
    together = log_probabilities(model, sources, targets)
    alone = [log_probabilities(model, [source], [target])[0] for source, target in encoded[:150]]
    assert [value for row in together for value in row] == pytest.approx(
        [value for row in alone for value in row], abs=1e-5
    )


# Text


@pytest.fixture(scope="module", params=["sinusoidal", "rotary"])
def folder(
    request: Any,
    tiny_corpus: TinyCorpus,
    tiny_tokenizers: Tokenizers,
    encoded: list[tuple[list[int], list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A model that has been trained a little."""
    section = {**TINY, "positions": request.param, "norm": "pre"}
    recipe = tiny_corpus.recipe(model=section, search={"method": "beam", "rules": {"max_length": 24}})
    torch.manual_seed(2)
    model = train_a_little(Transformer(recipe.model, 120, 120), encoded)
    path = tmp_path_factory.mktemp("trained") / "model"
    save_model(path, weights_of(model), recipe, tiny_tokenizers, {})
    return path


@pytest.mark.parametrize("tags", [[], ["<news>"]])
@pytest.mark.parametrize(
    "config",
    [CONFIGS["greedy"], CONFIGS["beam"], Sampling(method="sampling", samples=4, top_p=0.8, rules=RULES)],
    ids=["greedy", "beam", "sampling"],
)
def test_translations_as_text_score_as_the_translator_says(
    folder: Path, tiny_corpus: TinyCorpus, config: Greedy | Beam | Sampling, tags: list[str]
) -> None:
    """Where the tokenizer reads the text as the tokens that were produced, which it need not."""
    translator, scorer = Translator.load(folder, "cpu"), Scorer.load(folder, "cpu")
    lines = ["", *tiny_corpus.source[:12]]
    pairs, hypotheses = [], []
    for translation in translator.translate_stream(lines, config, tags=tags, details=True):
        for hypothesis in translation.hypotheses[: 1 if translation.status == "blank" else None]:
            pairs.append((translation.line.text, hypothesis.text))
            hypotheses.append(hypothesis)
    same = 0
    for hypothesis, scored in zip(hypotheses, scorer.score_stream(pairs, tags=tags, details=True), strict=True):
        if scored.status == "blank" or scored.tokens != hypothesis.tokens or not hypothesis.finished:
            continue
        same += 1
        assert scored.log_probability == pytest.approx(hypothesis.log_probability, abs=1e-4)
        assert scored.token_log_probabilities == pytest.approx(hypothesis.token_log_probabilities, abs=1e-4)
        assert [scored.end_log_probability] == pytest.approx(hypothesis.end_log_probabilities, abs=1e-4)
        assert scored.length == hypothesis.length
    assert same >= 8


@pytest.fixture(scope="module")
def scorer(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    """Untrained."""
    return Scorer.load(
        save_untrained(tmp_path_factory.mktemp("untrained") / "model", tiny_corpus, tiny_tokenizers, 1), "cpu"
    )


def limited(scorer: Scorer, **lines: object) -> Scorer:
    """The scorer with these settings of `search.lines`."""
    changed = scorer.recipe.search.lines.model_copy(update=lines)
    search = scorer.recipe.search.model_copy(update={"lines": changed})
    return Scorer(scorer.model, scorer.recipe.model_copy(update={"search": search}), scorer.tokenizers)


def test_the_corpus_figures_are_the_loss_of_training(scorer: Scorer, tiny_corpus: TinyCorpus) -> None:
    """Perplexity is that of validation: exp of the summed loss over all target tokens, EOS included."""
    pairs = list(zip(tiny_corpus.source[:50], tiny_corpus.target[:50], strict=True))
    summary = Summary(256)
    for pair in scorer.score(pairs):
        summary.add(pair)
    ids = [
        (scorer.tokenizers.source.encode(source), scorer.tokenizers.target.encode(target)) for source, target in pairs
    ]
    nll = float(batch_loss(scorer.model, scorer.model.output, batch(ids), SETTINGS)[1])
    tokens = sum(len(target) + 1 for _, target in ids)
    assert (summary.lines, summary.sentences, summary.tokens) == (50, 50, tokens)
    assert summary.log_probability == pytest.approx(-nll, rel=1e-5)
    assert summary.figures()["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)


def test_figures_of_a_pair_add_up(scorer: Scorer, tiny_corpus: TinyCorpus) -> None:
    [pair] = scorer.score_stream([(tiny_corpus.source[0], tiny_corpus.target[0])], details=True)
    assert len(pair.tokens) == len(pair.token_log_probabilities) == pair.target_tokens == pair.length - 1
    total = sum(pair.token_log_probabilities) + pair.end_log_probability
    assert pair.log_probability == pytest.approx(total)
    assert pair.normalized_score == pytest.approx(total / pair.length)
    assert pair.perplexity == pytest.approx(math.exp(-total / pair.length))
    assert len(pair.source_pieces) == pair.source_tokens


TEXT = st.one_of(st.text(max_size=12), st.text(" \t\u2028\v\r\0▁", max_size=4), st.sampled_from(["", "the river."]))


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.lists(st.tuples(TEXT, TEXT), max_size=20), buffer_size=st.integers(1, 9), max_tokens=st.integers(16, 60)
)
def test_every_pair_is_answered_in_its_place(
    scorer: Scorer, pairs: list[tuple[str, str]], buffer_size: int, max_tokens: int
) -> None:
    """Whatever the text, the buffer and the batches; the figures are those of the pair by itself."""
    scored = list(limited(scorer, buffer_size=buffer_size).score_stream(pairs, max_tokens=max_tokens, on_long="skip"))
    assert [(each.source, each.target) for each in scored] == pairs
    assert [each.number for each in scored] == list(range(1, len(pairs) + 1))
    for (source, target), each in zip(pairs, scored, strict=True):
        assert (each.status == "blank") == (normalize(source) == "")
        if each.status != "blank":
            longest = max(each.source_tokens, each.target_tokens) + 1
            assert (each.status == "too_long") == (longest > max_tokens)
        if each.status in ("ok", "empty"):
            assert (each.status == "empty") == (normalize(target) == "")
            [alone] = scorer.score([(source, target)])
            assert each.log_probability == pytest.approx(alone.log_probability, abs=1e-4)
        else:
            assert each.log_probability is each.normalized_score is each.perplexity is None
            assert each.length == 0


def test_a_blank_target_is_the_empty_translation(scorer: Scorer) -> None:
    [pair] = scorer.score_stream([("the baker sees.", " \u2028")], details=True)
    [[end]] = log_probabilities(scorer.model, [scorer.tokenizers.source.encode("the baker sees.")], [[]])
    assert (pair.status, pair.length, list(pair.tokens)) == ("empty", 1, [])
    assert pair.log_probability == pytest.approx(end, abs=1e-5)


class Spy:
    """A model that notes the tensors it is given."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.sources: list[torch.Tensor] = []
        self.targets: list[torch.Tensor] = []

    def __call__(self, source_BS: torch.Tensor, target_in_BT: torch.Tensor) -> torch.Tensor:
        self.sources.append(source_BS)
        self.targets.append(target_in_BT)
        return self.model(source_BS, target_in_BT)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)


def spied(scorer: Scorer) -> tuple[Scorer, Spy]:
    spy = Spy(scorer.model)
    return Scorer(spy, scorer.recipe, scorer.tokenizers), spy  # type: ignore[arg-type]


def test_a_blank_source_never_enters_the_model(scorer: Scorer) -> None:
    watched, spy = spied(scorer)
    pairs = [("", "the river"), ("the baker", "mirulo"), (" \u2028\0", ""), ("\ufeff", "x")]
    found = list(watched.score_stream(pairs, tags=["<news>"]))
    assert [each.status for each in found] == ["blank", "ok", "blank", "blank"]
    assert sum(map(len, spy.sources)) == 1


def test_tags_stand_before_the_source_and_are_counted(scorer: Scorer) -> None:
    watched, spy = spied(scorer)
    pair = ("the baker", "mirulo")
    tagged = next(watched.score_stream([pair], tags=["<news>"], details=True))
    plain = next(watched.score_stream([pair], details=True))
    tag = scorer.tokenizers.source.symbol_id("<news>")
    assert spy.sources[0].tolist() == [[tag, *spy.sources[1].tolist()[0]]]
    assert tagged.source_pieces == ["<news>", *plain.source_pieces]
    assert tagged.log_probability != pytest.approx(plain.log_probability, abs=1e-3)
    with pytest.raises(ModelError, match="<sports>"):
        scorer.score_stream([pair], tags=["<sports>"])


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), max_size=40), budget=st.integers(32, 80))
def test_batches_keep_to_their_budget_padding_included(
    scorer: Scorer, lengths: list[tuple[int, int]], budget: int
) -> None:
    watched, spy = spied(scorer)
    pairs = [("a " * source, "o " * target) for source, target in lengths]
    heard: list[int] = []
    assert len(list(watched.score_stream(pairs, max_tokens=budget, on_long="skip", on_batch=heard.append))) == len(
        pairs
    )
    assert all(ids.numel() <= budget for ids in (*spy.sources, *spy.targets))
    assert sum(heard) == len(pairs)


# Long pairs


def test_a_long_pair_is_refused_by_its_line_before_anything_of_its_buffer(scorer: Scorer) -> None:
    pairs = [("the baker", "mirulo")] * 3 + [("the baker", "mirulo " * 20), ("the baker " * 20, "mirulo")]
    with pytest.raises(DataError, match=r"line 4 has \d+ target tokens, and at most 15") as caught:
        next(scorer.score_stream(pairs, max_tokens=16))
    assert "--max-tokens" in str(caught.value.hint)
    assert "--on-long skip" in str(caught.value.hint)
    with pytest.raises(DataError, match="line 4"):
        scorer.refuse_long(pairs, max_tokens=16)
    with pytest.raises(DataError, match=r"line 1 has \d+ source tokens"):
        scorer.refuse_long(pairs[4:], max_tokens=16)
    scorer.refuse_long(pairs)
    stream = limited(scorer, buffer_size=2).score_stream(pairs, max_tokens=16)
    assert [next(stream).number, next(stream).number] == [1, 2]
    with pytest.raises(DataError, match="line 4"):
        next(stream)


def test_a_skipped_pair_has_no_figures_and_its_neighbours_do_not_notice(scorer: Scorer) -> None:
    pairs = [("the baker", "mirulo"), ("the baker " * 20, "mirulo"), ("the river", "taskel")]
    found = list(scorer.score_stream(pairs, max_tokens=16, on_long="skip"))
    assert [each.status for each in found] == ["ok", "too_long", "ok"]
    assert found[1].source_tokens == len(scorer.tokenizers.source.encode(pairs[1][0]))
    alone = scorer.score([pairs[0], pairs[2]])
    assert [found[0].log_probability, found[2].log_probability] == pytest.approx(
        [each.log_probability for each in alone], abs=1e-5
    )


def test_within_the_limit_a_pair_is_scored_whole(scorer: Scorer) -> None:
    """Also beyond what a translator reads in one piece; nothing is cut."""
    pair = ("the baker " * 200, "mirulo " * 200)
    assert scorer.recipe.search.lines.max_source_length < 400
    [scored] = scorer.score([pair])
    assert scored.status == "ok"
    assert len(scored.token_log_probabilities) == len(scorer.tokenizers.target.encode(pair[1]))
    summary = Summary(scorer.recipe.filters.max_length)
    summary.add(scored)
    assert summary.report() == ["longer than the model was trained on (256 tokens), scored whole: 1 line: 1"]


def test_learned_positions_limit_a_pair(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers) -> None:
    model = {**TINY, "positions": "learned", "max_positions": 32}
    search = {"method": "greedy", "rules": {"max_length": 20}, "lines": {"max_source_length": 20}}
    recipe = tiny_corpus.recipe(model=model, search=search, filters={"max_length": 20})
    scorer = Scorer(Transformer(recipe.model, 120, 120).eval(), recipe, tiny_tokenizers)
    [filling] = [
        text for text in ["b" * count for count in range(60)] if len(tiny_tokenizers.target.encode(text)) == 31
    ]
    assert scorer.score([("the baker", filling), (filling, "mirulo")])[0].length == 32
    with pytest.raises(DataError, match=r"line 2 has 32 target tokens, and at most 31 .* 32 learned positions"):
        scorer.score([("the baker", "mirulo"), ("the baker", filling + "b")])
    found = list(scorer.score_stream([(filling + "b", "mirulo"), ("the baker", "mirulo")], on_long="skip"))
    assert [each.status for each in found] == ["too_long", "ok"]


@pytest.mark.parametrize("max_tokens", [0, 15, -1])
def test_a_budget_out_of_range_is_refused_at_once(scorer: Scorer, max_tokens: int) -> None:
    with pytest.raises(UsageError, match=f"max_tokens {max_tokens}"):
        scorer.score_stream([], max_tokens=max_tokens)


# Streaming


def test_a_buffer_is_answered_before_the_next_is_read(scorer: Scorer) -> None:
    read: list[int] = []

    def pulled() -> Iterator[tuple[str, str]]:
        for number in range(10):
            read.append(number)
            yield "the baker", "mirulo"

    stream = limited(scorer, buffer_size=4).score_stream(pulled())
    assert [len(read) for _ in stream] == [4] * 4 + [8] * 4 + [10] * 2


def test_a_stretch_of_huge_lines_does_not_fill_a_buffer(scorer: Scorer) -> None:
    read: list[int] = []

    def huge() -> Iterator[tuple[str, str]]:
        for number in range(5):
            read.append(number)
            yield "b " * 150_000, "b " * 150_000

    next(scorer.score_stream(huge(), on_long="skip"))
    assert len(read) == 2


def test_a_damaged_model_is_named_by_the_line_it_fails_at(scorer: Scorer) -> None:
    model = build(120)
    with torch.no_grad():
        model.output.weight[7] = math.nan
    broken = Scorer(model, scorer.recipe, scorer.tokenizers)
    with pytest.raises(ModelError, match="no finite probability to the target of line 2"):
        broken.score([("", "x"), ("the baker", "mirulo")])


# Output


def a_pair(**changes: Any) -> ScoredPair:
    values = {"source_tokens": 2, "target_tokens": 2, "unknown_source_tokens": 0, "unknown_target_tokens": 0}
    values |= {"number": 3, "source": "a", "target": "b", "status": "ok"}
    return ScoredPair(**{**values, "token_log_probabilities": [-1.0, -0.5], "end_log_probability": -0.75, **changes})


NOTHING = {"token_log_probabilities": (), "end_log_probability": None}


def test_lines_of_text() -> None:
    assert text_line(a_pair()) == "-2.250000\t-0.750000\n"
    assert text_line(a_pair(status="blank", **NOTHING)) == "nan\tnan\n"


def test_json_holds_everything_and_breaks_no_line() -> None:
    line = json_line(a_pair(source="a\u2028b\x0b", tokens=["x", "y"], source_pieces=["a"]))
    assert len(line.splitlines()) == 1
    record = json.loads(line)
    assert record["source"] == "a\u2028b\x0b"
    assert (record["id"], record["line"], record["status"]) == (2, 3, "ok")
    assert record["log_probability"] == -2.25
    assert record["normalized_score"] == -0.75
    assert record["perplexity"] == pytest.approx(math.exp(0.75))
    assert record["token_log_probabilities"] == [-1.0, -0.5]
    assert record["end_log_probabilities"] == [-0.75]
    nothing = json.loads(json_line(a_pair(status="too_long", **NOTHING)))
    assert nothing["log_probability"] is nothing["normalized_score"] is nothing["perplexity"] is None
    assert nothing["end_log_probabilities"] == nothing["token_log_probabilities"] == []
    assert set(nothing) == set(record)
    vast = json.loads(json_line(a_pair(token_log_probabilities=(), end_log_probability=-5000.0)))
    assert (vast["normalized_score"], vast["perplexity"]) == (-5000.0, None)


def test_the_summary_counts_what_was_not_scored_apart() -> None:
    summary = Summary(trained_length=10)
    summary.add(a_pair(number=1))
    summary.add(a_pair(number=2, status="blank", target_tokens=0, **NOTHING))
    summary.add(a_pair(number=3, status="blank", **NOTHING))
    summary.add(a_pair(number=4, status="too_long", source_tokens=99, unknown_source_tokens=9, **NOTHING))
    summary.add(a_pair(number=5, status="empty", target_tokens=0, token_log_probabilities=()))
    summary.add(a_pair(number=6, source_tokens=11, unknown_source_tokens=1, unknown_target_tokens=2))
    assert summary.figures() == {
        "lines": 6,
        "sentences": 3,
        "blank": 2,
        "empty": 1,
        "too_long": 1,
        "tokens": 7,
        "unknown_tokens": 1,
        "unknown_target_tokens": 2,
        "log_probability": pytest.approx(-5.25),
        "normalized_score": pytest.approx(-0.75),
        "perplexity": pytest.approx(math.exp(0.75)),
    }
    assert summary.report() == [
        "the source is blank and the target is not, not scored: 1 line: 3",
        "too long, not scored: 1 line: 4",
        "the target is blank, scored as the empty translation: 1 line: 5",
        "longer than the model was trained on (10 tokens), scored whole: 1 line: 6",
        "unknown source tokens (1 of 15, 6.7 %): 1 line: 6",
        "unknown target tokens (2 of 4, 50 %): 1 line: 6",
    ]
    assert str(summary) == (
        "3 of 6 pairs scored (2 blank, 1 too long): log-probability -5.2500, 7 target tokens with ends, "
        "perplexity 2.1170"
    )


def test_the_summary_of_nothing() -> None:
    summary = Summary(256)
    assert (summary.normalized_score, summary.report()) == (None, [])
    assert "perplexity\tnan\n" in summary.render()
    assert summary.figures()["perplexity"] is None
