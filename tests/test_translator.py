"""N lines in, N lines out, in order, nothing lost silently: on a model that copies its source, and on a real one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TinyCorpus
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from toy_models import BYTES, MODEL, RULES, CopyModel, copying_recipe, copying_translator, save_untrained

from mtkit.engine import ModelEngine
from mtkit.errors import DataError, ModelError, UsageError
from mtkit.search.mbr import choose
from mtkit.search.run import search as run_search
from mtkit.search.sizes import round_down
from mtkit.sections.search import Beam, Greedy, Lines, Rules, Sampling, Search
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train
from mtkit.translation import Line
from mtkit.translator import Translator, batch_sizes, hypothesis_count

LINES = st.lists(st.one_of(st.text(), st.text(" \t\u2028\u0085\v\f\r\0\ufeff▁"), st.text("ab .,"), st.just("")))


@pytest.fixture(scope="session")
def byte_tokenizers(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """To this vocabulary nothing is unknown: what it does not hold it spells as bytes."""
    folder = tmp_path_factory.mktemp("bytes")
    return train(BYTES, tiny_corpus.source, tiny_corpus.target, ["<news>"], folder)


def greedy(**lines: object) -> Greedy:
    return Greedy(method="greedy", lines=Lines.model_validate(lines))


METHODS = {
    "greedy": Greedy(method="greedy"),
    "beam": Beam(beam_size=4, n_best=3),
    "sampling": Sampling(method="sampling", samples=2, top_k=1),
}


# The line contract


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60, deadline=None)
@given(lines=LINES, batch_size=st.integers(1, 4), buffer_size=st.integers(1, 9))
def test_every_line_is_answered_in_its_place(
    byte_tokenizers: Tokenizers, method: str, lines: list[str], batch_size: int, buffer_size: int
) -> None:
    search = METHODS[method].model_copy(update={"lines": Lines(batch_size=batch_size, buffer_size=buffer_size)})
    assert copying_translator(byte_tokenizers).translate(lines, search) == [normalize(line) for line in lines]


@settings(max_examples=60, deadline=None)
@given(lines=LINES, limit=st.integers(4, 12), on_long=st.sampled_from(["split", "truncate"]))
def test_no_line_is_too_long_and_no_output_breaks_a_line(
    byte_tokenizers: Tokenizers, lines: list[str], limit: int, on_long: str
) -> None:
    translator = copying_translator(byte_tokenizers)
    search = greedy(max_source_length=limit, on_long=on_long)
    translations = list(translator.translate_stream(lines, search))
    assert [translation.number for translation in translations] == list(range(1, len(lines) + 1))
    assert all(len(source) <= limit + 1 for source in translator.engine.model.sources)  # type: ignore[attr-defined]
    for line, translation in zip(lines, translations, strict=True):
        assert len(translation.text.splitlines()) <= 1
        assert translation.text == normalize(translation.text)
        assert (translation.status == "blank") == (normalize(line) == "")


def test_blank_lines_never_enter_the_model(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    lines = ["", " \t", "the", "\u2028\u0085\f\v\r\0", "▁", "\ufeff"]
    translations = list(translator.translate_stream(lines, tags=["<news>"]))
    assert [each.text for each in translations] == ["", "", "<news> the", "", "", ""]
    assert [each.status for each in translations] == ["blank", "blank", "ok", "blank", "blank", "blank"]
    assert [len(source) for source in translator.engine.model.sources] == [3]  # type: ignore[attr-defined]


def test_no_lines_at_all(byte_tokenizers: Tokenizers) -> None:
    assert copying_translator(byte_tokenizers).translate([]) == []


def test_one_string_is_not_a_list_of_lines(byte_tokenizers: Tokenizers) -> None:
    """It would be translated letter by letter."""
    with pytest.raises(UsageError, match="list of lines"):
        copying_translator(byte_tokenizers).translate("the baker")


@pytest.mark.parametrize("method", METHODS)
def test_a_blank_line_has_as_many_hypotheses_as_any_other(byte_tokenizers: Tokenizers, method: str) -> None:
    search = METHODS[method]
    blank, other = copying_translator(byte_tokenizers).translate_stream(["", "the baker"], search)
    assert len(blank.hypotheses) == len(other.hypotheses) == hypothesis_count(search)
    assert {each.text for each in blank.hypotheses} == {""}
    assert other.text == "the baker"


def test_what_came_with_a_line_goes_with_its_translation(byte_tokenizers: Tokenizers) -> None:
    lines = [Line("a", extra={"id": 7}), Line("", extra={"id": 8})]
    assert [each.line for each in copying_translator(byte_tokenizers).translate_stream(lines)] == lines


# Streaming


def pulled(lines: int, log: list[int]) -> Iterator[str]:
    for number in range(1, lines + 1):
        log.append(number)
        yield "ab " * (number % 5)


def test_buffers_begin_small_and_are_answered_before_the_next_is_read(byte_tokenizers: Tokenizers) -> None:
    read: list[int] = []
    stream = copying_translator(byte_tokenizers).translate_stream(pulled(40, read), greedy(batch_size=2, buffer_size=8))
    seen = [len(read) for _ in stream]
    assert seen == [2] * 2 + [6] * 4 + [14] * 8 + [22] * 8 + [30] * 8 + [38] * 8 + [40] * 2


def test_lines_at_hand_are_read_in_whole_buffers(byte_tokenizers: Tokenizers) -> None:
    """There is nothing to wait for in a file, and the more lines are sorted together, the less is padded."""
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield "b"

    search = greedy(batch_size=4, buffer_size=50)
    next(copying_translator(byte_tokenizers).translate_stream(lines(), search, at_hand=True))
    assert len(read) == 50


def test_a_buffer_holds_fewer_lines_when_each_has_several_hypotheses(byte_tokenizers: Tokenizers) -> None:
    read: list[int] = []
    search = Beam(beam_size=4, n_best=4, lines=Lines(batch_size=1000, buffer_size=9))
    stream = copying_translator(byte_tokenizers).translate_stream(pulled(6, read), search)
    assert [len(read) for _ in stream] == [2, 2, 4, 4, 6, 6]


def test_with_a_batch_size_of_1_a_line_is_answered_before_the_next_is_read(byte_tokenizers: Tokenizers) -> None:
    read: list[int] = []
    stream = copying_translator(byte_tokenizers).translate_stream(pulled(10, read), greedy(batch_size=1))
    assert [len(read) for _ in stream] == list(range(1, 11))


def test_a_stretch_of_huge_lines_does_not_fill_a_buffer(byte_tokenizers: Tokenizers) -> None:
    read: list[str] = []

    def huge() -> Iterator[str]:
        for _ in range(6):
            read.append("b")
            yield "b " * 200_000

    stream = copying_translator(byte_tokenizers).translate_stream(huge(), greedy(on_long="truncate"))
    next(stream)
    assert len(read) == 3  # of 400,000 characters each: the buffer ends past a million


def test_a_translation_comes_as_soon_as_all_before_it_are_there(byte_tokenizers: Tokenizers) -> None:
    """Long lines go first; the ready ones at the front are not held back until the buffer is done."""
    translator = copying_translator(byte_tokenizers)
    stream = translator.translate_stream(["the " * 11, "the", "the " * 8], greedy(max_tokens=16, batch_size=3))
    assert [(each.number, len(translator.engine.model.shapes)) for each in stream] == [(1, 1), (2, 3), (3, 3)]  # type: ignore[attr-defined]


def test_on_batch_hears_of_every_line_once(byte_tokenizers: Tokenizers) -> None:
    heard: list[int] = []
    lines = ["", "a b", "a " * 30, "", "b"]
    search = greedy(max_source_length=8, max_tokens=20)
    for _ in copying_translator(byte_tokenizers).translate_stream(lines, search, on_batch=heard.append):
        pass
    assert sum(heard) == len(lines)
    assert heard[0] == 2


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=40),
    batch_size=st.integers(2, 9),
    max_tokens=st.integers(16, 60),
)
def test_batches_keep_to_their_limits_padding_included(
    byte_tokenizers: Tokenizers, lengths: list[int], batch_size: int, max_tokens: int
) -> None:
    translator = copying_translator(byte_tokenizers)
    search = greedy(batch_size=batch_size, max_tokens=max_tokens)
    lines = ["b " * length for length in lengths]
    assert translator.translate(lines, search) == [line.strip() for line in lines]
    shapes = translator.engine.model.shapes  # type: ignore[attr-defined]
    assert all(rows <= batch_size and rows * width <= max_tokens for rows, width in shapes)


@given(
    widths=st.lists(st.integers(1, 40), max_size=300).map(lambda widths: sorted(widths, reverse=True)),
    batch_size=st.integers(2, 70),
    max_tokens=st.integers(40, 400),
    together=st.integers(1, 4),
)
def test_batches_are_few_and_even(widths: list[int], batch_size: int, max_tokens: int, together: int) -> None:
    """As many as full ones would be, up to a multiple of the cores, but each within a smaller share of the work."""
    sizes = batch_sizes(widths, batch_size, max_tokens, together)
    assert sum(sizes) == len(widths)
    cells = [size * widths[start] for size, start in zip(sizes, np.cumsum([0, *sizes]).tolist(), strict=False)]
    assert max(cells, default=0) <= max_tokens
    assert max(sizes, default=0) <= batch_size
    assert {*range(8), *(size << shift for shift in range(7) for size in range(4, 8))}.issuperset(sizes[:-1])
    full, rest = 0, widths
    while rest:
        rest = rest[round_down(min(batch_size, max_tokens // rest[0])) :]
        full += 1
    assert len(sizes) <= (full if full < 3 else -(-full // together) * together)


def test_batches_are_of_the_same_work() -> None:
    """Full ones would be of 28, 28, 28 and 12. Of short lines, more make a batch."""
    assert batch_sizes([3] * 96, 99, 90, 4) == [24, 24, 24, 24]
    assert batch_sizes([3] * 96, 99, 90, 1) == [24, 24, 24, 24]
    assert batch_sizes([3] * 128, 99, 90, 2) == [24, 24, 24, 24, 24, 8]
    assert batch_sizes([3] * 128, 99, 90, 1) == [28, 28, 28, 28, 16]
    assert batch_sizes([8] * 8 + [4] * 16 + [2] * 32 + [1] * 64, 99, 70, 4) == [8, 16, 32, 64]


# Lines too long for the model


def test_the_pieces_of_a_long_line_are_joined_again(byte_tokenizers: Tokenizers) -> None:
    line = "The river sees. The child follows; the baker carries red lanterns. " * 3
    translator = copying_translator(byte_tokenizers)
    before, long, after = translator.translate_stream(["a", line, "b"], greedy(max_source_length=20))
    assert (before.text, after.text) == ("a", "b")
    assert long.text == line.strip()
    assert long.status == "split"
    assert long.parts == len(translator.engine.model.sources) - 2  # type: ignore[attr-defined]


def test_pieces_are_joined_without_a_space_in_a_language_written_without(byte_tokenizers: Tokenizers) -> None:
    recipe = copying_recipe(method="greedy", lines={"max_source_length": 24})
    recipe = recipe.model_copy(update={"languages": recipe.languages.model_copy(update={"target": "zh"})})
    translator = Translator(ModelEngine(CopyModel(byte_tokenizers.target.size)), recipe, byte_tokenizers)
    line = "他看着河。面包师走了。"
    [translation] = translator.translate_stream([line])
    assert translation.parts == 2
    assert translation.text == line


def test_a_line_of_a_hundred_thousand_words_is_answered_in_small_batches(byte_tokenizers: Tokenizers) -> None:
    """The attention of one such row would be 10^10 numbers."""
    translator = copying_translator(byte_tokenizers)
    line = "word " * 100_000
    lines = ["the baker sees", line, "the river"]
    assert translator.translate(lines, greedy(batch_size=512, max_tokens=65536)) == [text.strip() for text in lines]
    assert max(rows * width for rows, width in translator.engine.model.shapes) <= 65536  # type: ignore[attr-defined]


def test_truncation_is_counted_and_logged(byte_tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture) -> None:
    translator, search = copying_translator(byte_tokenizers), greedy(max_source_length=4, on_long="truncate")
    [first, second] = translator.translate_stream(["the " * 9, "b"], search)
    assert (first.status, first.cut_tokens, first.text) == ("truncated", 5, "the the the the")
    assert (second.status, second.cut_tokens) == ("ok", 0)
    translator.translate(["b", "the " * 9], search)
    assert "line 2: its last 5 tokens were cut off" in caplog.text


def test_a_refused_line_stops_the_work_before_anything_of_its_buffer_comes(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    search = greedy(max_source_length=4, on_long="error", batch_size=2)
    stream = translator.translate_stream(iter(["a", "b", "c", "the " * 9, "e"]), search)
    assert [next(stream).text, next(stream).text] == ["a", "b"]
    with pytest.raises(DataError, match=r"line 4 has \d+ source tokens, and at most 4") as caught:
        next(stream)
    assert "split" in str(caught.value.hint)
    with pytest.raises(DataError, match="line 4"):
        translator.refuse_long(["a", "b", "c", "the " * 9, "e"], search)
    translator.refuse_long(["a", "b", "c", "d"], search)


def test_max_tokens_bounds_the_length_of_a_piece_too(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    translator.translate(["the " * 99], greedy(max_tokens=16, max_source_length=256))
    assert max(width for _, width in translator.engine.model.shapes) == 16  # type: ignore[attr-defined]


# Tags and prefixes


def test_tags_stand_before_every_piece_and_count_against_its_length(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    tag = byte_tokenizers.source.symbol_id("<news>")
    list(translator.translate_stream(["the", "the " * 9], greedy(max_source_length=5), tags=["<news>", "<news>"]))
    sources = translator.engine.model.sources  # type: ignore[attr-defined]
    assert len(sources) == 4
    assert all(source[:2] == [tag, tag] and len(source) <= 6 for source in sources)


def test_tags_that_the_tokenizer_does_not_know_or_that_leave_no_room_are_refused_at_once(
    byte_tokenizers: Tokenizers,
) -> None:
    translator = copying_translator(byte_tokenizers)
    with pytest.raises(ModelError, match="<sports>"):
        translator.translate_stream(["a"], tags=["<sports>"])
    with pytest.raises(UsageError, match="4 tags leave no room"):
        translator.translate_stream(["a"], greedy(max_source_length=4), tags=["<news>"] * 4)


@pytest.mark.parametrize("method", METHODS)
def test_a_prefix_opens_the_translation_of_its_line_alone(byte_tokenizers: Tokenizers, method: str) -> None:
    translator = copying_translator(byte_tokenizers)
    lines = [Line("the baker sees", "zz"), Line("the river"), Line("", "zz")]
    found = list(translator.translate_stream(lines, METHODS[method]))
    assert all(hypothesis.text.startswith("zz") for hypothesis in found[0].hypotheses)
    assert [each.text for each in found[1:]] == ["the river", ""]


def test_a_prefix_opens_only_the_first_piece(byte_tokenizers: Tokenizers) -> None:
    [found] = copying_translator(byte_tokenizers).translate_stream(
        [Line("the " * 12, "sees")], greedy(max_source_length=4)
    )
    assert found.parts == 3
    assert found.text == "sees" + " the" * 11


def test_a_prefix_that_fills_the_translation_is_refused_by_line(byte_tokenizers: Tokenizers) -> None:
    search = Greedy(method="greedy", rules=Rules(max_length=4))
    with pytest.raises(DataError, match=r"line 2: its prefix has \d+ tokens, and a translation may have 4"):
        list(copying_translator(byte_tokenizers).translate_stream([Line("a"), Line("b", "z " * 9)], search))


# What is told of a translation


def test_scores_add_up(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    search = Beam(beam_size=4, n_best=4, length_penalty=0.6, lines=Lines(max_source_length=8))
    for translation in translator.translate_stream(["the baker", "the river sees the child follows", "a"], search):
        assert len(translation.hypotheses) == 4
        scores = [each.score for each in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        for each in translation.hypotheses:
            assert len(each.end_log_probabilities) == translation.parts
            assert each.finished
            total = sum(each.token_log_probabilities) + sum(each.end_log_probabilities)
            assert each.log_probability == pytest.approx(total)
            assert each.score == pytest.approx(each.log_probability / each.length**0.6)


@pytest.mark.parametrize("method", ["greedy", "sampling"])
def test_without_a_length_penalty_the_score_of_joined_pieces_is_their_sum(
    byte_tokenizers: Tokenizers, method: str
) -> None:
    search = METHODS[method].model_copy(update={"lines": Lines(max_source_length=4)})
    [translation] = copying_translator(byte_tokenizers).translate_stream(["the baker sees the river"], search)
    assert translation.parts > 1
    assert translation.hypotheses[0].score == pytest.approx(translation.hypotheses[0].log_probability)


def test_the_first_of_the_n_best_is_the_best(byte_tokenizers: Tokenizers) -> None:
    translator = copying_translator(byte_tokenizers)
    lines = ["the baker", "", "the river sees the child", "b " * 30]
    section = {"beam_size": 4, "lines": {"max_source_length": 8}}
    one = list(translator.translate_stream(lines, Beam.model_validate(section)))
    four = list(translator.translate_stream(lines, Beam.model_validate({**section, "n_best": 4})))
    assert [each.hypotheses[0] for each in one] == [each.hypotheses[0] for each in four]


def test_details_align_each_token_with_the_piece_it_copies(byte_tokenizers: Tokenizers) -> None:
    """Tags and EOS are never aligned; the places of a piece count from the start of the whole line."""
    translator = copying_translator(byte_tokenizers)
    search = greedy(max_source_length=9)
    tagged, plain = (
        next(translator.translate_stream(["the baker sees a red lantern"], search, tags=tags, details=True))
        for tags in (["<news>"], [])
    )
    assert plain.parts > 1
    assert plain.source_pieces == plain.hypotheses[0].tokens
    assert plain.hypotheses[0].alignment == [(place, place) for place in range(plain.source_tokens)]
    starts = [place for place, piece in enumerate(tagged.source_pieces or ()) if piece == "<news>"]
    assert len(starts) == tagged.parts
    assert tagged.hypotheses[0].alignment == [
        (place + (place in starts), place) for place in range(tagged.source_tokens)
    ]


def test_without_details_nothing_is_asked_of_attention(byte_tokenizers: Tokenizers) -> None:
    [translation] = copying_translator(byte_tokenizers).translate_stream(["the baker"])
    assert translation.source_pieces is None
    assert translation.hypotheses[0].tokens is None
    assert translation.hypotheses[0].alignment is None


def test_unknown_source_tokens_are_counted(tiny_tokenizers: Tokenizers) -> None:
    search = Greedy(method="greedy", rules=Rules(allow_unknown=True))
    [known, unknown] = copying_translator(tiny_tokenizers).translate_stream(
        ["the baker", "the 字 baker 语 sees"], search
    )
    assert (known.unknown_tokens, unknown.unknown_tokens) == (0, 2)
    assert unknown.text == "the \ufffd baker \ufffd sees"


def test_a_translation_cut_at_the_limit_is_not_finished(byte_tokenizers: Tokenizers) -> None:
    search = Greedy(method="greedy", rules=Rules(max_length=2))
    [translation] = copying_translator(byte_tokenizers).translate_stream(["the the the the"], search)
    assert (translation.text, translation.hypotheses[0].finished) == ("the the", False)
    assert translation.hypotheses[0].end_log_probabilities == []


class SilentModel(CopyModel):
    """Ends every translation at once."""

    def step(self, ids_N: torch.Tensor, state: object) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full_like(ids_N, 3), self.vocab_size) * 9.0


def test_an_empty_translation_has_a_status_of_its_own(byte_tokenizers: Tokenizers) -> None:
    translator = Translator(ModelEngine(SilentModel(byte_tokenizers.target.size)), copying_recipe(), byte_tokenizers)
    [translation] = translator.translate_stream(["the baker"])
    assert (translation.text, translation.status) == ("", "empty")


class StutteringModel(CopyModel):
    """Says its first token for ever."""

    def step(self, ids_N: torch.Tensor, state: object) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.full_like(ids_N, 9), self.vocab_size) * 9.0


def test_a_loop_is_told_from_a_source_that_repeats_itself(byte_tokenizers: Tokenizers) -> None:
    stuttering = Translator(
        ModelEngine(StutteringModel(byte_tokenizers.target.size)), copying_recipe(), byte_tokenizers
    )
    [translation] = stuttering.translate_stream(["the baker"])
    assert translation.hypotheses[0].looped
    [copied] = copying_translator(byte_tokenizers).translate_stream(["b b b b b b b b"])
    assert not copied.hypotheses[0].looped


# On a real model, untrained: near-ties are rare and translations run to the limit


@pytest.fixture(scope="module")
def model_folder(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return save_untrained(tmp_path_factory.mktemp("untrained") / "model", tiny_corpus, tiny_tokenizers, 1)


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return Translator.load(model_folder, "cpu")


SEARCHES: dict[str, dict[str, object]] = {
    "greedy": {"method": "greedy"},
    "beam": {"method": "beam", "beam_size": 4, "n_best": 2, "coverage_penalty": 0.2},
    "diverse": {"method": "beam", "beam_size": 4, "groups": 2, "rules": {**RULES, "no_repeat_ngram": 3}},
    "sampling": {"method": "sampling", "samples": 2, "temperature": 1.3, "top_k": 20},
    "mbr": {"method": "sampling", "samples": 4, "mbr": "chrf"},
}


def a_search(name: str, **lines: object) -> Search:
    return TypeAdapter(Search).validate_python({"rules": RULES, **SEARCHES[name], "lines": lines})


@pytest.mark.parametrize("name", SEARCHES)
def test_a_translation_does_not_depend_on_its_batch(translator: Translator, tiny_corpus: TinyCorpus, name: str) -> None:
    """Neither on the batch size, nor on the other lines, nor on the order they are worked at in."""
    lines = [*tiny_corpus.source[:12], "", "the " * 40, *tiny_corpus.source[12:20]]
    runs = [
        list(
            translator.translate_stream(
                lines, a_search(name, batch_size=size, buffer_size=buffer, max_source_length=20)
            )
        )
        for size, buffer in ((1, 1), (7, 9), (64, 64))
    ]
    for other in runs[1:]:
        for one, two in zip(runs[0], other, strict=True):
            assert [each.text for each in one.hypotheses] == [each.text for each in two.hypotheses]
            assert [each.score for each in one.hypotheses] == pytest.approx(
                [each.score for each in two.hypotheses], abs=1e-4
            )


def test_the_noise_of_a_line_is_its_numbers_own(translator: Translator, tiny_corpus: TinyCorpus) -> None:
    """The same sentence twice is sampled twice, and other lines around it change nothing."""
    search = a_search("sampling")
    same = translator.translate([tiny_corpus.source[0]] * 3, search)
    assert len(set(same)) == 3
    assert translator.translate(["", tiny_corpus.source[0], "the river."], search)[1] == same[1]
    seeded = Sampling.model_validate({**dict(search), "seed": 2})
    assert translator.translate([tiny_corpus.source[0]] * 3, seeded) != same


def test_every_piece_of_every_line_has_a_key_of_its_own(
    byte_tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or equal pieces of a line would be sampled alike."""
    keys: list[int] = []

    def noting(*arguments: Any, line_keys: list[int], **options: Any) -> Any:
        keys.extend(line_keys)
        return run_search(*arguments, line_keys=line_keys, **options)

    monkeypatch.setattr("mtkit.engine.search", noting)
    copying_translator(byte_tokenizers).translate(["the " * 12, "", "the " * 12, "the"], greedy(max_source_length=4))
    assert sorted(keys)[:3] == [1, 3, 4]  # a whole line, and the first piece of a split one: the line's number
    assert len(set(keys)) == len(keys) == 7


