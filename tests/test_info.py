"""`mtkit info`: what it says is so, it says it without torch, and --verify notices what has changed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from toy_run import Runs, flip

from mtkit import pipeline
from mtkit.checkpoint import load_model
from mtkit.cli.info import info
from mtkit.describe import describe
from mtkit.errors import ModelError
from mtkit.figures import duration, size
from mtkit.files import sha256_file
from mtkit.folders import RunFolder, checkpoint_state
from mtkit.model.transformer import count_parameters
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers


@pytest.fixture(scope="module")
def trained(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with an average of its checkpoints at 6 and 12, and a test score. Read only."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("trained"))
    pipeline.run(runs.recipe(average={"select": "last", "checkpoints": 2}))
    return RunFolder(runs.folder / "run")


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(Path(shutil.copytree(trained.path, tmp_path / "run")))


def as_json(capsys: pytest.CaptureFixture[str], *arguments: Any, **options: Any) -> dict[str, Any]:
    info(*arguments, as_json=True, **options)
    return dict(json.loads(capsys.readouterr().out))


def test_the_numbers_are_those_of_the_model(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    facts = as_json(capsys, trained.model)
    model, recipe, tokenizers = load_model(trained.model, torch.device("cpu"))
    assert facts["parameters"] == count_parameters(model), "shared matrices count once"
    assert facts["dtypes"] == ["F32"]
    assert facts["languages"] == {"source": "en", "target": "xx"}
    assert facts["vocabulary"] == {"joint": True, "source": 120, "target": 120, "normalization": "nfc"}
    assert facts["architecture"] == recipe.model.model_dump(mode="json")
    assert facts["steps"] == [6, 12]
    state = checkpoint_state(trained.checkpoint(12))["train"]
    assert facts["training_seconds"] == state["seconds"] > 0
    assert facts["training_target_tokens"] == state["target_tokens"] > 0
    assert facts["validation"] == state["validations"]
    assert facts["test"]["tiny"]["sentences"] == 40
    assert set(facts["test"]["tiny"]["metrics"]) == {"bleu", "chrf"}
    hashes = facts["sha256"]
    assert hashes["weights"] == sha256_file(trained.model / "model.safetensors")
    assert hashes["tokenizer"] == tokenizers.sha256
    assert hashes["recipe"] == recipe.sha256()
    assert set(hashes["corpora"]) == {"train tiny", "valid tiny"}
    assert facts["files"] == {path.name: path.stat().st_size for path in trained.model.iterdir()}


def test_a_run_folder_is_its_model_and_a_checkpoint_is_itself(
    trained: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, trained.path) == as_json(capsys, trained.model)
    facts = as_json(capsys, trained.checkpoint(6))
    assert facts["steps"] == [6]
    assert [row["step"] for row in facts["validation"]] == [6]
    assert facts["test"] == {}, "the test score is that of other weights"
    assert facts["sha256"]["weights"] == sha256_file(trained.checkpoint(6) / "model.safetensors")


def test_a_run_without_an_average_is_its_newest_checkpoint(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run.model)
    assert as_json(capsys, run.path, verify=True) == as_json(capsys, run.checkpoint(12), verify=True)


def test_a_model_that_was_copied_elsewhere_tells_the_same_but_for_the_test(trained: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(trained.model, tmp_path / "mine")
    here, there = describe(trained.model), describe(tmp_path / "mine")
    assert there.pop("test") == {}
    assert here.pop("test") != {}
    assert here.pop("folder") != there.pop("folder")
    assert here == there


def test_a_test_score_of_other_weights_is_not_shown(run: RunFolder) -> None:
    assert describe(run.model)["test"] != {}
    pipeline.average(run, "last", 1)
    assert describe(run.model)["test"] == {}


def test_the_text_for_people(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    info(trained.model)
    text = capsys.readouterr().out
    for part in (
        "languages     en -> xx\n",
        "architecture  Transformer, 1 + 1 layers, d_model 16, 2 heads, d_ff 32, post-norm, relu, positions sinusoidal",
        "vocabulary    joint, 120 entries, nfc\n",
        "steps         mean of 2 checkpoints: 6, 12\n",
        "validation    step 6: BLEU ",
        "\n              step 12: BLEU ",
        "test          tiny: BLEU ",
        "40 sentences, nrefs:1|",
        f"weights       sha256 {sha256_file(trained.model / 'model.safetensors')}\n",
        " target tokens\n",
        "file          lineage.json, ",
    ):
        assert part in text
    assert "verified" not in text


def test_separate_vocabularies_and_a_run_without_scores(
    runs: Runs, tiny_corpus: TinyCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_run import toy_recipe

    recipe = toy_recipe(
        tiny_corpus,
        runs.folder / "separate",
        tokenizer={"vocabulary": "separate", "vocab_size": 60},
        model={"share_embeddings": "target"},
        training={"max_steps": 2},
        data={**tiny_corpus.values()["data"], "valid": [], "test": []},
    )
    pipeline.run(recipe)
    info(runs.folder / "separate", verify=True)
    text = capsys.readouterr().out
    assert "vocabulary    source 60, target 60 entries, nfc\n" in text
    assert "embeddings: target shared with output\n" in text
    assert "\nvalidation" not in text
    assert "\ntest" not in text
    assert text.endswith("verified: weights and tokenizer are as they were written\n")


# Damage


def test_verify_says_that_all_is_well(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (trained.model, trained.path, trained.checkpoint(6)):
        assert as_json(capsys, folder, verify=True)["verified"] is True
    assert "verified" not in as_json(capsys, trained.model)


def other_tokenizer(run: RunFolder, folder: Path, tokenizers: Tokenizers) -> None:
    tokenizers.save(folder)


@pytest.mark.parametrize("where", ["model", "checkpoint"])
def test_verify_notices_other_weights_and_another_tokenizer(
    run: RunFolder, where: str, tiny_tokenizers: Tokenizers, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, home = (run.model, run.model) if where == "model" else (run.checkpoint(6), run.path)
    content = (folder / "model.safetensors").read_bytes()
    flip(folder / "model.safetensors")
    info(folder)
    capsys.readouterr()
    with pytest.raises(ModelError, match=r"model\.safetensors: its "):
        info(folder, verify=True)
    assert capsys.readouterr().out == "", "no facts about a model that is not what it says it is"
    (folder / "model.safetensors").write_bytes(content)
    tiny_tokenizers.save(home)
    with pytest.raises(ModelError, match=r"tokenizer\.model: the SHA-256 is .*, the weights were trained with "):
        info(folder, verify=True)
    info(folder)
    assert "in training; the file here is another" in capsys.readouterr().out


def test_an_edited_recipe_is_shown_as_such(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Search settings may well be changed; it is good to know."""
    text = (run.model / "recipe.yaml").read_text(encoding="utf-8")
    (run.model / "recipe.yaml").write_text(text.replace("beam_size: 2", "beam_size: 3"), encoding="utf-8")
    assert as_json(capsys, run.model, verify=True)["sha256"]["recipe_is_as_trained"] is False


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run.model / "lineage.json").unlink(), "has neither lineage.json nor state.json"),
        (lambda run: (run.model / "lineage.json").write_text("["), "lineage.json:1:"),
        (lambda run: (run.model / "model.safetensors").write_bytes(b"x"), "cannot be read as safetensors"),
        (lambda run: (run.model / "tokenizer.model").unlink(), "holds neither tokenizer.model nor"),
        (lambda run: run.scores.write_text("{"), "scores.json:1:2: not JSON"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    run: RunFolder, spoil: Callable[[RunFolder], object], message: str
) -> None:
    spoil(run)
    with pytest.raises(ModelError, match=message):
        describe(run.model)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        info(tmp_path / "gone")
    with pytest.raises(ModelError, match="this is not a model folder"):
        info(tmp_path)


# How it is done


def test_it_starts_without_torch(trained: RunFolder) -> None:
    code = (
        "import sys; from mtkit.cli.info import info; from pathlib import Path; "
        f"info(Path({str(trained.model)!r}), verify=True); "
        "print(*{'torch', 'safetensors', 'sacrebleu'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr.split()) == (0, [])


def test_numbers_for_people() -> None:
    assert [duration(seconds) for seconds in (0.4, 42, 754, 7500)] == ["0 s", "42 s", "12 min 34 s", "2 h 05 min"]
    assert [size(count) for count in (0, 999, 1000, 999_949, 999_951, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "2.5 GB",
    ]


def test_the_recipe_of_a_model_loads(trained: RunFolder) -> None:
    assert Recipe.load(trained.model / "recipe.yaml") == Recipe.load(trained.recipe)
