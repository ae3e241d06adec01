"""The stages of a run: each is done again when, and only when, something that it reads has changed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus
from toy_run import SECTIONS, Runs, flip, toy_recipe

from mtkit import model_stage, pipeline, stages
from mtkit.cli.binarize import binarize as binarize_command
from mtkit.cli.tokenizer import tokenizer as tokenizer_command
from mtkit.errors import DataError, RecipeError, TrainingError
from mtkit.files import read_json
from mtkit.folders import RunFolder
from mtkit.recipe import Recipe

BRIEF = {**SECTIONS["training"], "max_steps": 4, "validate_every_steps": 2}


class Project:
    """A corpus and a run folder of a test's own, and which stages worked at each run."""

    def __init__(self, corpus: TinyCorpus, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.corpus = folder, TinyCorpus(folder / "data", [], [])
        shutil.copytree(corpus.folder, folder / "data", ignore=shutil.ignore_patterns("run"))
        self.run_folder = RunFolder(folder / "run")
        self.worked: list[str] = []
        for module, name, stage in (
            (stages, "train_tokenizer", "tokenizer"),
            (stages, "binarize", "binarize"),
            (model_stage, "save_model", "average"),
            (pipeline, "_score_test", "test"),
        ):
            patch.setattr(module, name, self._spy(stage, getattr(module, name)))
        from mtkit.training.trainer import Loop

        patch.setattr(Loop, "go", self._spy("train", Loop.go))

    def _spy(self, stage: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.worked.append(stage)
            return real(*arguments, **named)

        return wrapped

    def recipe(self, **sections: Any) -> Recipe:
        return toy_recipe(self.corpus, self.run_folder.path, **{"training": BRIEF, **sections})

    def run(self, **sections: Any) -> tuple[list[str], dict[str, Any]]:
        """Which stages worked in a run, and its scores."""
        self.worked.clear()
        _, scores = pipeline.run(self.recipe(**sections))
        return list(self.worked), scores

    def prepare(self, **sections: Any) -> list[str]:
        """Which of tokenizer and binarize worked when training was about to begin."""
        self.worked.clear()
        recipe = self.recipe(**sections)
        stages.ensure_shards(recipe, stages.ensure_tokenizer(recipe))
        return list(self.worked)

    def data(self, **parts: Any) -> dict[str, Any]:
        return {**self.corpus.values()["data"], **parts}


@pytest.fixture
def project(tiny_corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tiny_corpus, tmp_path, monkeypatch)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


ALL = ["tokenizer", "binarize", "train", "average", "test"]


def test_the_second_run_does_nothing_and_gives_the_same_scores(project: Project) -> None:
    worked, scores = project.run()
    assert worked == ALL
    before = contents(project.run_folder.path)
    assert project.run() == ([], scores)
    assert scores["tiny"].sentences == 40
    assert contents(project.run_folder.path) == before
    lines = (project.run_folder.test / "tiny.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 41


def test_time_stamps_do_not_count_and_contents_do(project: Project) -> None:
    project.run()
    for path in project.corpus.folder.iterdir():
        os.utime(path, (1, 1))
    assert project.run()[0] == []
    (project.corpus.folder / "test.target").write_bytes(
        (project.corpus.folder / "test.target").read_bytes().replace(b"kort", b"cort")
    )
    assert project.run()[0] == ["test"]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"search": {"method": "greedy"}}, ["average", "test"]),  # RUN/model holds the recipe
        ({"evaluation": {"lowercase": True}}, ["average", "test"]),
        ({"average": {"select": "last", "checkpoints": 2}}, ["average", "test"]),
        ({"training": {**BRIEF, "max_steps": 6}, "average": {"select": "last"}}, ["train", "average", "test"]),
        ({"training": {**BRIEF, "log_every_steps": 1}}, ["average"]),
    ],
)
def test_what_a_changed_setting_leads_to(project: Project, sections: dict[str, Any], expected: list[str]) -> None:
    project.run()
    assert project.run(**sections)[0] == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: {"tokenizer": {"vocab_size": 100}}, ["tokenizer", "binarize"]),
        (lambda p: {"tokenizer": {"user_defined_symbols": ["<x>"]}}, ["tokenizer", "binarize"]),
        (lambda p: {"filters": {"max_length": 20}}, ["binarize"]),
        (lambda p: {"data": p.data(train=[{**p.data()["train"][0], "name": "other"}])}, ["binarize"]),
        (lambda p: {"data": p.data(train=[{**p.data()["train"][0], "tags": ["<x>"]}])}, ["tokenizer", "binarize"]),
        (lambda p: {"data": p.data(train=[{**p.data()["train"][0], "weight": 2.0}])}, []),
        (lambda p: {"data": p.data(valid=[])}, ["binarize"]),
        (lambda p: {"data": p.data(test=[])}, []),
        (lambda p: {"model": {"d_ff": 64}}, []),
        (lambda p: {"batching": {"max_tokens": 300}}, []),
        (lambda p: {"languages": {"source": "fr", "target": "yy"}}, []),
    ],
)
def test_what_tokenizer_and_shards_depend_on(project: Project, change: Any, expected: list[str]) -> None:
    assert project.prepare() == ["tokenizer", "binarize"]
    assert project.prepare() == []
    assert project.prepare(**change(project)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.source", ["tokenizer", "binarize"]),
        ("train.target", ["tokenizer", "binarize"]),
        ("valid.source", ["binarize"]),
        ("test.source", []),
    ],
)
def test_a_changed_byte_is_noticed(project: Project, name: str, expected: list[str]) -> None:
    project.prepare()
    path = project.corpus.folder / name
    path.write_bytes(path.read_bytes().replace(b"e", b"o", 1))
    assert project.prepare() == expected


