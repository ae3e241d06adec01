"""The log of a run: metrics.jsonl, append-only, and one readable line on the console."""

import datetime
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtkit.figures import duration
from mtkit.files import append_json_line
from mtkit.runtime import peak_memory
from mtkit.training.board import Board
from mtkit.training.step import StepReport

log = logging.getLogger(__name__)


def perplexity(nll: float) -> float:
    """exp of a mean negative log-likelihood in nats; infinite where that overflows."""
    return math.exp(nll) if nll < 700 else math.inf


@dataclass(slots=True)
class Window:
    """What has added up since the last line of the log; part of the state, so that a resumed run logs the same."""

    updates: int = 0
    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    source_tokens: int = 0
    cells: int = 0
    gradient_norm: float = 0.0

    def add(self, report: StepReport) -> None:
        """Count one update."""
        self.updates += 1
        self.loss += report.loss
        self.nll += report.nll
        self.target_tokens += report.target_tokens
        self.source_tokens += report.source_tokens
        self.cells += report.cells
        self.gradient_norm = report.gradient_norm

    def row(self) -> dict[str, float]:
        """Means over the target tokens, the last gradient norm, and the share of padding of both sides together."""
        nll = self.nll / self.target_tokens
        return {
            "loss": self.loss / self.target_tokens,
            "nll": nll,
            "perplexity": perplexity(nll),
            "gradient_norm": self.gradient_norm,
            "padding_share": 1 - (self.target_tokens + self.source_tokens) / self.cells,
        }


class Metrics:
    """Writes events to metrics.jsonl and lines to the console; keeps the clock that speeds are measured by."""

    def __init__(self, path: Path, device: torch.device, max_steps: int, leads: bool = True) -> None:
        """With several ranks only the one that `leads` writes. Events go to `board` as well, where there is one."""
        self.board: Board | None = None
        self.path = path
        self.device = device
        self.max_steps = max_steps
        self.leads = leads
        self._start_clock()

    def _start_clock(self) -> None:
        self._since, self._tokens, self._updates = time.perf_counter(), 0, 0

    def event(self, kind: str, **values: Any) -> None:
        """Append one event with the time of day."""
        if not self.leads:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append_json_line(self.path, {"event": kind, "time": now, **finite(values)})
        if self.board is not None:
            self.board.write(kind, values)

    def add(self, report: StepReport) -> None:
        """Count one update for the speed."""
        self._tokens += report.target_tokens
        self._updates += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens inside, validation or saving, out of the speed."""
        began = time.perf_counter()
        yield
        self._since += time.perf_counter() - began

    def flush(self, window: Window, step: int, epoch: int, rate: float) -> Window:
        """Write the window to the file and to the console; returns a new one."""
        if not window.updates:
            return window
        seconds = max(time.perf_counter() - self._since, 1e-9)
        row = {
            "step": step,
            "epoch": epoch,
            "learning_rate": rate,
            **window.row(),
            "target_tokens_per_second": self._tokens / seconds,
            "peak_memory_bytes": peak_memory(self.device),
            "seconds_left": seconds / max(1, self._updates) * max(0, self.max_steps - step),
        }
        self.event("train", **row)
        log.info(
            "step %d/%d  epoch %d  loss %.3f  ppl %.2f  lr %.2e  grad %.2f  %s tok/s  "
            "pad %.1f %%  mem %.2f GB  left %s",
            step,
            self.max_steps,
            epoch,
            row["loss"],
            row["perplexity"],
            rate,
            row["gradient_norm"],
            f"{row['target_tokens_per_second']:,.0f}",
            100 * row["padding_share"],
            row["peak_memory_bytes"] / 1e9,
            duration(row["seconds_left"]),
        )
        self._start_clock()
        return Window()


def finite(value: Any) -> Any:
    """The same JSON value with null for every number that JSON has no sign for: infinities and NaN.

    >>> finite({"a": [1.5, float("nan")]})
    {'a': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
