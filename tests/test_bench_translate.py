"""Measuring translation: fresh processes and their memory, the text, the figures, and CTranslate2 beside them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus, invent_pairs
from trained_models import save_trained

from mtkit.bench import process, start, versus
from mtkit.bench.process import MeasuredProcess, Setup, Task
from mtkit.bench.translate import Wish, aligned, bench_translate, percentiles, read_text, search_of
from mtkit.cli.bench import translate as command
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Greedy
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="memory is read from /proc, which Linux has")

ONE = Task({"method": "greedy"}, 1)
SETUP = Setup("mtkit", "model", "recipe.yaml", "float32", 1, 1, ["a line"])


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "model"
    return save_trained(folder, tiny_corpus, tiny_tokenizers, model={"norm": "pre"})


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_ROUNDS", 1)
    monkeypatch.setattr(versus, "BUDGETS", (512,))


def wish(model: Path, **changes: Any) -> Wish:
    whole = Wish(
        model, None, None, lines=12, latency_lines=5, precisions=["float32"], workers=[1], beam_sizes=[1], rounds=2
    )
    return replace(whole, **changes)


def serving(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Measured processes run this instead: `body` makes the answer to each row of stdin after the first."""
    code = "import json, os, sys, time\nsys.stdin.readline(); print(json.dumps({'load_seconds': 0}), flush=True)\n"
    monkeypatch.setattr(process, "_START", code.replace("{", "{{").replace("}", "}}") + body)


@linux
def test_the_memory_is_that_of_the_process_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the fork's memory only what it has written itself counts: what it shares is there once."""
    serving(
        monkeypatch,
        "held = b'x' * 150_000_000\n"
        "for row in sys.stdin:\n"
        "    if os.fork() == 0:\n"
        "        own = b'y' * 60_000_000; time.sleep(0.4); os._exit(0)\n"
        "    os.wait(); print(json.dumps(dict(seconds=1, tokens=2, texts=[])), flush=True)\n",
    )
    with MeasuredProcess(SETUP) as measured:
        with measured.watched() as memory:
            assert measured.translate(ONE).tokens == 2
        assert memory[0] is not None
        assert 210e6 < memory[0] < 290e6


def test_a_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, "sys.stdin.readline(); sys.exit(3)\n")
    with MeasuredProcess(SETUP) as measured, pytest.raises(MtkitError, match="ended with 3"):
        measured.translate(ONE)


def test_an_error_of_the_measured_process_is_the_commands(tmp_path: Path) -> None:
    with pytest.raises(MtkitError, match=r"nowhere\.yaml"):
        MeasuredProcess(replace(SETUP, recipe=str(tmp_path / "nowhere.yaml")))


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([3.0]) == (3.0, 3.0)
    assert percentiles([4.0, 1.0, 3.0, 2.0]) == (2.0, 4.0)
    assert percentiles([float(number) for number in range(200)]) == (99.0, 189.0)


def test_columns_are_aligned() -> None:
    assert aligned([["name", "speed"], ["a longer one", "12"]]) == ["name          speed", "a longer one     12"]


def test_beam_size_1_is_greedy_and_the_rest_is_the_recipes(tiny_corpus: TinyCorpus) -> None:
    search = {
        "method": "beam",
        "beam_size": 4,
        "n_best": 2,
        "length_penalty": 0.6,
        "patience": 2,
        "rules": {"max_length": 77},
    }
    recipe = tiny_corpus.recipe(search=search)
    greedy, beam = search_of(recipe, 1), search_of(recipe, 3)
    assert isinstance(greedy, Greedy)
    assert isinstance(beam, Beam)
    assert (beam.beam_size, beam.n_best, beam.length_penalty, beam.patience) == (3, 1, 0.6, 2)
    assert greedy.rules == beam.rules == recipe.search.rules


