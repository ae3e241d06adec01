"""`mtkit translate`: lines in, as many lines out, in the same order."""

import contextlib
import functools
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from mtkit.cli.engine import EngineOption, Searcher
from mtkit.cli.job import follows, leading, serve
from mtkit.cli.options import as_utf8
from mtkit.cli.output import Output, open_output
from mtkit.cli.search_options import given, merged, with_search_options
from mtkit.cli.texts import STDIN, stdin_lines
from mtkit.cli.translate_options import (
    AlignmentsOption,
    BadUtf8Option,
    CombineOption,
    DeviceOption,
    EnsembleOption,
    InputOption,
    InteractiveOption,
    JsonInputOption,
    JsonOption,
    ModelArgument,
    OutputOption,
    PrecisionOption,
    PrefixOption,
    ShortlistOption,
    TagOption,
    ThreadsOption,
    WorkersOption,
)
from mtkit.data.progress import bar
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.files import open_binary, read_byte_lines, read_lines
from mtkit.folders import RECIPE_FILE, find_model, weights_sha256
from mtkit.formats import OUTPUT_KEYS, alignment_line, json_line, n_best_lines, parse_json_lines, text_line
from mtkit.lines import BadUtf8, LineReader, count_lines
from mtkit.recipe import Recipe
from mtkit.sections.search import Greedy, Search
from mtkit.translation import Line, Tally, Translation

_LOG = logging.getLogger(__name__)
_LONG_LINES_NAMED = 20
_STREAM = Path("-")
_PREFIX_HINT = "a prefix file has one line for each line of input; a blank one forces nothing"


