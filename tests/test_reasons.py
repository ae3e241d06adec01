"""Parts of a run (--from, --until, --force), saying before what would be done (--dry-run), and files that were swapped.

The fixture `project`, which counts the stages that work, is that of test_pipeline.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from test_pipeline import ALL, BRIEF, Project, contents
from toy_run import Runs, flip

from mtkit import pipeline
from mtkit.checkpoint import load_model
from mtkit.cli.info import info
from mtkit.cli.run import run as run_command
from mtkit.describe import verify
from mtkit.errors import ModelError, RecipeError, UsageError
from mtkit.files import read_json, sha256_file, write_json
from mtkit.folders import RunFolder, read_lineage, weights_sha256
from mtkit.reasons import plan
from mtkit.stages import STAGES, Selection
from mtkit.text.tokenizer import Tokenizers


@pytest.fixture
def project(tiny_corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tiny_corpus, tmp_path, monkeypatch)


def part(project: Project, first: str = "fetch", last: str = "test", force: bool = False, **sections: Any) -> list[str]:
    """Which stages worked in a run of some of them."""
    project.worked.clear()
    pipeline.run(project.recipe(**sections), selection=Selection(first, last, force))
    return list(project.worked)


def foreseen(project: Project, first: str = "fetch", last: str = "test", force: bool = False, **sections: Any) -> Any:
    """What the plan says is due, and the reasons by stage; and that making it changes nothing."""
    before = contents(project.run_folder.path) if project.run_folder.path.exists() else {}
    steps = plan(project.recipe(**sections), Selection(first, last, force))
    after = contents(project.run_folder.path) if project.run_folder.path.exists() else {}
    assert before == after
    assert [step.stage for step in steps] == list(STAGES)
    return [step.stage for step in steps if step.due], {step.stage: step.reason for step in steps}


# Parts of a run, as foreseen


def test_a_run_in_parts_is_the_whole_run(project: Project) -> None:
    assert foreseen(project)[0] == ALL
    assert not project.run_folder.path.exists(), "a plan leaves no folder"
    assert part(project, last="fetch") == []
    assert part(project, last="tokenizer") == ["tokenizer"]
    assert part(project, last="train") == ["binarize", "train"]
    assert part(project, first="average", last="average") == ["average"]
    assert foreseen(project)[0] == ["test"]
    assert part(project) == ["test"]
    due, reasons = foreseen(project)
    assert due == []
    assert set(reasons.values()) == {"up to date"}
    other = contents(project.run_folder.path)
    shutil.rmtree(project.run_folder.path)
    assert part(project) == ALL
    same = contents(project.run_folder.path)
    assert other.keys() == same.keys()
    for path in (project.run_folder.model / "model.safetensors", project.run_folder.test / "tiny.txt"):
        assert other[path] == same[path]


@pytest.mark.parametrize(("first", "last", "expected"), [
    ("fetch", "test", ALL),
    ("tokenizer", "binarize", ["tokenizer", "binarize"]),
    ("train", "train", ["train"]),
    ("average", "test", ["average", "test"]),
    ("test", "test", ["test"]),
])  # fmt: skip
def test_what_is_forced_is_done_although_up_to_date(
    project: Project, first: str, last: str, expected: list[str]
) -> None:
    part(project)
    before = contents(project.run_folder.path)
    due, _ = foreseen(project, first, last, force=True)
    assert [stage for stage in due if stage != "fetch"] == expected
    assert part(project, first, last, force=True) == expected
    part(project)
    after = contents(project.run_folder.path)
    unlike = {"metrics.jsonl", "state.json", "lineage.json"}  # they tell the time it took
    assert {path for path in before if before[path] != after.get(path)} <= {p for p in before if p.name in unlike}


def test_an_unfinished_training_can_be_averaged_and_tested(project: Project) -> None:
    longer = {**BRIEF, "max_steps": 8}
    part(project, last="train")
    assert foreseen(project, training=longer)[1]["train"] == "4 of 8 updates are done"
    assert part(project, first="average", training=longer) == ["average", "test"]


def test_what_comes_before_has_to_be_there(project: Project) -> None:
    for first, missing in (("binarize", "tokenizer"), ("train", "tokenizer"), ("test", "tokenizer")):
        with pytest.raises(
            UsageError, match=f"--from {first}: the stage {missing} before it is not up to date: not done"
        ):
            part(project, first=first)
    assert project.worked == []
    part(project, last="binarize")
    with pytest.raises(UsageError, match="the stage train before it is not up to date"):
        part(project, first="average")
    flip(project.corpus.folder / "valid.source")
    with pytest.raises(UsageError, match=r"the stage binarize before .*: changed: files\.valid\.source"):
        part(project, first="train")


def test_the_order_of_stages(project: Project) -> None:
    with pytest.raises(UsageError, match="--from test comes after --until train"):
        Selection("test", "train")


@pytest.mark.parametrize(
    ("sections", "stage", "reason"),
    [
        ({"tokenizer": {"vocab_size": 100}}, "tokenizer", "changed: tokenizer.vocab_size"),
        ({"filters": {"max_length": 20}}, "binarize", "changed: filters.max_length"),
    ],
)
def test_the_plan_names_what_has_changed(project: Project, sections: Any, stage: str, reason: str) -> None:
    part(project, last="binarize")
    due, reasons = foreseen(project, **sections)
    assert reasons[stage] == reason
    assert due == ALL[ALL.index(stage) :]
    if stage == "tokenizer":
        assert reasons["binarize"].startswith("tokenizer comes before it")


def test_the_plan_without_the_corpora(project: Project) -> None:
    """It ended in the error of the stage that would have read them."""
    part(project)
    (project.corpus.folder / "train.source").unlink()
    due, reasons = foreseen(project)
    assert due == list(STAGES)
    assert reasons["fetch"] == "missing: train.source; the recipe has no downloads, these are your own files"
    assert reasons["tokenizer"].startswith("fetch comes before it")


def test_a_plan_that_the_run_would_refuse_is_refused(project: Project) -> None:
    part(project)
    for sections in ({"tokenizer": {"vocab_size": 100}}, {"filters": {"max_length": 20}}, {"model": {"d_ff": 8}}):
        with pytest.raises(RecipeError):
            plan(project.recipe(**sections), Selection())
        assert plan(project.recipe(**sections), Selection(), fresh=True)[3].due


def test_a_changed_setting_of_the_search(project: Project) -> None:
    part(project)
    due, reasons = foreseen(project, search={"method": "greedy"})
    assert due == ["average", "test"]
    assert "recipe.yaml has other settings" in reasons["average"]
    assert part(project, search={"method": "greedy"}) == due


def test_the_command_prints_the_plan(project: Project, capsys: Any) -> None:
    path = project.folder / "toy.yaml"
    path.write_text(project.recipe().dump(), encoding="utf-8")
    run_command(path, dry_run=True)
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "fetch      skip  up to date"
    assert lines[1] == "tokenizer  do    not done yet"
    run_command(path, last="binarize")
    assert capsys.readouterr().out == ""
    run_command(path, first="train")
    assert capsys.readouterr().out.startswith("tiny\nmetric ")


# What was swapped is named


def test_a_swapped_tokenizer_is_found_and_made_again(
    project: Project, tiny_tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    """It loads, and its settings are as before; the shards would have been made with it without a word."""
    part(project, last="tokenizer")
    path = project.run_folder.path / "tokenizer.model"
    own = path.read_bytes()
    tiny_tokenizers.save(project.run_folder.path)
    assert path.read_bytes() != own
    assert "is not the one that was made here" in foreseen(project)[1]["tokenizer"]
    assert part(project, last="binarize") == ["tokenizer", "binarize"]
    assert f"{path} is not the one that was made here" in caplog.text
    assert path.read_bytes() == own


def test_binarize_refuses_a_swapped_tokenizer(project: Project, tiny_tokenizers: Tokenizers) -> None:
    from mtkit.stages import make_shards

    part(project, last="tokenizer")
    tiny_tokenizers.save(project.run_folder.path)
    with pytest.raises(ModelError, match=r"tokenizer\.model is not the one that was made here") as caught:
        make_shards(project.recipe(), tiny_tokenizers)
    assert "mtkit tokenizer" in str(caught.value.hint)


def test_a_shard_of_another_corpus_is_found_and_made_again(
    project: Project, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """Same tokenizer, whole in itself, but of other text."""
    part(project, last="binarize")
    shard = next(project.run_folder.shards.glob("valid/*.shard"))
    own = shard.read_bytes()
    (project.corpus.folder / "valid.source").write_bytes(b"the red baker sees the river.\n" * 40)
    assert part(project, last="binarize") == ["binarize"]
    other = shard.read_bytes()
    shutil.copy(project.corpus.folder / "test.source", project.corpus.folder / "valid.source")
    shutil.copy(Path(runs.corpus.folder) / "valid.source", project.corpus.folder / "valid.source")
    assert part(project, last="binarize") == ["binarize"]
    assert shard.read_bytes() == own != other
    shard.write_bytes(other)
    assert part(project, last="binarize") == ["binarize"]
    assert "is not the shard that" in caplog.text
    assert shard.read_bytes() == own


def test_checkpoints_and_shards_of_two_runs(project: Project) -> None:
    """The record of stages was copied along, so that nothing looked changed."""
    part(project)
    run = project.run_folder
    report = read_json(run.shards / "report.json")
    report["corpora"][0]["source_sha256"] = "0" * 64
    write_json(run.shards / "report.json", report)
    for work in (lambda: pipeline.average(run, "last", 1), lambda: verify(run.path)):
        with pytest.raises(ModelError, match=r"report\.json and .* do not belong together"):
            work()
    stages = read_json(run.stages)
    stages["made"]["binarize"]["shards/report.json"] = sha256_file(run.shards / "report.json")
    write_json(run.stages, stages)
    with pytest.raises(ModelError, match=r"shards and .*step-00000004 do not belong together"):
        pipeline.run(project.recipe(training={**BRIEF, "max_steps": 6}))


def take(name: str) -> Callable[[RunFolder, RunFolder], object]:
    """Copies a file of the other run's model folder into that of the first."""
    return lambda run, other: shutil.copy(other.model / name, run.model)


