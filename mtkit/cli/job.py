"""`mtkit translate` in several processes, as torchrun starts them: the searches are shared, rank 0 does all else."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mtkit.errors import ToldError, TrainingError
from mtkit.loading import load_torch

if TYPE_CHECKING:
    from mtkit.ranked_engine import RankedEngine
    from mtkit.translator import Translator

Load = Callable[[str], "Translator"]
"""Loads the translator of a call onto a device."""


def one_of_several() -> bool:
    """Whether this process is one of a job's."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def follows() -> bool:
    """Whether this process is one of several, and not the one that reads and writes."""
    return one_of_several() and os.environ.get("RANK", "0") not in ("", "0")


@contextmanager
def leading(load: Load, device: str, models: Sequence[str]) -> Iterator["Translator"]:
    """The translator of rank 0, or of a process alone; `models` are the hashes of its weights."""
    load_torch()
    from mtkit.ranked_engine import RankedEngine, refuse_unlike
    from mtkit.ranks import joined, local_rank, size_of_job
    from mtkit.runtime import resolve_device

    if size_of_job() == 1:
        yield load(device)
        return
    target = resolve_device(device, local_rank())
    with joined(target) as ranks:
        translator = load(str(target))
        refuse_unlike(models, ranks)
        engine = RankedEngine(translator.engine, ranks)
        translator.engine = engine
        try:
            yield translator
        except (KeyboardInterrupt, SystemExit):
            raise  # perhaps in the middle of a round: the others end when this process has gone
        except Exception as error:
            _end(engine, getattr(error, "exit_code", 1))
            raise
        _end(engine, 0)


def _end(engine: "RankedEngine", exit_code: int) -> None:
    with suppress(TrainingError):  # another rank may have gone already
        engine.end(exit_code)


def serve(load: Load, device: str, models: Sequence[str]) -> None:
    """Search for rank 0 until it ends. What ends rank 0, and that it has gone, is for rank 0 to tell."""
    load_torch()
    from mtkit.ranked_engine import RankedEngine, refuse_unlike
    from mtkit.ranks import joined, local_rank
    from mtkit.runtime import resolve_device

    logging.getLogger("mtkit").setLevel(logging.ERROR)
    target = resolve_device(device, local_rank())
    with joined(target) as ranks:
        translator = load(str(target))
        try:
            refuse_unlike(models, ranks)
            RankedEngine(translator.engine, ranks).serve()
        except TrainingError:
            raise ToldError(1) from None
