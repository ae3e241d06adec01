"""Start a peer's own training command, in its environment, without the packages that this training never calls.

    python command.py onmt.bin.train -config FILE
    python command.py eole.bin.main train -config FILE

Some packages are imported by transforms that are not used, and are hundreds of megabytes to install. They are replaced
by empty modules.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

UNUSED = (
    "PIL",
    "aiohttp",
    "datasets",
    "fastapi",
    "fasttext",
    "flask",
    "httpx",
    "huggingface_hub",
    "pandas",
    "psutil",
    "requests",
    "spacy",
    "subword_nmt",
    "torchcodec",
    "uvicorn",
    "waitress",
)


class _Empty(ModuleType):
    """A module in which every name is another empty one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the unused packages where they are not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """An empty module for an unused name."""
        if name.split(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """The empty module."""
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


if __name__ == "__main__":
    sys.meta_path.append(_Finder())
    command = importlib.import_module(sys.argv[1])
    sys.argv = sys.argv[1:]
    command.main()
