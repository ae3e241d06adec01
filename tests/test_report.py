"""`mtkit report`: one file with all that a run folder tells, whatever is in it, and a word on what is not."""

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TinyCorpus
from toy_run import Runs

from mtkit import pipeline
from mtkit.cli.report import report
from mtkit.errors import DataError
from mtkit.evaluate import score
from mtkit.files import append_json_line, read_json, read_json_lines, read_lines, write_json
from mtkit.folders import RunFolder
from mtkit.heatmaps.record import Recorder
from mtkit.recipe import Recipe
from mtkit.report.build import TABLE_ROWS, Options, build, embedded
from mtkit.report.chart import BOTTOM, HEIGHT, TOP, axes, draw, nice_ticks
from mtkit.report.facts import gather, samples, status
from mtkit.report.series import MOST_POINTS, Curve, Panel, panels, read_history, standing, thinned
from mtkit.report.watch import BUDGET

TRAINING = {"max_steps": 12, "validate_every_steps": 6, "log_every_steps": 2, "samples": 2}
EVIL = '</script><script>document.title="stolen"</script><img src=x onerror="document.title=\'stolen\'">&lt;b&gt;'


@pytest.fixture(scope="module")
def finished(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A whole run, test scores with intervals included. Read only."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("finished"))
    pipeline.run(runs.recipe(training=TRAINING, evaluation={"resamples": 100}))
    return RunFolder(runs.folder / "run")


@pytest.fixture
def run(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    return RunFolder(Path(shutil.copytree(finished.path, tmp_path / "run")))


class Reader(HTMLParser):
    """The elements of a page, its visible text, and its payload."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.payload: dict[str, Any] = {}
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag != "script" or dict(attrs).get("id") != "payload" else "payload"

    def handle_data(self, data: str) -> None:
        if self._inside == "payload" and data.strip():
            self.payload = json.loads(data)
            self._inside = ""
        elif self._inside not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def page_of(run: RunFolder, sentences: int = 0) -> Reader:
    return Reader(build(run.path, Options(sentences, "cpu")))


# A finished run


def test_the_page_holds_all_parts_of_a_finished_run(finished: RunFolder) -> None:
    page = page_of(finished, 2)
    recipe = Recipe.load(finished.recipe)
    assert "Not in this report" not in page.text
    assert "training complete, step 12" in page.text
    for metric in read_json(finished.scores)["tests"]["tiny"]["metrics"].values():
        assert f"{metric['score']:.2f}" in page.text
        assert f"{metric['mean']:.2f} ± {metric['half_width']:.2f}" in page.text
        assert metric["signature"] in page.text
    assert recipe.dump() in page.text
    for row in read_json(finished.shards / "report.json")["corpora"]:
        assert f"{row['source_tokens']:,}" in page.text
        assert row["target_sha256"] in page.text
    assert read_json(finished.model / "lineage.json")["weights_sha256"] in page.text
    assert "✗" not in page.text
    for kind, rows in samples(read_history(finished), 9, 9):
        assert f"{kind:,}" in page.text
        for row in rows:
            assert all(text in page.text for text in row)
    headings = [chart["curves"][0]["name"] for chart in page.payload["charts"]]
    assert headings == ["training", "training", "BLEU", "learning rate", "gradient norm", "tokens/s"]


def test_the_page_needs_nothing_from_outside(finished: RunFolder) -> None:
    html = build(finished.path, Options(1, "cpu"))
    page = Reader(html)
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        if "href" in attributes:
            assert re.match(r"#|data:,$", str(attributes["href"]))
    assert page.count("link") == 1
    assert "@import" not in html
    assert "url(" not in html
    policy = next(row["content"] for _, row in page.elements if row.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'")
    assert "unsafe" not in str(policy)


def test_the_weights_in_the_page_are_those_of_the_model(finished: RunFolder) -> None:
    page = page_of(finished, 2)
    recorder = Recorder.load(finished.model, "cpu")
    assert len(page.payload["sentences"]) == 2
    for one in page.payload["sentences"]:
        maps = recorder.record(one["source"])
        assert maps is not None
        assert (one["target"], one["sourcePieces"]) == (maps.target, list(maps.source_pieces))
        for kind, text in one["weights"].items():
            numbers = np.frombuffer(base64.b64decode(text), "<u2").reshape(maps.weights[kind].shape) / 65535
            np.testing.assert_allclose(numbers, maps.weights[kind], atol=1e-5)
            assert one["layers"][kind] == len(maps.weights[kind])


def test_a_report_keeps_below_two_megabytes_however_much_is_asked_for(
    finished: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(build(finished.path, Options(40, "cpu")).encode("utf-8")) < 2_000_000
    assert BUDGET < 1_500_000
    monkeypatch.setattr("mtkit.report.watch.BUDGET", 20_000)
    shown = page_of(finished, 40).payload["sentences"]
    assert 0 < len(shown) < 40
    assert sum(len(text) for one in shown for text in one["weights"].values()) <= 20_000
    assert f"{len(shown)} sentences of 40 fit into the page" in caplog.text


def test_the_command_writes_the_file_and_says_where(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    report(run.path, sentences=0)
    assert capsys.readouterr().out == f"{run.path / 'report.html'}\n"
    other = run.path / "elsewhere" / "page.html"
    report(run.path, other, sentences=0)
    assert other.read_text("utf-8").startswith("<!doctype html>")


def test_without_attention_torch_is_not_needed(finished: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from mtkit.report.build import Options, build;"
        f"build(Path({str(finished.path)!r}), Options(0)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Scores


def test_an_interval_that_is_not_there_is_computed_as_eval_does(run: RunFolder, tiny_corpus: TinyCorpus) -> None:
    """As for runs that were tested by an earlier version."""
    document = read_json(run.scores)
    for metric in document["tests"]["tiny"]["metrics"].values():
        del metric["mean"], metric["half_width"]
    write_json(run.scores, document)
    lines = [list(read_lines(path)) for path in (run.test / "tiny.txt", tiny_corpus.folder / "test.target")]
    expected = score(lines[0], [lines[1]], target_language="xx", resamples=100).metrics["bleu"]
    assert f"{expected.mean:.2f} ± {expected.half_width:.2f}" in page_of(run).text


def test_references_that_are_gone_or_changed_give_no_interval(run: RunFolder, tmp_path: Path) -> None:
    document = read_json(run.scores)
    for metric in document["tests"]["tiny"]["metrics"].values():
        del metric["mean"], metric["half_width"]
        metric["score"] += 1
    write_json(run.scores, document)
    assert "Interval of tiny: references or translations have changed" in page_of(run).text
    recipe = run.recipe.read_text("utf-8")
    run.recipe.write_text(re.sub("  root: .*", f"  root: {tmp_path / 'gone'}", recipe), "utf-8")
    page = page_of(run, 2)
    assert re.search("Interval of tiny: .*no such file", page.text)
    assert page.payload["sentences"], "taken from the validation samples"


def test_scores_of_other_weights_are_not_shown(run: RunFolder) -> None:
    document = read_json(run.scores)
    write_json(run.scores, {**document, "weights_sha256": "0" * 64})
    assert "scores.json is about other weights than the model's" in page_of(run).text


# Runs that are not finished, or not whole


def truncate(run: RunFolder, kinds: tuple[str, ...]) -> None:
    """Leave only events of these kinds in the log."""
    rows = [row for row in read_json_lines(run.metrics) if row["event"] in kinds]
    run.metrics.unlink()
    for row in rows:
        append_json_line(run.metrics, row)


def delete(*names: str) -> Callable[[RunFolder], None]:
    def act(run: RunFolder) -> None:
        for name in names:
            path = run.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


UNFINISHED: dict[str, tuple[Callable[[RunFolder], None], list[str]]] = {
    "not averaged": (
        delete("model", "scores.json"),
        ["the newest checkpoint stands in for it", "scores.json is not there"],
    ),
    "no checkpoint": (
        delete("model", "scores.json", "checkpoints"),
        ["there is no checkpoint yet", "Attention: it needs a model"],
    ),
    "only binarized": (
        delete("model", "scores.json", "checkpoints", "metrics.jsonl", "recipe.yaml", "test"),
        ["Recipe: recipe.yaml is not there", "metrics.jsonl has no update yet", "there was no validation yet"],
    ),
    "no shards": (delete("shards"), ["Data report: shards/report.json is not there"]),
    "no validation": (
        lambda run: truncate(run, ("start", "train")),
        ["Validation scores: there was no validation yet"],
    ),
    "no samples": (lambda run: truncate(run, ("start", "train", "valid")), ["Validation samples: none were kept"]),
    "broken report": (lambda run: (run.shards / "report.json").write_text("{", "utf-8") and None, ["Data report: "]),
    "broken recipe": (lambda run: run.recipe.write_text("model: 3\n", "utf-8") and None, ["Recipe: "]),
    "broken weights": (
        lambda run: (run.model / "model.safetensors").write_bytes(b"no") and None,
        ["Model: ", "cannot be read as safetensors"],
    ),
    "no tokenizer": (delete("tokenizer.model"), ["Tokenizer: "]),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_what_is_missing_is_said_and_the_rest_is_shown(run: RunFolder, name: str) -> None:
    act, expected = UNFINISHED[name]
    act(run)
    page = page_of(run, 1)
    assert "Not in this report" in page.text
    for words in expected:
        assert words in page.text
    assert page.count("section") == 8


def test_a_run_that_is_under_way_says_so(run: RunFolder) -> None:
    truncate(run, ("start", "train", "valid", "samples", "save"))
    assert "under way or cut off at step 12" in page_of(run).text


@pytest.mark.parametrize("place", ["missing", "empty", "model"])
def test_what_is_no_run_folder_is_refused(run: RunFolder, tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    folder = {"missing": tmp_path / "missing", "empty": tmp_path / "empty", "model": run.model}[place]
    with pytest.raises(DataError):
        build(folder, Options(0))


def test_a_tokenizer_that_was_swapped_shows_in_the_lineage(run: RunFolder, tiny_corpus: TinyCorpus) -> None:
    document = read_json(run.shards / "report.json")
    write_json(run.shards / "report.json", {**document, "tokenizer_sha256": "f" * 64})
    assert "✗ differs from the run's" in page_of(run).text


# Text that would be more than text


def test_text_stays_text(run: RunFolder) -> None:
    """In samples, in what is embedded for the script, in events, and in the names of files and folders."""
    row = {"step": 12, "time": EVIL, "samples": [[EVIL, f"{EVIL}!", EVIL]]}
    append_json_line(run.metrics, {"event": "samples", **row})
    append_json_line(run.metrics, {"event": "skip", "step": 12, "reason": EVIL})
    recipe = run.recipe.read_text("utf-8")
    run.recipe.write_text(re.sub("  root: .*", "  root: '<img src=x>'", recipe), "utf-8")
    renamed = RunFolder(run.path.rename(run.path.with_name("<img src=x onerror=1>")))
    plain = build(renamed.path, Options(0))
    page = Reader(build(renamed.path, Options(3, "cpu")))
    assert EVIL in [one["source"] for one in page.payload["sentences"]]
    assert EVIL in page.text
    assert page.count("script") == Reader(plain).count("script") == 2
    assert page.count("img") == page.count("b") - Reader(build(renamed.path, Options(0))).count("b") == 0


@pytest.mark.parametrize("text", [EVIL, "<!--<script>", "\u2028\u2029", "\\", "]]>", "é北"])
def test_embedded_json_is_the_same_value_and_ends_nothing(text: str) -> None:
    written = embedded({text: [text]})
    assert json.loads(written) == {text: [text]}
    assert not re.search("[<>&\u2028\u2029]", written)


# Curves


def test_what_was_undone_is_not_history() -> None:
    rows = [{"event": "train", "step": 1}, {"event": "start", "step": 0}, {"event": "train", "step": 5}]
    rows += [{"event": "resume", "step": 3}, {"event": "train", "step": 4}]
    assert [(row["event"], row["step"]) for row in standing(rows)] == [("start", 0), ("resume", 3), ("train", 4)]


def test_a_damaged_log_is_read_as_far_as_it_goes(run: RunFolder) -> None:
    with open(run.metrics, "ab") as stream:
        stream.write(b'[1]\n{"event": "train", "step": "x"}\n{"event": "train"}\n\xff\n{"event": "tr')
    assert len(read_history(run)) == len(read_json_lines(run.metrics)) - 3
    build(run.path, Options(0))


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(step, 1.0) for step in range(10_000)]
    points[5_001] = (5_001, 99.0)
    points[7_003] = (7_003, -5.0)
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS
    assert {points[0], points[-1], points[5_001], points[7_003]} <= set(kept)
    assert list(kept) == sorted(kept)
    assert thinned(points[:50]) == tuple(points[:50])


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.1, 0.11), (-3, 8), (1e-9, 2e-9), (5, 5), (0, 0), (0, 123456), (-2, -1)]
)
def test_ticks_are_few_and_hold_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values", [[1.0], [2.0, 2.0], [0.0, 0.0], [1e-7, 3e4], [-1.0, 4.0], [10.0, 11.0], [3e5, 2.0, 7.0]]
)
def test_every_curve_stays_inside_its_chart(values: list[float], log: bool) -> None:
    panel = Panel("x", "", (Curve("c", tuple(enumerate(values))),), log)
    x, y = axes(panel)
    for step, value in enumerate(values):
        assert min(x.start, x.end) - 1e-6 <= x.place(step) <= max(x.start, x.end) + 1e-6
        assert min(y.start, y.end) - 1e-6 <= y.place(value) <= max(y.start, y.end) + 1e-6
    picture = draw(panel)
    assert "nan" not in picture
    for height in map(float, re.findall(r'<line x1="46" x2="368" y1="([^"]+)"', picture)):
        assert TOP <= height <= HEIGHT - BOTTOM, "a grid line outside the chart"
    assert picture.count("<line") > 2


def test_values_that_are_no_numbers_are_left_out() -> None:
    rows = [{"event": "valid", "step": step, "nll": nll} for step, nll in ((1, None), (2, float("inf")), (3, 2.0))]
    assert [panel.curves for panel in panels(rows)] == [(Curve("validation", ((3, 2.0),)),)]
    assert panels([]) == []


def test_samples_over_time_are_bounded() -> None:
    rows = [{"event": "samples", "step": step, "samples": [["a", "b", "c"]] * 9} for step in range(1, 101)]
    found = samples(rows, 4, 12)
    assert [step for step, _ in found][:: len(found) - 1] == [1, 100]
    assert len(found) == 12
    assert all(len(sentences) == 4 for _, sentences in found)
    assert samples([{"event": "samples", "step": 1, "samples": [[1, 2, 3], "x", ["a"]]}], 4, 12) == []


def test_tables_of_long_runs_are_bounded(run: RunFolder) -> None:
    with open(run.metrics, "a", encoding="utf-8") as stream:
        for step in range(13, 1000):
            for kind in ("valid", "skip"):
                stream.write(json.dumps({"event": kind, "step": step, "bleu": step / 50, "nll": 1.0}) + "\n")
    page = page_of(run)
    assert page.count("tr") < 2 * TABLE_ROWS + 60
    assert "best validation BLEU\n      19.98 at step 999" in re.sub(r"\n\s*\n\s*", "\n      ", page.text)


def test_status_tells_how_a_run_ended() -> None:
    start = {"event": "start", "step": 0, "time": "noon"}
    assert status([start, {"event": "end", "step": 9, "reason": "max_steps"}]) == ("training complete, step 9", True)
    assert status([start, {"event": "end", "step": 9, "reason": "stopped by SIGINT"}])[1] is False
    assert "last heard of noon" in status([start])[0]


def test_gathering_changes_nothing(finished: RunFolder) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    gather(finished.path)
    build(finished.path, Options(1, "cpu"))
    assert {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")} == before
