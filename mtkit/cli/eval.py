"""`mtkit eval`: hypotheses and references in, scores with signatures, intervals and p-values out."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mtkit.cli.texts import language_of, name_of, read_text, refuse_two_stdins
from mtkit.errors import UsageError

if TYPE_CHECKING:
    from mtkit.significance import Contest, Trial

Tokenize = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "spm", "flores101", "flores200"]

_LOG = logging.getLogger(__name__)


class Metric(StrEnum):
    """What `--metric` takes (typer knows no list of literals): those of a recipe, and COMET."""

    BLEU = "bleu"
    CHRF = "chrf"
    CHRF_PLUS_PLUS = "chrf++"
    TER = "ter"
    COMET = "comet"


def evaluate(
    hypotheses: Annotated[
        str,
        typer.Argument(
            metavar="HYPOTHESES",
            help="File of translations, one a line, detokenized; - reads stdin.",
            show_default=False,
        ),
    ],
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REFERENCE...",
            help="Files of references, aligned with HYPOTHESES by line. None with --test-set.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", "-s", metavar="FILE", help="Translations of one more system; may be repeated."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", "-b", metavar="FILE", help="Translations that each system is tested against."),
    ] = None,
    paired: Annotated[
        Literal["bootstrap", "randomization"] | None,
        typer.Option(
            "--paired",
            help="With --baseline: the test, paired bootstrap or approximate randomization. Default: bootstrap.",
            show_default=False,
        ),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(
            "--resamples",
            min=0,
            max=100_000,
            help="Bootstrap resamples, for 95 % intervals and the paired bootstrap; 0: no intervals.",
        ),
    ] = 1000,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            max=1_000_000,
            help="Trials of --paired randomization. Default: 10000.",
            show_default=False,
        ),
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(
            "--test-set", "-t", metavar="NAME", help="References from sacreBLEU, such as wmt14; fetched once."
        ),
    ] = None,
    language_pair: Annotated[
        str | None, typer.Option("--language-pair", "-p", metavar="PAIR", help="With --test-set: such as en-de.")
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(
            "--target-language",
            "-l",
            metavar="CODE",
            help="ISO 639 code, e.g. zh; chooses BLEU's tokenizer for zh, ja and ko. "
            "Default: that of --test-set, or the suffix of a REFERENCE such as ref.zh or ref.zh.gz.",
        ),
    ] = None,
    metric: Annotated[
        list[Metric] | None,
        typer.Option("--metric", "-m", help="What to compute; may be repeated. Default: all but comet."),
    ] = None,
    tokenize: Annotated[
        Tokenize | None, typer.Option("--tokenize", help="BLEU tokenizer, whatever the language.")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Score without regard to case (TER always does, COMET never).")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="FILE", help="For comet: the sources. Default: those of --test-set."),
    ] = None,
    comet_model: Annotated[
        str | None,
        typer.Option(
            "--comet-model",
            metavar="NAME",
            help="COMET's name of a model, or a checkpoint of it. Default: Unbabel/wmt22-comet-da.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with unrounded scores.")] = False,
) -> None:
    """Score translations: BLEU, chrF, chrF++ and TER as sacreBLEU has them, with intervals and p-values.

    Examples:
      mtkit eval hypotheses.en reference.en
      mtkit translate runs/quickstart/model < test.zh | mtkit eval - test.en --json
      mtkit eval new.de reference.de --baseline old.de --system other.de
      mtkit eval hypotheses.de --test-set wmt14 --language-pair en-de

    Files are UTF-8, plain, .gz, .xz or .bz2; only LF (or CRLF) ends a line. Text goes in as it is, not tokenized, and
    every text has as many lines as the others. The figures are those of the sacrebleu command, to the last digit.

    What the figures mean, and when not to use them:
      BLEU    0 to 100, more is better: runs of 1 to 4 words in common with the
              reference, with a penalty for being short. Comparable only with the
              same test set and signature. Not for single sentences, for few of
              them, between languages, or between systems of different kinds.
              Its tokenizer is 13a; zh, ja and ko have their own (ja and ko by
              MeCab: extras ja, ko). Other scripts without spaces: flores200, char.
      chrF    0 to 100, more is better: runs of 1 to 6 characters in common, what
              is missing counting more than what is too much. No tokenizer, so
              the better one for rich morphology and scripts without spaces.
      chrF++  chrF with words and pairs of words: where spaces part words.
      TER     edits in 100 words of the reference, moving a phrase being one: less
              is better, and more than 100 is possible. It favours what is too
              short. Not for scripts without spaces.
      COMET   times 100, more is better: what a model takes for people's judgement
              of source, hypothesis and reference. Nearest to people, where the
              model knows the languages; deaf to numbers and names. Comparable
              only with the same model. Asks for the extra comet and --source.

    None of them sees whether a translation is true to its source. Read some: mtkit compare.

    After ± stands half of the 95 % interval over bootstrap resamples of the sentences: how much the score would vary
    with other sentences of the same kind. It says nothing of other texts, nor of training again with another seed.
    Two systems on one test set are compared with --baseline, not by whether their intervals meet: p is about the
    probability of such a difference were both equally good. Of many p some are below 0.05 by chance, and a significant
    difference may be too small to matter. The seed is sacreBLEU's, 12345, or what SACREBLEU_SEED says.

    With --json one object; of a single system
      reference_files, hypotheses, sentences, references
      metrics         of each label, score, signature, detail (BLEU), and of its
                      interval mean and half_width
    and with --system or --baseline
      reference_files
      systems         of each name and the same; difference and p_value of each
                      metric where it was tested
      baseline, paired_test (method, trials, signatures)
    and with either
      sha256          of the text of each hypothesis and reference, its lines with
                      LF: as sha256sum has it of a plain file
    """
    _refuse_contradictions(references, test_set, language_pair)
    trial = _trial(baseline, paired, resamples, trials)
    wanted = tuple(one.value for one in metric or Metric if metric or one is not Metric.COMET)
    if Metric.COMET not in wanted and (source or comet_model):
        raise UsageError("--source and --comet-model belong to COMET", "add --metric comet")
    refuse_two_stdins([hypotheses, *(references or []), *(system or []), baseline, source])
    paths = [*([] if baseline is None else [baseline]), hypotheses, *(system or [])]
    twice = [path for number, path in enumerate(paths) if path in paths[:number]]
    if twice:
        raise UsageError(f"{twice[0]} is given twice as a system", "give each system once, the baseline too")

    from mtkit.evaluate import check_lengths
    from mtkit.hygiene import doubts
    from mtkit.significance import score_systems

    against = _references(references, test_set, language_pair)
    texts = {name_of(path): read_text(path) for path in paths}
    for name, lines in texts.items():
        check_lengths(lines, against.lines, [name, *against.names])
    metrics = _metrics(wanted, tokenize, lowercase, target_language or against.language, against.lines)
    if Metric.COMET in wanted:
        metrics["comet"] = _comet(source, against.source, comet_model, len(against.lines[0]))
    for doubt in doubts(texts, list(zip(against.names, against.lines, strict=True)), wanted):
        _LOG.warning("%s", doubt)
    contest = score_systems(metrics, texts, against.lines, resamples, trial)
    _tell_small_differences(contest)
    _print(contest, against.names, as_json, texts | dict(zip(against.names, against.lines, strict=True)))


@dataclass(frozen=True, slots=True)
class _Against:
    """What is scored against: a full list of lines for each reference, and what is known of them."""

    names: list[str]
    lines: list[list[str]]
    language: str | None
    source: list[str] | None = None


def _refuse_contradictions(references: list[str] | None, test_set: str | None, language_pair: str | None) -> None:
    if not references and test_set is None:
        raise UsageError("nothing to score against: no REFERENCE was given", "give a file, or --test-set NAME")
    if references and test_set is not None:
        raise UsageError(
            f"{references[0]} and --test-set {test_set}: references come from files or from a test set",
            "leave one of them out; several systems: --system FILE",
        )
    if (test_set is None) != (language_pair is None):
        raise UsageError("--test-set and --language-pair go together", "for example: --test-set wmt14 -p en-de")


def _trial(baseline: str | None, paired: str | None, resamples: int, trials: int | None) -> "Trial | None":
    """The paired test that was asked for. Raises UsageError for options that do not belong together."""
    from mtkit.significance import Trial

    if resamples == 1:
        raise UsageError("--resamples 1: one resample has no spread", "0 for no intervals, or many, such as 1000")
    if paired != "randomization" and trials is not None:
        raise UsageError("--trials belongs to --paired randomization", "the bootstrap's number is --resamples")
    if baseline is None:
        if paired is not None:
            raise UsageError("--paired needs a system to test against", "name it: --baseline FILE")
        return None
    if paired == "randomization":
        return Trial("randomization", 10_000 if trials is None else trials)
    if not resamples:
        raise UsageError(
            "--resamples 0 leaves the paired bootstrap nothing to do", "raise it, or take --paired randomization"
        )
    return Trial("bootstrap", resamples)


def _references(paths: list[str] | None, test_set: str | None, language_pair: str | None) -> _Against:
    if test_set is None or language_pair is None:
        assert paths
        return _Against([name_of(path) for path in paths], [read_text(path) for path in paths], language_of(paths))
    from mtkit.testsets import load

    loaded = load(test_set, language_pair)
    count = len(loaded.references)
    names = [f"{test_set} {language_pair}" + (f" reference {n}" if count > 1 else "") for n in range(1, count + 1)]
    return _Against(names, loaded.references, loaded.target_language, loaded.source)


def _metrics(
    wanted: Sequence[str], tokenize: Tokenize | None, lowercase: bool, language: str | None, references: list[list[str]]
) -> dict[str, Any]:
    """sacreBLEU's metrics among those wanted."""
    from mtkit.evaluate import check_script
    from mtkit.metrics import make_metrics
    from mtkit.sections.data import Evaluation

    names = tuple(one for one in wanted if one != Metric.COMET)
    if not names:
        return {}
    section = Evaluation(metrics=names, tokenize=tokenize, lowercase=lowercase)
    check_script(references, section, language)
    return dict(make_metrics(section, language))