def test_minimum_bayes_risk_puts_its_choice_first_and_loses_none(
    translator: Translator, tiny_corpus: TinyCorpus
) -> None:
    plain = Sampling(method="sampling", samples=6, rules=Rules.model_validate(RULES))
    chosen = plain.model_copy(update={"mbr": "chrf"})
    moved = 0
    for one, two in zip(
        *(translator.translate_stream(tiny_corpus.source[:8], search) for search in (plain, chosen)), strict=True
    ):
        texts = [each.text for each in one.hypotheses]
        place = choose(texts, "chrf")
        assert [each.text for each in two.hypotheses] == [texts[place], *texts[:place], *texts[place + 1 :]]
        moved += place > 0
    assert moved > 0


def test_the_recipes_own_search_is_the_default(translator: Translator, tiny_corpus: TinyCorpus) -> None:
    lines = tiny_corpus.source[:5]
    assert translator.translate(lines) == translator.translate(lines, translator.recipe.search)
    assert translator.translate(lines) != translator.translate(lines, Beam(rules=Rules(max_length=1)))


def test_learned_positions_bound_the_search(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    """A search that the recipe would refuse is refused in a call as well, before the model meets it."""
    learned = {**MODEL, "positions": "learned", "max_positions": 300}
    folder = save_untrained(
        tmp_path / "model",
        tiny_corpus,
        tiny_tokenizers,
        1,
        model=learned,
        search={"method": "beam", "rules": {**RULES, "max_length": 99}},
    )
    translator = Translator.load(folder, "cpu")
    with pytest.raises(UsageError, match=r"max_positions \(300\) must be at least 513"):
        translator.translate_stream(["a"], Beam())


def test_an_ensemble_decides_together_and_shares_a_tokenizer(
    tiny_corpus: TinyCorpus,
    tiny_tokenizers: Tokenizers,
    byte_tokenizers: Tokenizers,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    other = save_untrained(tmp_path / "other", tiny_corpus, tiny_tokenizers, 2)
    foreign = save_untrained(tmp_path / "foreign", tiny_corpus, byte_tokenizers, 2)
    lines = tiny_corpus.source[:6]
    alone = [Translator.load(folder, "cpu").translate(lines) for folder in (model_folder, other)]
    assert Translator.load(model_folder, "cpu", [model_folder]).translate(lines) == alone[0]
    together = [
        Translator.load(model_folder, "cpu", [other], combine).translate(lines)
        for combine in ("arithmetic", "geometric")
    ]
    assert len({tuple(texts) for texts in alone + together}) == 4
    with pytest.raises(ModelError, match=r"foreign: its tokenizer .* is not that of"):
        Translator.load(model_folder, "cpu", [other, foreign])


def test_a_device_that_is_not_there_is_refused(model_folder: Path) -> None:
    with pytest.raises(UsageError, match="cuda:77"):
        Translator.load(model_folder, "cuda:77")


@pytest.mark.parametrize("target", ["en", "zh"])
def test_no_hypothesis_breaks_a_line_whatever_bytes_a_model_says(
    tiny_corpus: TinyCorpus, byte_tokenizers: Tokenizers, tmp_path: Path, target: str
) -> None:
    """Byte fallback can spell LF, CR, U+2028, NUL or half a character."""
    languages = {"source": "en", "target": target}
    folder = save_untrained(tmp_path / "model", tiny_corpus, byte_tokenizers, 1, languages=languages)
    wild = Sampling(method="sampling", samples=20, temperature=100.0, lines=Lines(max_source_length=8))
    for translation in Translator.load(folder, "cpu").translate_stream(tiny_corpus.source[:10], wild):
        for hypothesis in translation.hypotheses:
            assert len(hypothesis.text.splitlines()) <= 1
            assert hypothesis.text.isprintable() or "\ufffd" in hypothesis.text
            hypothesis.text.encode("utf-8")
