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
from mtkit.errors import DataError
from mtkit.evaluate import score
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
    scores = score(HYPOTHESES, [REFERENCES], Evaluation(metrics=("bleu", "chrf", "chrf++", "ter")))
    assert printed == {"hypotheses": str(files[0]), "reference_files": [str(files[1])]} | scores.as_dict()


def test_the_table_goes_to_stdout_with_signatures_and_the_number_of_sentences(files: tuple[Path, Path]) -> None:
    result = run(*files, "--metric", "bleu", "--metric", "chrf")
    assert result.stdout.strip() == score(HYPOTHESES, [REFERENCES]).render()
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
    assert tuple(Metric) == get_args(get_args(fields["metrics"].annotation)[0])
    assert all(Evaluation(tokenize=name).tokenize == name for name in get_args(Tokenize))
    assert len(get_args(Tokenize)) == str(fields["tokenize"].metadata).count("|") + 1


def test_an_unknown_metric_is_a_usage_error(files: tuple[Path, Path]) -> None:
    result = run(*files, "--metric", "blue")
    assert result.exit_code == 2
    assert "blue" in result.stderr
