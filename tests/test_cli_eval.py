"""`mtkit eval`: files of every kind give the same figures, and what does not line up is refused by name."""

import gzip
import json
import lzma
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner, Result

from mtkit.cli.eval import Metric, Tokenize, evaluate
from mtkit.errors import DataError, UsageError
from mtkit.evaluate import score
from mtkit.files import sha256_file
from mtkit.sections.data import Evaluation

HYPOTHESES = ["The ferry leaves at dawn.", "Äpfel und Birnen\u2028lie here", "No one\x0bcame."]
REFERENCES = ["The ferry will leave at dawn.", "Äpfel und Birnen\u2028lay here.", "No one\x0bcame."]


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    app = typer.Typer()
    app.command()(evaluate)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def text(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "hyp.en").write_bytes(text(HYPOTHESES))
    (tmp_path / "ref.en").write_bytes(text(REFERENCES))
    return tmp_path / "hyp.en", tmp_path / "ref.en"


def test_json_holds_the_figures_of_the_python_api(files: tuple[Path, Path]) -> None:
    printed = json.loads(run(*files, "--json").stdout)
    section = Evaluation(metrics=("bleu", "chrf", "chrf++", "ter"))
    scores = score(HYPOTHESES, [REFERENCES], section, resamples=1000)
    hashes = {str(path): sha256_file(path) for path in files}
    named = {"hypotheses": str(files[0]), "reference_files": [str(files[1])], "sha256": hashes}
    assert printed == named | scores.as_dict()


def test_the_table_goes_to_stdout_with_signatures_and_the_number_of_sentences(files: tuple[Path, Path]) -> None:
    result = run(*files, "--metric", "bleu", "--metric", "chrf")
    assert result.stdout.strip() == score(HYPOTHESES, [REFERENCES], resamples=1000).render()
    assert "3 sentences, 1 reference" in result.stdout
    assert result.stderr == ""


def test_a_file_against_itself_scores_100(files: tuple[Path, Path]) -> None:
    metrics = json.loads(run(files[0], files[0], "--json").stdout)["metrics"]
    assert metrics["bleu"]["score"] == pytest.approx(100)
    assert metrics["chrf"]["score"] == pytest.approx(100)
    assert metrics["ter"]["score"] == 0


def test_line_ends_compression_and_stdin_change_nothing(files: tuple[Path, Path], tmp_path: Path) -> None:
    expected = json.loads(run(*files, "--json").stdout)["metrics"]
    raw = text(HYPOTHESES)
    (tmp_path / "crlf").write_bytes(text(HYPOTHESES, "\r\n"))
    (tmp_path / "nofinal").write_bytes(raw.removesuffix(b"\n"))
    (tmp_path / "hyp.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "hyp.xz").write_bytes(lzma.compress(raw))
    for name in ("crlf", "nofinal", "hyp.gz", "hyp.xz"):
        assert json.loads(run(tmp_path / name, files[1], "--json").stdout)["metrics"] == expected, name
    for stdin in (raw, text(HYPOTHESES, "\r\n"), raw.removesuffix(b"\n")):
        assert json.loads(run("-", files[1], "--json", stdin=stdin).stdout)["metrics"] == expected


def test_several_references_count(files: tuple[Path, Path]) -> None:
    assert "nrefs:2" in run(*files, files[0]).stdout


def test_unequal_counts_name_both_files_and_numbers(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "short.en").write_bytes(text(REFERENCES[:2]))
    with pytest.raises(DataError, match=r"hyp\.en: 3 lines, .*short\.en: 2 lines"):
        run(files[0], files[1], tmp_path / "short.en")
    with pytest.raises(DataError, match=r"<stdin>: 1 line, .*ref\.en: 3 lines"):
        run("-", files[1], stdin=b"one\n")


def test_bytes_that_are_not_utf8_are_named_by_file_and_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "bad.en").write_bytes(b"fine\n\xe9t\xe9\nfine\n")
    with pytest.raises(DataError, match=r"bad\.en:2: byte 0xE9"):
        run(files[0], tmp_path / "bad.en")
    with pytest.raises(DataError, match=r"<stdin>:2: byte 0xE9"):
        run("-", files[1], stdin=b"fine\n\xe9t\xe9\nfine\n")


def test_a_missing_file_is_named(tmp_path: Path, files: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match=r"nowhere\.en: no such file"):
        run(tmp_path / "nowhere.en", files[1])


def test_the_language_comes_from_the_option_or_the_reference_suffix(tmp_path: Path) -> None:
    hypotheses, reference = text(["门开着。", "山上有雪。"]), text(["门是开着的。", "山上下雪了。"])
    for name in ("out.txt", "ref.txt", "ref.zh"):
        (tmp_path / name).write_bytes(hypotheses if name == "out.txt" else reference)
    (tmp_path / "ref.zh.gz").write_bytes(gzip.compress(reference))
    by_option = run(tmp_path / "out.txt", tmp_path / "ref.txt", "--target-language", "zh", "-m", "bleu").stdout
    assert "tok:zh" in by_option
    for name in ("ref.zh", "ref.zh.gz"):
        assert run(tmp_path / "out.txt", tmp_path / name, "-m", "bleu").stdout == by_option
    assert "tok:char" in run(tmp_path / "out.txt", tmp_path / "ref.zh", "--tokenize", "char", "-m", "bleu").stdout
    with pytest.raises(DataError, match="without spaces"):
        run(tmp_path / "out.txt", tmp_path / "ref.txt")


