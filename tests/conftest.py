"""Fixtures for all tests: an invented parallel corpus and tokenizers learnt from it, made once a session."""

import logging
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before torch is first imported, here and in every process that a test starts: workers side by side, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts the tests in the background has SIGINT ignored, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from mtkit.recipe import Recipe
from mtkit.sections.data import TokenizerSection
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train

# Under nohup SIGHUP is ignored, and so it would be in every process that a test starts.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

if TYPE_CHECKING:
    from toy_job import Starter

# A made-up language: verb first, adjective after its noun, time at the end, words with no likeness to the English ones.
NOUNS = {
    "baker": "mirulo",
    "river": "taskel",
    "lantern": "ovendi",
    "horse": "pelgra",
    "window": "zumat",
    "child": "lisho",
}
ADJECTIVES = {"red": "vosk", "tall": "hinta", "silent": "omru", "young": "belif", "heavy": "gradun"}
VERBS = {"sees": "kort", "carries": "nawel", "follows": "sibba", "paints": "drume"}
TIMES = {"today": "eska", "at noon": "po mitra", "every week": "rul semta", "": ""}


@dataclass(frozen=True, slots=True)
class TinyCorpus:
    """600 training, 40 validation and 40 test pairs, and a folder that holds them.

    Files: train.source, train.target, valid.source, valid.target, test.source, test.target.
    """

    folder: Path
    source: list[str]
    target: list[str]

    def values(self, **sections: Any) -> dict[str, Any]:
        """The values of a recipe on this corpus, for Recipe.model_validate; sections are merged over the defaults."""
        values: dict[str, Any] = {
            "run_dir": str(self.folder / "run"),
            "languages": {"source": "en", "target": "xx"},
            "data": {
                "root": str(self.folder),
                **{
                    part: [{"name": "tiny", "source": f"{part}.source", "target": f"{part}.target"}]
                    for part in ("train", "valid", "test")
                },
            },
            "tokenizer": {"vocab_size": 120},
        }
        for name, section in sections.items():
            mapping = isinstance(section, dict) and isinstance(values.get(name), dict)
            values[name] = {**values[name], **section} if mapping else section
        return values

    def recipe(self, **sections: Any) -> Recipe:
        """A recipe on this corpus."""
        return Recipe.model_validate(self.values(**sections))


def invent_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences of the grammar above and their translations; the same seed gives the same pairs."""
    chance = random.Random(seed)

    def phrase() -> tuple[str, str]:
        noun = chance.choice(list(NOUNS))
        if chance.random() < 0.5:
            return f"the {noun}", NOUNS[noun]
        adjective = chance.choice(list(ADJECTIVES))
        return f"the {adjective} {noun}", f"{NOUNS[noun]} {ADJECTIVES[adjective]}"

    pairs = []
    for _ in range(count):
        (subject, subject_target), (thing, thing_target) = phrase(), phrase()
        verb, time = chance.choice(list(VERBS)), chance.choice(list(TIMES))
        source = f"{subject} {verb} {thing} {time}".strip()
        target = f"{VERBS[verb]} {subject_target} {thing_target} {TIMES[time]}".strip()
        pairs.append((f"{source}.", f"{target}."))
    return pairs


@pytest.fixture(autouse=True)
def _log_reaches_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line takes the log for itself; a test that ran it must not hide the log from the next."""
    monkeypatch.setattr(logging.getLogger("mtkit"), "propagate", True)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    """The invented corpus on disk. Read only: tests that change files make their own."""
    folder = tmp_path_factory.mktemp("tiny")
    parts = {"train": invent_pairs(600, 1), "valid": invent_pairs(40, 2), "test": invent_pairs(40, 3)}
    for part, pairs in parts.items():
        for place, side in enumerate(("source", "target")):
            text = "".join(pair[place] + "\n" for pair in pairs)
            (folder / f"{part}.{side}").write_bytes(text.encode("utf-8"))
    return TinyCorpus(folder, [source for source, _ in parts["train"]], [target for _, target in parts["train"]])


@pytest.fixture(scope="session")
def tiny_tokenizers(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    """A joint vocabulary of 120 pieces with the symbol <news>."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return train(TokenizerSection(vocab_size=120), tiny_corpus.source, tiny_corpus.target, ["<news>"], folder)


@pytest.fixture(scope="session")
def prepared_run(tiny_corpus: TinyCorpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the tokenizer and the shards of the invented corpus. Read only: `runs` makes copies."""
    from toy_run import prepare

    return prepare(tiny_corpus, tmp_path_factory.mktemp("prepared") / "run")


@pytest.fixture
def runs(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path: Path) -> Any:
    """Run folders of this test's own, ready to train in: see toy_run.Runs."""
    from toy_run import Runs

    return Runs(tiny_corpus, prepared_run, tmp_path)


@pytest.fixture(scope="module")
def starter() -> Iterator["Starter"]:
    """Starts the jobs of two processes of a file of tests."""
    from toy_job import Starter

    one = Starter()
    yield one
    one.process.kill()
    one.process.wait()
