"""Checkpoints appear whole or not at all, damage is noticed, and a run goes on from the newest that is sound."""

import errno
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from toy_run import Runs, assert_same, before_step, events, flip

from mtkit import checkpoint, files, pipeline
from mtkit.checkpoint import load_checkpoint, load_model, save_checkpoint, save_model, weights_of
from mtkit.errors import ModelError, TrainingError
from mtkit.folders import (
    STATE_FILE,
    RunFolder,
    checkpoint_state,
    find_model,
    read_tensor_table,
    remove_leftovers,
    seal,
    tensor_bytes,
)
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.resume import locked

STATE = {"train": {"step": 1}, "scaler": {}}
FILES = ("model.safetensors", "state.safetensors", "scores.json", "state.json")


def write(run: RunFolder, step: int) -> Path:
    """A checkpoint of two small tensors, whose numbers are the step."""
    weights = {"w": torch.full((3, 4), float(step)), "b": torch.zeros(4)}
    return save_checkpoint(run, step, weights, {"optimizer.step.w": torch.tensor(1.0)}, STATE, {"bleu": 1.5})


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    folder = write(run, 7)
    weights, tensors, state = load_checkpoint(folder)
    assert torch.equal(weights["w"], torch.full((3, 4), 7.0))
    assert tensors.keys() == {"optimizer.step.w"}
    assert (state["step"], state["train"]) == (7, {"step": 1})
    assert run.steps() == [7]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_a_checkpoint_is_the_umasks_word(tmp_path: Path, mask: int, mode: int) -> None:
    """Weights were once their owner's alone, so that nobody else could translate with a model in a shared folder."""
    before = os.umask(mask)
    try:
        folder = write(RunFolder(tmp_path), 7)
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(FILES, mode)


