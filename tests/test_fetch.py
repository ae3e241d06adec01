"""Downloads end with the right file in place or with none, whatever the server does. The server is on loopback."""

import hashlib
import io
import logging
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mtkit.cli.fetch import fetch as fetch_command
from mtkit.data import download as download_module
from mtkit.data.download import Network
from mtkit.data.fetch import Fetched, fetch
from mtkit.errors import DataError, RecipeError
from mtkit.recipe import Recipe

CONTENT = random.Random(5).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2
QUICK = Network(timeout=0.4, attempts=3, pause=0.01)


class Server(ThreadingHTTPServer):
    """Answers each request by the next entry of `plan` (the last one again and again) and notes its headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan: list[dict[str, Any]] = [{}]
        self.requests: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """One answer. Keys of a plan's entry: status, body, ranges, etag, send (bytes before the end),
    pieces (sent slowly), end, length, to."""

    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        plan = self.server.plan
        entry = plan.pop(0) if len(plan) > 1 else plan[0]
        self.server.requests.append(dict(self.headers))
        if "to" in entry and self.path != entry["to"]:
            self.server.plan.insert(0, entry)
            return self.answer(302, b"", {"Location": entry["to"]})
        if "status" in entry:
            return self.answer(entry["status"], b"sorry", entry.get("headers", {}))
        body, tag = entry.get("body", CONTENT), entry.get("etag")
        headers = {"ETag": tag} if tag else {}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and entry.get("ranges", True) and self.headers.get("If-Range", tag) == tag:
            start = int(asked[1])
            if start >= len(body):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
            shown = entry.get("claims", start)
            headers["Content-Range"] = (
                f"bytes {shown}-{len(body) - 1}/{len(body) if entry.get('length', True) else '*'}"
            )
            return self.answer(206, body[start:], headers, entry)
        return self.answer(200, body, headers, entry)

    def answer(self, status: int, body: bytes, headers: dict[str, str], entry: dict[str, Any] | None = None) -> None:
        entry = entry or {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if entry.get("length", True):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        pieces = entry.get("pieces", 1)
        body = body[: entry.get("send", len(body))]
        for start in range(0, len(body), -(-len(body) // pieces) or 1):
            self.wfile.write(body[start : start - (-len(body) // pieces)])
            time.sleep(QUICK.timeout / 2 if pieces > 1 else 0)
        self.wfile.flush()
        if entry.get("end") == "reset":
            time.sleep(0.05)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif entry.get("end") == "stall":
            time.sleep(QUICK.timeout * 2)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def recipe(root: Path, *downloads: dict[str, Any]) -> Recipe:
    train = [{"name": "train", "source": "train.de", "target": "train.en"}]
    data = {"root": str(root), "train": train, "downloads": downloads}
    return Recipe.model_validate({"languages": {"source": "de", "target": "en"}, "data": data})


def one(server: Server, root: Path, **changes: Any) -> Recipe:
    return recipe(root, {"url": server.url, "path": "corpus.gz", "sha256": SHA256} | changes)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_brought_verified_and_then_left_alone(server: Server, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    assert fetch(one(server, root)) == [Fetched(root / "corpus.gz", "downloaded", len(CONTENT))]
    assert (root / "corpus.gz").read_bytes() == CONTENT
    assert names(root) == ["corpus.gz"]
    before = os.stat(root / "corpus.gz")
    assert fetch(one(server, root)) == [Fetched(root / "corpus.gz", "up to date", len(CONTENT))]
    assert os.stat(root / "corpus.gz").st_mtime_ns == before.st_mtime_ns
    assert len(server.requests) == 1


FAULTS = {
    "cut short": {"send": HALF},
    "reset": {"send": HALF, "end": "reset"},
    "stalled": {"send": HALF, "end": "stall"},
    "unavailable": {"status": 503},
    "too many requests": {"status": 429},
    "answering another part": {"claims": 7},
}


@pytest.mark.parametrize("etag", [None, '"one"', 'W/"one"'])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_breaks_off_is_gone_on_with(
    server: Server, tmp_path: Path, fault: str, etag: str | None
) -> None:
    server.plan = [{"etag": etag, "send": 1000}, FAULTS[fault] | {"etag": etag}, {"etag": etag}]
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT
    assert names(tmp_path) == ["corpus.gz"]
    ranges = [request.get("Range") for request in server.requests]
    assert ranges[:2] == [None, "bytes=1000-"]
    last = {"unavailable": 1000, "too many requests": 1000, "answering another part": 0}.get(fault)
    if last is None:
        assert 1000 < int(ranges[2].removeprefix("bytes=").removesuffix("-")) <= 1000 + HALF
    else:
        assert ranges[2] == (f"bytes={last}-" if last else None)
    expected = etag if etag and etag.startswith('"') else None
    assert server.requests[1].get("If-Range") == expected


def test_a_download_that_was_killed_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.gz.part").write_bytes(CONTENT[:HALF])
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == [f"bytes={HALF}-"]


def test_a_part_that_is_whole_needs_only_its_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.gz.part").write_bytes(CONTENT)
    fetch(one(server, tmp_path), network=QUICK)
    assert names(tmp_path) == ["corpus.gz"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("left", [b"something else", CONTENT + b"more", b"x" * len(CONTENT)])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, left: bytes, ranges: bool) -> None:
    server.plan = [{"ranges": ranges}]
    (tmp_path / "corpus.gz.part").write_bytes(left)
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT
    assert names(tmp_path) == ["corpus.gz"]


def test_a_server_without_ranges_is_asked_again_from_the_start(server: Server, tmp_path: Path) -> None:
    server.plan = [{"ranges": False, "send": HALF}, {"ranges": False}]
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT


def test_a_slow_answer_is_waited_for_as_long_as_it_moves(server: Server, tmp_path: Path) -> None:
    server.plan = [{"pieces": 4}]
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_file_that_changes_between_two_answers_is_not_mixed(server: Server, tmp_path: Path) -> None:
    old = bytes(len(CONTENT))
    server.plan = [{"body": old, "etag": '"old"', "send": HALF}, {"etag": '"new"'}]
    fetch(one(server, tmp_path), network=QUICK)
    assert len(server.requests) == 2
    server.requests.clear()
    (tmp_path / "corpus.gz").unlink()
    server.plan = [{"body": old, "send": HALF}, {}, {}]
    fetch(one(server, tmp_path), network=QUICK)
    assert [request.get("Range") for request in server.requests] == [None, f"bytes={HALF}-", None]
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT


def test_an_answer_without_a_length_is_judged_by_its_hash(server: Server, tmp_path: Path) -> None:
    server.plan = [{"length": False}]
    fetch(one(server, tmp_path), network=QUICK)
    (tmp_path / "corpus.gz").unlink()
    server.plan = [{"length": False, "send": HALF}]
    with pytest.raises(DataError, match="SHA-256") as caught:
        fetch(one(server, tmp_path), network=QUICK)
    assert "may have been cut" in str(caught.value.hint)


def test_attempts_are_bounded_and_what_came_is_kept(server: Server, tmp_path: Path) -> None:
    server.plan = [{"send": 1000}]
    with pytest.raises(DataError, match=r"broke off after 3000 of 300000 bytes.*kept in .*corpus\.gz\.part") as caught:
        fetch(one(server, tmp_path), network=QUICK)
    assert server.url in str(caught.value)
    assert "run the same command again" in str(caught.value.hint)
    assert len(server.requests) == QUICK.attempts
    assert names(tmp_path) == ["corpus.gz.part"]
    server.plan = [{}]
    fetch(one(server, tmp_path), network=QUICK)
    assert server.requests[-1]["Range"] == "bytes=3000-"
    assert names(tmp_path) == ["corpus.gz"]


@pytest.mark.parametrize("force", [False, True])
def test_a_wrong_hash_replaces_nothing_and_leaves_nothing(server: Server, tmp_path: Path, force: bool) -> None:
    wrong = b"something altogether different"
    server.plan = [{"body": wrong}]
    if force:
        (tmp_path / "corpus.gz").write_bytes(b"mine")
    with pytest.raises(DataError) as caught:
        fetch(one(server, tmp_path), force=force, network=QUICK)
    for part in (server.url, hashlib.sha256(wrong).hexdigest(), SHA256):
        assert part in caught.value.message
    assert names(tmp_path) == (["corpus.gz"] if force else [])
    assert not force or (tmp_path / "corpus.gz").read_bytes() == b"mine"


def test_a_web_page_in_place_of_the_file_is_called_one(server: Server, tmp_path: Path) -> None:
    server.plan = [{"body": b"\n<!DOCTYPE html><title>Please log in</title>"}]
    with pytest.raises(DataError) as caught:
        fetch(one(server, tmp_path), network=QUICK)
    assert "a web page came" in str(caught.value.hint)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 204])
def test_a_final_answer_is_not_asked_for_again(server: Server, tmp_path: Path, status: int) -> None:
    server.plan = [{"status": status}]
    with pytest.raises(DataError, match=f"{re.escape(server.url)}: the server answered {status}"):
        fetch(one(server, tmp_path), network=QUICK)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_a_redirect_is_followed_also_when_going_on(server: Server, tmp_path: Path) -> None:
    server.plan = [{"to": "/elsewhere", "send": HALF}, {"to": "/elsewhere"}]
    fetch(one(server, tmp_path), network=QUICK)
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT
    assert server.requests[-1]["Range"] == f"bytes={HALF}-"


def test_a_redirect_to_a_file_of_this_machine_is_not_followed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    server.plan = [{"status": 302, "headers": {"Location": (tmp_path / "secret").as_uri()}}]
    with pytest.raises(DataError, match="302"):
        fetch(one(server, tmp_path / "root"), network=QUICK)


def test_an_unreachable_server_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x.gz"
        with pytest.raises(DataError, match=f"{re.escape(url)}: Connection refused") as caught:
            fetch(recipe(tmp_path, {"url": url, "path": "x.gz", "sha256": SHA256}), network=QUICK)
    assert "--set data.root=DIR" in str(caught.value.hint)
    assert names(tmp_path) == []


def test_a_server_that_never_answers_is_given_up(server: Server, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.gz"
        with pytest.raises(DataError, match=r"no answer within 0\.4 s"):
            fetch(recipe(tmp_path, {"url": url, "path": "x.gz", "sha256": SHA256}), network=QUICK)


def test_a_host_without_an_address_is_an_error_at_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    started = time.monotonic()
    with pytest.raises(DataError, match="Name or service not known") as caught:
        fetch(one(server, tmp_path, url="http://nowhere.invalid/corpus.gz"))
    assert time.monotonic() - started < Network().pause
    assert "--set data.root=DIR" in str(caught.value.hint)


def test_an_address_that_is_none_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a usable address"):
        fetch(recipe(tmp_path, {"url": "http://127.0.0.1:port/x", "path": "x", "sha256": SHA256}))


def test_a_certificate_that_is_not_trusted_is_not_tried_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
    cause.verify_message = "self-signed certificate"

    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError(cause)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    with pytest.raises(DataError, match="certificate is not trusted \\(self-signed") as caught:
        fetch(one(server, tmp_path))
    assert "SSL_CERT_FILE" in str(caught.value.hint)


def test_another_file_in_the_place_is_refused_before_anything_is_fetched(server: Server, tmp_path: Path) -> None:
    (tmp_path / "second").write_bytes(b"mine")
    both = [{"url": server.url, "path": name, "sha256": SHA256} for name in ("first", "second")]
    with pytest.raises(DataError, match="second: is there already") as caught:
        fetch(recipe(tmp_path, *both))
    assert hashlib.sha256(b"mine").hexdigest() in caught.value.message
    assert SHA256 in caught.value.message
    assert "--force" in str(caught.value.hint)
    assert server.requests == []
    assert names(tmp_path) == ["second"]
    assert [item.status for item in fetch(recipe(tmp_path, *both), force=True)] == ["downloaded"] * 2
    assert (tmp_path / "second").read_bytes() == CONTENT


def test_a_folder_in_the_place_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.gz").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        fetch(one(server, tmp_path), force=True)


def test_a_root_that_cannot_be_made_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(one(server, tmp_path / "file"))


@pytest.mark.parametrize("path", ["../out", "/abs", "a/../../out", ".", "C:\\x", "..\\out", "\\x"])
def test_paths_stay_inside_the_root(server: Server, tmp_path: Path, path: str) -> None:
    for changes in ({"path": path}, {"path": "a.zip", "members": {"x": path}}):
        with pytest.raises(RecipeError, match=r"data\.downloads\.0\.(path|members\.x): .* inside data\.root"):
            fetch(one(server, tmp_path / "root", **changes))
    assert server.requests == []


def test_two_files_in_one_place_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"also the place of data\.downloads\.0\.path"):
        fetch(one(server, tmp_path, path="a.zip", members={"x": "./a.zip"}))


@pytest.mark.skipif(download_module.fcntl is None, reason="this system has no file locks")
def test_two_processes_do_not_write_one_file(server: Server, tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "corpus.gz.part", "wb") as other:
        other.write(CONTENT[:HALF])
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            fetch(one(server, tmp_path))
    fetch(one(server, tmp_path))
    assert (tmp_path / "corpus.gz").read_bytes() == CONTENT


def test_a_full_disk_is_an_error_that_keeps_what_came(server: Server, tmp_path: Path) -> None:
    """A limit on the size of files, in a process of its own, stands in for the full disk."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from pathlib import Path\n"
        "from mtkit.data.download import Network, download\n"
        "from mtkit.errors import DataError\n"
        "try:\n"
        "    download(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Network())\n"
        "except DataError as error:\n"
        "    print(error)\n"
    )
    arguments = [sys.executable, "-c", script, server.url, str(tmp_path / "corpus.gz"), SHA256]
    printed = subprocess.run(arguments, capture_output=True, check=True, encoding="utf-8").stdout
    assert f"{tmp_path / 'corpus.gz.part'}: no room to write more" in printed
    assert "free some space" in printed
    assert (tmp_path / "corpus.gz.part").read_bytes() == CONTENT[:100_000]


