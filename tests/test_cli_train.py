"""`mtkit run` and `mtkit train` as processes: from text to a score, signals, exit codes; and the same from Python."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TinyCorpus
from toy_run import Runs, toy_recipe

import mtkit
from mtkit import pipeline
from mtkit.checkpoint import load_checkpoint
from mtkit.cli.app import exit_code_of
from mtkit.cli.run import run as run_command
from mtkit.cli.train import train as train_command
from mtkit.folders import RunFolder

Start = Callable[..., "subprocess.Popen[bytes]"]

BRIEF = {"max_steps": 8, "validate_every_steps": 4, "validate_sentences": 4}


@pytest.fixture
def recipe_file(tiny_corpus: TinyCorpus, tmp_path: Path) -> Path:
    """A recipe whose run folder does not exist yet."""
    values = toy_recipe(tiny_corpus, tmp_path / "run", training=BRIEF).model_dump(mode="json")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return tmp_path / "toy.yaml"


@pytest.fixture
def start(recipe_file: Path) -> Start:
    """Starts a command of mtkit on that recipe, in a session of its own."""

    def begin(command: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "mtkit", command, str(recipe_file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            **options,
        )

    return begin


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that leaves nobody behind."""
    out, err = process.communicate(timeout=300)
    assert survivors(process.pid) == []
    return process.returncode, out.decode(), err.decode()


def survivors(session: int) -> list[int]:
    """The processes of a session that are still alive."""
    alive = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            alive.append(int(folder.name))
    return alive