@with_search_options
def translate(
    model: ModelArgument,
    input_path: InputOption = None,
    output_path: OutputOption = None,
    as_json: JsonOption = False,
    alignments: AlignmentsOption = False,
    json_input: JsonInputOption = False,
    interactive: InteractiveOption = False,
    bad_utf8: BadUtf8Option = "replace",
    prefix_file: PrefixOption = None,
    tag: TagOption = [],  # noqa: B006
    ensemble: EnsembleOption = [],  # noqa: B006
    combine: CombineOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    shortlist: ShortlistOption = False,
    engine: EngineOption = "mtkit",
    **settings: Any,
) -> None:
    """Translate lines of text: N lines in, N lines out, in order.

    Examples:
      mtkit translate runs/quickstart/model < test.zh > test.out.en
      mtkit translate runs/quickstart/model -i test.zh.gz -o test.jsonl.gz --json --beam-size 8 --n-best 3

    Lines: UTF-8 whatever the locale; only LF (or CRLF) ends one. U+2028, U+0085, VT, FF, a lone CR, NUL and other
    control characters are read as a space, and none comes out. A byte order mark at the start is dropped. What is odd
    is reported by line number. A blank line gives a blank line. A line of more than --max-source-length tokens goes by
    --on-long: split (at sentence ends, then clause marks, spaces, tokens; the pieces are translated and joined again),
    truncate, or error, which refuses before any output where --input is a file, otherwise before the output of the
    lines read together with it. Translations that reach the length limit, go round in a loop or are empty, and unknown
    source tokens, are counted on stderr.

    Streams: lines are read in buffers of --buffer-size hypotheses, and a buffer is answered before the next is read; of
    stdin the first has --batch-size lines, each next one twice as many until it makes --buffer-size hypotheses. With
    --interactive, --batch-size 1 or a terminal on stdin each line is answered, and the answer flushed, before the next
    is read. Ctrl-C ends after a whole line.

    Output is the best translation of each line; or, with --n-best or --samples above 1 and without --mbr, the n-best
    format of Moses, ID from 0, LENGTH with ends, "|||" inside TEXT written &#124;&#124;&#124;:
      ID ||| TEXT ||| logprob= LOG-PROBABILITY length= LENGTH ||| SCORE

    With --json, one object a line: the other keys of --json-input, then
      id, line         the number from 0 (or the input's own id), the number from 1
      status           the first that holds of blank, empty, truncated, split, ok
      source           the text as given
      source_pieces    the tokens read, tags included
      parts            in how many pieces it was translated
      unknown_tokens   source tokens that the vocabulary does not hold
      cut_tokens       source tokens that were cut off
      text             the best translation, and its other keys as in n_best
      models_sha256    of the weights of MODEL and of each --ensemble one
      n_best           all hypotheses, best first (by --mbr, its choice first), each with
        score                    what the search ranks by
        log_probability          natural logarithm, summed over tokens and ends
        normalized_score         log_probability a token, ends included
        finished                 false: stopped at the length limit
        repeats                  true: 1 to 16 tokens stand four times or more in a row
        tokens, token_log_probabilities
        end_log_probabilities    one for each piece that ended by itself
        alignment                Pharaoh i-j: token j attends most to source piece i, in the mean over the heads of the
                                 last decoder layer

    With --alignments, the alignment alone, one line a line of input, such as 0-0 1-2 2-1.

    Speed: on a CPU, --workers processes share one copy of the weights, one thread each, by default one a core; line by
    line one process has all threads, --threads. The default --precision, float32, is the fastest that gives the text of
    the trained weights, token for token; bfloat16 and int8 are faster and turn over near-ties, int8 in up to a fifth of
    the lines, at the same BLEU within 0.2 where it was measured. In float32 neither the batch size nor the other lines
    change a line's text, and scores by less than 1e-4; in bfloat16 and int8 they move scores by up to 0.01, and may
    change the text of one line in 300.

    --shortlist, for a large vocabulary: each batch is searched over the target tokens that the shortlist beside the
    weights (`mtkit shortlist`) allows its sources, all together, and log-probabilities are those among these tokens
    alone. Some lines change, `mtkit shortlist` says how many, and a line's translation may depend on the lines searched
    with it. Not for --ensemble and --engine ctranslate2.

    Under torchrun the first process reads and writes, and all share the searches; the result is that of one process:
      torchrun --nproc-per-node 8 -m mtkit translate runs/quickstart/model -i test.zh -o test.out.en

    --engine ctranslate2 searches with CTranslate2, in an export made once beside the weights (ctranslate2-float32) and
    made again when they change. The output is the same but for rounding and near-ties: it shares the probability of
    forbidden tokens out among the others. It refuses sampling, --groups, --coverage-penalty, --min-length-ratio,
    --prefix-file (and prefixes of --json-input) and --ensemble.

    Each option whose help ends in [search.KEY: ...] overrides that setting of the model's recipe.yaml for this call.
    """
    _refuse_clashes(json_input, prefix_file, as_json, alignments)
    searcher = Searcher(model, ensemble, combine, engine, precision, workers, threads, shortlist)
    searcher.refuse_clashes(prefix_file)
    recipe_path = find_model(model)[1] / RECIPE_FILE
    models = [sha256 for folder in (model, *ensemble) if (sha256 := weights_sha256(folder)) is not None]
    input_path, output_path = (None if path == _STREAM else path for path in (input_path, output_path))
    changes = _changes(settings, interactive, input_path)
    search = merged(Recipe.load(recipe_path), changes, str(recipe_path))
    load = functools.partial(searcher.load, search)
    if follows():
        serve(load, device, models)
        return
    tags = [as_utf8(symbol) for symbol in tag]
    reader = _reader(input_path, bad_utf8)
    lines = _lines(reader, json_input, prefix_file)
    if _is_file(input_path) and _is_file(prefix_file):
        _refuse_unequal(input_path, prefix_file)
    render = _renderer(as_json, alignments, changes, search, models)
    with leading(load, device, models) as translator:
        from mtkit.translator import hypothesis_count

        if _is_file(input_path) and search.lines.on_long == "error":
            translator.refuse_long(_lines(_reader(input_path, bad_utf8), json_input, None), search, tags=tags)
        with open_output(output_path) as output, output.whole_lines(), _progress(input_path) as progress:

            def on_batch(done: int) -> None:
                output.refuse_closed()
                progress(done)

            stream = translator.translate_stream(
                lines,
                search,
                tags=tags,
                details=as_json or alignments,
                scores=render is not text_line,
                on_batch=on_batch,
                at_hand=_is_file(input_path),
            )
            _write(stream, output, render, reader, Tally(hypothesis_count(search)))


def _write(
    stream: Iterable[Translation],
    output: Output,
    render: Callable[[Translation], str],
    reader: LineReader,
    tally: Tally,
) -> None:
    """Write every translation, then report what was counted; on signals too, before they go on."""
    start = time.monotonic()
    replaced: set[str] = set()
    try:
        for translation in stream:
            output.write(render(translation))
            tally.add(translation)
            replaced |= translation.line.extra.keys() & OUTPUT_KEYS
            _report_long(translation, tally)
    except (KeyboardInterrupt, SystemExit):
        _report(reader, tally, time.monotonic() - start)
        raise
    _report(reader, tally, time.monotonic() - start)
    if replaced and render not in (text_line, n_best_lines, alignment_line):
        _LOG.warning("%s: replaced by output keys of the same name: %s", reader.name, ", ".join(sorted(replaced)))
    if tally.lines != reader.count:
        raise MtkitError(
            f"{reader.count} lines were read and {tally.lines} translations written",
            "this is a fault of mtkit; please report it with the input",
        )


def _report_long(translation: Translation, tally: Tally) -> None:
    """Say what was done to a line that is too long; after the first few they are only counted."""
    number, tokens = translation.number, translation.source_tokens
    if translation.parts > 1 and tally.split.count <= _LONG_LINES_NAMED:
        _LOG.warning("line %d: its %d source tokens were translated in %d pieces", number, tokens, translation.parts)
    if translation.cut_tokens and tally.truncated.count <= _LONG_LINES_NAMED:
        cut = translation.cut_tokens
        _LOG.warning("line %d: %d of its %d source tokens were cut off", number, cut, tokens + cut)