def test_an_interrupt_keeps_the_part(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    server.plan = [{"send": HALF}]
    monkeypatch.setattr(download_module, "time", SimpleNamespace(sleep=interrupted))
    with pytest.raises(KeyboardInterrupt):
        fetch(one(server, tmp_path))
    assert (tmp_path / "corpus.gz.part").read_bytes() == CONTENT[:HALF]


def test_nothing_is_said_on_a_pipe_while_it_goes_well(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        fetch(one(server, tmp_path))
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


MEMBERS = {"corpus/train.de": b"eins\nzwei\n", "corpus/train.en": b"one\ntwo\n", "corpus/README": b"about\n"}
EVIL = {"../evil": b"up", "/abs": b"abs"}


def archive(kind: str) -> bytes:
    """An archive of MEMBERS and of EVIL names, with a folder, and in a tar a link too."""
    buffer = io.BytesIO()
    files = EVIL | MEMBERS
    if kind == ".zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("folder/", b"")
            for name, content in files.items():
                bundle.writestr(name, content)
    else:
        mode = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}[kind]
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            for name, kind_of_entry in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE)):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind_of_entry, "/etc/passwd"
                tar.addfile(entry)
            for name, content in files.items():
                entry = tarfile.TarInfo("./" + name if name.startswith("corpus") else name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def packed(server: Server, root: Path, kind: str, members: dict[str, str]) -> Recipe:
    body = archive(kind)
    server.plan = [{"body": body}]
    return one(server, root, path=f"raw/corpus{kind}", sha256=hashlib.sha256(body).hexdigest(), members=members)


WANTED = {"corpus/train.de": "train.de", "corpus/train.en": "sub/train.en"}


@pytest.mark.parametrize("kind", [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip"])
def test_only_the_named_members_are_unpacked(server: Server, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    wanted = packed(server, root, kind, WANTED)
    statuses = {str(item.path.relative_to(root)): item.status for item in fetch(wanted)}
    assert statuses == {f"raw/corpus{kind}": "downloaded", "train.de": "unpacked", "sub/train.en": "unpacked"}
    assert names(tmp_path) == sorted(f"root/{name}" for name in statuses)
    assert (root / "train.de").read_bytes() == MEMBERS["corpus/train.de"]
    assert (root / "sub" / "train.en").read_bytes() == MEMBERS["corpus/train.en"]
    assert {item.status for item in fetch(wanted)} == {"up to date"}
    (root / "train.de").unlink()
    assert sorted(item.status for item in fetch(wanted)) == ["unpacked", "up to date", "up to date"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", [".tar.gz", ".zip"])
def test_a_name_that_leads_outside_goes_where_the_recipe_says(server: Server, tmp_path: Path, kind: str) -> None:
    fetch(packed(server, tmp_path / "root", kind, {"../evil": "tame", "/abs": "tame2"}))
    assert names(tmp_path) == [f"root/raw/corpus{kind}", "root/tame", "root/tame2"]


@pytest.mark.parametrize("kind", [".tar.gz", ".zip"])
def test_a_member_that_is_there_with_other_contents_is_kept_unless_forced(
    server: Server, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "train.de").write_bytes(b"mine\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.en").write_bytes(MEMBERS["corpus/train.en"])
    wanted = packed(server, tmp_path, kind, WANTED)
    with pytest.raises(DataError, match=r"train\.de: is there already, and differs") as caught:
        fetch(wanted)
    assert "--force" in str(caught.value.hint)
    assert (tmp_path / "train.de").read_bytes() == b"mine\n"
    fetch(wanted, force=True)
    assert (tmp_path / "train.de").read_bytes() == MEMBERS["corpus/train.de"]


@pytest.mark.parametrize("kind", [".tar", ".zip"])
@pytest.mark.parametrize(
    ("member", "complaint"),
    [("corpus/train.dee", "has no member"), ("folder", "is a folder"), ("link", r"(link|no member)")],
)
def test_members_that_cannot_be_had_are_named(
    server: Server, tmp_path: Path, kind: str, member: str, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        fetch(packed(server, tmp_path, kind, {member: "out"}))
    assert member in caught.value.message
    assert member != "corpus/train.dee" or "'corpus/train.de'" in str(caught.value.hint)
    assert names(tmp_path) == [f"raw/corpus{kind}"]


@pytest.mark.parametrize("kind", [".tar", ".tar.gz", ".tar.xz", ".zip"])
def test_a_damaged_archive_is_an_error(server: Server, tmp_path: Path, kind: str) -> None:
    body = archive(kind)
    body = body[:100] + bytes(byte ^ 255 for byte in body[100:200]) + body[200 : len(body) * 2 // 3]
    server.plan = [{"body": body}]
    sha256 = hashlib.sha256(body).hexdigest()
    with pytest.raises(DataError, match=r"(damaged|cannot be unpacked|has no member)"):
        fetch(one(server, tmp_path, path="x" + kind, sha256=sha256, members={"corpus/README": "readme"}))
    assert names(tmp_path) == ["x" + kind]


def test_members_of_what_is_no_archive_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.downloads\.0\.members: 'corpus\.gz' is not an archive"):
        fetch(one(server, tmp_path, members={"a": "b"}))


def written(server: Server, folder: Path, downloads: bool = True) -> Path:
    lines = [
        "languages: {source: de, target: en}",
        f"data:\n  root: {folder / 'root'}\n  train:\n    - {{name: train, source: train.de, target: train.en}}",
    ]
    if downloads:
        lines.append(f"  downloads:\n    - {{url: '{server.url}', path: corpus.gz, sha256: {SHA256}}}")
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "recipe.yaml"


def run(*arguments: object) -> str:
    app = typer.Typer()
    app.command()(fetch_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_command_says_what_it_did(server: Server, tmp_path: Path) -> None:
    path = written(server, tmp_path)
    target = tmp_path / "root" / "corpus.gz"
    assert run(path) == f"{target}: downloaded, 300000 bytes\n"
    assert run(path) == f"{target}: up to date, 300000 bytes\n"
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match="is there already"):
        run(path)
    assert run(path, "--force") == f"{target}: downloaded, 300000 bytes\n"
    assert run(path, "--set", f"data.root={tmp_path}") == f"{tmp_path / 'corpus.gz'}: downloaded, 300000 bytes\n"


def test_the_command_waits_as_long_as_it_is_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(download_module, "time", SimpleNamespace(sleep=lambda _: None))
    server.plan = [{"send": HALF, "end": "stall"}, {}]
    run(written(server, tmp_path), "--timeout", "0.1")
    assert f"no answer within 0.1 s after {HALF} bytes" in caplog.text


def test_a_recipe_without_downloads_says_so(server: Server, tmp_path: Path) -> None:
    assert "no downloads in this recipe" in run(written(server, tmp_path, downloads=False))
    target = tmp_path / "root" / "corpus.gz"
    target.parent.mkdir()
    target.write_bytes(b"mine")
    assert "no downloads in this recipe" in run(written(server, tmp_path), "--set", "data.downloads=[]")
