"""What searches for `mtkit translate`: which engine, in how many processes, how precisely, and what goes together."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtkit.cli.job import one_of_several
from mtkit.errors import UsageError

if TYPE_CHECKING:
    from mtkit.sections.search import Search
    from mtkit.translator import Translator

EngineOption = Annotated[
    Literal["mtkit", "ctranslate2"],
    typer.Option("--engine", help="What searches: mtkit, or CTranslate2 (the extra mtkit[ctranslate2]); see above."),
]


@dataclass(frozen=True, slots=True)
class Searcher:
    """What searches, as the options of these names say; None is an option that was not given."""

    model: Path
    ensemble: list[Path]
    combine: Literal["arithmetic", "geometric"] | None
    engine: Literal["mtkit", "ctranslate2"]
    precision: Literal["float32", "bfloat16", "int8"] | None
    workers: int | None
    threads: int | None
    shortlist: bool

    def refuse_clashes(self, prefix_file: Path | None) -> None:
        """Raise UsageError for options that do not go together; those of the search are refused with it."""
        if self.combine is not None and not self.ensemble:
            raise UsageError(
                f"--combine {self.combine} is about an ensemble, and there is none", "add --ensemble MODEL"
            )
        if self.shortlist and self.ensemble:
            raise UsageError(
                f"--shortlist is for one model, and --ensemble {self.ensemble[0]} adds another", "leave one of them out"
            )
        if self.engine != "mtkit":
            self._refuse_for_engine(prefix_file)
        if (self.workers or 1) == 1:
            return
        if (self.threads or 1) > 1:
            raise UsageError(
                f"--workers {self.workers} have one thread each, and --threads {self.threads} asks for more",
                "leave one of them out",
            )
        if one_of_several():
            raise UsageError(
                f"--workers {self.workers} under torchrun, which has its own processes", "leave --workers out"
            )

    def _refuse_for_engine(self, prefix_file: Path | None) -> None:
        """Raise UsageError for options that an engine other than mtkit's cannot honour."""
        options = {
            "--prefix-file": prefix_file,
            "--ensemble": self.ensemble[0] if self.ensemble else None,
            "--precision": None if self.precision == "float32" else self.precision,
            "--workers": self.workers,
            "--shortlist": "" if self.shortlist else None,
        }
        for flag, value in options.items():
            if value is not None:
                given = f"{flag} {value}".rstrip()
                raise UsageError(f"{given}: --engine {self.engine} cannot do that", f"leave out {flag} or --engine")
        if one_of_several():
            raise UsageError(
                f"--engine {self.engine} searches in one process", "start it without torchrun, or leave out --engine"
            )

    def load(self, search: "Search", device: str) -> "Translator":
        """The translator on a device, ready for this search. Raises UsageError or ModelError.

        Workers that nobody has asked for are one a core, where they are of use: with batches to share out, on a CPU.
        """
        from mtkit.pool import can_fork
        from mtkit.runtime import bound_kernel_caches, resolve_device, set_threads, tune_allocator, usable_cores
        from mtkit.translator import Translator

        tune_allocator()
        bound_kernel_caches()
        if self.engine == "ctranslate2":
            from mtkit.ctranslate2_engine import load_engine

            set_threads(self.threads)
            return Translator(*load_engine(self.model, device, self.threads, search))
        line_by_line = search.lines.batch_size == 1
        alone = self.threads is not None or line_by_line or one_of_several() or not can_fork()
        workers = self.workers or (1 if alone or resolve_device(device).type != "cpu" else usable_cores())
        set_threads(1 if workers > 1 else self.threads)
        combine = self.combine or "arithmetic"
        return Translator.load(self.model, device, self.ensemble, combine, self.precision, workers, self.shortlist)
