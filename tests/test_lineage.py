"""Hashes that are remembered, and never wrong."""

import os
from pathlib import Path

import pytest

from mtkit import lineage
from mtkit.files import sha256_file
from mtkit.lineage import known_sha256


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read."""
    found: list[Path] = []
    monkeypatch.setattr(lineage, "sha256_file", lambda path: found.append(path) or sha256_file(path))
    monkeypatch.setattr(lineage, "_KNOWN", {})
    return found


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass for the file system's clock."""
    monkeypatch.setattr(lineage, "_SETTLED", -1.0)


def test_a_settled_file_is_read_once(tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch)
    path = tmp_path / "a"
    path.write_bytes(b"one")
    assert known_sha256(path) == known_sha256(path) == sha256_file(path)
    assert reads == [path]


def test_a_fresh_file_is_read_every_time(tmp_path: Path, reads: list[Path]) -> None:
    """Within a tick of the clock, contents can change and no time stamp with them."""
    path = tmp_path / "a"
    for content in (b"one", b"two", b"ten"):
        path.write_bytes(content)
        assert known_sha256(path) == sha256_file(path)
    assert len(reads) == 3


def test_a_change_is_noticed_though_size_and_time_are_set_back(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    settle(monkeypatch)
    path = tmp_path / "a"
    path.write_bytes(b"one")
    before = path.stat()
    known_sha256(path)
    time.sleep(0.05)  # several ticks
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known_sha256(path) == sha256_file(path)
    other = tmp_path / "b"
    other.write_bytes(b"ten")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert known_sha256(path) == sha256_file(path)
    assert len(reads) == 3
