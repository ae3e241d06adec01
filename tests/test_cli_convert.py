"""`mtkit export`, `mtkit import` and `mtkit translate --engine` as commands: what they print, and how they refuse."""

import logging
import sys
from pathlib import Path

import pytest
from conftest import TinyCorpus, invent_pairs
from trained_models import save_trained

from mtkit.cli.app import main
from mtkit.text.tokenizer import Tokenizers

LINES = "".join(f"{source}\n" for source, _ in invent_pairs(12, 2))


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert") / "model"
    return save_trained(folder, tiny_corpus, tiny_tokenizers, 150, model={"norm": "post"})


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mtkit", *map(str, arguments)])
    monkeypatch.setattr(logging.getLogger("mtkit"), "handlers", [])
    with pytest.raises(SystemExit) as ending:
        main()
    assert isinstance(ending.value.code, int)
    return ending.value.code


def test_export_and_translate_by_ctranslate2(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The validation corpus of the model's recipe is what the export is verified on."""
    pytest.importorskip("ctranslate2", reason="the extra mtkit[ctranslate2] is not installed")
    assert run(monkeypatch, "export", model, "--to", "ctranslate2", "--threads", 1, "--verify-lines", 20) == 0
    out = capsys.readouterr().out.split("\n")
    assert out[0].startswith(f"{model}-ctranslate2: ")
    assert "valid.source: " in out[1]
    assert "of 20 lines identical" in out[1]
    (tmp_path / "lines").write_text(LINES, encoding="utf-8")
    outputs = []
    for engine in ("mtkit", "ctranslate2"):
        target = tmp_path / engine
        code = run(
            monkeypatch,
            "translate",
            model,
            "--engine",
            engine,
            "-i",
            tmp_path / "lines",
            "-o",
            target,
            "--threads",
            1,
            "--device",
            "cpu",
        )
        assert code == 0
        outputs.append(target.read_text("utf-8"))
    mine, theirs = (output.split("\n") for output in outputs)
    assert len(mine) == len(theirs) == 13
    assert sum(one == other for one, other in zip(mine, theirs, strict=True)) >= 12
    for options, told in (
        (["--ensemble", model], "--ensemble"),
        (["--prefix-file", tmp_path / "lines"], "--prefix-file"),
        (["--method", "sampling"], "cannot sample"),
        (["--coverage-penalty", "0.1"], "coverage_penalty"),
    ):
        capsys.readouterr()
        assert run(monkeypatch, "translate", model, "--engine", "ctranslate2", "-i", tmp_path / "lines", *options) == 2
        assert told in capsys.readouterr().err


def test_there_and_back_by_command(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of mtkit's own keeps its ids, its tokenizer file and its weights on the way to MarianMT and back."""
    marian, back = tmp_path / "marian", tmp_path / "back"
    assert run(monkeypatch, "export", model, "--to", "huggingface", "-o", marian, "--verify-lines", 0) == 0
    assert run(monkeypatch, "import", marian, "--from", "huggingface", "-o", back) == 0
    assert "en -> xx" in capsys.readouterr().out
    for name in ("model.safetensors", "tokenizer.model"):
        assert (back / name).read_bytes() == (model / name).read_bytes(), name


def test_refusals(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "export", model, "--to", "huggingface", "--quantization", "int8") == 2
    assert "--quantization int8" in capsys.readouterr().err
    assert run(monkeypatch, "export", model, "--to", "onnx") == 2
    assert run(monkeypatch, "import", tmp_path / "nothing", "--from", "huggingface") == 1
    assert "no such folder" in capsys.readouterr().err
    assert run(monkeypatch, "import", model, "--from", "huggingface") == 1
    assert "config.json" in capsys.readouterr().err
