"""sacreBLEU's test sets: from its folder where they are there, and a clear word where they cannot be had."""

import http.server
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.plain_text import PlainTextDataset

from mtkit.errors import MtkitError, UsageError
from mtkit.testsets import load

Offer = Callable[..., None]
FILES = {"a.xx": "Goren täl.\nMis ora\u2028kem.\n", "a.de": "Ein Tor.\nZwei\u2028Tore.\n", "b.de": "Tor.\nTore.\n"}


class Several(PlainTextDataset):
    """A test set of the plain kind with two references, as the kinds of the shared tasks have."""

    def fieldnames(self, langpair: str) -> list[str]:
        return ["src", "ref:A", "ref:B"]


def archive(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "set.tgz").write_bytes(archive(FILES))
    (tmp_path / "served" / "broken.tgz").write_bytes(archive(FILES)[:60])

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Offer:
    """Gives sacreBLEU a test set `invented`, xx-de, from a URL, kept under tmp_path."""

    def give(url: str, md5: str | None = None) -> None:
        pairs = {"xx-de": ["a.xx", "a.de", "b.de"]}
        dataset = Several("invented", data=[url], md5=[md5] if md5 else None, langpairs=pairs)
        dataset._outdir, dataset._rawdir = str(tmp_path / "kept"), str(tmp_path / "kept" / "raw")
        monkeypatch.setitem(DATASETS, "invented", dataset)

    return give


def test_a_test_set_is_fetched_once(server: str, offer: Offer, tmp_path: Path) -> None:
    offer(f"{server}/set.tgz")
    loaded = load("invented", "xx-de")
    assert loaded.source == ["Goren täl.", "Mis ora\u2028kem."], "only LF ends a line"
    assert loaded.references == [["Ein Tor.", "Zwei\u2028Tore."], ["Tor.", "Tore."]]
    assert loaded.target_language == "de"
    (tmp_path / "served" / "set.tgz").unlink()
    assert load("invented", "xx-de") == loaded


@pytest.mark.parametrize("file", ["missing.tgz", "broken.tgz"])
def test_what_cannot_be_fetched_is_one_error(server: str, offer: Offer, file: str) -> None:
    offer(f"{server}/{file}")
    with pytest.raises(MtkitError, match="test set invented, xx-de, cannot be fetched") as caught:
        load("invented", "xx-de")
    assert "--test-set" in str(caught.value.hint)


def test_without_a_network_it_says_so(offer: Offer) -> None:
    offer("http://127.0.0.1:9/set.tgz")
    with pytest.raises(MtkitError, match=r"cannot be fetched \(.*refused"):
        load("invented", "xx-de")


def test_a_wrong_hash_is_an_error_and_no_exit(server: str, offer: Offer) -> None:
    offer(f"{server}/set.tgz", md5="0" * 32)
    with pytest.raises(MtkitError, match="sacreBLEU gave up"):
        load("invented", "xx-de")


def test_unknown_names_and_pairs_are_told_what_there_is(offer: Offer) -> None:
    offer("http://127.0.0.1:9/set.tgz")
    with pytest.raises(UsageError, match="no test set 'wmt41'") as caught:
        load("wmt41", "en-de")
    assert "near it are wmt" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no language pair 'de-xx'") as caught:
        load("invented", "de-xx")
    assert "it has xx-de;" in str(caught.value.hint)


def test_eval_scores_against_a_test_set(
    server: str, offer: Offer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mtkit.cli.eval import evaluate
    from mtkit.evaluate import score
    from mtkit.sections.data import Evaluation

    offer(f"{server}/set.tgz")
    (tmp_path / "out.de").write_text("Ein Tor\nZwei Tore\n", encoding="utf-8")
    evaluate(str(tmp_path / "out.de"), test_set="invented", language_pair="xx-de", resamples=0, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["reference_files"] == ["invented xx-de reference 1", "invented xx-de reference 2"]
    section = Evaluation(metrics=("bleu", "chrf", "chrf++", "ter"))
    references = [["Ein Tor.", "Zwei\u2028Tore."], ["Tor.", "Tore."]]
    assert found["metrics"] == score(["Ein Tor", "Zwei Tore"], references, section).as_dict()["metrics"]