def test_a_corpus_that_moves_from_training_to_validation_is_noticed(project: Project) -> None:
    """Both lists were fingerprinted as one, which such a move leaves as it is."""
    first, second = project.data()["train"][0], {**project.data()["test"][0], "name": "second"}
    assert project.prepare(data=project.data(train=[first, second], valid=[])) == ["tokenizer", "binarize"]
    assert project.prepare(data=project.data(train=[first], valid=[second])) == ["tokenizer", "binarize"]


def test_the_same_text_elsewhere_is_the_same_text(project: Project) -> None:
    project.prepare()
    (project.folder / "data").rename(project.folder / "elsewhere")
    assert project.prepare(data=project.data(root=str(project.folder / "elsewhere"))) == []


def test_absolute_paths_of_corpora(project: Project) -> None:
    """They could not be hashed, since they do not lie below data.root."""
    folder = project.corpus.folder
    corpus = {"name": "tiny", "source": str(folder / "train.source"), "target": str(folder / "train.target")}
    assert project.prepare(data=project.data(train=[corpus])) == ["tokenizer", "binarize"]


# Checkpoints bind


@pytest.mark.parametrize(
    ("spoil", "changed"),
    [
        (lambda p: flip(p.corpus.folder / "train.source"), "files.train.source"),
        (lambda p: (p.corpus.folder / "valid.target").write_text("x\n" * 40), "files.valid.target"),
    ],
)
def test_changed_text_under_checkpoints_is_refused_by_name(project: Project, spoil: Any, changed: str) -> None:
    project.run()
    before = contents(project.run_folder.path)
    text = contents(project.corpus.folder)
    spoil(project)
    with pytest.raises(RecipeError, match=f"would have to be made again .these have changed: {changed}") as caught:
        project.run()
    assert "--fresh" in str(caught.value.hint)
    assert "run_dir=OTHER" in str(caught.value.hint)
    assert contents(project.run_folder.path) == before
    for path, content in text.items():
        path.write_bytes(content)
    assert project.run()[0] == []


def test_fresh_makes_everything_that_has_changed_anew(project: Project) -> None:
    project.run()
    flip(project.corpus.folder / "train.source")
    project.worked.clear()
    pipeline.run(project.recipe(), fresh=True)
    assert project.worked == ALL


def test_missing_shards_and_tokenizers_are_made_again_when_nothing_has_changed(project: Project) -> None:
    """The same text gives the same bytes, so checkpoints can go on."""
    project.run()
    before = contents(project.run_folder.path)
    shard = next(project.run_folder.shards.rglob("*.shard"))
    shard.write_bytes(shard.read_bytes()[:-1])
    (project.run_folder.path / "tokenizer.model").unlink()
    assert project.run()[0] == ["tokenizer", "binarize"]
    assert contents(project.run_folder.path) == before
    assert project.run(training={**BRIEF, "max_steps": 6})[0][0] == "train"


def test_without_a_record_checkpoints_are_not_risked(project: Project) -> None:
    project.run()
    project.run_folder.stages.unlink()
    with pytest.raises(RecipeError, match="there is no record of what was read"):
        project.run()


# Ends in the middle


