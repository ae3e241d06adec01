"""`mtkit score`: pairs in, the probability that a model gives to each out."""

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtkit.cli.options import as_utf8
from mtkit.cli.output import Output, open_output
from mtkit.cli.texts import open_lines
from mtkit.cli.translate_options import DeviceOption, ModelArgument, OutputOption, TagOption, ThreadsOption
from mtkit.data.progress import bar, follow
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.folders import weights_sha256
from mtkit.formats import dump_json_line
from mtkit.lines import BadUtf8, LineReader
from mtkit.loading import load_torch
from mtkit.scored import ScoredPair, Summary, json_line, text_line

_LOG = logging.getLogger(__name__)
_PAIR_HINT = "line n of one file belongs to line n of the other"

SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="File of sources, one a line; - reads stdin.", show_default=False)
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="File of their translations, aligned by line; - reads stdin.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON lines, one object a pair; see above.")]
SummaryOption = Annotated[
    bool,
    typer.Option("--summary-only", help="Write the corpus's figures instead of a line a pair; with --json one object."),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=16,
        max=10_000_000,
        help="Most tokens of a side in a batch, padding and ends included; no pair may exceed it by itself. Default: "
        "search.lines.max_tokens of the model's recipe.",
        show_default=False,
    ),
]
OnLongOption = Annotated[
    Literal["error", "skip"],
    typer.Option("--on-long", help="A pair with too many tokens: refused by its line, or left out and counted."),
]
BadUtf8Option = Annotated[
    Literal["replace", "error"],
    typer.Option("--bad-utf8", help="Bytes that are not UTF-8: refused, or made U+FFFD and reported."),
]


