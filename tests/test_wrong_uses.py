"""Wrong uses of every command: one error with what to do, the right exit code, no traceback, and no file changed.

Each runs in this process, in a folder that holds good and bad files of every kind. `{x}` in a row is a path there.
"""

import ast
import gzip
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from toy_models import save_untrained

import mtkit as mtkit_package
from mtkit.cli import app
from mtkit.files import write_json
from mtkit.text.tokenizer import Tokenizers

RECIPE = """\
languages: {source: en, target: xx}
run_dir: good-run
data:
  root: data
  train: [{name: tiny, source: train.en, target: train.xx}]
  valid: [{name: tiny, source: valid.en, target: valid.xx}]
  test: [{name: tiny, source: test.en, target: test.xx}]
tokenizer: {vocab_size: 120}
model: {d_model: 16, heads: 2, d_ff: 32, encoder_layers: 1, decoder_layers: 1}
filters: {max_length: 100}
batching: {max_tokens: 512}
training: {device: cpu, threads: 1, max_steps: 2}
"""


def variant(old: str, new: str) -> str:
    assert old in RECIPE
    return RECIPE.replace(old, new)


@pytest.fixture(scope="module")
def place(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder; the tests run in it, and it stays as it is."""
    place = tmp_path_factory.mktemp("wrong")
    texts(place, tiny_corpus)
    recipes(place)
    models(place, tiny_corpus, tiny_tokenizers)
    before = Path.cwd()
    os.chdir(place)
    yield place
    os.chdir(before)


def texts(place: Path, corpus: TinyCorpus) -> None:
    (place / "data").mkdir()
    for part in ("train", "valid", "test"):
        for side, language in (("source", "en"), ("target", "xx")):
            (place / f"data/{part}.{language}").write_bytes((corpus.folder / f"{part}.{side}").read_bytes())
    (place / "folder").mkdir()
    (place / "empty").write_bytes(b"")
    (place / "blank").write_bytes(b"\n" * 40)
    (place / "short").write_bytes(b"one\ntwo\n")
    (place / "latin1").write_bytes(b"plain\n" * 4 + b"caf\xe9\n")
    (place / "broken.gz").write_bytes(gzip.compress(b"text\n" * 5000)[:40])
    (place / "no.gz").write_bytes(b"text\n" * 40)
    (place / "columns.tsv").write_bytes(b"one\ttwo\nthree\n")


def recipes(place: Path) -> None:
    files = {
        "good": RECIPE,
        "nothing": "",
        "list": "- a\n",
        "tab": "languages:\n\tsource: en\n",
        "twice": RECIPE + "languages: {source: en, target: de}\n",
        "typo": RECIPE + "optimiser: {beta1: 0.9}\n",
        "octal": variant("max_steps: 2", "max_steps: 010"),
        "two-docs": RECIPE + "---\na: 1\n",
        "circle": "extends: circle.yaml\n",
        "orphan": "extends: gone.yaml\n",
        "no-corpus": variant("train.en", "gone.en"),
        "unequal": variant("source: train.en", "source: test.en"),
        "latin1": variant("source: train.en, target: train.xx", "source: ../latin1, target: ../latin1"),
        "empty-corpus": variant("source: train.en, target: train.xx", "source: ../empty, target: ../empty"),
        "broken-gz": variant("source: train.en, target: train.xx", "source: ../broken.gz, target: ../broken.gz"),
        "not-gz": variant("source: train.en, target: train.xx", "source: ../no.gz, target: ../no.gz"),
        "few-columns": variant("source: train.en, target: train.xx", "tsv: ../columns.tsv"),
        "folder-corpus": variant("source: train.en", "source: ../folder"),
        "large-vocabulary": variant("vocab_size: 120", "vocab_size: 50000"),
        "small-vocabulary": variant("vocab_size: 120", "vocab_size: 16"),
        "run-is-file": variant("good-run", "empty"),
        "run-below-file": variant("good-run", "empty/run"),
        "run-is-model": variant("good-run", "model"),
        "run-read-only": variant("good-run", "/proc/mtkit-run"),
        "no-device": variant("device: cpu", "device: cuda:99"),
        "from-nothing": variant("max_steps: 2", "max_steps: 2, initialize_from: folder"),
        "from-others": variant("max_steps: 2", "max_steps: 2, initialize_from: model"),
    }
    for name, text in files.items():
        (place / f"{name}.yaml").write_text(text, encoding="utf-8")
    (place / "binary.yaml").write_bytes(bytes(range(128, 256)))


def models(place: Path, corpus: TinyCorpus, tokenizers: Tokenizers) -> None:
    model = save_untrained(place / "model", corpus, tokenizers, 1)
    other = save_untrained(place / "other-weights", corpus, tokenizers, 2)

    def copy(name: str) -> Path:
        return Path(shutil.copytree(model, place / name))

    weights = (model / "model.safetensors").read_bytes()
    (copy("truncated") / "model.safetensors").write_bytes(weights[:-100])
    (copy("empty-weights") / "model.safetensors").write_bytes(b"")
    (copy("no-tokenizer") / "tokenizer.model").unlink()
    (copy("no-recipe") / "recipe.yaml").unlink()
    (copy("bad-recipe") / "recipe.yaml").write_text("languages: [", encoding="utf-8")
    (copy("bad-tokenizer") / "tokenizer.model").write_bytes(b"x" * 100)
    (copy("bad-lineage") / "lineage.json").write_text("{", encoding="utf-8")
    lineage = json.loads((model / "lineage.json").read_text("utf-8"))
    write_json(copy("newer") / "lineage.json", {**lineage, "format": 99})
    (copy("swapped") / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    wider = copy("other-shape") / "recipe.yaml"
    wider.write_text(wider.read_text("utf-8").replace("d_model: 32", "d_model: 64"), encoding="utf-8")
    pickled = copy("pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for name in ("run-without-checkpoints", "run-newer", "run-damaged"):
        (place / name).mkdir()
        shutil.copy(model / "recipe.yaml", place / name)
        shutil.copy(model / "tokenizer.model", place / name)
    for name, text in (("newer", '{"format": 99}'), ("damaged", "{")):
        checkpoint = place / f"run-{name}/checkpoints/step-00000001"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(weights)
        (checkpoint / "state.json").write_text(text, encoding="utf-8")
        (checkpoint / "scores.json").write_text("{}", encoding="utf-8")


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def snapshot(place: Path) -> dict[str, Any]:
    """Every file's contents and every folder; locks, which hold nothing, do not count."""
    paths = (path for path in place.rglob("*") if path.name != "lock")
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in paths}


