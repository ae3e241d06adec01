"""`mtkit attention`: every form of output tells of the same weights, and N lines give N answers."""

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TinyCorpus
from test_heatmaps import cells_of
from toy_models import RULES, save_untrained

from mtkit.cli.app import main
from mtkit.heatmaps.maps import by_words
from mtkit.heatmaps.record import MOST_TOKENS, Recorder
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

SOURCES = ["the baker sees the river.", "the tall child follows the horse today."]
TARGETS = ["kort mirulo taskel.", "sibba lisho hinta pelgra eska."]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    search = {"method": "beam", "beam_size": 2, "rules": RULES}
    return save_untrained(tmp_path_factory.mktemp("a") / "model", tiny_corpus, tiny_tokenizers, 1, search=search)


@pytest.fixture(scope="module")
def recorder(model: Path) -> Recorder:
    return Recorder.load(model, "cpu")


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `mtkit attention MODEL ...` in this process, in a folder with the files `source` and `target`."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def attention(*arguments: object, stdin: str = "", folder: Path = model) -> tuple[int, str, str]:
        Path("stdin").write_text(stdin, "utf-8")
        with open("stdin", encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            monkeypatch.setattr(logging.getLogger("mtkit"), "handlers", [])
            monkeypatch.setattr(sys, "argv", ["mtkit", "attention", *map(str, [folder, *arguments, "--device", "cpu"])])
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return attention


def test_given_pairs_are_aligned_line_by_line(run: Run, recorder: Recorder) -> None:
    code, out, _ = run("source", "target", "--format", "pharaoh")
    assert code == 0
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        maps = recorder.record(source, target)
        assert maps is not None
        assert not maps.own
        expected.append(" ".join(f"{column}-{row}" for column, row in maps.view().alignment()))
    assert out.splitlines() == expected


def test_alignments_by_words_stay_within_the_words_of_the_text(run: Run, recorder: Recorder) -> None:
    _, out, _ = run("source", "target", "--words", "-f", "pharaoh")
    for line, source, target in zip(out.splitlines(), SOURCES, TARGETS, strict=True):
        pairs = [tuple(map(int, pair.split("-"))) for pair in line.split()]
        assert [row for _, row in pairs] == list(range(len(target.split())))
        assert all(column < len(source.split()) for column, _ in pairs)


def test_without_a_target_it_is_the_models_own_translation(run: Run, model: Path) -> None:
    """And its alignment is the one that `mtkit translate --json` gives."""
    code, out, _ = run("source", "--format", "json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    translations = list(Translator.load(model, "cpu").translate_stream(SOURCES, details=True))
    for row, translation in zip(rows, translations, strict=True):
        best = translation.hypotheses[0]
        assert row["own"]
        assert row["target"] == best.text
        assert row["rows"] == [*(best.tokens or ()), "</s>"]
        assert [tuple(pair) for pair in row["alignment"]] == best.alignment


def test_json_holds_the_weights_of_the_layer_and_head(run: Run, recorder: Recorder) -> None:
    for kind in ("cross", "encoder", "decoder"):
        _, out, _ = run("source", "target", "-f", "json", "--kind", kind, "--layer", 0, "--head", 1)
        for line, source, target in zip(out.splitlines(), SOURCES, TARGETS, strict=True):
            maps, row = recorder.record(source, target), json.loads(line)
            assert maps is not None
            np.testing.assert_allclose(row["weights"], maps.view(kind, 0, 1).weights_RC, atol=1e-6)  # type: ignore[arg-type]
            assert (row["kind"], row["layer"], row["head"]) == (kind, 0, 1)


def test_blank_lines_stay_blank_lines(run: Run) -> None:
    code, out, _ = run("--format", "pharaoh", stdin=f"\n{SOURCES[0]}\n \n")
    assert code == 0
    lines = out.split("\n")
    assert (lines[0], lines[2], lines[3:]) == ("", "", [""])
    assert lines[1]
    _, out, _ = run("--format", "json", stdin="\n")
    assert json.loads(out)["weights"] == []


def test_text_is_the_default(run: Run) -> None:
    code, out, _ = run("source", "target", "--words")
    assert code == 0
    assert SOURCES[0] in out
    assert TARGETS[1] in out
    assert "mirulo" in out
    assert "cross, layer 1, mean of heads, by words" in out


def test_pictures_are_numbered_where_there_are_several(run: Run, recorder: Recorder) -> None:
    code, out, err = run("source", "target", "-o", "heat.svg", "--words")
    assert (code, out) == (0, "")
    assert "heat-1.svg" in err
    assert not Path("heat.svg").exists()
    maps = recorder.record(SOURCES[1], TARGETS[1])
    assert maps is not None
    assert len(cells_of(Path("heat-2.svg").read_text("utf-8"))) == by_words(maps.view()).weights_RC.size
    assert run("-o", "one.svg", stdin=SOURCES[0])[0] == 0
    assert Path("one.svg").exists()
    code, out, _ = run("-f", "svg", stdin=SOURCES[0])
    assert (code, out) == (0, Path("one.svg").read_text("utf-8"))


def test_png(run: Run) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: plot")
    assert run("-o", "heat.png", stdin=SOURCES[0])[0] == 0
    assert Path("heat.png").read_bytes().startswith(b"\x89PNG")


def test_a_png_without_matplotlib_is_refused_before_any_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("-o", "heat.png", stdin=SOURCES[0], folder=Path("no-model"))
    assert code == 1
    assert 'pip install "mtkit[plot]"' in err


def test_tags_are_read_and_not_aligned(run: Run, recorder: Recorder) -> None:
    _, out, _ = run("source", "target", "-f", "json", "--tag", "<news>")
    row = json.loads(out.splitlines()[0])
    maps = recorder.record(SOURCES[0], TARGETS[0], ["<news>"])
    assert maps is not None
    assert row["columns"][0] == "<news>"
    np.testing.assert_allclose(row["weights"], maps.view().weights_RC, atol=1e-6)
    assert max(column for column, _ in row["alignment"]) < len(row["columns"]) - 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["source", "short"], "", 1, r"source has 2 lines, short has 1"),
        (["source", "-"], "a\n", 1, r"<stdin> ends after 1 lines, source goes on"),
        (["-", "target"], "a\n" * 3, 1, r"target ends after 2 lines, <stdin> goes on"),
        (["missing"], "", 1, r"missing: no such file"),
        (["-", "-"], "", 2, r"SOURCE and TARGET are both -"),
        (["--layer", "2"], "a", 2, r"layer 2: this model's cross attention has 2 layers, 0 to 1"),
        (["--head", "9"], "a", 2, r"head 9: this model's cross attention has 4 heads, 0 to 3"),
        (["--kind", "encoder", "-f", "pharaoh"], "a", 2, r"--kind encoder does not"),
        (["-f", "png"], "a", 2, r"a PNG picture needs a file"),
        (["-f", "svg", "-o", "heat.png"], "a", 2, r"do not go together"),
        (["-o", "heat.svg"], "", 1, r"there are no lines to draw"),
        (["-o", "heat.svg"], "\n", 1, r"the line is blank"),
        (["-f", "svg"], "a\nb\n", 2, r"stdout takes one picture"),
        (["--tag", "<nonsense>"], "a", 1, r"'<nonsense>' is not one of its symbols"),
        ([], "river " * MOST_TOKENS, 1, r"line 1 has \d+ source tokens, and at most 399 can be shown"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, arguments: list[str], stdin: str, code: int, message: str) -> None:
    Path("short").write_text("a\n", "utf-8")
    ended, _, err = run(*arguments, stdin=stdin)
    assert ended == code
    assert re.search(message, err)
    assert "Traceback" not in err


def test_a_model_whose_attention_is_not_a_number_is_refused(
    recorder: Recorder, tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    from mtkit.errors import ModelError

    broken = Recorder.load(save_untrained(tmp_path / "model", tiny_corpus, tiny_tokenizers, 1), "cpu")
    with torch.no_grad():
        broken.model.encoder[0].self_attention.input.weight[0, 0] = torch.nan  # type: ignore[union-attr,index]
    with pytest.raises(ModelError, match="not made of numbers"):
        broken.record(SOURCES[0], TARGETS[0])
