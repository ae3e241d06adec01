"""mtkit check of a whole recipe: what it says of tokens, filters, batches and leaks is what the run then meets."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyCorpus, invent_pairs
from toy_run import toy_recipe

from mtkit import pipeline
from mtkit.check.machine import Machine
from mtkit.check.report import Report
from mtkit.check.run import Options, check_pair, check_recipe, preflight
from mtkit.check.text import render
from mtkit.data.report import Report as Shards
from mtkit.errors import UsageError
from mtkit.recipe import Recipe
from mtkit.stages import run_folder
from mtkit.training.updates import open_pairs, updates

MACHINE = Machine("cpu", "cpu", "float32", "cpu", 10**12)
OPTIONS = Options(machine=lambda recipe: MACHINE)


def lines_to(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))


@pytest.fixture
def corpus(tmp_path: Path) -> TinyCorpus:
    """A corpus of this test's own, without a fault."""
    folder = tmp_path / "data"
    folder.mkdir()
    pairs = list(dict.fromkeys(invent_pairs(3000, 11)))
    sources: set[str] = set()
    targets: set[str] = set()
    kept = []
    for source, target in pairs:
        if source not in sources and target not in targets:
            kept.append((source, target))
            sources.add(source)
            targets.add(target)
    parts = {"train": kept[:900], "valid": kept[900:940], "test": kept[940:980]}
    assert len(kept) >= 980
    for part, rows in parts.items():
        lines_to(folder / f"{part}.source", [source for source, _ in rows])
        lines_to(folder / f"{part}.target", [target for _, target in rows])
    return TinyCorpus(folder, [one for one, _ in parts["train"]], [other for _, other in parts["train"]])


def long_recipe(corpus: TinyCorpus, run_dir: Path, **sections: Any) -> Recipe:
    """A recipe that trains long enough to have no findings."""
    training = {"max_steps": 5000, **sections.pop("training", {})}
    return toy_recipe(corpus, run_dir, training=training, **sections)


def checked(recipe: Recipe, options: Options = OPTIONS) -> Report:
    return check_recipe(recipe, "my.yaml", options)


def kinds(report: Report) -> list[tuple[str, str]]:
    return [(finding.kind, finding.where) for finding in (*report.errors, *report.warnings)]


def test_a_sound_recipe_has_no_findings(corpus, tmp_path):
    report = checked(long_recipe(corpus, tmp_path / "run"))
    assert kinds(report) == []
    assert render(report).endswith("no errors, no warnings")
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


FILTERS: dict[str, Any] = {
    "max_length": 24,
    "min_length": 5,
    "max_ratio": 1.4,
    "drop_identical": True,
    "drop_duplicates": True,
}


@pytest.mark.parametrize("tags", [[], ["<news>"]])
@pytest.mark.parametrize("vocabulary", ["joint", "separate"])
def test_tokens_and_drops_are_those_of_binarization(corpus, tmp_path, tags, vocabulary):
    source, target = list(corpus.source), list(corpus.target)
    source[3], source[40], target[50], target[60] = "", source[7], source[50], "  "
    target[40] = target[7]
    lines_to(corpus.folder / "train.source", source)
    lines_to(corpus.folder / "train.target", target)
    values = corpus.values(run_dir=str(tmp_path / "run"), filters=FILTERS, tokenizer={"vocabulary": vocabulary})
    values["data"]["train"][0]["tags"] = tags
    values["model"] = {"share_embeddings": "all" if vocabulary == "joint" else "target"}
    recipe = Recipe.model_validate(values)
    report = checked(recipe)
    tokenizers = pipeline.ensure_tokenizer(recipe)
    assert report.choice is not None
    assert report.choice.tokenizers.sha256 == tokenizers.sha256, "what the check learns is what the run learns"
    assert not report.choice.stands_in
    pipeline.ensure_shards(recipe, tokenizers)
    rows = {row.part: row for row in Shards.load(run_folder(recipe).shards).corpora}
    for one in report.tokens:
        if one.facts.part == "test":
            continue
        row = rows[one.facts.part]
        drops = {reason: (drop.count, tuple(drop.lines)) for reason, drop in one.dropped.items()}
        assert drops == {reason: (drop.count, drop.first_lines) for reason, drop in row.dropped.items()}
        assert (one.pairs, one.kept) == (row.pairs, row.kept)
        assert one.source.tokens == row.source_tokens - len(tags) * row.kept * (one.facts.part == "train")
        assert one.target.tokens == row.target_tokens
        assert (one.source.unknown, one.target.unknown) == (row.source_unknown, row.target_unknown)
    assert len(rows["train"].dropped) >= 4


