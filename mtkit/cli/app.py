"""The command `mtkit`: which commands there are, and how each one ends.

A command's file is imported when the command is called or its help is asked for, never for `mtkit --help`.
"""

import errno
import functools
import inspect
import io
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mtkit import __version__
from mtkit.cli.descriptors import write_all
from mtkit.errors import MtkitError, ToldError

SUMMARIES = {
    "init": "Write a recipe that suits your corpus and machine.",
    "fetch": "Download a recipe's public corpora.",
    "check": "Say what would go wrong, before anything runs.",
    "tokenizer": "Train a recipe's tokenizer.",
    "binarize": "Turn a recipe's corpora into shards, and report the drops.",
    "train": "Train a recipe's model.",
    "average": "Average checkpoints of a run into its model folder.",
    "translate": "Translate lines of text, stdin to stdout.",
    "eval": "Score translations: BLEU, chrF, TER.",
    "compare": "Show where one system is better than another.",
    "score": "Force-decode given pairs: log-probability, perplexity.",
    "attention": "Show what a model looked at: heat maps, alignments.",
    "shortlist": "Make a model's shortlist, for faster translation.",
    "run": "Do all stages of a recipe, from corpora to the test score.",
    "report": "Put a run into one HTML file to look at.",
    "info": "Show what a model is.",
    "quantize": "Make a model's matrices int8: a quarter of the size.",
    "export": "Write a model for CTranslate2 or Hugging Face, and compare.",
    "import": "Make a model folder of a Hugging Face MarianMT model.",
    "recipe": "Look at recipes: show one resolved, diff two, print the schema.",
    "bench": "Measure the speed of training or translation here.",
}
"""Every command with its line in `mtkit --help`."""


def function_of(name: str) -> Callable[..., None]:
    """The function behind a command; imports its file."""
    match name:
        case "init":
            from mtkit.cli.init import init

            return init
        case "fetch":
            from mtkit.cli.fetch import fetch

            return fetch
        case "check":
            from mtkit.cli.check import check

            return check
        case "tokenizer":
            from mtkit.cli.tokenizer import tokenizer

            return tokenizer
        case "binarize":
            from mtkit.cli.binarize import binarize

            return binarize
        case "train":
            from mtkit.cli.train import train

            return train
        case "average":
            from mtkit.cli.average import average

            return average
        case "translate":
            from mtkit.cli.translate import translate

            return translate
        case "eval":
            from mtkit.cli.eval import evaluate

            return evaluate
        case "compare":
            from mtkit.cli.compare import compare

            return compare
        case "score":
            from mtkit.cli.score import score

            return score
        case "attention":
            from mtkit.cli.attention import attention

            return attention
        case "shortlist":
            from mtkit.cli.shortlist import shortlist

            return shortlist
        case "run":
            from mtkit.cli.run import run

            return run
        case "report":
            from mtkit.cli.report import report

            return report
        case "info":
            from mtkit.cli.info import info

            return info
        case "quantize":
            from mtkit.cli.quantize import quantize

            return quantize
        case "export":
            from mtkit.cli.export import export

            return export
        case "import":
            from mtkit.cli.import_model import import_model

            return import_model
    raise AssertionError(f"no such command: {name}")


class _Commands(TyperGroup):
    """A group that lists its commands by their summaries, and imports the one that is resolved."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _command(str(name)), rest


def _listed() -> None:
    raise AssertionError("a listed command is replaced before it is called, by _Commands.resolve_command")


def _command(name: str) -> Any:
    """A command, or a group of them, ready to parse its arguments."""
    settings = {"help_option_names": ["-h", "--help"]}
    if name in ("recipe", "bench"):
        if name == "recipe":
            from mtkit.cli.recipe import COMMANDS, HELP
        else:
            from mtkit.cli.bench import COMMANDS, HELP
        group = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
        group.callback()(lambda: None)
        for each, function in COMMANDS.items():
            summary, text = (function.__doc__ or "").split("\n", 1)[0], _help_text(function.__doc__)
            group.command(each, help=text, short_help=summary, context_settings=settings)(_guarded(function))
        made: Any = typer.main.get_group(group)
        made.name, made.help, made.context_settings = name, _help_text(HELP), settings
        return made
    function = function_of(name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    kind = typer.core.TyperCommand
    if name == "init":
        from mtkit.cli.init import PairsCommand as kind
    text = _help_text(function.__doc__)
    single.command(name, cls=kind, help=text, context_settings=settings)(_guarded(function))
    return typer.main.get_command(single)


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """The function, ending in an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(exit_code_of(functools.partial(function, *args, **kwargs)))

    return guarded