SWAPS = [
    ("model.safetensors", r"model\.safetensors and .*lineage\.json"),
    ("lineage.json", r"model\.safetensors and .*lineage\.json"),
    ("tokenizer.model", r"model\.safetensors and .*tokenizer\.model"),
]


@pytest.mark.parametrize(("name", "said"), SWAPS)
def test_a_model_folder_with_a_file_of_another_model(
    project: Project, tmp_path: Path, tiny_tokenizers: Tokenizers, name: str, said: str
) -> None:
    """All shapes fit, and the translations would be nonsense."""
    import torch

    part(project)
    other = RunFolder(tmp_path / "other")
    recipe = project.recipe(training={**BRIEF, "seed": 5})
    pipeline.run(recipe.model_copy(update={"run_dir": str(other.path)}))
    tiny_tokenizers.save(other.model)
    take(name)(project.run_folder, other)
    with pytest.raises(ModelError, match=f"{said} do not belong together"):
        load_model(project.run_folder.model, torch.device("cpu"))


def test_an_edited_translation_is_translated_again_and_noticed_by_verify(project: Project) -> None:
    part(project)
    path = project.run_folder.test / "tiny.txt"
    own = path.read_bytes()
    path.write_bytes(own.upper() + b"\n")
    with pytest.raises(ModelError, match=r"tiny\.txt and .*scores\.json do not belong together"):
        verify(project.run_folder.model)
    assert part(project) == ["test"]
    assert path.read_bytes() == own
    verify(project.run_folder.model)


