"""Kill training at random moments, resume each time, and compare the end with the uninterrupted run, bit for bit.

    python tests/benchmarks/kill_resume.py --by KILL --times 30 --threads 1

KILL: SIGKILL; every third kill waits for a save to begin, so that it falls into one. TERM and INT: the run stops in its
own time, and each exit code must be 143 or 130. FULL: the disk fills up; the run must end with one error, exit code 1,
and go on once there is room. The run folder of FULL is a small tmpfs that the script mounts; where it may not, no file
may grow beyond a random size instead. Saves after every second update, over and over the same few checkpoints.

Exit code 0: all weights, optimizer states and counters at the end are equal. Takes some seconds each time, most of them
for starting Python.
"""

import argparse
import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import TinyCorpus, invent_pairs
from toy_run import assert_same, events, toy_recipe

from mtkit.folders import RunFolder

DISK = 4 << 20
"""Bytes of the small disk: tokenizer, shards and four checkpoints take a third of it."""


def write_corpus(folder: Path) -> TinyCorpus:
    """The tests' invented corpus in a folder."""
    folder.mkdir(parents=True)
    for part, (count, seed) in {"train": (600, 1), "valid": (40, 2), "test": (40, 3)}.items():
        for side, lines in zip(("source", "target"), zip(*invent_pairs(count, seed), strict=True), strict=True):
            (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return TinyCorpus(folder, [], [])


def write_recipe(corpus: TinyCorpus, run_dir: Path, steps: int, threads: int) -> Path:
    """A recipe file beside the corpus."""
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
    path = corpus.folder / f"{run_dir.name}.yaml"
    path.write_text(yaml.safe_dump(toy_recipe(corpus, run_dir, training=training).model_dump(mode="json")))
    return path


@dataclass(slots=True)
class Ordeal:
    """A run that is interrupted over and over. `inside` counts the interruptions in a save."""

    recipe: Path
    run: RunFolder
    log: Path
    chance: random.Random
    longest: float
    inside: int = 0
    codes: list[int] = field(default_factory=list)

    def start(self, limit: int | None = None) -> "subprocess.Popen[bytes]":
        """`mtkit train`, its log appended to a file; with a `limit`, no file may grow beyond so many bytes."""

        def prepare() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with open(self.log, "ab") as stream:
            command = [sys.executable, "-m", "mtkit", "train", str(self.recipe)]
            return subprocess.Popen(command, stderr=stream, preexec_fn=prepare)

    def begins(self) -> int:
        """How often training has begun."""
        return len(events(self.run, "start", "resume")) if self.run.metrics.exists() else 0

    def has_begun(self, process: "subprocess.Popen[bytes]", before: int) -> bool:
        """Wait until training has begun once more; False when the process has ended by then."""
        while process.poll() is None and self.begins() == before:
            time.sleep(0.01)
        return process.poll() is None

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self.run.checkpoints.is_dir() and any(one.suffix == ".part" for one in self.run.checkpoints.iterdir())

    def by_signal(self, number: int, in_save: bool) -> str:
        """Interrupt once; returns what happened. Raises AssertionError when it ends in another way than it should."""
        before = self.begins()
        process = self.start()
        assert self.has_begun(process, before), self.told()
        seconds = self.chance.uniform(0, self.longest)
        time.sleep(seconds)
        while in_save and process.poll() is None and not self.saving():
            pass
        process.send_signal(number)
        code = process.wait()
        self.codes.append(code)
        expected = -number if number == signal.SIGKILL else 128 + number
        assert code == expected, f"exit code {code}\n{self.told()}"
        left = self.saving()
        self.inside += left
        return f"{seconds:.3f} s into training{', inside a save' if left else ''}"

    def by_full_disk(self, fill: Callable[[int], None], empty: Callable[[], None], limited: bool) -> str:
        """Let the disk fill up once; returns what happened. Raises AssertionError as `by_signal` does."""
        before, room = self.begins(), self.chance.randrange(1, 150_000)
        saved = self.run.steps()
        process = self.start(max(room, 4096 + self.size_of_log()) if limited else None)
        if not limited:
            assert self.has_begun(process, before), self.told()
            time.sleep(self.chance.uniform(0, self.longest))
            fill(room)
        code = process.wait()
        empty()
        self.codes.append(code)
        assert code == 1, f"exit code {code}\n{self.told()}"
        told = [line for line in self.told().split("\n") if line.startswith("mtkit: error:")][-1]
        assert "No space left" in told or "File too large" in told, told
        self.inside += "the checkpoint cannot be written" in told
        assert not saved or self.run.steps()[-1] >= saved[-1], "the last good checkpoint is gone"
        return f"with {room:,} bytes of room: {told.partition('error: ')[2][:90]}"

    def size_of_log(self) -> int:
        """What is never to fail for want of room: the files that only grow."""
        grown = [self.run.metrics, self.log]
        return max((path.stat().st_size for path in grown if path.exists()), default=0)

    def told(self) -> str:
        """All that the runs have said."""
        return self.log.read_text(encoding="utf-8")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a tmpfs of `DISK` bytes there; False where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    try:
        mounted = subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path, room: int) -> None:
    """Write a file that leaves `room` bytes of its disk free."""
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as stream:
        while True:
            state = os.statvfs(ballast.parent)
            size = min(1 << 16, state.f_bavail * state.f_frsize - room)
            if size <= 0:
                return
            stream.write(bytes(size))


