"""Validation during training, the test of `mtkit run`, `mtkit eval` and the sacrebleu command give the same digits."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from sacrebleu_command import command
from toy_run import SECTIONS, toy_recipe

from mtkit import pipeline
from mtkit.cli.eval import evaluate
from mtkit.files import read_json, read_json_lines, read_lines
from mtkit.folders import RunFolder


@pytest.mark.parametrize(
    ("language", "evaluation", "options"),
    [
        ("xx", {"tokenize": "char"}, ["-tok", "char"]),
        ("zh", {"lowercase": True}, ["-tok", "zh", "-lc", "--chrf-lowercase"]),
    ],
)
def test_one_figure_whoever_computes_it(
    tiny_corpus: TinyCorpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    language: str,
    evaluation: dict[str, Any],
    options: list[str],
) -> None:
    """The validation text is the test text, and the model tested is the checkpoint validated, searched alike."""
    recipe = toy_recipe(
        tiny_corpus,
        tmp_path / "run",
        languages={"source": "en", "target": language},
        data={"test": [{"name": "same", "source": "valid.source", "target": "valid.target"}]},
        training=SECTIONS["training"]
        | {"max_steps": 50, "validate_every_steps": 50, "validate_sentences": None, "validate_beam_size": 2},
        schedule={"rate": 0.03},
        average={"select": "last", "checkpoints": 1},
        evaluation={"metrics": ["bleu", "chrf", "chrf++", "ter"], "resamples": 100, **evaluation},
    )
    _, scores = pipeline.run(recipe)
    tested = scores["same"].metrics
    folder = RunFolder(tmp_path / "run")
    assert read_json(folder.scores)["tests"]["same"]["metrics"] == scores["same"].as_dict()["metrics"]

    validated = [row for row in read_json_lines(folder.metrics) if row["event"] == "valid"][-1]
    assert validated["bleu"] == tested["bleu"].score
    assert validated["chrf"] == tested["chrf"].score
    assert tested["bleu" if language == "xx" else "chrf"].score > 0

    capsys.readouterr()
    output, reference = folder.test / "same.txt", tiny_corpus.folder / "valid.target"
    evaluate(str(output), [str(reference)], target_language=language, resamples=100, as_json=True, **evaluation)
    assert json.loads(capsys.readouterr().out)["metrics"] == scores["same"].as_dict()["metrics"]

    confidence = ["--confidence", "--confidence-n", "100"]
    lines = list(read_lines(output)), [list(read_lines(reference))]
    theirs = command(tmp_path, *lines, "-m", "bleu", "chrf", "ter", *confidence, *options)
    for name in ("bleu", "chrf", "ter"):
        mine, expected = tested[name], theirs[tested[name].label]
        assert f"{mine.score:.12f}" == f"{expected['score']:.12f}"
        assert (
            f"{mine.half_width:.12f}" == f"{expected.get('confidence_var', 0):.12f}"
        )  # it says nothing of a score of 0
        assert mine.signature == expected["signature"]
