"""Scores equal the sacrebleu command's; what the command or its API lets through in silence is refused."""

import json
import logging
from pathlib import Path
from typing import get_args

import pytest
from sacrebleu_command import TEXTS, command

from mtkit import evaluate
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.evaluate import MetricScore, check_lengths, score
from mtkit.metrics import bleu_tokenizer, check_setup
from mtkit.sections.data import Evaluation

ALL = get_args(get_args(Evaluation.model_fields["metrics"].annotation)[0])


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("language", TEXTS)
def test_every_figure_equals_the_sacrebleu_command(tmp_path: Path, language: str, count: int, lowercase: bool) -> None:
    hypotheses, *references = TEXTS[language]
    tokenize = {"zh": "zh", "ja": "char"}.get(language, "13a")
    section = Evaluation(metrics=ALL, tokenize="char" if language == "ja" else None, lowercase=lowercase)
    ours = score(hypotheses, references[:count], section, language)
    case = ["-lc", "--chrf-lowercase"] if lowercase else []
    theirs = command(tmp_path, hypotheses, references[:count], "-m", "bleu", "chrf", "ter", "-tok", tokenize, *case)
    theirs |= command(tmp_path, hypotheses, references[:count], "-m", "chrf", "--chrf-word-order", "2", *case)
    assert ours.sentences == len(hypotheses)
    assert len(ours.metrics) == len(theirs) == 4
    for metric in ours.metrics.values():
        expected = theirs[metric.label]
        assert f"{metric.score:.12f}" == f"{expected['score']:.12f}"
        assert metric.signature == expected["signature"]
        assert metric.detail == (expected["verbose_score"] if metric.label == "BLEU" else "")


@pytest.mark.parametrize(("language", "seed"), [("en", ""), ("zh", "7"), ("ja", "0")])
def test_intervals_equal_the_sacrebleu_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, seed: str
) -> None:
    """sacrebleu --confidence, with its own seed and with one from the environment."""
    if seed:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
    hypotheses, *references = TEXTS[language]
    tokenize = {"zh": "zh", "ja": "char"}.get(language, "13a")
    ours = score(hypotheses, references, Evaluation(metrics=("bleu", "chrf", "ter"), tokenize=tokenize), resamples=200)
    options = ["-m", "bleu", "chrf", "ter", "-tok", tokenize, "--confidence", "--confidence-n", "200"]
    theirs = command(tmp_path, hypotheses, references, *options, seed=seed)
    for metric in ours.metrics.values():
        expected = theirs[metric.label]
        assert f"{metric.score:.12f}" == f"{expected['score']:.12f}"
        assert f"{metric.mean:.12f}" == f"{expected['confidence_mean']:.12f}"
        assert f"{metric.half_width:.12f}" == f"{expected['confidence_var']:.12f}"
        assert metric.signature == expected["signature"]
        assert f"seed:{seed or 12345}" in metric.signature


@pytest.mark.parametrize(("language", "tokenize"), [("ja", "ja-mecab"), ("ko", "ko-mecab")])
def test_mecab_gives_the_figure_of_the_command(tmp_path: Path, language: str, tokenize: str) -> None:
    pytest.importorskip("MeCab" if language == "ja" else "mecab_ko", reason=f"needs the extra {language}")
    korean = (["물레방아가 아직 돈다.", "누가 창문을 닫았니?"], ["물레방아가 아직도 돌아간다.", "누가 창문을 닫았어?"])
    hypotheses, reference = TEXTS["ja"][:2] if language == "ja" else korean
    ours = score(hypotheses, [reference], Evaluation(metrics=("bleu",)), language).metrics["bleu"]
    theirs = command(tmp_path, hypotheses, [reference], "-tok", tokenize)["BLEU"]
    assert (f"{ours.score:.12f}", ours.signature) == (f"{theirs['score']:.12f}", theirs["signature"])
    assert f"tok:{tokenize}" in ours.signature


@pytest.mark.parametrize("seed", ["twelve", "-1", "1.5", ""])
def test_a_seed_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(UsageError, match="SACREBLEU_SEED="):
        score(["a b"], [["a c"]], resamples=10)
    assert score(["a b"], [["a c"]]).sentences == 1, "nothing is resampled, so no seed is wanted"