def test_fertility_by_hand(corpus, tmp_path):
    recipe = long_recipe(corpus, tmp_path / "run")
    (train, *_) = checked(recipe).tokens
    tokenizer = pipeline.ensure_tokenizer(recipe).source
    assert train.source.tokens == sum(len(tokenizer.encode(text)) for text in corpus.source)
    assert train.source.words == sum(len(text.split()) for text in corpus.source)
    assert train.source.characters == sum(map(len, corpus.source))
    figures = train.source.to_json(spaced=True)
    assert figures["tokens_per_word"] == train.source.tokens / train.source.words
    assert train.source.to_json(spaced=False)["tokens_per_word"] is None


def test_the_batch_plan_is_that_of_training(corpus, tmp_path):
    sections = {"training": {"max_steps": 100, "accumulate": 3}, "batching": {"max_tokens": 300}}
    values = long_recipe(corpus, tmp_path / "run", **sections).model_dump()
    values["data"]["train"][0]["weight"] = 1.7
    recipe = Recipe.model_validate(values)
    plan = checked(recipe).batches
    assert plan is not None
    pipeline.ensure_shards(recipe, pipeline.ensure_tokenizer(recipe))
    data = open_pairs(run_folder(recipe).shards / "train", recipe.data.train)
    whole = []
    for update in updates(recipe, data, 0, 0):
        if update.epoch > 0:
            break
        whole.append(update)
    assert plan.updates == len(whole)
    assert plan.batches == whole[-1].last
    assert plan.target_tokens_per_update == pytest.approx(sum(one.target_tokens for one in whole) / len(whole))
    assert plan.epochs_to_the_end == 100 / len(whole)
    batches = [batch for update in whole for batch in update.batches]
    real = sum(batch.source_tokens + batch.kept for batch in batches)
    assert plan.padding == pytest.approx(1 - real / sum(batch.cells for batch in batches))
    shapes = sorted((*batch.source_BS.shape, batch.target_out_BT.shape[1]) for batch in batches)
    planned = zip(plan.rows.tolist(), plan.longest_source.tolist(), plan.longest_target.tolist(), strict=True)
    assert shapes == sorted(planned)


def test_a_budget_that_is_measured_first(corpus, tmp_path):
    recipe = long_recipe(corpus, tmp_path / "run", batching={"max_tokens": "auto"})
    report = checked(recipe)
    assert (report.batches, report.memory) == (None, None)
    assert report.disk is not None
    assert "batching.max_tokens: auto is measured when training begins" in render(report)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "budget.json").write_text('{"max_tokens": 512}', "utf-8")
    report = checked(recipe)
    assert report.batches is not None
    assert report.to_json()["batches"] == checked(long_recipe(corpus, tmp_path / "other")).to_json()["batches"]


def test_max_epochs_bound_the_updates(corpus, tmp_path):
    sections = {"training": {"max_steps": 10_000, "max_epochs": 2}}
    plan = checked(long_recipe(corpus, tmp_path / "run", **sections)).batches
    assert plan is not None
    assert plan.updates_to_the_end == 2 * plan.updates


def test_a_sample_is_scaled_up(corpus, tmp_path):
    recipe = long_recipe(corpus, tmp_path / "run")
    whole, part = checked(recipe), checked(recipe, replace(OPTIONS, sample=300))
    assert whole.batches is not None
    assert part.batches is not None
    assert part.batches.sampled
    assert not whole.batches.sampled
    assert part.batches.batches == pytest.approx(whole.batches.batches, rel=0.1)
    assert part.batches.pairs == whole.batches.pairs
    assert [one.pairs for one in part.tokens] == [300, 40, 40]
    assert part.choice is not None
    assert part.choice.stands_in
    assert "300 of 900" in render(part)
    assert part.disk is not None
    assert whole.disk is not None
    assert part.disk.shards == pytest.approx(whole.disk.shards, rel=0.1)