def _report(reader: LineReader, tally: Tally, seconds: float) -> None:
    """What was odd in the input, what went wrong in the search, and the speed."""
    for sentence in (*reader.report(), *tally.report()):
        _LOG.warning("%s", sentence)
    _LOG.info(
        "%d lines in, %d out (%d blank) in %.1f s: %.1f lines/s, %.0f target tokens/s",
        reader.count,
        tally.lines,
        tally.blank,
        seconds,
        tally.lines / max(seconds, 1e-9),
        tally.target_tokens / max(seconds, 1e-9),
    )


def _refuse_clashes(json_input: bool, prefix_file: Path | None, as_json: bool, alignments: bool) -> None:
    """Raise UsageError for options of input and output that do not go together."""
    if json_input and prefix_file is not None:
        raise UsageError(f"--prefix-file {prefix_file} and --json-input both give prefixes", 'use the key "prefix"')
    if as_json and alignments:
        raise UsageError("--json and --alignments are two formats", "--json has the alignment too; leave one out")


def _changes(settings: dict[str, Any], interactive: bool, input_path: Path | None) -> dict[str, Any]:
    """The settings of the search that were given; line by line with --interactive, and by default on a terminal.

    Raises UsageError when --interactive meets another batch size.
    """
    changes = given(settings)
    if interactive and changes.get("batch_size", 1) != 1:
        raise UsageError(
            f"--interactive answers line by line, and --batch-size {changes['batch_size']} does not",
            "leave one of the two out",
        )
    at_terminal = input_path is None and sys.stdin.isatty()
    return {"batch_size": 1} | changes if interactive or at_terminal else changes


def _renderer(
    as_json: bool, alignments: bool, changes: dict[str, Any], search: Search, models: list[str]
) -> Callable[[Translation], str]:
    """How a translation is written; a list only where the command line asks for several hypotheses."""
    if alignments:
        return alignment_line
    if as_json:
        return functools.partial(json_line, models_sha256=models)
    several = max(changes.get("n_best", 1), changes.get("samples", 1)) > 1
    by_agreement = not isinstance(search, Greedy) and search.mbr != "off"
    return n_best_lines if several and not by_agreement else text_line


def _reader(path: Path | None, bad_utf8: BadUtf8) -> LineReader:
    """The lines of a file, or of stdin. Raises DataError at once when there is no such file."""
    if path is None:
        return LineReader(stdin_lines(), STDIN, bad_utf8)
    _refuse_missing(path)
    return LineReader(read_byte_lines(path), str(path), bad_utf8)


def _lines(reader: LineReader, json_input: bool, prefix_file: Path | None) -> Iterator[Line]:
    """The lines to translate, from text or JSON, with their prefixes. Raises DataError for a missing file."""
    if json_input:
        return parse_json_lines(reader, reader.name)
    if prefix_file is None:
        return map(Line, reader)
    _refuse_missing(prefix_file)
    return _with_prefixes(reader, prefix_file)


def _refuse_missing(path: Path) -> None:
    """Raise DataError when the file is not there. A named pipe is not tried: it gives its lines only once."""
    if not path.is_fifo():
        open_binary(path).close()


def _is_file(path: Path | None) -> TypeGuard[Path]:
    """Whether this can be read more than once."""
    return path is not None and path.is_file()


def _with_prefixes(reader: LineReader, path: Path) -> Iterator[Line]:
    """Pair each line with a prefix. Raises DataError when one of the two files ends before the other."""
    prefixes = read_lines(path)
    for text in reader:
        prefix = next(prefixes, None)
        if prefix is None:
            raise DataError(f"{path} ends after {reader.count - 1} lines, {reader.name} goes on", _PREFIX_HINT)
        yield Line(text, prefix)
    if next(prefixes, None) is not None:
        raise DataError(f"{path} goes on after {reader.count} lines, where {reader.name} ends", _PREFIX_HINT)


def _refuse_unequal(input_path: Path, prefix_file: Path) -> None:
    """Raise DataError, before any work, when two files do not have the same number of lines."""
    lines, prefixes = count_lines(input_path), count_lines(prefix_file)
    if lines != prefixes:
        raise DataError(f"{input_path} has {lines} lines, {prefix_file} has {prefixes}", _PREFIX_HINT)


@contextlib.contextmanager
def _progress(path: Path | None) -> Iterator[Callable[[int], object]]:
    """Give a function that counts lines done, on a progress bar where the input is a file and stderr a terminal."""
    if path is None and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        yield lambda lines: None
        return
    total = count_lines(path) if _is_file(path) and sys.stderr.isatty() else None
    with bar("translate", total, " lines") as shown:
        yield shown.update
