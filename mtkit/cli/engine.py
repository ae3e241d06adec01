"""`mtkit translate --engine`: which engine searches, and what goes with it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtkit.errors import UsageError

if TYPE_CHECKING:
    from mtkit.sections.search import Search
    from mtkit.translator import Translator

EngineOption = Annotated[
    Literal["mtkit", "ctranslate2"],
    typer.Option("--engine", help="What searches: mtkit, or CTranslate2 (the extra mtkit[ctranslate2]); see above."),
]


def check_engine(engine: str, prefix_file: Path | None, ensemble: list[Path]) -> None:
    """Raise UsageError for options that the engine cannot honour; those of the search are refused with it."""
    if engine == "mtkit":
        return
    for flag, value in (("--prefix-file", prefix_file), ("--ensemble", ensemble[0] if ensemble else None)):
        if value is not None:
            raise UsageError(f"{flag} {value}: --engine {engine} cannot do that", f"leave out {flag} or --engine")
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise UsageError(
            f"--engine {engine} searches in one process", "start it without torchrun, or leave out --engine"
        )


def load_ctranslate2(model: Path, device: str, threads: int | None, search: "Search") -> "Translator":
    """The translator of a model folder with CTranslate2 as its engine. Raises UsageError or ModelError."""
    from mtkit.ctranslate2_engine import load_engine
    from mtkit.translator import Translator

    return Translator(*load_engine(model, device, threads, search))