def test_from_text_to_a_score_and_again(start: Start, tmp_path: Path) -> None:
    code, out, err = ended(start("run"))
    assert code == 0, err
    assert re.match(
        r"tiny\nmetric +score +mean ± 95 % +signature\nBLEU +\d+\.\d\d +\d+\.\d\d ± \d+\.\d\d +"
        r"nrefs:1\|bs:1000\|seed:12345\|case:mixed",
        out,
    )
    assert out.endswith("40 sentences, 1 reference\n")
    for part in ("tokenizer: trained", "step 8/8  epoch 0  loss ", "valid step 4: ppl ", "model: ", "test tiny: "):
        assert part in err
    assert "Traceback" not in err
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    code, again, err = ended(start("run"))
    assert (code, again) == (0, out)
    for part in (
        "tokenizer: up to date",
        "shards: up to date",
        "training: up to date",
        "model: up to date",
        "test: up",
    ):
        assert part in err
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert changed == ["lock"], "which holds the number of the process"


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False), (signal.SIGHUP, 129, False)],
)
def test_a_signal_ends_training_after_the_update(
    start: Start, tmp_path: Path, number: signal.Signals, code: int, ignored: bool
) -> None:
    """SIGINT comes to a process that was started with it ignored, as a shell starts a job in the background."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    process = start("train", "--set", "training.max_steps=100000", preexec_fn=ignore)
    run = RunFolder(tmp_path / "run")
    deadline = time.monotonic() + 300
    while not run.steps():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    returned, out, err = ended(process)
    assert (returned, out) == (code, ""), err
    assert "Traceback" not in err
    assert f"{number.name}: finishing the update and saving; once more stops at once" in err
    last = run.steps()[-1]
    assert f"training ended after step {last}, " in err
    load_checkpoint(run.checkpoint(last))


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_may_close(recipe_file: Path, tmp_path: Path, ignored: bool) -> None:
    """Training was lost: SIGHUP ended it, and where that is ignored, as under nohup, the next line of its log did."""
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    steps = "40" if ignored else "100000"
    command = ["train", str(recipe_file), "--set", f"training.max_steps={steps}", "--set", "training.log_every_steps=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mtkit", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    seen = b""
    while b"step 2/" not in seen:
        seen += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(300) == (0 if ignored else 129), seen.decode()
    run = RunFolder(tmp_path / "run")
    load_checkpoint(run.checkpoint(run.steps()[-1]))
    assert (run.steps()[-1] == 40) == ignored


def test_a_signal_may_come_in_the_middle_of_a_log_line() -> None:
    """Training was lost: Python's buffer of stderr refuses what a signal's handler writes while it is being written."""
    script = (
        "import sys\n"
        "from mtkit.cli import app\n"
        "app._prepare_streams()\n"
        "app._prepare_log()\n"
        "from mtkit.training.signals import Signals\n"
        "with Signals() as signals:\n"
        "    print('ready', flush=True)\n"
        "    print('x' * 300_000, file=sys.stderr)\n"
        "print(signals.received)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"ready\n"
    assert os.read(process.stderr.fileno(), 1) == b"x"  # far more than a pipe holds: the rest waits for its reader
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, b"%d\n" % signal.SIGTERM), err[-1000:].decode()
    assert err.count(b"x") == 300_000 - 1
    assert err.count(b"SIGTERM: finishing the update and saving") == 1


# In this process: exit codes and output


def test_exit_codes_and_output_of_the_commands(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code_of(lambda: train_command(recipe_file)) == 0
    assert capsys.readouterr().out == ""
    assert exit_code_of(lambda: run_command(recipe_file, ["search.beam_size=3"])) == 0
    assert capsys.readouterr().out.startswith("tiny\nmetric")
    assert exit_code_of(lambda: train_command(recipe_file, ["training.seed=2"])) == 2
    assert "training.seed: 1 -> 2" in capsys.readouterr().err
    assert exit_code_of(lambda: train_command(recipe_file, ["training.seed=2"], fresh=True)) == 0
    wild = ["schedule.name=constant", "schedule.rate=1e4", "training.max_steps=50"]
    assert exit_code_of(lambda: run_command(recipe_file, wild, fresh=True)) == 1
    text = capsys.readouterr().err
    assert text.count("mtkit: error: ") == 1
    assert "is not finite or has diverged" in text


def test_run_ends_with_the_signals_code_when_training_was_stopped(
    runs: Runs, recipe_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer
    from toy_run import before_step, signalled

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        for command in (run_command, train_command):
            with monkeypatch.context() as patch:
                before_step(patch, 2, signalled(number))
                with pytest.raises(typer.Exit) as caught:
                    command(recipe_file, fresh=True)
            assert caught.value.exit_code == code
    assert capsys.readouterr().out == ""


def test_data_root_points_elsewhere(recipe_file: Path, tiny_corpus: TinyCorpus, tmp_path: Path, capsys: Any) -> None:
    """Files that are already there need no copy where the recipe expects them."""
    import shutil

    shutil.copytree(tiny_corpus.folder, tmp_path / "there", ignore=shutil.ignore_patterns("run"))
    (tmp_path / "there" / "test.source").write_text("the baker sees the river.\n", encoding="utf-8")
    (tmp_path / "there" / "test.target").write_text("kort mirulo taskel.\n", encoding="utf-8")
    run_command(recipe_file, [f"data.root={tmp_path / 'there'}"])
    assert "1 sentence, 1 reference" in capsys.readouterr().out


# From Python, as the README shows it


def test_the_python_api(recipe_file: Path, tmp_path: Path) -> None:
    recipe = mtkit.Recipe.load(recipe_file, ["training.max_steps=6"])
    outcome = mtkit.train(recipe)
    assert (outcome.reason, outcome.state.step, outcome.signal_number) == ("max_steps", 6, None)
    run = RunFolder(tmp_path / "run")
    from_checkpoint = mtkit.Translator.load(run.checkpoint(6)).translate(["the baker sees the river.", ""])
    pipeline.average(run, "last", 1)
    assert mtkit.Translator.load(tmp_path / "run" / "model").translate(["the baker sees the river.", ""]) == (
        from_checkpoint
    )
    assert from_checkpoint[1] == ""
    scores = mtkit.score(from_checkpoint, [["kort mirulo taskel.", ""]])
    assert 0 <= scores.metrics["bleu"].score <= 100
    assert scores.metrics["bleu"].signature.startswith("nrefs:1|case:mixed")
    with pytest.raises(mtkit.MtkitError):
        mtkit.Translator.load(tmp_path / "gone")