def test_lines_are_left_out_with_their_references(tmp_path: Path, model: Path, tiny_tokenizers: Tokenizers) -> None:
    recipe = Recipe.load(model / "recipe.yaml")
    sources = ["the baker", " ", "the river " * 200, "the horse", "the child"]
    source, reference = tmp_path / "in", tmp_path / "ref"
    source.write_text("".join(line + "\n" for line in sources), encoding="utf-8")
    reference.write_text("".join(f"{number}\n" for number in range(5)), encoding="utf-8")
    text = read_text(wish(model, input=source, reference=reference, lines=4), recipe, tiny_tokenizers)
    assert (text.lines, text.references, text.left_out) == (["the baker", "the horse"], ["0", "3"], 2)
    assert read_text(wish(model, input=source), recipe, tiny_tokenizers).references is None
    source.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="no line"):
        read_text(wish(model, input=source), recipe, tiny_tokenizers)


@pytest.mark.parametrize(("references", "told"), [(2, "ends after 2 lines"), (4, "goes on after 3 lines")])
def test_a_reference_of_another_length_is_refused(
    tmp_path: Path, model: Path, tiny_tokenizers: Tokenizers, references: int, told: str
) -> None:
    source, reference = tmp_path / "in", tmp_path / "ref"
    source.write_text("the baker\n" * 3, encoding="utf-8")
    reference.write_text("x\n" * references, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        read_text(wish(model, input=source, reference=reference), Recipe.load(model / "recipe.yaml"), tiny_tokenizers)


@linux
def test_the_figures_of_a_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON from the command: every row is a fresh process, and what it says is what the translator says."""
    command(model, lines=30, latency_lines=5, precision=["float32"], workers=[2], beam_size=[1], rounds=2, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    [row] = figures["rows"]
    assert (row["precision"], row["workers"], row["search"], figures["lines"]) == ("float32", 2, "greedy", 30)
    assert len(row["seconds"]) == 2
    assert min(row["seconds"]) <= 30 / row["sentences_per_second"] <= max(row["seconds"])
    assert 0 < row["latency_p50"] <= row["latency_p95"]
    assert 50e6 < row["memory_bytes"] < 5e9
    assert figures["weights_bytes"] == (model / "model.safetensors").stat().st_size
    assert figures["start"]["translate_seconds"] > figures["start"]["import_seconds"] / 2 > 0
    translator = Translator.load(model, "cpu")
    sources = [source for source, _ in invent_pairs(40, 3)][:30]
    found = list(translator.translate_stream(sources, search_of(translator.recipe, 1)))
    tokens = sum(one.hypotheses[0].length for one in found)
    assert row["tokens_per_second"] / row["sentences_per_second"] == pytest.approx(tokens / 30)
    assert row["bleu"] is not None


def test_all_rows_are_measured_and_shown(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serving(
        monkeypatch,
        "for row in sys.stdin:\n"
        "    alone = json.loads(row)['alone']\n"
        "    print(json.dumps(dict(seconds=[.1, .3]) if alone else dict(seconds=2, tokens=100, texts=['a'] * 12)), "
        "flush=True)\n",
    )
    monkeypatch.setattr("mtkit.bench.translate.measure_start", lambda model, line: start.Start(2.0, 1.5, 1.6))
    ticks: list[int] = []
    wanted = wish(model, precisions=["float32", "int8"], workers=[1, 3], beam_sizes=[1, 5])
    with caplog.at_level("INFO"):
        speed = bench_translate(wanted, 2, lambda: ticks.append(1))
    assert len(ticks) == len(speed.rows) == 8
    assert len({(row.precision, row.workers, row.search) for row in speed.rows}) == 8
    assert {(row.sentences_per_second, row.tokens_per_second) for row in speed.rows} == {(6.0, 50.0)}
    assert len(caplog.messages) == 8, "each is told when it is there: a command that is ended early has not run in vain"
    assert caplog.messages[-1] == "int8, beam 5, 3 workers: 6.0 sentences/s"
    shown = speed.render()
    assert "beam 5" in shown
    assert "12 lines, median of 2 passes" in shown
    assert "after 2.00 s" in shown


def test_ctranslate2_is_measured_without_torch(model: Path, tmp_path: Path) -> None:
    """Its package would import torch where that is installed, and its memory would be that of torch."""
    pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    exports = versus.exported(wish(model), tmp_path)
    setup = replace(SETUP, engine="ctranslate2", model=str(model), export=str(exports["float32"]))
    code = (
        "import sys, json; from mtkit.bench.subject import *\n"
        "subject = CTranslate2(Setup(**json.loads(sys.argv[1])))\n"
        "for overrides in [], ['search.rules.max_length=3']:\n"
        "    search = Recipe.load(sys.argv[2], overrides).search\n"
        "    found = subject.translate(['the baker sees the river.'], search)\n"
        "    print(json.dumps([*found, sys.modules['torch'] is None]))\n"
    )
    given = [json.dumps({name: getattr(setup, name) for name in setup.__slots__}), str(model / "recipe.yaml")]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=True)
    translator = Translator.load(model, "cpu")
    for row, overrides in zip(done.stdout.splitlines(), [[], ["search.rules.max_length=3"]], strict=True):
        texts, tokens, no_torch = json.loads(row)
        assert no_torch
        search = Recipe.load(model / "recipe.yaml", overrides).search
        [own] = translator.translate_stream(["the baker sees the river."], search)
        assert own.hypotheses[0].finished == (not overrides)
        assert (texts, tokens) == ([own.text], own.hypotheses[0].length), "cut at the limit there is no end"


def test_the_quickest_setting_is_an_engines_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    monkeypatch.setattr(versus, "BUDGETS", (512, 1024))
    serving(
        monkeypatch,
        "for row in sys.stdin:\n"
        "    alone, batch = json.loads(row)['alone'], json.loads(row)['search']['lines']['max_tokens']\n"
        "    seconds = [.1] * 5 if alone else 2048 / batch\n"
        "    print(json.dumps(dict(seconds=seconds) if alone else "
        "dict(seconds=seconds, tokens=100, texts=['a'] * 12)), flush=True)\n",
    )
    [duel] = versus.bench_versus(wish(model), cores=4, tried_lines=4).duels
    assert duel.mtkit.max_tokens == duel.ctranslate2.max_tokens == 1024
    assert duel.mtkit.sentences_per_second == 6.0
    assert (duel.ratios, duel.equal_lines) == ([1.0, 1.0], 12)


def test_both_engines_translate_the_same_text_in_turn(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    monkeypatch.setattr(versus, "best_setting", lambda *given: (1, 1, 512))
    with caplog.at_level("INFO"):
        found = versus.bench_versus(wish(model, rounds=3), cores=1, tried_lines=4)
    [duel] = found.duels
    assert caplog.messages == [duel.render()]
    assert f"float32, greedy: {min(duel.ratios):.2f}, " in duel.render()
    assert duel.equal_lines == 12
    assert duel.mtkit.bleu == duel.ctranslate2.bleu
    pairs = zip(duel.mtkit.seconds, duel.ctranslate2.seconds, strict=True)
    assert duel.ratios == [theirs / ours for ours, theirs in pairs]
    assert len(duel.ratios) == len(duel.latency_ratios) == 3
    assert (duel.mtkit.workers, duel.mtkit.threads, duel.mtkit.max_tokens) == (1, 1, 512)
    assert duel.mtkit.tokens_per_second / duel.mtkit.sentences_per_second == pytest.approx(
        duel.ctranslate2.tokens_per_second / duel.ctranslate2.sentences_per_second
    )
    assert duel.mtkit.model_bytes == (model / "model.safetensors").stat().st_size
    shown = found.render()
    assert "12 of 12" in shown
    assert f"{min(duel.ratios):.2f}" in shown
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reference": Path("ref")}, "--reference ref belongs to an input"),
        ({"against": "ctranslate2", "workers": [2]}, "--workers 2"),
        ({"tried_lines": 7}, "--tried-lines 7"),
        ({"tried_tokens": [7]}, "--tried-tokens 7"),
        ({"precision": ["int4"]}, "--precision int4"),
    ],
)
def test_options_that_do_not_go_together(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        command(Path("model"), **changes)


def test_a_precision_that_only_one_engine_has_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(UsageError, match="--precision bfloat16"):
        command(model, precision=["bfloat16"], against="ctranslate2")


def test_what_ctranslate2_cannot_do_is_refused_before_any_work(
    tmp_path: Path, tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    search = {"method": "greedy", "rules": {"min_length_ratio": 0.5}}
    other = save_trained(tmp_path / "model", tiny_corpus, tiny_tokenizers, updates=1, search=search)
    with pytest.raises(UsageError, match="min_length_ratio"):
        versus.bench_versus(wish(other), cores=1)
