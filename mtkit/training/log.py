"""The log of a run: metrics.jsonl, append-only, and one readable line on the console."""

import datetime
import logging
import math
import time
from pathlib import Path
from typing import Any

import torch

from mtkit.files import append_json_line
from mtkit.runtime import peak_memory
from mtkit.training.step import StepReport

log = logging.getLogger(__name__)


def perplexity(nll: float) -> float:
    """exp of a mean negative log-likelihood in nats; infinite where that overflows."""
    return math.exp(nll) if nll < 700 else math.inf


class Metrics:
    """Adds up step reports between two lines of the log, and writes events to metrics.jsonl."""

    def __init__(self, path: Path, device: torch.device, max_steps: int) -> None:
        self.path = path
        self.device = device
        self.max_steps = max_steps
        self.reports: list[StepReport] = []
        self.since = time.perf_counter()

    def event(self, kind: str, **values: Any) -> None:
        """Append one event with the time of day."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append_json_line(self.path, {"event": kind, "time": now, **{k: _json(v) for k, v in values.items()}})

    def add(self, report: StepReport) -> None:
        """Count one update."""
        self.reports.append(report)

    def restart_clock(self) -> None:
        """Leave the time since the last line out of the speed: it went into validation or saving."""
        self.reports.clear()
        self.since = time.perf_counter()

    def flush(self, step: int, epoch: int, rate: float) -> None:
        """Write what has added up since the last call, to the file and to the console."""
        if not self.reports:
            return
        seconds = max(time.perf_counter() - self.since, 1e-9)
        tokens = sum(report.target_tokens for report in self.reports)
        cells = sum(report.cells for report in self.reports)
        real = tokens + sum(report.source_tokens for report in self.reports)
        nll = sum(report.nll for report in self.reports) / tokens
        row = {
            "step": step,
            "epoch": epoch,
            "loss": sum(report.loss for report in self.reports) / tokens,
            "nll": nll,
            "perplexity": perplexity(nll),
            "learning_rate": rate,
            "gradient_norm": self.reports[-1].gradient_norm,
            "target_tokens_per_second": tokens / seconds,
            "padding_share": 1 - real / cells,
            "peak_memory_bytes": peak_memory(self.device),
            "seconds_left": seconds / len(self.reports) * max(0, self.max_steps - step),
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
        self.restart_clock()


def duration(seconds: float) -> str:
    """Seconds in words of one unit or two.

    >>> duration(42), duration(754), duration(7500)
    ('42 s', '12 min 34 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _json(value: Any) -> Any:
    """JSON has no infinities; they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