# The chain


def test_the_chain_goes_from_the_corpora_to_the_score(project: Project, capsys: Any) -> None:
    part(project)
    run, data = project.run_folder, project.corpus.folder
    lineage = read_lineage(run.model)
    names = [f"{name}.{side}" for name in ("train", "valid") for side in ("source", "target")]
    assert lineage["files_sha256"] == {name: sha256_file(data / name) for name in names}
    report = read_json(run.shards / "report.json")
    assert lineage["shards_sha256"] == sha256_file(run.shards / "report.json")
    for row in report["corpora"]:
        for shard in row["shards"]:
            assert shard["sha256"] == sha256_file(run.shards / shard["file"])
    assert report["tokenizer_sha256"] == lineage["tokenizer_sha256"] == sha256_file(run.path / "tokenizer.model")
    assert lineage["checkpoints_sha256"] == [
        sha256_file(run.checkpoint(step) / "model.safetensors") for step in lineage["steps"]
    ]
    assert lineage["weights_sha256"] == sha256_file(run.model / "model.safetensors") == weights_sha256(run.path)
    scores = read_json(run.scores)
    assert scores["weights_sha256"] == lineage["weights_sha256"]
    assert scores["tests"]["tiny"]["sha256"] == {
        "test/tiny.txt": sha256_file(run.test / "tiny.txt"),
        "test.source": sha256_file(data / "test.source"),
        "test.target": sha256_file(data / "test.target"),
    }
    flip(data / "valid.target")
    info(run.model, verify=True)
    text = capsys.readouterr().out
    for part_of_it in (
        f"corpus file   train.source: sha256 {sha256_file(data / 'train.source')} (unchanged)\n",
        "(changed since)\n",
        f"shards        sha256 of their report {lineage['shards_sha256']}\n",
        f": sha256 {lineage['checkpoints_sha256'][0]}\n",
        f"test file     test/tiny.txt: sha256 {sha256_file(run.test / 'tiny.txt')}\n",
    ):
        assert part_of_it in text
    assert text.index("corpus file") < text.index("tokenizer ") < text.index("shards") < text.index("weights")


def test_translations_and_scores_name_their_model(project: Project, tmp_path: Path, capsys: Any) -> None:
    import json

    from mtkit.cli.score import score
    from mtkit.cli.translate import translate

    part(project)
    folder = project.run_folder.model
    sha256 = sha256_file(folder / "model.safetensors")
    output = tmp_path / "out.jsonl"
    test = project.corpus.folder / "test.source"
    translate(folder, test, output, as_json=True, ensemble=[folder], device="cpu", threads=1)
    for line in output.read_text(encoding="utf-8").strip().split("\n"):
        assert json.loads(line)["models_sha256"] == [sha256, sha256]
    target = str(project.corpus.folder / "test.target")
    for summary in (False, True):
        score(folder, str(test), target, output, as_json=True, summary_only=summary, device="cpu", threads=1)
        for line in output.read_text(encoding="utf-8").strip().split("\n"):
            assert json.loads(line)["model_sha256"] == sha256
