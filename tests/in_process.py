"""A command run in this process, for the tests of the command line."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mtkit.cli.app import main


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout by LF alone; the last one must have its LF."""
        assert self.out == b"" or self.out.endswith(b"\n")
        return self.out.decode("utf-8").split("\n")[:-1]


Run = Callable[..., Ended]


def run_command(
    arguments: list[str],
    stdin: bytes,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Ended:
    """Run `mtkit ARGUMENTS`; stdin is a file in `folder`."""
    (folder / "stdin").write_bytes(stdin)
    with open(folder / "stdin", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "argv", ["mtkit", *arguments])
        monkeypatch.setattr(logging.getLogger("mtkit"), "handlers", [])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ending:
            main()
    out, err = capfdbinary.readouterr()
    assert isinstance(ending.value.code, int)
    return Ended(ending.value.code, out, err.decode("utf-8"))