def mtkit(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process; a bug raises."""
    try:
        code = app.exit_code_of(lambda: app._application()(prog_name="mtkit", args=arguments))
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    return code, *capfd.readouterr()


STAGES_OF_A_RECIPE = ("tokenizer", "binarize", "train", "run")

ROWS: list[tuple[str, int, str]] = [
    # No such thing
    ("frobnicate", 2, "No such command"),
    ("", 2, ""),
    ("translate", 2, "Missing argument"),
    ("translate model --frobnicate", 2, "No such option"),
    ("recipe frobnicate", 2, "No such command"),
    ("train good.yaml --set", 2, "requires an argument"),
    ("run good.yaml --from nowhere", 2, "nowhere"),
    ("run good.yaml --from test --until train", 2, "--from test comes after --until train"),
    ("run good.yaml --from average", 2, "the stage tokenizer before it is not up to date"),
    # Recipes
    *((f"{command} gone.yaml", 2, "gone.yaml: no such file") for command in ("fetch", "check", *STAGES_OF_A_RECIPE)),
    *((f"{command} folder", 2, "is a folder") for command in ("fetch", "tokenizer", "recipe show", "run --dry-run")),
    ("recipe diff good.yaml gone.yaml", 2, "gone.yaml: no such file"),
    ("recipe show nothing.yaml", 2, "the file is empty"),
    ("recipe show list.yaml", 2, "a recipe is made of sections"),
    ("recipe show binary.yaml", 2, "is not UTF-8"),
    ("recipe show tab.yaml", 2, "tab.yaml:2: a tab stands here"),
    ("recipe show twice.yaml", 2, "languages is set twice"),
    ("recipe show octal.yaml", 2, "write 10 for the number"),
    ("recipe show two-docs.yaml", 2, "a second document starts here"),
    ("recipe show circle.yaml", 2, "goes round in a circle"),
    ("recipe show orphan.yaml", 2, "orphan.yaml:1: extends: gone.yaml: no such file"),
    ("recipe show data/train.en", 2, "data/train.en"),
    ("recipe show model/model.safetensors", 2, "model.safetensors"),
    ("train typo.yaml", 2, "did you mean optimizer?"),
    ("train good.yaml --set model.dropout=2", 2, "model.dropout: value is 2"),
    ("train good.yaml --set nonsense", 2, "section.key=value"),
    ("run good.yaml --set search.beam_sise=3", 2, "did you mean beam_size?"),
    # Corpora
    *((f"{command} no-corpus.yaml", 1, "gone.en") for command in ("tokenizer", "train", "run")),
    *((f"{command} unequal.yaml", 1, "40 lines") for command in ("tokenizer", "run", "train")),
    *((f"{command} latin1.yaml", 1, "latin1:5: byte 0xE9") for command in ("tokenizer", "train")),
    *((f"{command} empty-corpus.yaml", 1, "holds no line") for command in ("tokenizer", "run")),
    ("tokenizer broken-gz.yaml", 1, "broken.gz:"),
    ("tokenizer not-gz.yaml", 1, "no.gz:1: the file is damaged or not what its suffix says"),
    ("tokenizer few-columns.yaml", 1, "columns.tsv:2: has 1 tab-separated columns"),
    ("tokenizer folder-corpus.yaml", 1, "folder"),
    ("binarize good.yaml", 1, "tokenizer"),
    ("tokenizer large-vocabulary.yaml", 2, "tokenizer.vocab_size is 50000, but the corpus allows at most"),
    ("train small-vocabulary.yaml", 2, "tokenizer.vocab_size is 16"),
    # Run folders and devices
    ("train run-is-file.yaml", 2, "run_dir: empty is a file"),
    ("run run-below-file.yaml", 2, "run_dir: empty is a file"),
    ("train run-is-model.yaml", 2, "model is a model folder or a checkpoint"),
    ("tokenizer run-read-only.yaml", 1, "/proc/mtkit-run"),
    ("train run-read-only.yaml", 1, "/proc/mtkit-run"),
    ("train no-device.yaml", 2, "cuda:99 is not there; visible: cpu"),
    ("train from-nothing.yaml", 1, "not a model folder"),
    ("train from-others.yaml", 2, "has another model than the recipe"),
    ("translate model -i data/test.en --device cuda:99", 2, "visible: cpu"),
    ("translate model -i data/test.en --device tpu", 2, "use auto, cpu, cuda"),
    ("score model data/test.en data/test.xx --device cuda:99", 2, "visible: cpu"),
    # Models
    *(
        (f"translate {model} -i data/test.en --device cpu", 1, said)
        for model, said in (
            ("gone", "gone: no such folder"),
            ("folder", "this is not a model folder"),
            ("empty", "empty"),
            ("truncated", "truncated/model.safetensors"),
            ("empty-weights", "empty-weights/model.safetensors"),
            ("no-tokenizer", "no-tokenizer"),
            ("no-recipe", "no recipe.yaml"),
            ("bad-tokenizer", "is not a SentencePiece model"),
            ("bad-lineage", "lineage.json:1:"),
            ("newer", "has format 99, this mtkit reads up to"),
            ("swapped", "do not belong together"),
            ("other-shape", "want"),
            ("pickled", "this is not a model folder"),
            ("run-newer", "mtkit average"),
        )
    ),
    ("translate bad-recipe -i data/test.en", 2, "bad-recipe/recipe.yaml:1"),
    ("info gone", 1, "gone: no such folder"),
    ("info truncated", 1, "truncated/model.safetensors"),
    ("info newer", 1, "has format 99"),
    ("info swapped --verify", 1, "swapped/model.safetensors"),
    ("info run-damaged", 1, "state.json:1"),
    ("score folder data/test.en data/test.xx", 1, "this is not a model folder"),
    ("score newer data/test.en data/test.xx --device cpu", 1, "has format 99"),
    ("attention gone data/test.en", 1, "gone"),
    ("average gone", 1, "gone: is not a run folder"),
    ("average folder", 1, "is not a run folder"),
    ("average empty", 1, "is not a run folder"),
    ("average run-without-checkpoints", 1, "no checkpoints to average"),
    ("average run-newer", 1, "state.json: has format 99"),
    ("average run-damaged", 1, "state.json:1"),
    ("average run-damaged --select worst", 2, "neither best nor last"),
    ("average run-newer --checkpoints 3", 2, "3 checkpoints are asked for, 1"),
    ("average run-newer --checkpoints 0", 2, "--checkpoints"),
    ("report gone", 1, "gone"),
    ("report folder", 1, "folder"),
    # Texts
    ("translate model -i gone.txt --device cpu", 1, "gone.txt: no such file"),
    ("translate model -i folder --device cpu", 1, "folder: is a folder"),
    ("translate model -i latin1 --bad-utf8 error --device cpu --output out.txt", 1, "latin1:5: byte 0xE9"),
    ("translate model -i broken.gz --device cpu --output out.txt", 1, "broken.gz:"),
    ("translate model -i short --json-input --device cpu --output out.txt", 1, "short:1:1: not JSON"),
    ("translate model -i short --prefix-file data/test.xx --device cpu", 1, "short has 2 lines"),
    ("translate model -i short --output folder --device cpu", 1, "folder"),
    ("translate model -i short --output empty/out --device cpu", 1, "empty"),
    ("translate model -i short --output /proc/mtkit/out --device cpu", 1, "/proc/mtkit"),
    ("translate model -i short --beam-size 2 --n-best 5 --device cpu", 2, "n_best (5) cannot exceed beam_size (2)"),
    ("translate model -i short --beam-size 0 --device cpu", 2, "--beam-size 0"),
    ("translate model -i short --method greedy --beam-size 3 --device cpu", 2, "--beam-size 3 is an option of beam"),
    ("translate model -i short --interactive --batch-size 3 --device cpu", 2, "--interactive answers line by line"),
    ("translate model -i short --combine geometric --device cpu", 2, "add --ensemble"),
    ("translate model -i short --tag nonsense --device cpu --output out.txt", 1, "nonsense"),
    ("translate model -i short --ensemble gone --device cpu", 1, "gone: no such folder"),
    ("score model gone.txt data/test.xx", 1, "gone.txt: no such file"),
    ("score model short data/test.xx", 1, "short has 2 lines, data/test.xx has 40"),
    ("score model - -", 2, "there is one stdin"),
    ("score model latin1 latin1 --device cpu", 1, "latin1:5"),
    ("attention model gone.txt --device cpu", 1, "gone.txt"),
    ("eval gone.txt data/test.xx", 1, "gone.txt: no such file"),
    ("eval folder data/test.xx", 1, "folder: is a folder"),
    ("eval short data/test.xx", 1, "2 lines"),
    ("eval empty empty", 1, "no lines"),
    ("eval latin1 latin1", 1, "latin1:5"),
    ("eval broken.gz short", 1, "broken.gz:"),
    ("eval short", 2, "nothing to score against"),
    ("eval short short --metric blue", 2, "blue"),
    ("eval short short --tokenize words", 2, "words"),
    ("compare short short gone.txt", 1, "gone.txt: no such file"),
    ("compare data/test.xx short short", 1, "2 lines"),
    # Fetching, checking and making recipes
    ("fetch good.yaml --set data.downloads=[{url: {closed}, path: x, sha256: {hash}}]", 1, "127.0.0.1"),
    ("fetch good.yaml --timeout 0", 2, "0"),
    ("check", 2, "Missing argument"),
    ("init good.yaml --train data/train.en data/train.xx", 2, "nothing is overwritten"),
    ("init new.yaml", 2, "--train is missing"),
    ("init new.yaml --train data/train.en", 2, "--train takes two files"),
    ("init new.yaml --train short latin1", 2, "its name does not tell the language"),
    ("init new.yaml --train gone.en gone.xx", 1, "gone.en"),
    ("init new.yaml --train data/train.en data/test.xx", 1, "600 lines"),
    ("init folder/../empty/new.yaml --train data/train.en data/train.xx", 1, "empty"),
    ("init new.yaml --train empty latin1 --source-language en --target-language de", 1, "latin1"),
]  # fmt: skip

HINTS = ("requires an argument", "hint: ", "Try 'mtkit", "expected ", "did you mean ", "to do: ", "write ")


def arguments_of(line: str) -> list[str]:
    """The words of a row; a --set stays whole."""
    line = line.replace("{closed}", f"http://127.0.0.1:{closed_port()}/x").replace("{hash}", "a" * 64)
    head, mark, setting = line.partition("--set data")
    return head.split() + ([mark.split()[0], f"data{setting}"] if mark else [])


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 60
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("name", app.SUMMARIES)
def test_every_command_refuses_an_option_it_does_not_have(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = mtkit(capfd, [name, "--frobnicate"])
    assert (code, out) == (2, "")
    assert "No such option: --frobnicate" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("line", "code", "said"), ROWS, ids=[row[0] or "nothing" for row in ROWS])
def test_a_wrong_use_is_one_error_and_changes_nothing(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, code: int, said: str
) -> None:
    before = snapshot(place)
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        ended, out, err = mtkit(capfd, arguments_of(line))
    assert (ended, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err
    if line:
        assert sum(text.startswith(("mtkit: error: ", "Error: ")) for text in err.split("\n")) == 1, err
        assert any(hint in err for hint in HINTS), err
    after = snapshot(place)
    assert {name for name in after if name not in before or after[name] != before[name]} == set()
    assert before.keys() == after.keys()


def test_every_error_in_the_package_says_what_to_do() -> None:
    """A message and a hint; recipe_errors, whose messages end with what is expected, is the exception."""
    kinds = {"MtkitError", "UsageError", "RecipeError", "DataError", "ModelError", "TrainingError"}
    for path in sorted(Path(mtkit_package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                hinted = len(node.args) > 1 or bool(node.keywords)
                assert hinted or path.name == "recipe_errors.py", f"{path}:{node.lineno}: an error without a hint"


def test_the_folder_is_otherwise_sound(place: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The rows fail for the reason that they name: the same commands on sound files succeed."""
    for arguments in (
        ["translate", "model", "-i", "short", "--device", "cpu", "--output", str(tmp_path / "out")],
        ["info", "model", "--verify"],
        ["eval", "short", "short"],
        ["recipe", "show", "good.yaml"],
        ["run", "good.yaml", "--dry-run"],
        ["tokenizer", "good.yaml", "--set", f"run_dir={tmp_path / 'run'}"],
    ):
        code, _, err = mtkit(capfd, arguments)
        assert code == 0, err