def main() -> int:
    """Run the comparison; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--by", choices=["KILL", "TERM", "INT", "FULL"], default="KILL", help="what interrupts it")
    options.add_argument("--times", type=int, default=30, help="how often it is interrupted (default 30)")
    options.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    options.add_argument("--longest", type=float, default=0.6, help="most seconds of training before it (0.6)")
    options.add_argument(
        "--updates", type=int, default=60, help="of the run, for each interruption, that it does not end before (60)"
    )
    options.add_argument("--seed", type=int, default=1, help="seed of the moments")
    chosen = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take 30 times as long on busy cores
    steps = chosen.updates * chosen.times
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mounted = chosen.by == "FULL" and stack.enter_context(small_disk(folder / "disk"))
        corpus, chance = write_corpus(folder / "data"), random.Random(chosen.seed)
        place = folder / "disk" if mounted else folder
        runs = [RunFolder(place / "run"), RunFolder(folder / "whole")]
        ordeal, whole = (
            Ordeal(
                recipe=write_recipe(corpus, run.path, steps, chosen.threads),
                run=run,
                log=folder / f"{run.path.name}.log",
                chance=chance,
                longest=chosen.longest,
            )
            for run in runs
        )
        assert whole.start().wait() == 0, whole.told()
        ballast = place / "ballast"
        for time_ in range(1, chosen.times + 1):
            if chosen.by == "FULL":
                empty = lambda: ballast.unlink(missing_ok=True)  # noqa: E731
                happened = ordeal.by_full_disk(lambda room: fill(ballast, room), empty, limited=not mounted)
            else:
                happened = ordeal.by_signal(getattr(signal, f"SIG{chosen.by}"), chosen.by == "KILL" and time_ % 3 == 0)
            print(f"{chosen.by} {time_}: {happened}, checkpoints {ordeal.run.steps()}", flush=True)
        assert ordeal.start().wait() == 0, ordeal.told()
        assert_same(ordeal.run, whole.run, steps)
        resumed = [row["step"] for row in events(ordeal.run, "resume")]
        disk = ("small tmpfs" if mounted else "limit to the size of files") if chosen.by == "FULL" else "usual disk"
        print(
            f"equal after {steps} updates, {chosen.times} x {chosen.by} ({ordeal.inside} inside a save), "
            f"{chosen.threads} threads, {disk}; resumed at {resumed}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