def test_steps_are_those_of_whole_folders_in_order(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.steps() == []
    for step in (12, 3, 123_456_789):
        write(run, step)
    (run.checkpoints / ".step-00000004.abc.part").mkdir()
    (run.checkpoints / "step-00000005.unreadable").mkdir()
    (run.checkpoints / "step-00000006").write_text("a file")
    assert run.steps() == [3, 12, 123_456_789]


# Killed while saving


def dies_at(call: int, modules: list[tuple[Any, str]]) -> None:
    """From now on this process ends without a word, as by SIGKILL, right before the given call of certain functions."""
    count = 0

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == call:
                os._exit(9)
            return real(*arguments, **named)

        setattr(module, name, wrapped)

    for module, name in modules:
        wrap(module, name)


STEPS_OF_A_SAVE = [(os, "fsync"), (os, "replace"), (os, "chmod"), (checkpoint, "save_file"), (shutil, "rmtree")]


def in_a_child_that_dies(call: int, work: Callable[[], object]) -> int:
    """The exit code of a forked process that does the work and dies at the given call: 9, or 0 if it got through."""
    child = os.fork()
    if child == 0:
        dies_at(call, STEPS_OF_A_SAVE)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("step", [1, 2], ids=["in the place of an old one", "a new one"])
def test_killed_at_any_point_of_a_save(tmp_path: Path, step: int) -> None:
    """Whatever has a name loads; a save of another step leaves the old one; leftovers go."""
    points = 0
    for call in range(1, 100):
        run = RunFolder(tmp_path / str(call))
        write(run, 1)
        code = in_a_child_that_dies(call, lambda run=run: write(run, step))  # type: ignore[misc]
        assert code in (0, 9)
        for one in run.steps():
            load_checkpoint(run.checkpoint(one))
        if step != 1:
            assert 1 in run.steps()
        remove_leftovers(run)
        assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-{one:08d}" for one in run.steps()]
        if code == 0:
            assert step in run.steps()
            break
        points += 1
    assert points > 10, "syncing, renaming and writing of four files"


@pytest.mark.parametrize("step", [1, 2])
def test_a_save_that_fails_at_any_point_leaves_all_as_it_was(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    write(run, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for call in range(1, 100):
        count = 0
        with monkeypatch.context() as patch:
            for module, name in ((os, "fsync"), (files.os, "replace"), (checkpoint, "save_file")):
                real = getattr(module, name)

                def wrapped(*arguments: Any, real: Any = real, call: int = call, name: str = name) -> Any:
                    nonlocal count
                    if name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode):
                        return real(*arguments)  # where folders cannot be synced, that is borne
                    count += 1
                    if count == call:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return real(*arguments)

                patch.setattr(module, name, wrapped)
            try:
                write(run, step)
            except OSError:
                assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
                continue
        break
    assert call > 8
    load_checkpoint(run.checkpoint(step))


@pytest.fixture
def as_process(runs: Runs, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts `mtkit train` on a run folder that is ready to train in."""

    def start(*arguments: str, prepare: Callable[[], object] | None = None, **sections: Any) -> subprocess.Popen[bytes]:
        recipe = runs.recipe(**sections)
        (tmp_path / "toy.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")), encoding="utf-8")
        command = [sys.executable, "-m", "mtkit", "train", str(tmp_path / "toy.yaml"), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, preexec_fn=prepare
        )

    return start


def test_killed_for_real_again_and_again(as_process: Callable[..., subprocess.Popen[bytes]], runs: Runs) -> None:
    """A checkpoint after every update, so that most kills fall into a save; then it ends as if nothing had happened."""
    settings: dict[str, Any] = {"max_steps": 20, "validate_every_steps": 20, "save_every_steps": 1, "keep_last": 2}
    run = RunFolder(runs.folder / "run")
    for goal in (2, 9):
        process = as_process(training=settings)
        deadline = time.monotonic() + 300
        while max(run.steps(), default=0) < goal:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.communicate()
        load_checkpoint(run.checkpoint(run.steps()[-1]))
    runs.train(training=settings)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000019", "step-00000020"]
    assert_same(run, runs.train("whole", training=settings), 20)


# Damage


def newer(path: Path) -> None:
    state = json.loads(path.read_bytes())
    del state["state_sha256"]
    path.write_text(json.dumps(seal({**state, "format": 2})), encoding="utf-8")


DAMAGE = {
    **{f"flipped bit in {name}": (name, flip) for name in FILES},
    **{f"half of {name}": (name, lambda path: path.write_bytes(path.read_bytes()[:100])) for name in FILES},
    **{f"no {name}": (name, Path.unlink) for name in FILES},
    "newer format": ("state.json", newer),
    "another document": ("state.json", lambda path: path.write_text("[1]")),
}


@pytest.fixture(scope="module")
def trained(tiny_corpus: Any, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with checkpoints at 3 and 6. Read only."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("trained"))
    return runs.train(training={"max_steps": 6, "validate_every_steps": 3})


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_named(trained: RunFolder, kind: str, tmp_path: Path) -> None:
    name, damage = DAMAGE[kind]
    folder = Path(shutil.copytree(trained.checkpoint(6), tmp_path / "step-00000006"))
    damage(folder / name)
    with pytest.raises(ModelError) as caught:
        load_checkpoint(folder)
    assert str(folder / name) in caught.value.message


@pytest.mark.parametrize("kind", ["flipped bit in state.safetensors", "no state.json", "newer format"])
def test_a_damaged_checkpoint_is_passed_over(
    trained: RunFolder, runs: Runs, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, damage = DAMAGE[kind]
    shutil.copytree(trained.path, runs.folder / "run")
    run = RunFolder(runs.folder / "run")
    damage(run.checkpoint(6) / name)
    runs.train(training={"max_steps": 6, "validate_every_steps": 3})
    assert f"{run.checkpoint(6) / name}: " in caplog.text
    assert "passed over" in caplog.text
    assert [row["step"] for row in events(run, "resume")] == [3]
    assert_same(run, trained, 6)
    assert (run.checkpoints / "step-00000006.unreadable").is_dir(), "kept for whoever wants to look into it"


def test_a_damaged_checkpoint_does_not_push_out_good_ones(trained: RunFolder, runs: Runs) -> None:
    """It was counted as the newest, so that keep_last: 1 deleted every checkpoint saved after it was passed over."""
    shutil.copytree(trained.path, runs.folder / "run")
    run = RunFolder(runs.folder / "run")
    flip(run.checkpoint(6) / "model.safetensors")
    runs.train(training={"max_steps": 5, "validate_every_steps": 3, "keep_last": 1, "keep_best": 0})
    assert run.steps() == [5]
    load_checkpoint(run.checkpoint(5))


def test_when_none_can_be_read_nothing_is_overwritten(trained: RunFolder, runs: Runs) -> None:
    shutil.copytree(trained.path, runs.folder / "run")
    run = RunFolder(runs.folder / "run")
    for step in run.steps():
        flip(run.checkpoint(step) / "model.safetensors")
    with pytest.raises(TrainingError, match=r"none of the 2 checkpoints there can be read"):
        runs.train()
    assert run.steps() == [3, 6]


def test_a_hash_covers_the_state_itself(trained: RunFolder, tmp_path: Path) -> None:
    """A wrong number in it would resume elsewhere in the data, and nothing would tell."""
    folder = Path(shutil.copytree(trained.checkpoint(6), tmp_path / "step-00000006"))
    text = (folder / STATE_FILE).read_text()
    assert '"batch": 6' in text
    (folder / STATE_FILE).write_text(text.replace('"batch": 6', '"batch": 7'))
    with pytest.raises(ModelError, match="do not match their hash"):
        checkpoint_state(folder)


# A full disk


def test_a_full_disk_leaves_the_last_checkpoint_and_one_error(
    trained: RunFolder, runs: Runs, as_process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """No file may grow beyond 8 kB: metrics go on, the weights do not fit."""
    shutil.copytree(trained.path, runs.folder / "run")
    run = RunFolder(runs.folder / "run")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))

    process = as_process(prepare=limit, training={"max_steps": 9, "validate_every_steps": 3})
    out, err = process.communicate(timeout=300)
    text = err.decode()
    assert (process.returncode, out) == (1, b""), text
    assert text.count("error") == 1
    assert f"{run.checkpoint(9)}: the checkpoint cannot be written (File too large); " in text
    assert "the last one, of step 6, is as it was" in text
    assert "Traceback" not in text
    assert run.steps() == [3, 6]
    load_checkpoint(run.checkpoint(6))
    runs.train(training={"max_steps": 9, "validate_every_steps": 3})
    assert run.steps() == [3, 6, 9]


# The lock


def test_the_second_process_is_refused_and_told_who_is_there(runs: Runs) -> None:
    run = RunFolder(Path(runs.recipe().run_dir))
    with locked(run):
        with pytest.raises(TrainingError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            runs.train()
        with pytest.raises(TrainingError, match="another process is at work"):
            pipeline.run(runs.recipe())


def test_fresh_does_not_delete_what_another_process_is_making(trained: RunFolder, runs: Runs) -> None:
    shutil.copytree(trained.path, runs.folder / "run")
    run = RunFolder(runs.folder / "run")
    with locked(run), pytest.raises(TrainingError):
        pipeline.train(runs.recipe(), fresh=True)
    assert run.steps() == [3, 6]


def test_a_lock_file_that_is_left_behind_blocks_nobody(runs: Runs) -> None:
    run = RunFolder(Path(runs.recipe().run_dir))
    (run.path / "lock").write_text("process 1 on some-other-host\n")
    assert runs.train().steps() == [6, 12]
    assert (run.path / "lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Killed without a chance to clean up, as by SIGKILL."""
    run = RunFolder(tmp_path / "run")
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(run):
            os.write(write_end, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    with pytest.raises(TrainingError, match=f"process {child} on "), locked(run):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(run):
        pass


def test_where_locks_are_not_supported_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(stream: Any, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("mtkit.training.resume.fcntl.flock", unsupported)
    with locked(RunFolder(tmp_path)):
        assert "cannot be locked" in caplog.text


# Model folders


@pytest.fixture
def model(trained: RunFolder, tmp_path: Path) -> Path:
    """A model folder of its own."""
    weights, _, _ = load_checkpoint(trained.checkpoint(6))
    save_model(tmp_path / "model", weights, Recipe.load(trained.recipe), Tokenizers.load(trained.path), {"steps": [6]})
    return tmp_path / "model"


CPU = torch.device("cpu")


def test_a_model_folder_is_self_contained(model: Path, trained: RunFolder) -> None:
    loaded, recipe, tokenizers = load_model(model, CPU)
    assert not loaded.training
    assert recipe == Recipe.load(trained.recipe)
    weights, _, _ = load_checkpoint(trained.checkpoint(6))
    assert all(torch.equal(weight, weights[name]) for name, weight in weights_of(loaded).items())
    assert loaded.output.weight is loaded.target_embedding.weight is loaded.source_embedding.weight, "ties are kept"
    assert tokenizers.sha256 == Tokenizers.load(trained.path).sha256


def test_run_and_checkpoint_folders_are_models_too(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(trained.path, tmp_path / "run"))
    with pytest.raises(ModelError, match="not a model folder") as caught:
        find_model(folder)
    assert caught.value.hint == f"make it with: mtkit average {folder}"
    pipeline.average(RunFolder(folder), "last", 1)
    assert find_model(folder) == (folder / "model" / "model.safetensors", folder / "model")
    monkeypatch.chdir(folder / "checkpoints")
    loaded, _, _ = load_model("step-00000003", CPU)
    assert loaded.vocab_size == 120


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), "there is no model.safetensors"),
        (lambda folder: (folder / "recipe.yaml").unlink(), "has weights but no recipe.yaml"),
        (lambda folder: (folder / "tokenizer.model").unlink(), "holds neither tokenizer.model nor"),
        (lambda folder: (folder / "tokenizer.model").write_bytes(b"x"), "is not a SentencePiece model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 100), "cannot be read as safetensors"),
        (lambda folder: (folder / "lineage.json").write_text('{"format": 9}'), "this mtkit reads up to 1"),
        (lambda folder: (folder / "lineage.json").write_text("{"), "not JSON"),
    ],
)
def test_what_is_wrong_with_a_model_folder_is_named(model: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(model)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(model, CPU)
    assert str(model) in caught.value.message


def test_weights_of_another_recipe_are_refused_by_tensor(model: Path) -> None:
    text = (model / "recipe.yaml").read_text(encoding="utf-8")
    (model / "recipe.yaml").write_text(text.replace("d_ff: 32", "d_ff: 48"), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tensor decoder\.0\.\S+ is \(32,\), the recipe and tokenizer .* \(48,\)"):
        load_model(model, CPU)
    (model / "recipe.yaml").write_text(text.replace("encoder_layers: 1", "encoder_layers: 2"), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tensor encoder\.1\.\S+ is missing"):
        load_model(model, CPU)


def test_weights_of_another_tokenizer_are_refused(model: Path, trained: RunFolder, tiny_tokenizers: Any) -> None:
    """Of the same size, so that all shapes fit, it would translate into nonsense."""
    assert tiny_tokenizers.source.size == Tokenizers.load(model).source.size
    tiny_tokenizers.save(model)
    with pytest.raises(ModelError, match=r"tokenizer\.model do not belong together"):
        load_model(model, CPU)


def test_a_tensor_table_is_read_without_the_tensors(trained: RunFolder, tmp_path: Path) -> None:
    path = trained.checkpoint(6) / "model.safetensors"
    table, weights = read_tensor_table(path), checkpoint.load_tensors(path)
    assert {name: info.shape for name, info in table.items()} == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    assert tensor_bytes(table) == sum(weight.nbytes for weight in weights.values())
    assert str(table["target_embedding.weight"]) == "F32 120 x 16"
    for content in (b"", b"\xff" * 8, path.read_bytes()[:-1], path.read_bytes() + b"x"):
        (tmp_path / "cut").write_bytes(content)
        with pytest.raises(ModelError, match="cut: "):
            read_tensor_table(tmp_path / "cut")
    with pytest.raises(ModelError, match="no such file"):
        read_tensor_table(tmp_path / "gone")


def test_an_old_model_stays_when_the_new_one_cannot_be_written(
    model: Path, trained: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mtkit.checkpoint._save_tensors", full)
    with pytest.raises(OSError, match="No space"):
        save_model(model, {}, Recipe.load(model / "recipe.yaml"), Tokenizers.load(model), {})
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_leftovers_of_a_killed_run_are_cleared_away(runs: Runs) -> None:
    recipe = runs.recipe()
    run = RunFolder(Path(recipe.run_dir))
    for folder in (run.path, run.checkpoints, run.test):
        folder.mkdir(exist_ok=True)
        (folder / ".something.x1.part").mkdir()
        (folder / ".something.x1.part" / "model.safetensors").write_bytes(b"x")
        (folder / ".recipe.yaml.x2.part").write_bytes(b"x")
        (folder / ".model.x3.old").mkdir()
    runs.train()
    assert [path for path in run.path.rglob(".*")] == []


def test_the_update_before_a_failed_save_is_not_lost_from_the_log(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics tell how far it got, even where the checkpoint does not."""

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before_step(monkeypatch, 12, lambda: monkeypatch.setattr("mtkit.checkpoint._save_tensors", full))
    with pytest.raises(TrainingError, match=r"No space left on device\); the last one, of step 6, is as it was"):
        runs.train()
    run = RunFolder(runs.folder / "run")
    assert [row["step"] for row in events(run, "valid")] == [6, 12]
    assert run.steps() == [6]
