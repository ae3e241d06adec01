"""The processes of one training job, as torchrun starts them: who I am, and what all of us agree on.

Each process is a rank from 0 to world - 1; rank 0 leads: it alone writes files and log lines. Everything here is
torch.distributed underneath, and does nothing at all in a job of one process.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mtkit.errors import MtkitError, TrainingError, UsageError

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""A rank that has not answered for so long ends the job. (One that has died is noticed at once.)"""

PATIENCE = timedelta(days=7)
"""How long the others wait while rank 0 prepares tokenizer and shards, or writes a checkpoint."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among `world` processes; `local` counts on this machine."""

    rank: int = 0
    world: int = 1
    local: int = 0
    patient: Any = None

    @property
    def leads(self) -> bool:
        """Whether this process writes files and log lines."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all ranks (in place)."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of all ranks' values."""
        if self.world == 1:
            return value
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        found = torch.tensor(value, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def collect(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.patient)
        return values

    def lead(self, work: Callable[[], T]) -> T:
        """Rank 0 does the work while the others wait; its result, or its MtkitError, is everybody's."""
        if self.world == 1:
            return work()
        answer: list[Any] = [None]
        error: BaseException | None = None
        if self.leads:
            try:
                answer = [("done", work())]
            except BaseException as failure:
                error = failure
                told = failure if isinstance(failure, MtkitError) else TrainingError(f"rank 0 failed: {failure!r}")
                answer = [("failed", (type(told), told.args, getattr(told, "hint", None)))]
        dist.broadcast_object_list(answer, src=0, group=self.patient)
        if error is not None:
            raise error
        kind, value = answer[0]
        if kind == "failed":
            raise TrainingError(f"rank {self.rank}: stopped because rank 0 has failed: {value[1][0]}", value[2])
        return value  # type: ignore[no-any-return]

    def agree(self, weights: Sequence[Tensor], step: int) -> None:
        """Raise TrainingError, on every rank, when the weights are not the same everywhere."""
        if self.world == 1:
            return
        sums = self.collect([float(weight.double().sum()) for weight in weights])
        for rank, theirs in enumerate(sums):
            if theirs != sums[0]:
                raise TrainingError(
                    f"step {step}: the weights of rank {rank} differ from those of rank 0",
                    "the last checkpoint is sound; run the same command again, and check that all machines have the "
                    "same versions of mtkit and torch",
                )


ALONE = Ranks()


def size_of_job() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def local_rank() -> int:
    """This process's number on its machine; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK") or 0)


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the job's other processes, over NCCL for CUDA and gloo otherwise, and leave them at the end.

    Raises UsageError when torchrun's environment is incomplete.
    """
    if size_of_job() == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is {size_of_job()}, and {', '.join(missing)} is not set",
            "start the job with torchrun, or unset WORLD_SIZE for one process",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank(), patient)
    finally:
        dist.destroy_process_group()
