"""p-values and intervals of several systems equal the sacrebleu command's, and are read with care."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from sacrebleu_command import printed

from mtkit import significance
from mtkit.errors import MtkitError, UsageError
from mtkit.evaluate import score
from mtkit.metrics import make_metrics
from mtkit.sections.data import Evaluation
from mtkit.significance import Contest, Method, Trial, score_systems, small_differences

WORDS = ["the", "red", "old", "mill", "pond", "goose", "baker", "sees", "carries", "near", "behind", "today", "slowly"]


def systems(sentences: int = 12) -> tuple[dict[str, list[str]], list[str]]:
    """Three systems, each worse than the one before, and their reference."""
    chance = random.Random(3)
    reference = [" ".join(chance.choices(WORDS, k=9)) + "." for _ in range(sentences)]

    def spoilt(rate: float) -> list[str]:
        return [
            " ".join(chance.choice(WORDS) if chance.random() < rate else word for word in line.split(" "))
            for line in reference
        ]

    return {"good": spoilt(0.2), "fair": spoilt(0.35), "bad": spoilt(0.8)}, reference


def contest(method: Method | None, trials: int = 100, resamples: int = 0, **evaluation: Any) -> Contest:
    named, reference = systems()
    section = Evaluation(**({"metrics": ("bleu", "chrf", "ter")} | evaluation))
    trial = Trial(method, trials) if method else None
    return score_systems(make_metrics(section, "en"), named, [reference], resamples, trial)


@pytest.mark.parametrize("method", ["bootstrap", "randomization"])
@pytest.mark.parametrize("seed", ["", "99"])
def test_p_values_and_intervals_equal_the_sacrebleu_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, seed: str
) -> None:
    """sacrebleu --paired-bs and --paired-ar; their JSON fails on its own numbers, LaTeX has a line a system."""
    if seed:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    short = {"bootstrap": "bs", "randomization": "ar"}[method]
    named, reference = systems()
    options = ["-m", "bleu", "chrf", "ter", f"--paired-{short}", f"--paired-{short}-n", "100", "--format", "latex"]
    lines = printed(tmp_path, list(named.values()), [reference], *options, seed=seed).split("\n")
    theirs = [line.replace("\\pm", "±").replace("\\", "") for line in lines if "system" in line and "&" in line]
    ours = contest(method, 100, 100)
    assert [system.name for system in ours.systems] == ["good", "fair", "bad"]
    assert ours.signatures is not None
    for system, line in zip(ours.systems, theirs, strict=True):
        for (name, one), cell in zip(system.scores.metrics.items(), line.split("&")[1:], strict=True):
            interval = f" ({one.mean:.12f} ± {one.half_width:.12f})" if method == "bootstrap" else ""
            p_value = f" (p = {system.p_values[name]:.4f})" if system.p_values else ""
            assert cell.strip().replace("$", "").removesuffix("*") == f"{one.score:.12f}{interval}{p_value}"
            assert f"{one.label:<10} {ours.signatures[name]}" in "\n".join(lines)
    assert f"{short}:100|seed:{seed or 12345}" in ours.signatures["chrf"]


def test_each_system_has_the_figures_it_has_alone() -> None:
    named, reference = systems()
    for system in contest(None, resamples=50).systems:
        alone = score(named[system.name], [reference], Evaluation(metrics=("bleu", "chrf", "ter")), resamples=50)
        assert system.scores == alone
        assert system.p_values == {}


@pytest.mark.parametrize("method", [None, "bootstrap", "randomization"])
def test_table_and_dictionary_hold_everything(method: Method | None) -> None:
    found = contest(method, resamples=100, metrics=("bleu", "ter"))
    table, plain = found.render(), json.loads(json.dumps(found.as_dict()))
    assert [row["name"] for row in plain["systems"]] == ["good", "fair", "bad"]
    base = found.systems[0].scores.metrics
    for row, system in zip(plain["systems"], found.systems, strict=True):
        assert system.name in table
        for name, metric in system.scores.metrics.items():
            assert f"{metric.score:.2f} ({metric.interval})" in table
            assert row["metrics"][name]["score"] == metric.score
            assert f"{metric.label}: {metric.signature}" in table
            if system.p_values:
                assert row["metrics"][name]["p_value"] == system.p_values[name]
                assert row["metrics"][name]["difference"] == metric.score - base[name].score
                assert f"{metric.score - base[name].score:+.2f}, p = {system.p_values[name]:.4f}" in table
    assert ("good (baseline)" in table) == ("baseline" in plain) == (method is not None)
    if method:
        assert plain["baseline"] == "good"
        assert plain["paired_test"]["method"] == method
        assert plain["paired_test"]["trials"] == 100
        assert ("p-value: nrefs:1|ar:100|" in table) == (method == "randomization")


def spoilt_a_little(trial: Trial | None, resamples: int = 200) -> Contest:
    """One system, and the same with one word of every second sentence spoilt: a small difference, far from chance."""
    named, reference = systems(40)
    worse = [line if number % 2 else "soot " + line.split(" ", 1)[1] for number, line in enumerate(named["good"])]
    metrics = make_metrics(Evaluation(metrics=("chrf",)), "en")
    return score_systems(metrics, {"good": named["good"], "worse": worse}, [reference], resamples, trial)


def test_a_difference_within_the_interval_is_doubted() -> None:
    doubtful, confirmed = small_differences(spoilt_a_little(None))
    assert confirmed == []
    (text,) = doubtful
    assert text.startswith("chrF2: worse and good differ by")
    assert text.endswith("it may be chance (--baseline tests that)")
    assert small_differences(spoilt_a_little(None, resamples=0)) == ([], []), "no intervals, nothing to compare with"


def test_the_paired_test_decides_over_the_interval() -> None:
    doubtful, confirmed = small_differences(spoilt_a_little(Trial("bootstrap", 200)))
    assert (doubtful, len(confirmed)) == ([], 1)
    assert "over the same sentences it is significant all the same (p = 0.0" in confirmed[0]


def test_no_difference_is_no_finding() -> None:
    """sacreBLEU gives a system that differs in nothing from the baseline the smallest p there is."""
    named, reference = systems()
    same = {"one": named["good"], "two": list(named["good"])}
    found = score_systems(make_metrics(Evaluation(), "en"), same, [reference], 100, Trial("bootstrap", 100))
    assert found.systems[1].p_values["bleu"] == 1 / 101
    assert "p = 0.0099*" not in found.render()
    doubtful, confirmed = small_differences(found)
    assert len(doubtful) == 2
    assert confirmed == []


@pytest.mark.parametrize("method", ["bootstrap", "randomization"])
def test_a_test_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch, method: Method) -> None:
    monkeypatch.setattr(significance, "MEMORY_LIMIT", 10_000)
    with pytest.raises(MtkitError, match="test of 12 sentences with 100") as caught:
        contest(method)
    option, number = str(caught.value.hint).split()[:2]
    assert option == {"bootstrap": "--resamples", "randomization": "--trials"}[method]
    assert contest(method, int(number)).trial == Trial(method, int(number)), "what the hint says does fit"


def test_seeds_that_the_paired_tests_do_not_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "x")
    with pytest.raises(UsageError, match="SACREBLEU_SEED=x"):
        contest("bootstrap")
    monkeypatch.setenv("SACREBLEU_SEED", "0")
    contest("bootstrap", 2)
    assert "take seed 0 for none" in caplog.text