def test_without_a_seed_resamples_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "None")
    hypotheses, *references = TEXTS["en"]
    means = {score(hypotheses, references, resamples=50).metrics["chrf"].mean for _ in range(3)}
    assert len(means) > 1


@pytest.mark.parametrize("metric", ALL)
def test_resamples_of_nothing_are_resamples(metric: str) -> None:
    """With an empty hypothesis or reference sacreBLEU ended in a TypeError once a resample held nothing else."""
    for hypotheses, reference in ((["", "two geese"], ["rain", "two geese"]), (["rain", "two"], ["", "two geese"])):
        found = score(hypotheses, [reference], Evaluation(metrics=(metric,)), resamples=50).metrics[metric]
        assert found.half_width is not None
        assert found.half_width > 0 or metric == "bleu", "BLEU of so few words is 0 throughout"


def test_intervals_that_do_not_fit_into_memory_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluate, "MEMORY_LIMIT", 10_000)
    hypotheses, *references = TEXTS["en"]
    scores = score(hypotheses, references, resamples=1000)
    assert scores == score(hypotheses, references)
    assert "1000 resamples of 4 sentences would take 0.0 GB" in caplog.text
    assert "no 95 % intervals" in caplog.text


def test_line_ends_of_white_space_do_not_count_as_with_the_command(tmp_path: Path) -> None:
    hypotheses, reference = (
        ["The well is dry .  ", "\tNobody drew water\t"],
        ["The well is dry.\u2003", "Nobody drew water."],
    )
    theirs = command(tmp_path, hypotheses, [reference], "-m", "bleu", "chrf")
    for metric in score(hypotheses, [reference]).metrics.values():
        assert f"{metric.score:.12f}" == f"{theirs[metric.label]['score']:.12f}"


@pytest.mark.parametrize("language", TEXTS)
def test_a_text_against_itself_is_perfect(language: str) -> None:
    lines = TEXTS[language][1]
    section = Evaluation(metrics=ALL, tokenize="char" if language == "ja" else None)
    scores = {name: metric.score for name, metric in score(lines, [lines], section, language).metrics.items()}
    assert scores == pytest.approx({"bleu": 100, "chrf": 100, "chrf++": 100, "ter": 0})


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [("zh", "zh"), ("zh-TW", "zh"), ("ZH_hans", "zh"), ("cmn", "zh"), ("ja", "ja-mecab"), ("kor", "ko-mecab"),
     ("de", "13a"), ("zu", "13a"), (None, "13a")],
)  # fmt: skip
def test_the_language_chooses_the_bleu_tokenizer_unless_the_recipe_does(language: str | None, tokenizer: str) -> None:
    assert bleu_tokenizer(Evaluation(), language) == tokenizer
    assert bleu_tokenizer(Evaluation(tokenize="intl"), language) == "intl"


@pytest.mark.parametrize("metric", ALL)
def test_only_the_wanted_metrics_are_computed(metric: str) -> None:
    assert list(score(["a b"], [["a c"]], Evaluation(metrics=(metric,))).metrics) == [metric]


def test_a_shorter_list_is_refused_with_both_numbers() -> None:
    """sacreBLEU's API scores the first two of three hypotheses against two references and says nothing."""
    with pytest.raises(DataError, match=r"3 lines.*2 lines"):
        score(["a", "b", "c"], [["a", "b"]])
    with pytest.raises(DataError, match=r"reference 2: 4 lines"):
        score(["a", "b", "c"], [["a", "b", "c"], ["a", "b", "c", "d"]])


def test_references_one_list_a_sentence_are_refused() -> None:
    """sacreBLEU's API returns 100 for references passed the other way round when the first sentence is right."""
    lines = ["The gate stands open tonight.", "Nobody has seen the goat.", "We looked behind the barn."]
    with pytest.raises(DataError, match=r"3 lines.*1 line") as caught:
        score(lines, [[line] for line in lines])
    assert "one full list for each reference" in str(caught.value.hint)


