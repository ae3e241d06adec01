"""`mtkit bench`: how fast this machine is at what a recipe or a model asks for."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from mtkit.cli.options import RecipeArgument, SetOption, load_recipe
from mtkit.cli.translate_options import ModelArgument
from mtkit.errors import UsageError

_Value = TypeVar("_Value")


def train(
    recipe: RecipeArgument,
    overrides: SetOption = [],  # noqa: B006
    updates: Annotated[
        int, typer.Option("--updates", "-n", min=1, max=1_000_000, help="Updates that are measured.")
    ] = 50,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, max=1_000_000, help="Updates before these, which do not count.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the speed of training: tokens/s, padding, memory, arithmetic, and where the time goes.

    Trains from the recipe's start as mtkit train does, without validating. Nothing is written into the run folder; its
    tokenizer and shards are used where they are up to date, otherwise made in a temporary folder. Tokens are real ones,
    EOS included. The model's arithmetic, counted by formula at real positions, is set beside that of square matrix
    products in the same run: those that take turns with the updates, all their time counted, and the quickest one.

    Example: mtkit bench train recipes/multi30k-en-de.yaml --set training.precision=fp32 --set training.threads=2
    """
    from mtkit.bench.train import bench_train
    from mtkit.data.progress import bar

    loaded = load_recipe(recipe, overrides)
    with bar("measuring", updates + warmup, " updates") as progress:
        speed = bench_train(loaded, updates, warmup, progress.update)
    print(json.dumps(speed.to_json(), indent=2) if as_json else speed.render())


def translate(
    model: ModelArgument,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="File to translate, plain, .gz, .xz or .bz2. Default: the recipe's first test or validation corpus.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", help="Reference of --input, for BLEU.", show_default=False),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, max=10_000_000, help="Most lines to translate.")] = 1000,
    latency_lines: Annotated[
        int, typer.Option("--latency-lines", min=1, max=10_000_000, help="Of these, lines to translate one by one.")
    ] = 100,
    precision: Annotated[
        list[str],
        typer.Option(
            "--precision",
            metavar="PRECISION",
            help="float32, bfloat16 or int8; may be repeated. Default: all; with --against float32 and int8.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    workers: Annotated[
        list[int],
        typer.Option(
            "--workers",
            min=1,
            max=1024,
            help="Processes; may be repeated. Default: 1, and one a core.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    beam_size: Annotated[
        list[int],
        typer.Option(
            "--beam-size",
            min=1,
            max=256,
            help="Beam size, 1 for greedy search; may be repeated. Default: 1, 5.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Passes over the text that count.")] = 3,
    against: Annotated[
        Literal["ctranslate2"] | None,
        typer.Option(
            "--against",
            help="Measure mtkit and this engine in turn instead, each at its best setting.",
            show_default=False,
        ),
    ] = None,
    tried_lines: Annotated[
        int | None,
        typer.Option(
            "--tried-lines",
            min=1,
            max=10_000_000,
            help="With --against: least lines on which settings are tried. Default: 300.",
            show_default=False,
        ),
    ] = None,
    tried_tokens: Annotated[
        list[int],
        typer.Option(
            "--tried-tokens",
            min=1,
            max=10_000_000,
            help="With --against: source tokens of a batch to try; repeatable. Default: 512, 1024, 2048, 4096, 8192.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the speed of translation on this CPU: sentences/s, tokens/s, latency, memory, start.

    For each precision, number of workers and search, in a fresh process: the median speed of --rounds passes over the
    text after a first one, text in to text out, with the batches of the model's recipe; the 50th and 95th percentile of
    the time of a line that is translated alone; the most memory that the process held, and its workers besides.
    Tokens are those of the translations, with ends. Lines that are blank or too long to be translated in one piece are
    left out. Then the time to the first line out of mtkit translate, beside that of importing torch.

    --against ctranslate2 (extra mtkit[ctranslate2]) measures both on the same weights and text. Each is first tried on
    --tried-lines lines, or more where that takes no time, with every way to split the cores into workers and threads,
    and with batches of --tried-tokens source tokens; its quickest setting is its own. Both end beam search by count, as
    CTranslate2 has no other rule (search.patience, 1 by default). Then they translate in turn, --rounds times. Printed
    are the figures of each, the ratios within a round (least, median, most), and how many lines are equal.

    Example: mtkit bench translate runs/quickstart/model --precision int8 --workers 2 --json

    Example: mtkit bench translate runs/quickstart/model -i test.zh -r test.en --against ctranslate2
    """
    from mtkit.bench.translate import PRECISIONS, Precision, Wish, bench_translate
    from mtkit.data.progress import bar
    from mtkit.runtime import usable_cores

    _refuse_clashes(input_path, reference, workers, against, tried_lines, tried_tokens)
    cores = usable_cores()
    both: tuple[Precision, ...] = ("float32", "int8")
    wish = Wish(
        model=model,
        input=input_path,
        reference=reference,
        lines=lines,
        latency_lines=latency_lines,
        precisions=_known(precision, PRECISIONS) or (both if against else PRECISIONS),
        workers=_once(workers) or sorted({1, cores}),
        beam_sizes=_once(beam_size) or (1, 5),
        rounds=rounds,
    )
    rows = len(wish.precisions) * len(wish.beam_sizes) * (1 if against else len(wish.workers))
    with bar("measuring", rows, " rows") as progress:
        if against:
            from mtkit.bench.versus import TRIED_LINES, bench_versus

            versus = bench_versus(wish, cores, tried_lines or TRIED_LINES, tried_tokens, progress.update)
            figures, text = versus.to_json(), versus.render()
        else:
            speed = bench_translate(wish, cores, progress.update)
            figures, text = speed.to_json(), speed.render()
    print(json.dumps(figures, indent=2) if as_json else text)


def _once(values: Sequence[_Value]) -> list[_Value]:
    """The values in order, none twice."""
    return list(dict.fromkeys(values))


def _known(names: Sequence[str], known: Sequence[_Value]) -> list[_Value]:
    """These precisions, none twice. Raises UsageError for one that is not known."""
    for name in names:
        if name not in known:
            raise UsageError(f"--precision {name} is not known", f"use one of {', '.join(map(str, known))}")
    return [one for one in known if one in names]


def _refuse_clashes(
    input_path: Path | None,
    reference: Path | None,
    workers: list[int],
    against: str | None,
    tried_lines: int | None,
    tried_tokens: list[int],
) -> None:
    """Raise UsageError for options that do not go together."""
    if reference is not None and input_path is None:
        raise UsageError(f"--reference {reference} belongs to an input, and there is none", "add --input FILE")
    if against and workers:
        raise UsageError(
            f"--workers {workers[0]}: --against {against} tries every split of the cores", "leave one of the two out"
        )
    for option, value in (("--tried-lines", tried_lines), ("--tried-tokens", next(iter(tried_tokens), None))):
        if value is not None and not against:
            raise UsageError(f"{option} {value} is about --against, and there is none", "add --against ctranslate2")


HELP = """Measure the speed of this machine.

Example: mtkit bench train recipes/quickstart.yaml

Example: mtkit bench translate runs/quickstart/model

Example: mtkit bench COMMAND --help
"""

COMMANDS: dict[str, Callable[..., None]] = {"train": train, "translate": translate}
"""The commands of the group."""
