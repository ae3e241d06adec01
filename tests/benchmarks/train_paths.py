"""Two ways to train one recipe, update by update in turns: their speeds, and whether they learn the same.

    python tests/benchmarks/train_paths.py RECIPE --one training.precision=fp32 --other training.precision=bf16
    python tests/benchmarks/train_paths.py RECIPE --other training.packing=true --updates 50
    python tests/benchmarks/train_paths.py RECIPE --other training.compile=true --warmup 5

Both begin with the same weights and see the same batches. Each update is done by one, then by the other, in changing
order, so that a change in the machine's speed hits both; a ratio is that of the seconds of one update. The warm-up does
not count for the speeds; its seconds, in which a model is compiled, are told apart. Seconds of the processor, of all
threads, are told beside those of the clock: with --set training.threads=1 they mean something on a busy machine, too.
At the end stands the loss of both over the validation pairs, if any, and how far the other's is from one's. Where the
two draw other bits for dropout (packed rows, a compiled model), two values of training.seed show how much that alone
makes.

Tokenizer and shards are made in a temporary folder. RECIPE's corpora must be there (`mtkit fetch RECIPE`).
"""

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mtkit.data.progress import bar
from mtkit.ranks import ALONE
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device, set_threads, tune_allocator
from mtkit.stages import ensure_shards, ensure_tokenizer
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.optimizer import set_rate
from mtkit.training.schedule import learning_rate
from mtkit.training.state import Learner, make_learner
from mtkit.training.step import train_step
from mtkit.training.updates import Update, open_pairs, updates
from mtkit.training.validate import mean_nll


@dataclass(slots=True)
class Way:
    """One way to train: its settings in words, what learns, and the seconds of each update."""

    name: str
    learner: Learner
    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def move(self, update: Update, step: int) -> None:
        """One update, as the training loop does it."""
        began = time.perf_counter(), time.process_time()
        one = self.learner
        set_rate(
            one.optimizer,
            learning_rate(one.recipe.schedule, step, one.recipe.training.max_steps, one.recipe.model.d_model),
        )
        whole = (one.model, one.core, one.optimizer, one.scaler)
        assert train_step(*whole, update.batches, step, one.settings, update.target_tokens, ALONE).applied
        if one.average is not None:
            one.average.update(step)
        if one.device.type == "cuda":
            torch.cuda.synchronize(one.device)
        self.clock.append(time.perf_counter() - began[0])
        self.processor.append(time.process_time() - began[1])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--one", action="append", default=[], metavar="KEY=VALUE", help="a setting of the first way")
    parser.add_argument("--other", action="append", default=[], metavar="KEY=VALUE", help="a setting of the second way")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of both")
    parser.add_argument("--updates", type=int, default=30, help="updates that are measured")
    parser.add_argument("--warmup", type=int, default=3, help="updates before these")
    return parser.parse_args()


def report(ways: list[Way], warmup: int, tokens: list[int]) -> None:
    """Print the speeds of both."""
    first = ways[0]
    for way in ways:
        ratios = [one / other for one, other in zip(first.clock[warmup:], way.clock[warmup:], strict=True)]
        processor = sum(first.processor[warmup:]) / sum(way.processor[warmup:])
        print(
            f"{way.name:40s} {sum(tokens[warmup:]) / sum(way.clock[warmup:]):,.0f} target tokens/s; "
            f"{sum(first.clock[warmup:]) / sum(way.clock[warmup:]):.3f} x, an update: median "
            f"{statistics.median(ratios):.3f} x; processor {processor:.3f} x; "
            f"warm-up {sum(way.clock[:warmup]):.1f} s"
        )


def main() -> None:
    arguments = parse()
    tune_allocator()
    with tempfile.TemporaryDirectory(prefix="mtkit-paths-") as folder:
        shared = [*arguments.set, f"run_dir={folder}/run"]
        recipes = [Recipe.load(arguments.recipe, [*shared, *more]) for more in (arguments.one, arguments.other)]
        set_threads(recipes[0].training.threads)
        ensure_shards(recipes[0], ensure_tokenizer(recipes[0]))
        run = Path(recipes[0].run_dir)
        tokenizers = Tokenizers.load(run)
        device = resolve_device(recipes[0].training.device)
        names = [" ".join(more) or "as it is" for more in (arguments.one, arguments.other)]
        ways = [Way(name, make_learner(one, tokenizers, device)) for name, one in zip(names, recipes, strict=True)]
        data, valid = (open_pairs(run / "shards" / part, getattr(recipes[0].data, part)) for part in ("train", "valid"))
        count, tokens = arguments.warmup + arguments.updates, []
        with (
            closing(updates(recipes[0], data, 0, 0, ALONE, tokenizers)) as stream,
            bar("training", count, " updates") as progress,
        ):
            for step in range(1, count + 1):
                update = next(stream)
                tokens.append(update.target_tokens)
                for way in ways if step % 2 else reversed(ways):
                    way.move(update, step)
                progress.update()
        report(ways, arguments.warmup, tokens)
        if not len(valid):
            print("no validation: the recipe has no data.valid")
            return
        losses = []
        for way in ways:
            with way.learner.translating() as ready:
                losses.append(mean_nll(ready, valid))
        print(
            f"validation after {count} updates: {losses[0]:.5f} and {losses[1]:.5f} nats a token, "
            f"{100 * (losses[1] / losses[0] - 1):+.2f} %"
        )


if __name__ == "__main__":
    main()
