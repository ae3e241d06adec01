"""The speed of translation beside Hugging Face transformers, on the same weights and text; by hand, not by the tests.

    python tests/benchmarks/translate_peers.py MODEL --input test.en --rounds 3

MODEL is a model that MarianMT can hold (post-norm, sinusoidal positions). Both translate text in to text out, model in
memory, in turn, so that a change in the machine's speed hits both; ratios are taken within a round. Hugging Face is
first tried with several batch sizes, mtkit with several batches and with one worker or one a core; each has its best.
For CTranslate2 there is `mtkit bench translate MODEL --against ctranslate2`. What OpenNMT-py, Eole and JoeyNMT do is
slower than Hugging Face, and they do not read these weights.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from mtkit.bench.process import MeasuredProcess, Setup, Task
from mtkit.bench.translate import search_of
from mtkit.bench.versus import BUDGETS, splits
from mtkit.checkpoint import load_model
from mtkit.convert.to_huggingface import write_huggingface
from mtkit.files import read_lines
from mtkit.folders import RECIPE_FILE, find_model
from mtkit.runtime import usable_cores

HERE = Path(__file__).parent
BATCHES = (16, 32, 64, 128)


class HuggingFace:
    """The peer, in a process of its own."""

    def __init__(self, folder: Path, threads: int) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, str(HERE / "peers" / "huggingface_translate.py"), str(folder), str(threads)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """One pass over the text."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(task), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def task_of(search: Any, budget: int, lines: int, texts: bool = False) -> Task:
    """A pass of mtkit with batches of so many tokens."""
    batches = {"max_tokens": budget, "batch_size": lines, "buffer_size": lines * 256}
    changed = search.model_copy(update={"lines": search.lines.model_copy(update=batches)})
    return Task(changed.model_dump(), lines, texts=texts)


def compare(options: argparse.Namespace, lines: list[str], peer: HuggingFace, beam_size: int, precision: str) -> None:
    """Print one row."""
    _, home = find_model(options.model)
    _, recipe, _ = load_model(options.model, torch.device("cpu"))
    search, cores = search_of(recipe, beam_size), usable_cores()
    theirs = {"lines": lines, "beam_size": beam_size, "length_penalty": getattr(search, "length_penalty", 1.0)}
    theirs["max_length"] = min(recipe.search.rules.max_length, 200)
    tried = {**theirs, "lines": lines[: options.tried_lines]}
    peer.ask({**tried, "batch_size": BATCHES[0]})  # a warm-up
    batch = min(BATCHES, key=lambda size: peer.ask({**tried, "batch_size": size})["seconds"])
    found = {}
    for workers, threads in splits("mtkit", cores):
        setup = Setup("mtkit", str(options.model), str(home / RECIPE_FILE), precision, workers, threads, tried["lines"])
        with MeasuredProcess(setup) as process:
            process.translate(task_of(search, BUDGETS[0], len(setup.lines)))  # a warm-up
            for budget in BUDGETS:
                found[workers, threads, budget] = process.translate(task_of(search, budget, len(setup.lines))).seconds
    workers, threads, budget = min(found, key=lambda key: found[key])
    setup = Setup("mtkit", str(options.model), str(home / RECIPE_FILE), precision, workers, threads, lines)
    with MeasuredProcess(setup) as process:
        texts = process.translate(task_of(search, budget, len(lines), texts=True)).texts
        ours, others = [], []
        for _ in range(options.rounds):
            ours.append(process.translate(task_of(search, budget, len(lines))).seconds)
            answer = peer.ask({**theirs, "batch_size": batch})
            others.append(answer["seconds"])
    ratios = [other / own for own, other in zip(ours, others, strict=True)]
    equal = sum(one == other for one, other in zip(texts, answer["texts"], strict=True))
    print(
        f"{precision}, beam {beam_size}: mtkit {len(lines) / statistics.median(ours):,.1f} sentences/s "
        f"({workers} x {threads}, {budget} tokens), Hugging Face {len(lines) / statistics.median(others):,.1f} "
        f"(batch {batch}); ratio {min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}; "
        f"{equal} of {len(lines)} lines equal",
        flush=True,
    )


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--input", type=Path, required=True, help="lines to translate")
    parser.add_argument("--lines", type=int, default=1000, help="most lines (default 1,000)")
    parser.add_argument("--tried-lines", type=int, default=200, help="lines to try settings on (default 200)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--precisions", nargs="+", default=["float32", "int8"])
    options = parser.parse_args()
    lines = [line for line in read_lines(options.input) if line.strip()][: options.lines]
    weights, _ = find_model(options.model)
    model, recipe, tokenizers = load_model(options.model, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(Path(folder), model, recipe, tokenizers, weights.parent)
        peer = HuggingFace(Path(folder), usable_cores())
        for beam_size in options.beam_sizes:
            for precision in options.precisions:
                compare(options, lines, peer, beam_size, precision)
        peer.process.kill()
        peer.process.communicate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