def test_lowercase_forgives_case(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ONE TWO THREE FOUR FIVE\n")
    (tmp_path / "b").write_bytes(b"one two three four five\n")
    cased = json.loads(run(tmp_path / "a", tmp_path / "b", "--json").stdout)["metrics"]
    folded = json.loads(run(tmp_path / "a", tmp_path / "b", "--json", "--lowercase").stdout)["metrics"]
    assert cased["bleu"]["score"] == cased["chrf"]["score"] == 0
    assert folded["bleu"]["score"] == pytest.approx(100)
    assert folded["chrf"]["score"] == folded["chrf++"]["score"] == pytest.approx(100)


def test_the_choices_are_those_of_the_recipe() -> None:
    fields = Evaluation.model_fields
    assert tuple(Metric) == (*get_args(get_args(fields["metrics"].annotation)[0]), "comet")
    assert all(Evaluation(tokenize=name).tokenize == name for name in get_args(Tokenize))
    assert len(get_args(Tokenize)) == str(fields["tokenize"].metadata).count("|") + 1


def test_an_unknown_metric_is_a_usage_error(files: tuple[Path, Path]) -> None:
    result = run(*files, "--metric", "blue")
    assert result.exit_code == 2
    assert "blue" in result.stderr


@pytest.fixture
def others(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "second.en").write_bytes(text(["A ferry leaves at dawn.", "Äpfel und Birnen", "No one\x0bcame."]))
    (tmp_path / "third.en").write_bytes(text(["", "Äpfel und Birnen\u2028lay here .", "None came ."]))
    return tmp_path / "second.en", tmp_path / "third.en"


def test_several_systems_are_scored_at_once(files: tuple[Path, Path], others: tuple[Path, Path]) -> None:
    printed = json.loads(run(*files, "--system", others[0], "-s", others[1], "--json").stdout)
    assert [system["name"] for system in printed["systems"]] == [str(path) for path in (files[0], *others)]
    assert printed["reference_files"] == [str(files[1])]
    for system in printed["systems"]:
        alone = json.loads(run(system["name"], files[1], "--json").stdout)
        assert system["metrics"] == alone["metrics"]
    table = run(*files, "--system", others[0]).stdout
    assert str(files[0]) in table
    assert str(others[0]) in table


@pytest.mark.parametrize("method", ["bootstrap", "randomization"])
def test_a_baseline_gives_p_values(files: tuple[Path, Path], others: tuple[Path, Path], method: str) -> None:
    size = ["--trials", "50"] if method == "randomization" else ["--resamples", "50"]
    options = ["--baseline", others[0], "--paired", method, *size, "-m", "chrf"]
    printed = json.loads(run(*files, *options, "--json").stdout)
    assert printed["baseline"] == str(others[0])
    assert printed["paired_test"]["method"] == method
    assert printed["paired_test"]["trials"] == 50
    first, second = (system["metrics"]["chrf"] for system in printed["systems"])
    assert second["difference"] == second["score"] - first["score"]
    assert 0 < second["p_value"] <= 1
    assert "p_value" not in first
    assert f"p = {second['p_value']:.4f}" in run(*files, *options).stdout


def test_one_of_several_texts_may_come_from_stdin(files: tuple[Path, Path], others: tuple[Path, Path]) -> None:
    expected = json.loads(run(*files, "-s", others[0], "--json").stdout)["systems"]
    found = json.loads(run(files[0], "-", "-s", others[0], "--json", stdin=files[1].read_bytes()).stdout)
    assert found["systems"] == expected
    assert found["reference_files"] == ["<stdin>"]
    found = json.loads(run(*files, "-s", "-", "--json", stdin=others[0].read_bytes()).stdout)["systems"]
    assert found[1]["metrics"] == expected[1]["metrics"]
    with pytest.raises(UsageError, match="- is given twice"):
        run("-", files[1], "--baseline", "-", stdin=b"")


def test_doubts_are_told_on_stderr(
    files: tuple[Path, Path], others: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    run(*files, "-s", others[1], "-m", "bleu")
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings[0].startswith(f"{others[1]}: 1 of 3 hypotheses are empty (line 1)")
    assert warnings[1].startswith(f"{others[1]}: 2 of 3 lines look tokenized (lines 2, 3)")
    assert "less than the 95 % interval" in warnings[-1]


def test_no_resamples_no_intervals(files: tuple[Path, Path]) -> None:
    metrics = json.loads(run(*files, "--resamples", "0", "--json").stdout)["metrics"]
    assert not any("mean" in one or "half_width" in one for one in metrics.values())
    assert not any("bs:" in one["signature"] for one in metrics.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["HYP"], "no REFERENCE was given"),
        (["HYP", "REF", "--test-set", "wmt14", "-p", "en-de"], "references come from files or from a test set"),
        (["HYP", "--test-set", "wmt14"], "go together"),
        (["HYP", "REF", "--language-pair", "en-de"], "go together"),
        (["HYP", "REF", "--paired", "bootstrap"], "--paired needs a system"),
        (["HYP", "REF", "--baseline", "REF", "--trials", "5"], "--trials belongs to"),
        (["HYP", "REF", "--baseline", "REF", "--resamples", "0"], "leaves the paired bootstrap nothing to do"),
        (["HYP", "REF", "--resamples", "1"], "one resample has no spread"),
        (["HYP", "REF", "--baseline", "HYP"], "given twice as a system"),
        (["HYP", "--test-set", "wmt4711", "-p", "en-de"], "sacreBLEU has no test set 'wmt4711'"),
    ],
)
def test_what_does_not_go_together(files: tuple[Path, Path], arguments: list[str], message: str) -> None:
    named = {"HYP": str(files[0]), "REF": str(files[1])}
    with pytest.raises(UsageError, match=message):
        run(*[named.get(argument, argument) for argument in arguments])
