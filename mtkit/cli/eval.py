"""`mtkit eval`: hypothesis and reference files in, scores with signatures out."""

import json
import sys
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Literal

import typer

Tokenize = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "spm", "flores101", "flores200"]


class Metric(StrEnum):
    """What `--metric` takes (typer knows no list of literals)."""

    BLEU = "bleu"
    CHRF = "chrf"
    CHRF_PLUS_PLUS = "chrf++"
    TER = "ter"


def evaluate(
    hypotheses: Annotated[
        str, typer.Argument(metavar="HYPOTHESES", help="File of translations, one a line, detokenized; - reads stdin.")
    ],
    references: Annotated[
        list[str], typer.Argument(metavar="REFERENCE", help="File of references, aligned with HYPOTHESES by line.")
    ],
    target_language: Annotated[
        str | None,
        typer.Option(
            "--target-language",
            "-l",
            metavar="CODE",
            help="ISO 639 code, e.g. zh; chooses BLEU's tokenizer for zh, ja and ko. "
            "Default: the suffix of a REFERENCE such as ref.zh or ref.zh.gz.",
        ),
    ] = None,
    metric: Annotated[
        list[Metric] | None, typer.Option("--metric", "-m", help="What to compute; may be repeated. Default: all.")
    ] = None,
    tokenize: Annotated[
        Tokenize | None, typer.Option("--tokenize", help="BLEU tokenizer, whatever the language.")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Score without regard to case (TER always does).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded scores.")] = False,
) -> None:
    """Score translations: BLEU, chrF, chrF++ and TER with sacreBLEU signatures.

    BLEU and chrF run from 0 to 100; TER is edits per 100 words of the reference, where less is better.

    Files are UTF-8, plain, .gz, .xz or .bz2; only LF (or CRLF) ends a line. Text goes in as it is, not tokenized.

    Example: mtkit eval hypotheses.en reference.en

    Example: mtkit translate runs/quickstart/model < test.zh | mtkit eval - test.en --metric bleu --json
    """
    from mtkit.evaluate import check_lengths, score
    from mtkit.files import read_lines
    from mtkit.sections.data import Evaluation

    names = ["<stdin>" if hypotheses == "-" else hypotheses, *references]
    hypothesis_lines = _stdin_lines() if hypotheses == "-" else list(read_lines(hypotheses))
    reference_lines = [list(read_lines(path)) for path in references]
    check_lengths(hypothesis_lines, reference_lines, names)
    metrics = tuple(one.value for one in metric or Metric)
    section = Evaluation(metrics=metrics, tokenize=tokenize, lowercase=lowercase)
    language = target_language or _language_of(references)
    scores = score(hypothesis_lines, reference_lines, section, language, progress=True)
    if as_json:
        print(json.dumps({"hypotheses": names[0], "reference_files": references} | scores.as_dict(), indent=2))
    else:
        print(scores.render())


def _stdin_lines() -> list[str]:
    from mtkit.files import decode_line, strip_line_end

    return [decode_line(strip_line_end(line), "<stdin>", n) for n, line in enumerate(sys.stdin.buffer, 1)]


def _language_of(references: list[str]) -> str | None:
    """The language in a file's suffix, as in test.zh or test.zh.gz; None unless it decides on a tokenizer."""
    from mtkit.evaluate import has_own_tokenizer

    for path in references:
        suffixes = PurePath(path).suffixes
        if suffixes and suffixes[-1] in (".gz", ".xz", ".bz2"):
            suffixes.pop()
        if suffixes and has_own_tokenizer(suffixes[-1][1:]):
            return suffixes[-1][1:]
    return None