def test_the_tokenizer_of_the_run_folder_is_used_while_it_is_up_to_date(corpus, tmp_path):
    recipe = long_recipe(corpus, tmp_path / "run")
    pipeline.ensure_tokenizer(recipe)
    report = checked(recipe)
    assert report.choice is not None
    assert report.choice.origin == f"of the run folder {tmp_path / 'run'}"
    other = checked(long_recipe(corpus, tmp_path / "run", tokenizer={"vocab_size": 100}))
    assert other.choice is not None
    assert other.choice.origin.startswith("learnt for this check")
    assert other.choice.tokenizers.source.size == 100
    given = checked(long_recipe(corpus, tmp_path / "new"), replace(OPTIONS, tokenizer=tmp_path / "run"))
    assert given.choice is not None
    assert given.choice.origin == f"of {tmp_path / 'run'}"


# What was planted is found and named


def test_a_planted_leak_is_found_and_named(corpus, tmp_path):
    held_out = (corpus.folder / "test.source").read_text("utf-8").split("\n")[6]
    target = (corpus.folder / "test.target").read_text("utf-8").split("\n")[6]
    lines_to(corpus.folder / "train.source", [*corpus.source, held_out])
    lines_to(corpus.folder / "train.target", [*corpus.target, target])
    valid = (corpus.folder / "valid.source").read_text("utf-8").split("\n")[2]
    lines_to(corpus.folder / "extra.source", [valid.upper().replace(".", " !")])
    lines_to(corpus.folder / "extra.target", ["uncommon words"])
    values = long_recipe(corpus, tmp_path / "run").model_dump()
    extra = {"name": "extra", "source": "extra.source", "target": "extra.target"}
    values["data"]["train"] = [*values["data"]["train"], extra]
    report = checked(Recipe.model_validate(values))
    assert kinds(report) == [("leak", "valid tiny"), ("leak", "test tiny")]
    valid_leak, test_leak = report.warnings
    assert "sources 0 exact, 1 but for case and punctuation" in valid_leak.message
    assert "pairs 1 exact, 1 but for case and punctuation" in test_leak.message
    assert [(one.line, one.remark) for one in valid_leak.examples] == [
        (3, "source, normalised, in train extra line 1"),
    ]
    assert [(one.line, one.remark, one.text) for one in test_leak.examples] == [
        (7, "pair, exact, in train tiny line 901", f"{held_out} ||| {target}")
    ]
    assert "warning 2 (leak), test tiny: of its 40 sentences" in render(report)


def test_a_planted_shift_is_found_and_named(corpus, tmp_path):
    target = [*corpus.target[:300], "kort mirulo.", *corpus.target[300:700], *corpus.target[701:]]
    lines_to(corpus.folder / "train.target", target)
    report = checked(long_recipe(corpus, tmp_path / "run"))
    (slip,) = [finding for finding in report.warnings if finding.kind == "slip"]
    assert slip.where == "train tiny"
    assert abs(slip.examples[0].line - 301) <= 15
    assert "the target is 1 line too late" in slip.message


def test_a_swapped_tokenizer_is_found_and_named(runs, tiny_tokenizers):
    recipe = runs.recipe(training={"max_steps": 1, "validate_every_steps": 1})
    pipeline.train(recipe)
    run = Path(recipe.run_dir)
    assert not [one for one in checked(recipe).findings if one.kind == "tokenizer"]
    tiny_tokenizers.save(run)
    found = [one for one in checked(recipe).findings if one.kind == "tokenizer"]
    assert [one.severity for one in found] == ["error", "warning"]
    assert str(run / "tokenizer.model") in found[0].message
    assert "step-00000001/state.json" in found[0].message
    assert str(run / "shards" / "report.json") in found[1].message


