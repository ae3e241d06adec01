"""Averages of checkpoints: exact, in any order, shared matrices once, of one configuration, from whole files."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from toy_run import Runs, flip

from mtkit import pipeline
from mtkit.average import mean, rank, select
from mtkit.checkpoint import load_checkpoint, load_model, load_tensors
from mtkit.cli.average import average as command
from mtkit.errors import ModelError, MtkitError, RecipeError, TrainingError, UsageError
from mtkit.files import sha256_file, write_json
from mtkit.folders import STATE_FILE, RunFolder, checkpoint_state, read_lineage, read_tensor_table, seal
from mtkit.translator import Translator


@pytest.fixture(scope="module")
def trained(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with scored checkpoints at 3, 6, 9 and 12. Read only."""
    return Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("trained")).train(
        training={"validate_every_steps": 3}
    )


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(Path(shutil.copytree(trained.path, tmp_path / "run")))


def written(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


# The mean


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_mean_of_equal_checkpoints_is_equal_bit_for_bit(trained: RunFolder, count: int) -> None:
    folder = trained.checkpoint(6)
    weights = load_tensors(folder / "model.safetensors")
    averaged = mean([folder] * count)
    assert averaged.keys() == weights.keys()
    assert all(torch.equal(averaged[name], weights[name]) for name in weights)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5), st.integers(1, 9))
def test_the_mean_of_equal_numbers_is_the_number(tmp_path_factory: Any, numbers: list[float], count: int) -> None:
    """Whatever they are: tiny, huge, negative zero."""
    folder = written(tmp_path_factory.mktemp("equal") / "a", w=torch.tensor(numbers))
    assert mean([folder] * count)["w"].numpy().tobytes() == torch.tensor(numbers).numpy().tobytes()


def test_the_mean_is_the_mean_in_any_order(trained: RunFolder) -> None:
    folders = [trained.checkpoint(step) for step in (3, 6, 9)]
    exact = {
        name: torch.stack([load_tensors(folder / "model.safetensors")[name].double() for folder in folders]).mean(0)
        for name in read_tensor_table(folders[0] / "model.safetensors")
    }
    for order in itertools.permutations(folders):
        for name, weight in mean(order).items():
            assert weight.dtype == torch.float32
            torch.testing.assert_close(weight.double(), exact[name], rtol=1e-7, atol=1e-9)


def test_sums_are_kept_in_float64(tmp_path: Path) -> None:
    """In float32 the 1 would vanish beside 2^24, and the mean of the four would be off."""
    values = (2.0**24, 1.0, 1.0, 2.0)
    folders = [written(tmp_path / str(index), w=torch.tensor([value])) for index, value in enumerate(values)]
    assert mean(folders)["w"].item() == (2**24 + 4) / 4


