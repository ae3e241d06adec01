"""BLEU against speed of several models, beside CTranslate2 on one of them; by hand, not by the tests.

    python tests/benchmarks/frontier.py MODEL ... --reference-model BASE --input test.en --reference test.de

Every MODEL is translated by mtkit, BASE by CTranslate2, in each precision and search, text in to text out, models in
memory. Each is first tried with the settings of `mtkit bench translate --against ctranslate2`; then all take turns, so
that a change in the machine's speed hits all; ratios are taken within a round.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mtkit.bench.process import Engine, MeasuredProcess
from mtkit.bench.translate import Wish, aligned, bleu_of, name_of, read_text, search_of
from mtkit.bench.versus import BUDGETS, Place, best_setting, by_count, exported
from mtkit.folders import RECIPE_FILE, find_model
from mtkit.recipe import Recipe
from mtkit.runtime import usable_cores
from mtkit.text.tokenizer import Tokenizers


def place_of(model: Path, options: argparse.Namespace, folder: Path, engine: Engine) -> Place:
    """Where the model is measured."""
    wish = Wish(model, options.input, options.reference, 10_000_000, 0, options.precisions, [], [], options.rounds)
    weights, home = find_model(model)
    recipe = Recipe.load(home / RECIPE_FILE)
    text = read_text(wish, recipe, Tokenizers.load(home))
    exports = exported(wish, folder) if engine == "ctranslate2" else dict.fromkeys(options.precisions, Path())
    return Place(
        wish, recipe, home, text, usable_cores(), options.tried_lines, BUDGETS, exports, weights.stat().st_size
    )


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--reference-model", type=Path, required=True, help="what CTranslate2 translates with")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--tried-lines", type=int, default=100, help="least lines to try settings on (default 100)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--precisions", nargs="+", default=["int8"])
    options = parser.parse_args()
    table = [
        ["model, engine", "precision", "search", "BLEU", "sentences/s", "times CTranslate2: least", "median", "most"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        asked: list[tuple[Path, Engine]] = [(options.reference_model, "ctranslate2")]
        asked += [(model, "mtkit") for model in options.models]
        contestants = [(str(model), engine, place_of(model, options, Path(folder), engine)) for model, engine in asked]
        for beam_size in options.beam_sizes:
            for precision in options.precisions:
                table += rows(contestants, precision, beam_size, options.rounds)
    print("\n".join(aligned(table)))
    return 0


def rows(contestants: list[tuple[str, Engine, Place]], precision: str, beam_size: int, rounds: int) -> list[list[str]]:
    """A row of the table for each contestant, CTranslate2 first."""
    with ExitStack() as stack:
        ready = []
        for name, engine, place in contestants:
            search = by_count(search_of(place.recipe, beam_size))
            workers, threads, budget = best_setting(place, engine, precision, search)
            process = stack.enter_context(MeasuredProcess(place.setup(engine, precision, workers, threads)))
            task = place.task(search, budget)
            bleu = bleu_of(process.translate(replace(task, texts=True)).texts, place.text, place.recipe)
            ready.append((f"{name}, {engine}", name_of(search), process, task, bleu))
        seconds = [[process.translate(task).seconds for _, _, process, task, _ in ready] for _ in range(rounds)]
    found = []
    for index, (name, search_name, _, task, bleu) in enumerate(ready):
        own = [row[index] for row in seconds]
        ratios = [row[0] / row[index] for row in seconds]
        spans = [f"{value:.2f}" for value in (min(ratios), statistics.median(ratios), max(ratios))]
        found.append(
            [name, precision, search_name, f"{bleu:.2f}", f"{task.lines / statistics.median(own):,.0f}", *spans]
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
