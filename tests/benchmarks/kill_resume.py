"""Kill training at random moments, resume each time, and compare the end with the uninterrupted run, bit for bit.

    python tests/benchmarks/kill_resume.py --kills 30 --signal KILL --threads 1

Saves after every second update, so that many of the moments fall into a save. With --signal TERM the run stops in its
own time instead, and each exit code must be 143. Exit code 0: equal. Takes some seconds a kill, most of them for
starting Python.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import TinyCorpus, invent_pairs
from toy_run import assert_same, events, toy_recipe

from mtkit.folders import RunFolder


def write_corpus(folder: Path) -> TinyCorpus:
    """The tests' invented corpus in a folder."""
    folder.mkdir(parents=True)
    for part, (count, seed) in {"train": (600, 1), "valid": (40, 2), "test": (40, 3)}.items():
        for side, lines in zip(("source", "target"), zip(*invent_pairs(count, seed), strict=True), strict=True):
            (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return TinyCorpus(folder, [], [])


def write_recipe(corpus: TinyCorpus, run_dir: Path, steps: int, threads: int) -> Path:
    """A recipe file beside the run folder."""
    training = {
        "max_steps": steps,
        "validate_every_steps": 50,
        "save_every_steps": 2,
        "log_every_steps": 20,
        "keep_last": 2,
        "ema_decay": 0.99,
        "accumulate": 2,
        "threads": threads,
    }
    path = run_dir.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(toy_recipe(corpus, run_dir, training=training).model_dump(mode="json")))
    return path


def start(recipe: Path, log: Path) -> "subprocess.Popen[bytes]":
    """`mtkit train` on the recipe, its log appended to a file."""
    with open(log, "ab") as stream:
        return subprocess.Popen([sys.executable, "-m", "mtkit", "train", str(recipe)], stderr=stream)


def live_a_while(process: "subprocess.Popen[bytes]", run: RunFolder, seconds: float) -> bool:
    """Wait until this process has begun to train, and so many seconds more; False when it has ended by then."""
    begun = len(events(run, "start", "resume")) if run.metrics.exists() else 0
    while process.poll() is None and (not run.metrics.exists() or len(events(run, "start", "resume")) == begun):
        time.sleep(0.01)
    time.sleep(seconds)
    return process.poll() is None


def main() -> int:
    """Run the comparison; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=30, help="how often training is killed (default 30)")
    options.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL", help="by which signal")
    options.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    options.add_argument("--longest", type=float, default=0.6, help="most seconds of training between two kills")
    options.add_argument("--seed", type=int, default=1, help="seed of the moments")
    chosen = options.parse_args()
    number = getattr(signal, f"SIG{chosen.signal}")
    chance = random.Random(chosen.seed)
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus, log = write_corpus(folder / "data"), folder / "log"
        steps = 40 * chosen.kills
        whole, run = RunFolder(folder / "whole"), RunFolder(folder / "run")
        recipe = write_recipe(corpus, run.path, steps, chosen.threads)
        done = 0
        while done < chosen.kills:
            process = start(recipe, log)
            seconds = chance.uniform(0, chosen.longest)
            if not live_a_while(process, run, seconds):
                print(f"the run ended by itself, with code {process.returncode}, after {done} kills")
                break
            process.send_signal(number)
            code = process.wait()
            done += 1
            print(f"kill {done}: {seconds:.3f} s into training, code {code}, checkpoints {run.steps()}", flush=True)
            if number != signal.SIGKILL and code not in (0, 128 + number):
                print(log.read_text(encoding="utf-8"))
                return 1
        for path in (recipe, write_recipe(corpus, whole.path, steps, chosen.threads)):
            if start(path, log).wait():
                print(log.read_text(encoding="utf-8"))
                return 1
        assert_same(run, whole, steps)
        print(f"equal after {steps} updates and {done} kills; resumed at {[r['step'] for r in events(run, 'resume')]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
