"""`mtkit compare`: two systems against one reference, as text, JSON and a page."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from mtkit.cli.eval import Tokenize
from mtkit.cli.texts import language_of, name_of, read_text, refuse_two_stdins, stream_text
from mtkit.errors import UsageError

_LOG = logging.getLogger(__name__)


def compare(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="File of references, one a line; - reads stdin.", show_default=False)
    ],
    a: Annotated[str, typer.Argument(metavar="A", help="Translations of one system.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Translations of the other.", show_default=False)],
    source: Annotated[
        str | None, typer.Option("--source", metavar="FILE", help="The sources: for lengths and for what is copied.")
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            "--train",
            metavar="FILE",
            help="Training text in the target language: for the frequency of words. May be repeated.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page to look at, which loads nothing.")
    ] = None,
    sentences: Annotated[
        int, typer.Option("--sentences", "-n", min=0, max=10_000, help="How many gains and losses to show.")
    ] = 10,
    resamples: Annotated[
        int,
        typer.Option("--resamples", min=0, max=100_000, help="Resamples of the paired bootstrap; 0: no p-values."),
    ] = 1000,
    target_language: Annotated[
        str | None,
        typer.Option(
            "--target-language",
            "-l",
            metavar="CODE",
            help="ISO 639 code, e.g. zh; chooses BLEU's tokenizer. Default: the suffix of REF such as ref.zh.",
        ),
    ] = None,
    tokenize: Annotated[
        Tokenize | None, typer.Option("--tokenize", help="BLEU tokenizer, whatever the language.")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without regard to case.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the chrF of every sentence.")] = False,
) -> None:
    """Compare two systems: where B is better than A, and where it is worse.

    Examples:
      mtkit compare ref.de old.de new.de
      mtkit compare ref.de old.de new.de --source test.en --train train.de --html new.html

    Files are those of mtkit eval, and figures are its figures. Shown are
      scores         BLEU and chrF of both, with 95 % intervals and the p-value of
                     the paired bootstrap
      sentences      in which B gains and loses most, by sentence chrF. That is a
                     way to find sentences worth reading, no verdict on one.
      by length      of the source (of the reference without --source)
      by frequency   with --train: sentences by how often their rarest word is in
                     the training text, 0 being words never seen
      n-grams        per cent of the system's n-grams that are right, and of the
                     reference's that were found: fluency shows in the longer ones
      habits         length ratio; empty, short and long sentences; words said
                     again at once; text copied from the source (with --source);
                     numbers and URLs that were kept

    A word is a run of letters and digits without regard to case; in scripts without spaces it is a letter. Scores of
    fewer than 30 sentences are marked (few): they say little. Of many rows some differ by chance; only the scores on
    top are tested.
    """
    refuse_two_stdins([reference, a, b, source, *(train or [])])

    from mtkit.compare import analysis, page, text
    from mtkit.data.progress import follow
    from mtkit.evaluate import check_lengths
    from mtkit.files import atomic_write
    from mtkit.hygiene import doubts
    from mtkit.sections.data import Evaluation

    if resamples == 1:
        raise UsageError("--resamples 1: one resample has no spread", "0 for no p-values, or many, such as 1000")
    lines = {path: read_text(path) for path in dict.fromkeys([reference, a, b, *([source] if source else [])])}
    for path in (a, b, *([source] if source else [])):
        check_lengths(lines[path], [lines[reference]], [name_of(path), name_of(reference)])
    systems, against = {name_of(path): lines[path] for path in (a, b)}, [(name_of(reference), lines[reference])]
    for doubt in doubts(systems, against, analysis.METRICS):
        _LOG.warning("%s", doubt)
    frequencies = None
    if train:
        training = (line for path in train for line in stream_text(path))
        frequencies = analysis.count_words(follow(training, "counting words", unit=" lines"))
    texts = analysis.Texts(
        reference=lines[reference],
        a=lines[a],
        b=lines[b],
        source=lines[source] if source else None,
        names={"reference": name_of(reference), "a": name_of(a), "b": name_of(b)},
    )
    section = Evaluation(tokenize=tokenize, lowercase=lowercase, resamples=resamples)
    found = analysis.compare(texts, section, target_language or language_of([reference]), frequencies)
    if html is not None:
        with atomic_write(html) as file:
            file.write(page.render(found, sentences))
    if as_json:
        print(json.dumps(text.as_dict(found, sentences), indent=2, ensure_ascii=False))
    else:
        print(text.render(found, sentences))