def _help_text(docstring: str | None) -> str:
    """A docstring as help; examples and other paragraphs with an indented line keep their line breaks."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))
    as_written = re.compile(r"^ |^Example", re.MULTILINE)
    return "\n\n".join("\b\n" + text if as_written.search(text) else text for text in paragraphs)


def exit_code_of(work: Callable[[], object]) -> int:
    """Do `work` and flush stdout; the exit code, after a line on stderr for what the user has to know.

    Bugs, which are all other exceptions, pass through and show their traceback.
    """
    try:
        work()
        sys.stdout.flush()
        return 0
    except ToldError as error:
        return error.exit_code
    except MtkitError as error:
        _complain(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        print("mtkit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
    except OSError as error:
        if error.errno is None:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = error.filename or ("writing" if full else "reading or writing")
        _complain(f"{where}: {error.strerror}", _remedy(error.errno))
        return 1


def _remedy(number: int) -> str:
    """What to do about an error of the system."""
    match number:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space and try again"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "check the permissions, or choose another place"
        case errno.EEXIST | errno.ENOTDIR:
            return "a file stands where a folder is wanted: choose another place"
        case errno.EISDIR:
            return "a folder stands where a file is wanted: choose another name"
        case errno.ENOENT:
            return "check the path: not every place can hold new files"
    return "check the path and the disk, and try again"


def _complain(message: str, hint: str | None = None) -> None:
    rank = os.environ.get("RANK", "0")  # of a job that torchrun has started
    where = "" if rank == "0" else f"rank {rank}: "
    print(f"mtkit: error: {where}{message}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr)


def _prepare_streams() -> None:
    """UTF-8 with LF for all three streams, whatever the locale says.

    A stream that is closed is put on a descriptor that refuses to be read (stdin) or written (stdout); otherwise the
    next file to be opened would get its number, and the results with it.
    """
    # Opened in this order, each takes the lowest free descriptor, which is its own.
    closed = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for name, mode, flags in closed:
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        unbuffered: Any = _Stderr(sys.stderr.fileno())
        sys.stderr = io.TextIOWrapper(unbuffered, "utf-8", "backslashreplace", "\n", line_buffering=True)


class _Stderr(io.FileIO):
    """Without Python's own buffer, which refuses to be written to by a signal's handler in the middle of a write.

    A terminal may be closed while work goes on: then nobody is left to read what is written to it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._terminal = self.isatty()

    def write(self, data: Any) -> int:
        """Write all of `data`; its length in bytes."""
        try:
            write_all(self.fileno(), data)
        except OSError as error:
            if error.errno != errno.EIO or not self._terminal:
                raise
        return len(data)


class _Log(logging.Handler):
    """Log lines on stderr: messages as they are, warnings and errors with their rank; above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        rank = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = rank + record.getMessage()
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def _prepare_log() -> None:
    log = logging.getLogger("mtkit")
    log.addHandler(_Log())
    log.setLevel(logging.INFO)
    log.propagate = False


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mtkit {__version__}")
        raise typer.Exit()


def _options(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors on stderr.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train your own translation model: from a parallel corpus to a scored translator.

    \b
    mtkit run recipes/quickstart.yaml            all stages, from raw text to a score
    mtkit translate runs/quickstart/model < FILE translate lines

    Each command explains itself with an example: mtkit COMMAND --help
    """
    if quiet:
        logging.getLogger("mtkit").setLevel(logging.WARNING)


def _application() -> Any:
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(cls=_Commands, rich_markup_mode=None, no_args_is_help=True, context_settings=settings)
    app.callback()(_options)
    for name, summary in SUMMARIES.items():
        app.command(name, help=summary)(_listed)
    return typer.main.get_command(app)


def _prepare_memory() -> None:
    """Ask torch for huge pages, which it wants to know before it is imported; they save page faults (Linux)."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def main() -> NoReturn:
    """Run the command line of this process and exit: 0 success, 1 failure, 2 usage or recipe, 130 interrupted."""
    _prepare_streams()
    _prepare_log()
    _prepare_memory()
    stdout = sys.stdout

    def application() -> None:
        _application()(prog_name="mtkit")

    try:
        code = exit_code_of(application)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if sys.stdout is not stdout:
            # Typer puts a wrapper there when the reader of a help text has gone away.
            code = 141
    try:
        stdout.flush()
    except OSError:
        # What could not be written is still in the buffer, and Python would complain again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    sys.exit(code)
