"""How long it takes from the command to the first line out, beside what importing torch takes."""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkit.bench.process import PACKAGE
from mtkit.errors import MtkitError

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds to the first line out of `mtkit translate`, and to the end of the import in `python -c "import torch"`.

    The third is the whole of the latter, Python's end included. Medians of a few rounds, in turn.
    """

    translate_seconds: float
    import_seconds: float
    import_whole_seconds: float

    def render(self) -> str:
        """The same as a line for people."""
        return (
            f"first line out of mtkit translate after {self.translate_seconds:.2f} s; importing torch takes "
            f"{self.import_seconds:.2f} s ({self.import_whole_seconds:.2f} s with the end of Python)"
        )


def measure_start(model: Path, line: str) -> Start:
    """Start each a few times, in turn, and translate one line. Raises MtkitError when a command prints nothing."""
    translate = f"import sys; sys.path.append({PACKAGE!r}); from mtkit.cli.app import main; main()"
    ours = [sys.executable, "-P", "-c", translate, "-q", "translate", str(model)]
    other = [sys.executable, "-P", "-c", "import torch; print(flush=True)"]
    own, imports = [], []
    for _ in range(_ROUNDS):
        imports.append(_until_first_line(other, ""))
        own.append(_until_first_line(ours, line))
    return Start(
        translate_seconds=statistics.median(first for first, _ in own),
        import_seconds=statistics.median(first for first, _ in imports),
        import_whole_seconds=statistics.median(whole for _, whole in imports),
    )


def _until_first_line(command: Sequence[str], line: str) -> tuple[float, float]:
    """Seconds until the first line is out, and until the end."""
    pipe = subprocess.PIPE
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(line, file=process.stdin)
        process.stdin.close()
        said = process.stdout.readline()
        first = time.perf_counter() - began
    if not said:
        raise MtkitError(f"a command ended with {process.returncode} before its first line", "see what it said above")
    return first, time.perf_counter() - began
