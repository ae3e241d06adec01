"""A process that is measured: started, asked, and its memory watched."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from mtkit.errors import MtkitError

Engine = Literal["mtkit", "ctranslate2"]
PACKAGE = str(Path(__file__).parents[2])
_START = "import sys; sys.path.append({path!r}); from mtkit.bench.subject import main; main()"
_WATCH_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Setup:
    """What is to be measured. `workers` are mtkit's processes or CTranslate2's `inter_threads`.

    `threads` are those of mtkit's one process (its default where None), or CTranslate2's `intra_threads`. `model` is
    the folder of the weights' recipe and tokenizers, `export` that of CTranslate2's model.
    """

    engine: Engine
    model: str
    recipe: str
    precision: Any
    workers: int
    threads: int | None
    lines: list[str]
    export: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Translate the first `lines` lines with a section `search` (as JSON values); `alone`: one by one, timed each."""

    search: dict[str, Any]
    lines: int
    alone: bool = False
    texts: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the text took."""

    seconds: float
    tokens: int
    texts: list[str]


class MeasuredProcess:
    """A fresh process with what `setup` says, loaded; a context manager."""

    def __init__(self, setup: Setup) -> None:
        """Raises MtkitError when it cannot load."""
        command = [sys.executable, "-P", "-c", _START.format(path=PACKAGE)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")
        self.load_seconds: float = self._ask(asdict(setup))["load_seconds"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def translate(self, task: Task) -> Pass:
        """One pass over the text."""
        return Pass(**self._ask(asdict(task)))

    def seconds_of_lines(self, task: Task) -> list[float]:
        """How long each line takes alone."""
        return list(self._ask(asdict(task))["seconds"])

    @contextmanager
    def watched(self) -> Iterator[list[int | None]]:
        """Give a list whose only member is, once the block is left, the most memory in bytes; None where unknown.

        That is the most that the process has ever held, and the most that its workers held besides, in the block.
        """
        end, most = threading.Event(), [0]

        def watch() -> None:
            while not end.wait(_WATCH_SECONDS):
                most.append(workers_memory(self._process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        told: list[int | None] = [None]
        try:
            yield told
        finally:
            end.set()
            watcher.join()
            own = peak_of(self._process.pid)
            told[0] = None if own is None else own + max(most)

    def _ask(self, value: dict[str, Any]) -> dict[str, Any]:
        """Raises MtkitError with what the process complains of, or when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(value), file=self._process.stdin, flush=True)
            said = self._process.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            code = self._process.wait()
            raise MtkitError(f"the measured process ended with {code}", "what it said stands above") from None
        found: dict[str, Any] = json.loads(said)
        if "error" in found:
            raise MtkitError(found["error"], found["hint"])
        return found


def peak_of(pid: int) -> int | None:
    """The most memory in bytes that a process has held; None where the system does not tell (other than Linux)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return _kilobytes(status, "VmHWM")


def workers_memory(pid: int) -> int:
    """Bytes that the children of a process hold and share with nobody; 0 where the system does not tell."""
    total = 0
    for child in children_of(pid):
        try:
            rollup = Path(f"/proc/{child}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        total += _kilobytes(rollup, "Private_Clean") + _kilobytes(rollup, "Private_Dirty")
    return total


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def _kilobytes(text: str, key: str) -> int:
    """The number of bytes in the line that says so many kB."""
    for line in text.split("\n"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def memory_of_torch() -> int | None:
    """The most memory in bytes of a process that has imported torch, and nothing else; None where unknown."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-P", "-c", "import torch; print(flush=True); input()"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = peak_of(process.pid)
        process.communicate("\n")
    return found