def test_one_file_is_open_at_a_time(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must not grow with the number of checkpoints."""
    import weakref

    alive: list[Any] = []

    def load(path: Path) -> dict[str, torch.Tensor]:
        assert sum(reference() is not None for reference in alive) <= 1, "of earlier files only a loop variable is left"
        weights = load_tensors(path)
        alive.extend(weakref.ref(weight) for weight in weights.values())
        return weights

    monkeypatch.setattr("mtkit.average.load_tensors", load)
    mean([trained.checkpoint(step) for step in (3, 6, 9, 12)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_tensor_keeps_its_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    first, second = (written(tmp_path / name, w=torch.tensor([x], dtype=dtype)) for name, x in (("a", 1.0), ("b", 2.0)))
    assert mean([first, second])["w"].dtype == dtype
    assert mean([first, second])["w"].item() == 1.5


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": torch.zeros(3)}, r"b/model\.safetensors: tensor w is F32 3, in .*a/model\.safetensors it is F32 2"),
        ({"w": torch.zeros(2).half()}, "tensor w is F16 2, in .* it is F32 2"),
        ({"v": torch.zeros(2)}, "tensor v is F32 2, in .* it is missing"),
    ],
)
def test_mixed_tensors_are_refused_by_name(tmp_path: Path, other: dict[str, torch.Tensor], message: str) -> None:
    first, second = written(tmp_path / "a", w=torch.zeros(2)), written(tmp_path / "b", **other)
    with pytest.raises(ModelError, match=message):
        mean([first, second])


def test_a_missing_file_is_refused_by_name(trained: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone/model\.safetensors: no such file"):
        mean([trained.checkpoint(3), tmp_path / "gone"])


# Which ones


def steps_of(folders: list[Path]) -> list[int]:
    return [checkpoint_state(folder)["step"] for folder in folders]


def rescore(run: RunFolder, step: int, **scores: Any) -> None:
    write_json(run.checkpoint(step) / "scores.json", scores)


def test_the_last(trained: RunFolder) -> None:
    assert steps_of(select(trained, "last", 2, "bleu")) == [9, 12]


@pytest.mark.parametrize(
    ("metric", "count", "expected"),
    [("bleu", 1, [6]), ("bleu", 2, [6, 12]), ("chrf", 1, [3]), ("loss", 1, [9]), ("loss", 3, [3, 9, 12])],
)
def test_the_best(run: RunFolder, metric: str, count: int, expected: list[int]) -> None:
    rescore(run, 3, bleu=1.0, chrf=9.0, nll=3.0)
    rescore(run, 6, bleu=5.0, chrf=4.0, nll=4.0)
    rescore(run, 9, bleu=2.0, chrf=5.0, nll=1.0)
    rescore(run, 12, bleu=5.0, chrf=6.0, nll=2.0)
    assert steps_of(select(run, "best", count, metric)) == expected, "of equals the earlier first"


def test_unscored_checkpoints_come_last_and_the_newest_first(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    rescore(run, 3, bleu=0.0)
    rescore(run, 6, bleu=None)
    for step in (9, 12):
        rescore(run, step)
    assert steps_of(select(run, "best", 1, "bleu")) == [3]
    assert caplog.text == ""
    assert steps_of(select(run, "best", 2, "bleu")) == [3, 12]
    assert "no validation score to tell the best by; taken because newest: steps 12" in caplog.text


def test_ranks() -> None:
    assert rank({"nll": 2.5}, "loss") == -2.5
    assert rank({"bleu": 3.0, "nll": 2.5}, "bleu") == 3.0
    assert rank({}, "bleu") == rank({"bleu": None}, "bleu") == rank({"nll": float("nan")}, "loss") == float("-inf")


def test_too_many_and_none(trained: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 checkpoints are asked for, 4 are there") as caught:
        select(trained, "last", 5, "bleu")
    assert "training.keep_last" in str(caught.value.hint)
    with pytest.raises(ModelError, match="no checkpoints to average"):
        select(RunFolder(tmp_path), "last", 1, "bleu")


# The model folder


def test_an_average_translates_and_keeps_its_ties(run: RunFolder) -> None:
    assert pipeline.average(run, "last", 3) == [6, 9, 12]
    model, _, _ = load_model(run.model, torch.device("cpu"))
    assert model.output.weight is model.target_embedding.weight is model.source_embedding.weight
    expected = mean([run.checkpoint(step) for step in (6, 9, 12)])
    assert torch.equal(model.output.weight, expected["target_embedding.weight"])
    assert "output.weight" not in expected, "a shared matrix is stored once, so it cannot count twice"
    assert len(Translator.load(run.model, "cpu").translate(["the baker sees the river."])) == 1


def test_twice_gives_the_same_bytes(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    pipeline.average(run, "last", 3)
    first = {path.name: path.read_bytes() for path in run.model.iterdir()}
    with caplog.at_level("INFO"):
        pipeline.average(run, "last", 3)
    assert "model: up to date (steps 6, 9, 12)" in caplog.text
    shutil.rmtree(run.model)
    pipeline.average(run, "last", 3)
    assert {path.name: path.read_bytes() for path in run.model.iterdir()} == first


@pytest.mark.parametrize("name", ["lineage.json", "model.safetensors", "recipe.yaml", "tokenizer.model"])
def test_a_model_folder_that_is_not_whole_is_made_again(run: RunFolder, name: str) -> None:
    """A missing lineage was an error, and a missing tokenizer went unnoticed."""
    pipeline.average(run, "last", 2)
    expected = (run.model / name).read_bytes()
    flip(run.model / name)
    pipeline.average(run, "last", 2)
    assert (run.model / name).read_bytes() == expected
    (run.model / name).unlink()
    pipeline.average(run, "last", 2)
    assert (run.model / name).read_bytes() == expected


def test_the_lineage_tells_where_the_weights_come_from(run: RunFolder) -> None:
    pipeline.average(run, "last", 2)
    lineage, states = read_lineage(run.model), [checkpoint_state(run.checkpoint(step)) for step in (9, 12)]
    assert lineage["steps"] == [9, 12]
    assert lineage["checkpoints_sha256"] == [sha256_file(run.checkpoint(s) / "model.safetensors") for s in (9, 12)]
    assert lineage["weights_sha256"] == sha256_file(run.model / "model.safetensors")
    assert [row["step"] for row in lineage["scores"]] == [9, 12]
    assert lineage["target_tokens"] == states[1]["train"]["target_tokens"] > 0
    assert set(lineage["corpora_sha256"]) == {"train tiny", "valid tiny"}


def test_mixed_configurations_are_refused_by_key(run: RunFolder, runs: Runs) -> None:
    """Two heads or four: all shapes are equal, and the mean would be a model of neither."""
    other = runs.train("other", model={"heads": 4}, training={"max_steps": 15, "validate_every_steps": 15})
    shutil.copytree(other.checkpoint(15), run.checkpoint(15))
    with pytest.raises(ModelError, match=r"step-00000015: was trained with another .*: model\.heads is 4, not 2"):
        pipeline.average(run, "last", 2)


def test_checkpoints_of_another_tokenizer_are_refused(run: RunFolder, tiny_tokenizers: Any) -> None:
    tiny_tokenizers.save(run.path)
    with pytest.raises(ModelError, match=r"tokenizer\.model and .*step-00000012 do not belong together"):
        pipeline.average(run, "last", 1)
    folder = run.checkpoint(12)
    state = {**checkpoint_state(folder), "tokenizer_sha256": tiny_tokenizers.sha256}
    write_json(folder / STATE_FILE, seal(state))
    with pytest.raises(ModelError, match=r"step-00000012: was trained with another .*: tokenizer_sha256 is "):
        pipeline.average(run, "last", 2)


def test_a_damaged_checkpoint_is_refused_by_name(run: RunFolder) -> None:
    flip(run.checkpoint(9) / "model.safetensors")
    with pytest.raises(ModelError, match=r"step-00000009/model\.safetensors: its contents do not match their hash"):
        pipeline.average(run, "last", 2)
    assert not run.model.exists()
    (run.checkpoint(9) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"step-00000009/model\.safetensors: missing"):
        pipeline.average(run, "last", 2)
    assert pipeline.average(run, "last", 1) == [12], "the others are no worse for it"


# Going on from an average


def test_training_does_not_go_on_from_an_average(run: RunFolder, runs: Runs) -> None:
    """It has no optimizer state; taking it for a checkpoint would start the optimizer anew, without a word."""
    pipeline.average(run, "last", 2)
    recipe = runs.recipe()
    before = {path.name: path.read_bytes() for path in run.model.iterdir()}
    with pytest.raises(RecipeError, match="training cannot go on from weights alone"):
        pipeline.train(recipe.model_copy(update={"run_dir": str(run.model)}))
    assert {path.name: path.read_bytes() for path in run.model.iterdir()} == before
    shutil.rmtree(run.checkpoints)
    shutil.copytree(run.model, run.checkpoint(12))
    with pytest.raises(ModelError, match="an average has no training state to go on from"):
        load_checkpoint(run.checkpoint(12))
    with pytest.raises(TrainingError, match="the only checkpoint there cannot be read"):
        runs.train(training={"validate_every_steps": 3})


# The command


def test_the_command_goes_by_the_recipe_unless_told_otherwise(run: RunFolder, capsys: pytest.CaptureFixture) -> None:
    command(run.path)
    best = select(run, "best", 1, "bleu")[0]
    assert capsys.readouterr().out == f"{run.model}: step {steps_of([best])[0]}\n"
    command(run.path, select="last", checkpoints=2)
    assert capsys.readouterr().out == f"{run.model}: mean of steps 9, 12\n"


def test_the_command_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a run folder"):
        command(tmp_path)
    with pytest.raises(MtkitError, match="is not a run folder"):
        pipeline.average(RunFolder(tmp_path), "last", 1)
