"""mtkit: train your own translation model. The names below load on first use, so that importing mtkit is quick."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtkit.errors import MtkitError
    from mtkit.evaluate import score
    from mtkit.pipeline import train
    from mtkit.recipe import Recipe
    from mtkit.translator import Translator

__version__ = "0.1.0"
__all__ = ["MtkitError", "Recipe", "Translator", "score", "train"]

_HOMES = {
    "MtkitError": "mtkit.errors",
    "Recipe": "mtkit.recipe",
    "Translator": "mtkit.translator",
    "score": "mtkit.evaluate",
    "train": "mtkit.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mtkit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