@pytest.mark.parametrize("file", ["checkpoints/step-00000001/state.json", "shards/report.json"])
def test_damaged_records_of_a_run_are_told(runs, file):
    recipe = runs.recipe(training={"max_steps": 1, "validate_every_steps": 1})
    pipeline.train(recipe)
    path = Path(recipe.run_dir) / file
    path.write_bytes(path.read_bytes()[:-40])
    (found,) = [one for one in checked(recipe).findings if one.where == "run_dir"]
    assert str(path) in found.message


def test_a_vocabulary_that_the_corpus_cannot_fill_is_an_error_with_the_largest(corpus, tmp_path):
    report = checked(long_recipe(corpus, tmp_path / "run", tokenizer={"vocab_size": 8000}))
    (error,) = report.errors
    assert "tokenizer.vocab_size is 8000, but the corpus allows at most" in error.message
    assert report.batches is None


def test_a_sample_too_small_for_the_vocabulary_is_told(corpus, tmp_path):
    recipe = long_recipe(corpus, tmp_path / "run", tokenizer={"vocab_size": 8000})
    report = checked(recipe, replace(OPTIONS, sample=200))
    assert report.errors == []
    assert report.choice is not None
    assert "instead of 8,000, which the sample cannot fill" in report.choice.origin
    assert report.parameters == checked(long_recipe(corpus, tmp_path / "run")).parameters + 16 * (8000 - 120)


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no pair left": ({"filters": {"max_length": 1}}, "error", "filters"),
    "most pairs lost": ({"filters": {"max_length": 12}}, "warning", "filters"),
    "ends early": ({"training": {"max_steps": 2}}, "warning", "short"),
    "no validation": ({"data": {"valid": []}}, "warning", "no_valid"),
    "rare characters": ({"tokenizer": {"character_coverage": 0.98, "vocab_size": 64}}, "warning", "unknown"),
    "no Japanese tokenizer": ({"languages": {"target": "ja"}}, "warning", "script"),
}


@pytest.mark.parametrize("name", CASES)
def test_findings_of_settings(corpus, tmp_path, name):
    sections, severity, kind = CASES[name]
    values = long_recipe(corpus, tmp_path / "run").model_dump()
    for section, settings in sections.items():
        values[section] |= settings
    report = checked(Recipe.model_validate(values))
    assert kind in [one.kind for one in report.findings if one.severity == severity]
    assert all(one.remedy for one in report.findings)