@pytest.mark.parametrize(("module", "name"), [(stages, "train_tokenizer"), (stages, "binarize")])
def test_a_stage_that_was_killed_half_way_is_done_again(
    project: Project, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new files lay under the old entry, which counted again when the recipe was set back."""
    project.prepare()
    real = getattr(module, name)

    def killed(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, name, killed)
        with pytest.raises(KeyboardInterrupt):
            project.prepare(tokenizer={"vocab_size": 100}, filters={"max_length": 20})
    stage = {"train_tokenizer": "tokenizer"}.get(name, name)
    assert stage in project.prepare()


@pytest.mark.parametrize("after", ALL)
def test_killed_between_any_two_stages(project: Project, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops with an error right after a stage has ended; the next run does what was left, no more."""
    place = {
        "tokenizer": (pipeline, "ensure_shards"),
        "binarize": (pipeline, "train_model"),
        "train": (pipeline, "average"),
        "average": (pipeline, "score_tests"),
        "test": (pipeline, "mark"),
    }[after]

    def killed(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, killed)
        with pytest.raises(KeyboardInterrupt):
            project.run()
    left = ALL[ALL.index(after) + 1 :]
    assert project.run()[0] == (left or ["test"]), "scores that were not noted as done are made again"
    assert project.run()[0] == []


def test_a_damaged_record_counts_as_none(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    project.prepare()
    project.run_folder.stages.write_text("{")
    assert project.prepare() == ["tokenizer", "binarize"]
    assert "all stages count as not done" in caplog.text
    assert project.prepare() == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: run.scores.write_text("{"),
        lambda run: run.scores.write_text('{"tests": {"tiny": 1}}'),
        lambda run: run.scores.unlink(),
        lambda run: (run.test / "tiny.txt").unlink(),
    ],
)
def test_damaged_scores_are_made_again(project: Project, spoil: Callable[[RunFolder], object]) -> None:
    scores = project.run()[1]
    spoil(project.run_folder)
    assert project.run() == (["test"], scores)
    assert set(read_json(project.run_folder.scores)["tests"]) == {"tiny"}


# Places


def test_a_file_in_the_place_of_the_run_folder(project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "run"):
        recipe = toy_recipe(project.corpus, run_dir)
        for work in (pipeline.run, pipeline.train):
            with pytest.raises(RecipeError, match=r"run_dir: .*/file is a file, not a folder"):
                work(recipe)
    assert (tmp_path / "file").read_text() == "x"


def test_missing_text_is_named_before_anything_is_made(project: Project) -> None:
    (project.corpus.folder / "test.target").unlink()
    with pytest.raises(DataError, match=r"corpus tiny: .*test\.target"):
        project.run()
    assert not project.run_folder.path.exists()


def test_missing_training_text_is_named_by_train_too(project: Project) -> None:
    (project.corpus.folder / "train.target").unlink()
    with pytest.raises(DataError, match=r"train\.target: no such file"):
        pipeline.train(project.recipe())


def test_missing_text_is_fetched_where_the_recipe_says_from_where(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (project.corpus.folder / "test.target").rename(project.folder / "kept")
    download = {"url": "http://localhost/test.target", "path": "test.target", "sha256": "0" * 64}

    def fetch(recipe: Recipe) -> None:
        (project.folder / "kept").rename(project.corpus.folder / "test.target")

    monkeypatch.setattr(pipeline, "fetch", fetch)
    assert project.run(data=project.data(downloads=[download]))[0] == ALL
    with caplog.at_level("INFO"):
        assert project.run(data=project.data(downloads=[download]))[0] == []
    assert "fetch: all corpora are there" in caplog.text


def test_no_test_corpora(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        worked, scores = project.run(data=project.data(test=[]))
    assert (worked, scores) == (ALL[:-1], {})
    assert "the recipe has no test corpora" in caplog.text


def test_a_missing_tokenizer_of_the_scorer_is_found_before_training(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation scores BLEU whatever evaluation.metrics says."""
    from mtkit import metrics
    from mtkit.errors import MtkitError

    def missing(**named: Any) -> None:
        raise RuntimeError("no dictionary")

    monkeypatch.setattr(metrics, "BLEU", missing)
    with pytest.raises(MtkitError, match="MeCab"):
        project.run(languages={"source": "en", "target": "ja"}, evaluation={"metrics": ["chrf"]})
    assert project.worked == []


# The commands of the first stages


def test_what_the_commands_have_made_is_not_made_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`mtkit train` trained the tokenizer once more, since the command had left no record."""
    recipe = project.recipe()
    path = project.folder / "toy.yaml"
    path.write_text(recipe.dump(), encoding="utf-8")
    tokenizer_command(path)
    binarize_command(path)
    assert "120 entries" in capsys.readouterr().out
    assert project.run()[0] == ["train", "average", "test"]


def test_the_commands_refuse_to_replace_what_checkpoints_need(project: Project) -> None:
    project.run()
    path = project.folder / "toy.yaml"
    path.write_text(project.recipe().dump(), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"the tokenizer .* \(these have changed: tokenizer\.vocab_size\)"):
        tokenizer_command(path, ["tokenizer.vocab_size=100"])
    with pytest.raises(RecipeError, match=r"the shards .* \(these have changed: filters\.max_length\)"):
        binarize_command(path, ["filters.max_length=20"])
    before = contents(project.run_folder.path)
    tokenizer_command(path)
    binarize_command(path)
    assert contents(project.run_folder.path) == before, "the same again is no harm"


def test_two_runs_at_once(project: Project, runs: Runs) -> None:
    from mtkit.training.resume import locked

    with locked(project.run_folder), pytest.raises(TrainingError, match="another process is at work here"):
        project.run()
