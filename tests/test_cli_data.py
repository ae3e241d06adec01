"""`mtkit tokenizer` and `mtkit binarize`, as processes: files, report, exit codes, and a clean stdout."""

import json
import os
import subprocess
import sys

import pytest
import yaml


@pytest.fixture
def run(tiny_corpus, tmp_path):
    """Run a command on a recipe of the invented corpus, with a run folder of this test's own."""
    values = tiny_corpus.values(filters={"max_length": 24}, run_dir=str(tmp_path / "run"))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")

    def start(command, *arguments, **environment):
        result = subprocess.run(
            [sys.executable, "-m", "mtkit", command, str(tmp_path / "tiny.yaml"), *arguments],
            capture_output=True,
            env={**os.environ, **environment},
            timeout=60,
        )
        result.out, result.err = result.stdout.decode(), result.stderr.decode()
        assert "Traceback" not in result.err
        return result

    return start


def test_from_text_to_shards(run, tmp_path):
    made = run("tokenizer")
    assert made.returncode == 0, made.err
    assert made.out.startswith(f"{tmp_path}/run/tokenizer.model: 120 entries, nfc, sha256 ")
    assert "120 pieces from 1,200 of 1,200 sentences" in made.err
    assert ".cc" not in made.err
    shown = run("binarize", "--workers", "2")
    assert shown.returncode == 0, shown.err
    assert "train tiny" in shown.out
    assert "too_long: longer than filters.max_length; lines " in shown.out
    assert shown.err == ""
    report = json.loads(run("binarize", "--json", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0").out)
    assert report == json.loads((tmp_path / "run" / "shards" / "report.json").read_bytes())
    assert report["corpora"][0]["kept"] + report["corpora"][0]["dropped"]["too_long"]["count"] == 600


def test_binarize_without_a_tokenizer_says_what_to_do(run, tmp_path):
    result = run("binarize")
    assert result.returncode == 1
    assert "mtkit tokenizer RECIPE" in result.err
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_the_corpus_cannot_fill_is_one_message(run, tmp_path):
    result = run("tokenizer", "--set", "tokenizer.vocab_size=8000")
    assert (result.returncode, result.out) == (2, "")
    assert "tokenizer.vocab_size is 8000, but the corpus allows at most " in result.err
    assert ".cc" not in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["tokenizer", "binarize"])
def test_help_shows_an_example_and_units(command):
    result = subprocess.run([sys.executable, "-m", "mtkit", command, "--help"], capture_output=True, check=True)
    assert f"Example: mtkit {command} recipes/" in result.stdout.decode()