def test_memory_and_disk_that_do_not_suffice_are_told(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("mtkit.check.size.free_space", lambda folder: 1000)
    small = replace(OPTIONS, machine=lambda recipe: replace(MACHINE, memory=1000, caution="it is slow"))
    report = checked(long_recipe(corpus, tmp_path / "run"), small)
    assert [one.kind for one in report.warnings] == ["precision", "memory", "disk"]


def test_a_device_that_is_not_there_is_an_error(corpus, tmp_path):
    def machine(recipe: Recipe) -> Machine:
        raise UsageError("device cuda is not there; visible: cpu", "device cpu runs without a GPU")

    report = checked(long_recipe(corpus, tmp_path / "run"), Options(machine=machine))
    assert kinds(report) == [("device", "training")]
    assert report.memory is not None


def test_training_corpora_with_errors_are_told_and_the_rest_is_left_out(corpus, tmp_path):
    lines_to(corpus.folder / "train.target", corpus.target[:-1])
    (corpus.folder / "test.source").unlink()
    report = checked(long_recipe(corpus, tmp_path / "run"))
    assert kinds(report)[:2] == [("line_counts", "train tiny"), ("file", "test tiny")]
    assert report.choice is None
    assert any("training corpora have errors" in reason for reason in report.skipped)
    assert "2 errors" in render(report)
    assert report.to_json()["ok"] is False


# A pair of files


def test_a_pair_of_files_needs_no_recipe(corpus, tmp_path, tiny_tokenizers):
    files = corpus.folder / "train.source", corpus.folder / "train.target"
    report = check_pair(*files, ("en", None), Options())
    assert kinds(report) == []
    assert report.corpora[0].pairs == 900
    assert report.skipped
    tiny_tokenizers.save(tmp_path)
    with_tokens = check_pair(*files, ("en", None), Options(tokenizer=tmp_path, sample=100))
    assert [one.pairs for one in with_tokens.tokens] == [100]
    assert "100 of 900" in render(with_tokens)


# The quick part at the start of training


def test_training_begins_with_the_quick_part(runs, caplog):
    recipe = runs.recipe(training={"max_steps": 0})
    pipeline.train(recipe)
    assert "pairs repeat an earlier one" in caplog.text
    caplog.clear()
    pipeline.train(recipe)
    assert "pairs repeat an earlier one" not in caplog.text, "a run that goes on has heard it"


def test_the_quick_part_reads_the_beginning_only(corpus, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("mtkit.check.run._QUICK_BYTES", 1000)
    monkeypatch.setattr("mtkit.check.reading._BLOCK_BYTES", 500)
    recipe = long_recipe(corpus, tmp_path / "run")
    lines_to(corpus.folder / "train.source", [f"<b>{corpus.source[0]}</b>", *corpus.source[1:-1], "<b>the baker</b>"])
    with caplog.at_level("INFO"):
        (finding,) = preflight(recipe)
    assert finding.kind == "tags"
    assert finding.count == 1
    assert "of train tiny only the beginning was looked at" in caplog.text


def test_the_quick_part_leaves_errors_to_the_stages(corpus, tmp_path):
    lines_to(corpus.folder / "train.target", corpus.target[:-1])
    (corpus.folder / "valid.source").unlink()
    assert preflight(long_recipe(corpus, tmp_path / "run")) == []


# The command


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mtkit", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, cwd=cwd)


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def project(corpus, tmp_path) -> Path:
    """A folder with my.yaml."""
    recipe = long_recipe(corpus, tmp_path / "run")
    (tmp_path / "my.yaml").write_text(recipe.dump(), "utf-8")
    return tmp_path


def test_the_command_reports_and_writes_nothing(project):
    before = snapshot(project)
    result = run("my.yaml", "--json", "--set", "training.max_steps=77", cwd=project)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["batches"]["updates_to_the_end"] == 77
    assert report["machine"]["device"] == "cpu"
    assert report["corpora"][0]["pairs"] == 900
    assert snapshot(project) == before


def test_the_command_refuses_with_2_and_still_reports(project):
    (project / "data" / "valid.source").unlink()
    before = snapshot(project)
    result = run("my.yaml", "--set", "training.device=cuda:7", cwd=project)
    assert result.returncode == 2
    assert "valid.source: no such file" in result.stdout
    assert "device cuda:7 is not there; visible: cpu" in result.stdout
    assert result.stderr.count("mtkit: error:") == 1
    assert "valid.source: no such file" in result.stderr
    assert "and 1 more error" in result.stderr
    assert "Traceback" not in result.stderr
    assert snapshot(project) == before


def test_the_command_takes_two_files_without_torch(project):
    source, target = (
        shutil.copy(project / "data" / f"train.{side}", project / f"c.{code}")
        for side, code in (("source", "ru"), ("target", "de"))
    )
    code = (
        "import sys, atexit; sys.argv = ['mtkit', 'check', *sys.argv[1:]]\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from mtkit.cli.app import main; main()"
    )
    command = [sys.executable, "-c", code, source, target]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "False\n"
    assert "900 of 900 (100.00 %) lines with letters mostly of another script than Cyrillic" in result.stdout
    assert "1 warning" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Missing argument"),
        (("a", "b", "c"), "3 files are given"),
        (("data/train.source", "data/train.target", "--set", "training.max_steps=1"), "--set changes a recipe"),
        (("my.yaml", "--source-language", "de"), "the languages of a recipe"),
        (("my.yaml", "--tokenizer", "nowhere"), "nowhere"),
        (("data/train.source", "data/train.target", "--tokenizer", "data"), "data"),
        (("data/train.source", "gone"), "gone: no such file"),
        (("data/train.source", "data"), "data: is a folder"),
        (("my.yaml", "--sample", "0"), "--sample"),
    ],
)
def test_wrong_uses_are_refused(project, arguments, told):
    before = snapshot(project)
    result = run(*arguments, cwd=project)
    assert result.returncode == 2, result.stdout + result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert snapshot(project) == before
