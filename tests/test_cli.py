"""The frame of the command line: help, exit codes, streams, completion. Each test is a process of its own."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mtkit.cli.app import SUMMARIES

DRIVER = """\
import sys, time, logging
from pathlib import Path
from typing import Annotated
import typer
from mtkit.cli import app
from mtkit.cli.options import RecipeArgument, SetOption, load_recipe
from mtkit.errors import DataError

def info(what: str, times: int = 1) -> None:
    '''Behave in one of many ways.

    Units are none.

        mtkit info fine   # first
        mtkit info wrong  # second

    Example: mtkit info a-very-long-argument --times 3 --and-so-on --until-the-line-is-longer-than-eighty
    '''
    if what == "wrong":
        raise DataError("data/a.en:3: is empty", "fill it")
    if what == "bug":
        raise ValueError("ours")
    if what == "interrupted":
        print("ready", flush=True)
        time.sleep(60)
    if what == "log":
        log = logging.getLogger("mtkit.somewhere")
        log.debug("hidden")
        log.info("step %d", 3)
        log.warning("careful")
    if what == "echo":
        for line in sys.stdin:
            print(line, end="")
    if what == "full":
        with open("/dev/full", "w") as stream:
            stream.write("x")
    if what == "write":
        Path("/no-such-folder/file").write_text("x")
    if what == "fine":
        for number in range(times):
            print("line", number)
            print("working", file=sys.stderr)

def train(recipe: RecipeArgument, overrides: SetOption = []) -> None:
    '''Show a resolved recipe.'''
    print(load_recipe(recipe, overrides).dump(), end="")

app.function_of = lambda name: {"info": info, "train": train}[name]
app.main()
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command line whose commands are the ones above."""
    path = tmp_path_factory.mktemp("driver") / "driver.py"
    path.write_text(DRIVER, encoding="utf-8")
    return [sys.executable, str(path)]


def run(command: list[str], input: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=input, capture_output=True, timeout=60, env={**os.environ, **environment})


MTKIT = [sys.executable, "-m", "mtkit"]


# Help


HEAVY = {"torch", "numpy", "pydantic", "sacrebleu", "sentencepiece", "yaml", "rich", "tqdm"}


def help_text(*arguments: str) -> tuple[str, set[str]]:
    """A help text, and which of HEAVY it took to show it."""
    code = (
        f"import sys, atexit; sys.argv = ['mtkit', *{arguments!r}, '--help']\n"
        f"atexit.register(lambda: print(*{HEAVY!r} & set(sys.modules), file=sys.stderr))\n"
        "from mtkit.cli.app import main; main()"
    )
    result = run([sys.executable, "-c", code], COLUMNS="200")
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode(), set(result.stderr.decode().split())


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run([*MTKIT, "--help"]).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_seconds() for _ in range(3)) < 0.3, "of processor time, which other processes do not lengthen"
    text, heavy = help_text()
    assert heavy == set()
    assert all(f"  {name} " in text for name in SUMMARIES)


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    text, heavy = help_text(name)
    assert f"mtkit {name} " in text.split("\n", 1)[1], "below the usage line, an example"
    assert not heavy & {"torch", "numpy", "sacrebleu", "sentencepiece"}


def test_examples_keep_their_lines(driver: list[str]) -> None:
    text = run([*driver, "info", "-h"], COLUMNS="60").stdout.decode()
    assert "\n      mtkit info fine   # first\n      mtkit info wrong  # second\n" in text
    assert re.search("^  Example: .*longer-than-eighty$", text, re.MULTILINE)


def test_version() -> None:
    result = run([*MTKIT, "--version"])
    assert re.fullmatch(rb"mtkit \d+\.\d+\.\d+\n", result.stdout)


# Endings


@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (["info", "wrong"], 1, "mtkit: error: data/a.en:3: is empty\n  hint: fill it\n"),
        (
            ["info", "full"],
            1,
            "mtkit: error: writing: No space left on device\n  hint: free some space and try again\n",
        ),
        (["info", "write"], 1, "mtkit: error: /no-such-folder/file: No such file or directory\n"),
        (["train", "gone.yaml"], 2, "mtkit: error: gone.yaml: no such file"),
        (["info"], 2, "Missing argument"),
        (["info", "fine", "--times", "x"], 2, "--times"),
        (["info", "fine", "--tims", "3"], 2, "--times"),
        (["inof"], 2, "Did you mean 'info'?"),
        ([], 2, ""),
    ],
)
def test_what_the_user_can_mend_is_told_without_a_traceback(
    driver: list[str], arguments: list[str], code: int, stderr: str
) -> None:
    result = run([*driver, *arguments])
    assert result.returncode == code
    assert stderr in result.stderr.decode()
    assert b"Traceback" not in result.stderr
    assert arguments == [] or result.stdout == b""


def test_a_bug_shows_its_traceback(driver: list[str]) -> None:
    result = run([*driver, "info", "bug"])
    assert result.returncode == 1
    assert b"Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith(b"ValueError: ours\n")


def test_ctrl_c_is_130_without_a_traceback(driver: list[str]) -> None:
    with subprocess.Popen([*driver, "info", "interrupted"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == b"mtkit: interrupted\n"


@pytest.mark.parametrize("arguments", [["info", "fine", "--times", "100000"], ["info", "fine"], ["--help"]])
def test_a_reader_that_goes_away_ends_it_quietly(driver: list[str], arguments: list[str]) -> None:
    """`mtkit translate ... | head -1` must not end in a BrokenPipeError, not even from the last flush."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*driver, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert result.returncode == 141
    assert set(result.stderr.splitlines()) <= {b"working"}


