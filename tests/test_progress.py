"""Progress bars: for terminals, for long work, and invisible otherwise."""

import io
import sys

import pytest

from mtkit.data import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "delay", "visible"),
    [(Terminal(), 0, True), (Terminal(), progress.DELAY, False), (io.StringIO(), 0, False)],
    ids=["terminal", "quick", "file"],
)
def test_a_bar_is_shown_on_a_terminal_when_it_lasts(monkeypatch, stream, delay, visible):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", delay)
    assert list(progress.follow(range(100), "counting", 100)) == list(range(100))
    assert ("counting" in stream.getvalue()) == visible