def _comet(path: str | None, known: list[str] | None, model: str | None, sentences: int) -> Any:
    from mtkit.comet import DEFAULT_MODEL, Comet
    from mtkit.evaluate import check_lengths

    if path is None and known is None:
        raise UsageError("COMET reads the source too", "name its file: --source FILE")
    lines = read_text(path) if path is not None else known
    assert lines is not None
    check_lengths([""] * sentences, [lines], ["the references", name_of(path or "--test-set")])
    return Comet(lines, model or DEFAULT_MODEL)


def _tell_small_differences(contest: "Contest") -> None:
    from mtkit.significance import small_differences

    doubtful, confirmed = small_differences(contest)
    for text in doubtful:
        _LOG.warning("%s", text)
    for text in confirmed:
        _LOG.info("%s", text)


def _print(contest: "Contest", reference_names: list[str], as_json: bool, texts: dict[str, list[str]]) -> None:
    from mtkit.lineage import text_sha256

    single = contest.systems[0] if len(contest.systems) == 1 else None
    if as_json:
        figures = {"hypotheses": single.name, **single.scores.as_dict()} if single else contest.as_dict()
        hashes = {"sha256": {name: text_sha256(lines) for name, lines in texts.items()}}
        print(json.dumps({"reference_files": reference_names} | figures | hashes, indent=2, ensure_ascii=False))
    else:
        print(single.scores.render() if single else contest.render())
