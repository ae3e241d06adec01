"""The processes of one training job, as torchrun starts them: who I am, and what all of us agree on.

Each process is a rank from 0 to world - 1; rank 0 leads: it alone writes files and log lines. Everything here is
torch.distributed underneath, and does nothing at all in a job of one process.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from mtkit.errors import MtkitError, ToldError, TrainingError, UsageError

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""A rank that has not answered for so long ends the job. (One that has died is noticed at once.)"""

PATIENCE = timedelta(days=7)
"""How long the others wait while rank 0 prepares tokenizer and shards, or writes a checkpoint."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among `world` processes; `local` counts on this machine.

    All methods are for all ranks together. They raise TrainingError when another rank has ended.
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    patient: Any = None

    @property
    def leads(self) -> bool:
        """Whether this process writes files and log lines."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all ranks (in place); the same bits on each."""
        if self.world > 1:
            with self._linked():
                dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of all ranks' values."""
        if self.world == 1:
            return value
        with self._linked():
            device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
            found = torch.tensor(value, device=device)
            dist.all_reduce(found, dist.ReduceOp.MAX)
            return int(found)

    def collect(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with self._linked():
            dist.all_gather_object(values, value, group=self.patient)
        return values

    def hand_out(self, values: Sequence[Any] | None) -> Any:
        """Of rank 0's `values`, one for each rank, this rank's. The others wait for it for as long as it takes."""
        if self.world == 1:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        with self._linked():
            dist.scatter_object_list(mine, None if values is None else list(values), src=0, group=self.patient)
        return mine[0]

    def hand_in(self, value: T) -> list[T] | None:
        """On rank 0 every rank's value, in the order of the ranks; None on the others."""
        if self.world == 1:
            return [value]
        values: list[Any] | None = [None] * self.world if self.leads else None
        with self._linked():
            dist.gather_object(value, values, dst=0, group=self.patient)
        return values

    def lead(self, work: Callable[[], T]) -> T:
        """Rank 0 does the work while the others wait; its result is everybody's.

        Where it fails all ranks end: rank 0 by its own error, the others by ToldError with the same exit code.
        """
        if self.world == 1:
            return work()
        if self.leads:
            try:
                value = work()
            except BaseException as failure:
                with suppress(TrainingError):  # the others may have gone already
                    self._announce((_exit_code(failure), None))
                raise
            self._announce((None, value))
            return value
        exit_code, value = self._announce(None)
        if exit_code is not None:
            raise ToldError(exit_code)
        return value

    def _announce(self, answer: Any) -> Any:
        """Rank 0's answer, on every rank."""
        answers = [answer]
        with self._linked():
            dist.broadcast_object_list(answers, src=0, group=self.patient)
        return answers[0]

    @contextmanager
    def _linked(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise _lost(error) from None

    def failure(self, error: MtkitError) -> MtkitError:
        """What to raise for an error that all ranks have found alike, so that only rank 0 tells it."""
        return error if self.leads else ToldError(error.exit_code)

    def agree(self, weights: Sequence[Tensor], step: int) -> None:
        """Raise TrainingError (ToldError beside it) on every rank when the weights are not the same bits everywhere."""
        if self.world == 1:
            return
        sums = self.collect([checksum(weight) for weight in weights])
        for rank, theirs in enumerate(sums):
            if theirs != sums[0]:
                raise self.failure(
                    TrainingError(
                        f"step {step}: the weights of rank {rank} differ from rank 0's; no checkpoint is written",
                        "the last checkpoint is sound, and the same command goes on from it; check that all machines "
                        "have the same versions of mtkit and torch, and the same kind of processor",
                    )
                )


def _lost(error: RuntimeError) -> TrainingError:
    return TrainingError(
        f"the connection to another rank is lost: {str(error).strip().splitlines()[0]}",
        "if that rank has said why, mend it, and run the same command again; training goes on from its last checkpoint",
    )


ALONE = Ranks()


def checksum(weight: Tensor) -> int:
    """The sum of a float32 tensor's bits, read as integers: exact, so that no order of summing matters."""
    return int(weight.detach().contiguous().view(torch.int32).sum(dtype=torch.int64))


def _exit_code(failure: BaseException) -> int:
    if isinstance(failure, MtkitError):
        return failure.exit_code
    if isinstance(failure, KeyboardInterrupt):
        return 130
    return failure.code if isinstance(failure, SystemExit) and isinstance(failure.code, int) else 1


def size_of_job() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def local_rank() -> int:
    """This process's number on its machine; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def meet(store: dist.Store, rank: int, world: int, patience: timedelta = TIMEOUT) -> dist.Store:
    """The store under a name that only the processes of this start of the job know; all of them meet here.

    Under `torchrun --max-restarts` the store outlives the processes: one that starts again and is early would read the
    address at which another one listened before it died. So each asks under a name of its own, made up anew, and rank 0
    answers whoever asks with its own, until all have said that they know it. Raises TrainingError when some stay away.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", own)
        store.wait([f"answer/{own}"], patience)
        name = store.get(f"answer/{own}").decode()
        store.set(f"met/{name}/{rank}", own)
        return dist.PrefixStore(name, store)
    missing, give_up = set(range(1, world)), time.monotonic() + patience.total_seconds()
    while missing:
        for other in tuple(missing):
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", own)
            if store.check([f"met/{own}/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > give_up:
            raise TrainingError(
                f"rank {min(missing)} has not come ({len(missing)} of {world} are missing)",
                "see the log of that process, and start the job again",
            )
        time.sleep(0.01)
    return dist.PrefixStore(own, store)


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the job's other processes, over NCCL for CUDA and gloo otherwise, and leave them at the end.

    Raises UsageError when torchrun's environment is incomplete, or several processes would share one device.
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
    if device.type == "mps" or (device.type == "cuda" and device.index != local_rank()):
        raise UsageError(
            f"training.device is {device} in process {local_rank()} of this machine",
            "several processes take a GPU each with training.device auto or cuda, or share the cores with cpu",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
    dist.init_process_group(backend, store=meet(store, rank, world), rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank(), patient)
    except RuntimeError as error:
        # Ranks that share out the model also talk in every forward and backward pass.
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            raise _lost(error) from None
        raise
    finally:
        dist.destroy_process_group()