def test_blank_lines_at_the_end_are_named_as_the_cause() -> None:
    with pytest.raises(DataError, match="hyp: 2 lines, ref: 1 line") as caught:
        check_lengths(["a", " "], [["a"]], ["hyp", "ref"])
    assert caught.value.hint == "what hyp has more, at its end, is blank: remove that if it is no text"


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        score([], [[]])
    with pytest.raises(DataError, match="no reference"):
        score(["a"], [])


def test_one_string_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(DataError, match="one string"):
        score("abc", [["a", "b", "c"]])
    with pytest.raises(DataError, match="reference 1 is one string"):
        score(["a", "b"], ["a", "b"])


def test_text_without_spaces_and_without_a_language_is_refused() -> None:
    hypotheses, reference, _ = TEXTS["zh"]
    with pytest.raises(DataError, match="without spaces") as caught:
        score(hypotheses, [reference])
    assert "--target-language zh" in str(caught.value.hint)
    assert score(hypotheses, [reference], Evaluation(metrics=("chrf",))).sentences == 3


def test_splitting_text_without_spaces_at_spaces_warns(caplog: pytest.LogCaptureFixture) -> None:
    hypotheses, reference, _ = TEXTS["zh"]
    score(hypotheses, [reference], Evaluation(metrics=ALL), "zh")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["TER"]
    score(hypotheses, [reference], Evaluation(metrics=("bleu",), tokenize="13a"), "zh")
    assert "tok:13a splits at spaces" in caplog.text


def test_tokenized_hypotheses_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """sacreBLEU's own warning, from 100 lines with a separate full stop on, reaches the user."""
    spaced, plain = ["The mill , they say , is haunted ."] * 100, ["The mill, they say, is haunted."] * 100
    with caplog.at_level(logging.WARNING):
        score(plain, [plain])
        assert not caplog.records
        score(spaced, [plain])
    assert "detokenize" in caplog.text


def test_a_missing_mecab_is_named_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab

    for module, language, extra in (
        (tokenizer_ja_mecab, "ja", "sacrebleu[ja]"),
        (tokenizer_ko_mecab, "ko", "sacrebleu[ko]"),
    ):
        monkeypatch.setattr(module, "MeCab", None)
        with pytest.raises(MtkitError, match="needs MeCab") as caught:
            score(["a"], [["a"]], target_language=language)
        assert extra in str(caught.value)
        with pytest.raises(MtkitError, match="needs MeCab"):
            check_setup(Evaluation(), language)
        check_setup(Evaluation(tokenize="char"), language)
        check_setup(Evaluation(metrics=("chrf",)), language)


def test_a_tokenizer_whose_model_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sacrebleu.tokenizers import tokenizer_spm

    def no_network(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "download_file", no_network)
    with pytest.raises(MtkitError, match=r"flores200 cannot be loaded \(no route\)"):
        score(["a"], [["a"]], Evaluation(tokenize="flores200"))


def test_the_table_rounds_and_the_dictionary_does_not() -> None:
    scores = score(TEXTS["en"][0], [TEXTS["en"][1], TEXTS["en"][2]], Evaluation(metrics=ALL))
    table = scores.render().split("\n")
    assert table[0].split() == ["metric", "score", "signature"]
    assert table[-1] == "4 sentences, 2 references; TER: lower is better"
    for metric in scores.metrics.values():
        assert [metric.label, f"{metric.score:.2f}", metric.signature] in [line.split() for line in table]
    plain = json.loads(json.dumps(scores.as_dict()))
    assert (plain["sentences"], plain["references"]) == (4, 2)
    assert {name: MetricScore(**one) for name, one in plain["metrics"].items()} == scores.metrics


def test_intervals_stand_in_table_and_dictionary() -> None:
    scores = score(TEXTS["en"][0], [TEXTS["en"][1]], Evaluation(metrics=ALL), resamples=50)
    table = scores.render().split("\n")
    assert table[0].split() == ["metric", "score", "mean", "±", "95", "%", "signature"]
    for metric in scores.metrics.values():
        assert metric.mean is not None
        cells = [metric.label, f"{metric.score:.2f}", f"{metric.mean:.2f}", "±", f"{metric.half_width:.2f}"]
        assert [*cells, metric.signature] in [line.split() for line in table]
    plain = json.loads(json.dumps(scores.as_dict()))
    assert {name: MetricScore(**one) for name, one in plain["metrics"].items()} == scores.metrics
