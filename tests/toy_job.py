"""Jobs of two processes for the tests: under torchrun, or forked with the environment that it would give them."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mtkit.recipe import Recipe
from mtkit.training import trainer


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    err: str

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.split("\n") if line.startswith("mtkit: error:")]


def written(recipe: Recipe) -> Path:
    path = Path(recipe.run_dir).with_suffix(".yaml")
    path.write_bytes(recipe.dump().encode("utf-8"))
    return path


def environment(**more: str) -> dict[str, str]:
    paths = [str(Path(trainer.__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **more}


def torchrun(recipe: Recipe, *options: str, program: Sequence[str] = ("-m", "mtkit")) -> "subprocess.Popen[bytes]":
    """A job of two processes under torchrun; its stderr is a file beside the run folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    with open(Path(recipe.run_dir).with_suffix(".err"), "wb") as err:
        return subprocess.Popen([*command, *program, "train", str(written(recipe))], stderr=err, env=environment())


def ended(job: "subprocess.Popen[bytes]", recipe: Recipe) -> Ended:
    try:
        code = job.wait(300)
    finally:
        job.kill()
    return Ended(code, Path(recipe.run_dir).with_suffix(".err").read_text("utf-8"))


STARTER = """
import json, os, sys
import sacrebleu, mtkit.pipeline
from mtkit.cli.app import main

for line in sys.stdin.buffer:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if child == 0:
        os.dup2(os.open(job["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(job["stdin"], os.O_RDONLY), 0)
        sys.stdin = open(0)
        os.environ.update(job["environment"])
        sys.argv = ["mtkit", *job["arguments"]]
        exec(job["before"])
        main()
    print(child, flush=True)
"""


class Starter:
    """A process that has imported everything, and forks those that train: importing takes longer than training."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )

    def ask(self, **job: Any) -> int:
        """The answer, a number; fails when there is none in time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 300)
        assert ready, "a process hangs"
        return int(self.process.stdout.readline())


class Pair:
    """Two processes with the environment that torchrun would give them, and nobody who ends one for the other."""

    def __init__(self, starter: Starter, recipe: Recipe, before: str = "") -> None:
        self.start(starter, ["train", str(written(recipe))], Path(recipe.run_dir), before)

    @classmethod
    def of(cls, starter: Starter, arguments: list[str], base: Path, before: str = "", stdin: str = os.devnull) -> Self:
        """Two of any command; their stdout and stderr are the files `base` with the suffixes .out0, .err0 and so on."""
        pair = cls.__new__(cls)
        pair.start(starter, arguments, base, before, stdin)
        return pair

    def start(self, starter: Starter, arguments: list[str], base: Path, before: str, stdin: str = os.devnull) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.starter = starter
        self.errs = [base.with_suffix(f".err{rank}") for rank in range(2)]
        self.processes = [
            starter.ask(
                arguments=arguments,
                stdin=stdin,
                out=str(base.with_suffix(f".out{rank}")),
                err=str(err),
                environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                before=before,
            )
            for rank, err in enumerate(self.errs)
        ]

    def ended(self) -> list[Ended]:
        """How both ended; fails when one hangs."""
        try:
            codes = [self.starter.ask(wait=process) for process in self.processes]
        except AssertionError:
            for process in self.processes:
                os.kill(process, signal.SIGKILL)
            raise
        return [Ended(code, err.read_text("utf-8")) for code, err in zip(codes, self.errs, strict=True)]


def wait_for(happened: Callable[[], object]) -> None:
    give_up = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.01)