@pytest.mark.parametrize("arguments", [["info", "fine"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_error(driver: list[str], arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run([*driver, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert result.returncode == 1
    errors = [line for line in result.stderr.decode().split("\n") if line not in ("working", "")]
    assert errors == ["mtkit: error: writing: No space left on device", "  hint: free some space and try again"]


def test_closed_streams_do_not_swallow_results(driver: list[str], tmp_path: Path) -> None:
    """With stdout closed, the next file to be opened would get its descriptor, and the results."""
    for arguments, redirection in ((["info", "fine"], ">&-"), (["info", "echo"], "<&-")):
        script = " ".join([*driver, *arguments, redirection])
        result = run(["sh", "-c", script])
        assert result.returncode == 1
        assert b"mtkit: error: reading or writing: Bad file descriptor" in result.stderr
    assert run(["sh", "-c", " ".join([*driver, "info", "fine", "2>&-"])]).returncode in (0, 1)


# Streams


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:replace"},
    ],
)
def test_text_is_utf_8_whatever_the_locale(driver: list[str], tmp_path: Path, environment: dict[str, str]) -> None:
    text = "Grüße, привет, مرحبا, 你好 😀\nsecond\u2028still second\rand still\n".encode()
    result = run([*driver, "info", "echo"], text, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout == text
    recipe = tmp_path / "r.yaml"
    recipe.write_text("languages: {source: en, target: 'no'}\ndata: {train: [{name: ä, tsv: ä.tsv}]}\n", "utf-8")
    result = run([*driver, "train", str(recipe), "--set", "data.root=资料"], **environment)
    assert result.returncode == 0, result.stderr
    assert "root: 资料\n" in result.stdout.decode("utf-8")
    assert "- name: ä\n" in result.stdout.decode("utf-8")


def test_log_goes_to_stderr_with_its_rank(driver: list[str]) -> None:
    result = run([*driver, "info", "log"])
    assert (result.stdout, result.stderr) == (b"", b"step 3\nwarning: careful\n")
    assert run([*driver, "--quiet", "info", "log"]).stderr == b"warning: careful\n"


# Recipes on the command line


def test_a_recipe_and_its_overrides_arrive(driver: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text("languages: {source: en, target: no}\ndata: {train: [{name: a, tsv: a.tsv}]}\n")
    result = run([*driver, "train", str(recipe), "--set", "training.max_steps=7", "--set", "schedule.rate=1e-4"])
    assert result.returncode == 0, result.stderr
    assert "run_dir: runs/my\n" in result.stdout.decode()
    assert "max_steps: 7\n" in result.stdout.decode()
    assert "rate: 0.0001\n" in result.stdout.decode()
    result = run([*driver, "train", str(recipe), "--set", "train.d_model=7", "--set", "model.dropuot=0"])
    assert result.returncode == 2
    assert result.stdout == b""
    assert "train.d_model is not a setting; did you mean model.d_model?" in result.stderr.decode()
    assert "model.dropuot is not a setting of model; did you mean dropout?" in result.stderr.decode()


# Completion


def complete(words: str) -> list[str]:
    count = len(words.split(" ")) - 1
    result = run(MTKIT, COMP_WORDS=words, COMP_CWORD=str(count), _MTKIT_COMPLETE="complete_bash")
    assert result.returncode == 0, result.stderr
    return result.stdout.decode().split()


def test_completion_knows_commands_and_options() -> None:
    assert complete("mtkit ") == list(SUMMARIES)
    assert complete("mtkit tr") == ["train", "translate"]
    assert "--set" in complete("mtkit train --s")


def test_completion_scripts_are_printed() -> None:
    result = run(MTKIT, _MTKIT_COMPLETE="source_zsh")
    assert b"_MTKIT_COMPLETE=complete_zsh" in result.stdout
    assert b"--show-completion" in run([*MTKIT, "--help"]).stdout
