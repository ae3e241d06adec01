"""COMET behind its extra: told clearly when it is missing; with a stand-in for the package, one metric among others."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from mtkit.cli.eval import evaluate
from mtkit.comet import Comet
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.significance import Trial, score_systems

SOURCES, REFERENCES = ["ein Tor", "zwei Tore", "drei Tore"], ["one gate", "two gates", "three gates"]
SYSTEMS = {"old": ["a door", "two doors", "three"], "new": ["one gate", "two gates", "three dogs"]}


class StandIn(types.ModuleType):
    """The package's two functions and its model: the score is the share of words that the reference has."""

    def __init__(self) -> None:
        super().__init__("comet")
        self.__version__ = "9.9"
        self.calls: list[list[dict[str, str]]] = []

    def download_model(self, name: str) -> str:
        if name != "Unbabel/wmt22-comet-da":
            raise KeyError(f"Model '{name}' not supported by COMET.")
        return "/models/it"

    def load_from_checkpoint(self, path: str) -> Any:
        self.loaded = path
        return self

    def predict(self, rows: list[dict[str, str]], batch_size: int, gpus: int) -> Any:
        print("what a library prints")
        assert (batch_size, gpus) == (16, gpus)
        self.calls.append(rows)
        scores = [len(set(r["mt"].split()) & set(r["ref"].split())) / len(r["mt"].split()) for r in rows]
        return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "comet", stand_in)
    return stand_in


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"source": SOURCES, "reference": REFERENCES, **SYSTEMS}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: str(tmp_path / name) for name in texts}


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(MtkitError, match="needs the package unbabel-comet") as caught:
        Comet(SOURCES)
    assert "[comet]" in str(caught.value.hint)


def test_a_model_that_is_not_there_is_an_error(package: StandIn) -> None:
    with pytest.raises(MtkitError, match="COMET's model Unbabel/none cannot be loaded"):
        Comet(SOURCES, "Unbabel/none")


def test_a_checkpoint_is_taken_as_it_is(package: StandIn, tmp_path: Path) -> None:
    (tmp_path / "my.ckpt").write_bytes(b"")
    Comet(SOURCES, str(tmp_path / "my.ckpt"))
    assert package.loaded == str(tmp_path / "my.ckpt")


def test_the_score_is_the_mean_over_sentences_and_references(package: StandIn) -> None:
    metric = Comet(SOURCES)
    assert metric.corpus_score(SYSTEMS["new"], [REFERENCES]).score == pytest.approx(100 * 2.5 / 3)
    assert package.calls[0][2] == {"src": "drei Tore", "mt": "three dogs", "ref": "three gates"}
    other = ["no"] * 3
    assert metric.corpus_score(SYSTEMS["new"], [REFERENCES, other]).score == pytest.approx(50 * 2.5 / 3)
    assert len(package.calls) == 2, "what was scored once is known"
    signature = metric.get_signature().format()
    assert signature == "nrefs:2|model:Unbabel/wmt22-comet-da|scale:100|version:9.9"


def test_intervals_and_p_values_are_those_of_every_metric(package: StandIn) -> None:
    found = score_systems({"comet": Comet(SOURCES)}, SYSTEMS, [REFERENCES], 100, Trial("bootstrap", 100))
    old, new = (system.scores.metrics["comet"] for system in found.systems)
    assert (old.label, new.label) == ("COMET", "COMET")
    assert old.half_width is not None
    assert old.half_width > 0
    assert 0 < found.systems[1].p_values["comet"] <= 1
    assert "bs:100|seed:12345|model:" in new.signature
    assert len(package.calls) == 2


def test_sources_of_another_length_are_refused(package: StandIn) -> None:
    with pytest.raises(DataError, match="2 source lines, 3 hypotheses"):
        Comet(SOURCES[:2]).corpus_score(SYSTEMS["new"], [REFERENCES])


def test_eval_with_comet(package: StandIn, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from mtkit.cli.eval import Metric

    both = [Metric.COMET, Metric.CHRF]
    evaluate(files["new"], [files["reference"]], metric=both, source=files["source"], as_json=True)
    captured = capsys.readouterr()
    metrics = json.loads(captured.out)["metrics"]
    assert set(metrics) == {"comet", "chrf"}
    assert metrics["comet"]["score"] == pytest.approx(100 * 2.5 / 3)
    assert "what a library prints" in captured.err
    evaluate(files["new"], [files["reference"]], metric=[Metric.COMET], source=files["source"])
    assert "COMET" in capsys.readouterr().out


def test_what_does_not_go_together(package: StandIn, files: dict[str, str], tmp_path: Path) -> None:
    from mtkit.cli.eval import Metric

    with pytest.raises(UsageError, match="reads the source too"):
        evaluate(files["new"], [files["reference"]], metric=[Metric.COMET])
    with pytest.raises(UsageError, match="belong to COMET"):
        evaluate(files["new"], [files["reference"]], source=files["source"])
    (tmp_path / "short").write_text("ein Tor\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"the references: 3 lines, .*short: 1 line"):
        evaluate(files["new"], [files["reference"]], metric=[Metric.COMET], source=str(tmp_path / "short"))