def score(
    model: ModelArgument,
    source: SourceArgument,
    target: TargetArgument,
    output_path: OutputOption = None,
    as_json: JsonOption = False,
    summary_only: SummaryOption = False,
    tag: TagOption = [],  # noqa: B006
    max_tokens: MaxTokensOption = None,
    on_long: OnLongOption = "error",
    bad_utf8: BadUtf8Option = "error",
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Score given translations by a model: log-probabilities by force-decoding, and the corpus's perplexity.

    Examples:
      mtkit score runs/quickstart/model test.zh test.en > test.scores
      mtkit translate runs/quickstart/model < in.zh | mtkit score runs/quickstart/model in.zh - --json

    N pairs in, N lines out, in order:
      LOG-PROBABILITY TAB LOG-PROBABILITY A TOKEN

    Logarithms are natural ones; tokens are the model's own, and the end of the sentence counts as one. A text is scored
    in the one tokenisation that the tokenizer makes of it. Perplexity is exp(-sum of log-probabilities / sum of tokens)
    over all pairs scored, so only models with the same tokenizer can be compared by it. The corpus's figures end up on
    stderr, or with --summary-only on stdout.

    A blank target is scored as the empty translation. A blank source has no score: nan in text, null in JSON, left out
    of the corpus's figures. So is, under --on-long skip, a pair with more tokens on a side than --max-tokens or the
    model's learned positions allow, ends included; otherwise such a pair is an error, before any output where SOURCE
    and TARGET are files. Nothing is ever cut.

    Files are UTF-8, plain, .gz, .xz or .bz2; only LF (or CRLF) ends a line. Where their numbers of lines differ, they
    are refused before any output; with a stream, when one of them ends. Lines are read in buffers of the recipe's
    search.lines.buffer_size.

    With --json, one object a pair; where nothing was scored figures are null and lists empty:
      id, line                      the number from 0, the number from 1
      status                        the first that holds of blank, too_long, empty, ok
      source, target                the texts as given
      source_pieces                 the tokens read, tags included
      source_tokens, target_tokens  their numbers, tags included, without ends
      unknown_tokens                source tokens that the vocabulary does not hold
      unknown_target_tokens         the same of the target
      log_probability               summed over tokens and the end
      normalized_score              log_probability a token, the end included
      perplexity                    exp(-normalized_score)
      tokens, token_log_probabilities
      end_log_probabilities         that of the end, in a list as mtkit translate --json has it
      model_sha256                  of the model's weights
    """
    if source == target == "-":
        raise UsageError("SOURCE and TARGET are both -, and there is one stdin", "give one of them as a file")
    lines = _refuse_unequal(source, target, bad_utf8)
    source_reader, target_reader = open_lines(source, bad_utf8), open_lines(target, bad_utf8)

    load_torch()
    from mtkit.force import Scorer
    from mtkit.runtime import set_threads

    set_threads(threads)
    scorer = Scorer.load(model, device)
    tags = [as_utf8(symbol) for symbol in tag]
    if on_long == "error" and _is_file(source) and _is_file(target):
        again = follow(_pairs(open_lines(source, bad_utf8), open_lines(target, bad_utf8)), "check", lines, " pairs")
        scorer.refuse_long(again, tags=tags, max_tokens=max_tokens)
    summary = Summary(scorer.recipe.filters.max_length)
    sha256 = weights_sha256(model)
    render = functools.partial(json_line, model_sha256=sha256) if as_json else text_line
    with open_output(output_path) as output, output.whole_lines(), bar("score", lines, " pairs") as progress:

        def on_batch(done: int) -> None:
            output.refuse_closed()
            progress.update(done)

        stream = scorer.score_stream(
            _pairs(source_reader, target_reader),
            tags=tags,
            max_tokens=max_tokens,
            on_long=on_long,
            details=as_json and not summary_only,
            on_batch=on_batch,
        )
        _write(stream, output, None if summary_only else render, (source_reader, target_reader), summary)
        if summary_only:
            figures = {**summary.figures(), "model_sha256": sha256}
            output.write(dump_json_line(figures) if as_json else summary.render())


def _write(
    stream: Iterable[ScoredPair],
    output: Output,
    render: Callable[[ScoredPair], str] | None,
    readers: tuple[LineReader, LineReader],
    summary: Summary,
) -> None:
    """Write every pair, unless there is no `render`; then report what was counted; on Ctrl-C too, before it goes on."""
    start = time.monotonic()
    try:
        for pair in stream:
            if render is not None:
                output.write(render(pair))
            summary.add(pair)
    except KeyboardInterrupt:
        _report(readers, summary, time.monotonic() - start)
        raise
    _report(readers, summary, time.monotonic() - start)
    if not summary.lines == readers[0].count == readers[1].count:
        raise MtkitError(
            f"{readers[0].count} and {readers[1].count} lines were read and {summary.lines} pairs scored",
            "this is a fault of mtkit; please report it with the input",
        )


def _report(readers: tuple[LineReader, LineReader], summary: Summary, seconds: float) -> None:
    """What was odd in the input and in the pairs, then the corpus's figures and the speed."""
    for sentence in (*readers[0].report(), *readers[1].report(), *summary.report()):
        _LOG.warning("%s", sentence)
    _LOG.info("%s", summary)
    _LOG.info(
        "%.1f s: %.1f pairs/s, %.0f target tokens/s",
        seconds,
        summary.lines / max(seconds, 1e-9),
        summary.tokens / max(seconds, 1e-9),
    )


def _is_file(name: str) -> bool:
    """Whether it can be read more than once, unlike a stream or named pipe."""
    return name != "-" and Path(name).is_file()


def _refuse_unequal(source: str, target: str, bad_utf8: BadUtf8) -> int | None:
    """The number of pairs, None when only streams know it.

    Raises DataError, before any work, when files differ in their numbers of lines, are missing or not UTF-8.
    """
    counts = []
    for name in (source, target):
        if _is_file(name):
            counts.append(sum(1 for _ in open_lines(name, bad_utf8)))
    if len(counts) == 2 and counts[0] != counts[1]:
        raise DataError(f"{source} has {counts[0]} lines, {target} has {counts[1]}", _PAIR_HINT)
    return counts[0] if counts else None


def _pairs(source: LineReader, target: LineReader) -> Iterator[tuple[str, str]]:
    """Each source with its target. Raises DataError when one of the two ends before the other."""
    for source_text, target_text in itertools.zip_longest(source, target):
        if source_text is None or target_text is None:
            short, long = (source, target) if source_text is None else (target, source)
            raise DataError(f"{short.name} ends after {short.count} lines, {long.name} goes on", _PAIR_HINT)
        yield source_text, target_text
