"""`mtkit init`: the recipe suits corpus and machine and trains as it is; what is held out is in training no more."""

import gzip
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import TinyCorpus, invent_pairs
from hypothesis import given
from hypothesis import strategies as st

from mtkit import pipeline
from mtkit.cli.app import exit_code_of
from mtkit.cli.init import init
from mtkit.data.corpus import check_corpora
from mtkit.errors import DataError, MtkitError, UsageError
from mtkit.files import read_lines
from mtkit.proposal.choose import LARGE, SMALL, Machine, choose, vocabulary_size
from mtkit.proposal.hold_out import hold_out, key
from mtkit.proposal.init import Request, initialize, language_of, languages_of
from mtkit.proposal.survey import Survey, Tokens
from mtkit.proposal.write import Texts, recipe_text
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus

CPU, GPU = Machine(2), Machine(16, "a GPU", 16_000_000_000)


@pytest.fixture
def folder(tiny_corpus: TinyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The invented corpus under names that tell its languages, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "valid", "test"):
        for side, language in (("source", "en"), ("target", "xx")):
            Path(f"{part}.{language}").write_bytes((tiny_corpus.folder / f"{part}.{side}").read_bytes())
    return tmp_path


def pair(part: str) -> list[tuple[str, str]]:
    return [(f"{part}.en", f"{part}.xx")]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The recipe


def test_the_recipe_trains_as_it_is(folder: Path) -> None:
    """Its own settings, but for the number of updates and what is shown."""
    before = snapshot(folder)
    assert initialize(Request(Path("my.yaml"), pair("train"), pair("valid"), pair("test")), CPU) is None
    after = snapshot(folder)
    assert after.pop("my.yaml")
    assert after == before
    recipe = Recipe.load("my.yaml", ["training.max_steps=2", "training.samples=0", "search.rules.max_length=5"])
    assert (recipe.languages.source, recipe.languages.target) == ("en", "xx")
    assert [corpus.name for corpus in (*recipe.data.train, *recipe.data.valid, *recipe.data.test)] == [
        "train", "valid", "test",
    ]  # fmt: skip
    _, scores = pipeline.run(recipe)
    assert scores["test"].sentences == 40


def test_every_choice_has_its_reason(folder: Path) -> None:
    initialize(Request(Path("my.yaml"), pair("train"), pair("valid")), CPU)
    text = Path("my.yaml").read_text(encoding="utf-8")
    assert "Sennrich and Zhang 2019" in text
    assert "600 training pairs" in text
    assert "2 CPU cores, no GPU" in text
    assert "mtkit run my.yaml" in text
    assert max(map(len, text.split("\n"))) <= 120
    for section in ("tokenizer", "filters", "batching", "model", "schedule", "training", "average"):
        body = re.search(rf"^{section}:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert body is not None
        assert "#" in body[1], section


def made_up(pairs: int, length: int = 15, characters: int = 100) -> tuple[Survey, Tokens]:
    sample = 500
    lengths = np.random.default_rng(1).poisson(length, sample) + 1
    found = Survey(pairs, 0, ["a b c"] * sample, ["d e"] * sample, characters)
    return found, Tokens(vocabulary_size(pairs, characters), lengths, lengths, 4.0)


@pytest.mark.parametrize("pairs", [60, 900, 9_999, 29_000, SMALL - 1, SMALL, LARGE - 1, LARGE, 40_000_000])
@pytest.mark.parametrize("machine", [CPU, Machine(64), GPU, Machine(4, "small", 4_000_000_000)])
@pytest.mark.parametrize("length", [2, 30, 400])
def test_whatever_corpus_and_machine_the_recipe_is_valid(
    pairs: int, machine: Machine, length: int, tmp_path: Path
) -> None:
    found, tokens = made_up(pairs, length)
    proposal = choose(found, tokens, machine)
    corpora = {"train": [Corpus(name="no", source="a.en", target="a.no")], "valid": [], "test": []}
    path = tmp_path / "r.yaml"
    path.write_text(recipe_text(path, Texts(("en", "no"), ".", corpora), found, proposal, machine, None), "utf-8")
    recipe = Recipe.load(path)
    assert recipe.languages.target == "no"
    for section, choices in proposal.sections.items():
        for choice in choices:
            assert getattr(getattr(recipe, section), choice.key) == choice.value
    assert recipe.training.max_steps >= 400
    assert (proposal.seconds is None) == (machine.gpu_bytes is not None)
    if proposal.seconds is not None and pairs < 2_000_000:
        assert proposal.seconds < 2 * 86_400


def test_more_data_means_larger_vocabulary_and_model_and_less_dropout() -> None:
    sizes = [500, 5_000, 29_000, 150_000, 5_000_000]
    proposals = [choose(*made_up(pairs), GPU) for pairs in sizes]
    vocabularies = [proposal.value("tokenizer", "vocab_size") for proposal in proposals]
    assert vocabularies == sorted(set(vocabularies))
    widths = [proposal.value("model", "d_model") for proposal in proposals]
    assert widths == sorted(widths)
    assert proposals[0].value("model", "dropout") > proposals[2].value("model", "dropout")
    assert proposals[2].value("model", "dropout") > proposals[-1].value("model", "dropout")


def test_a_script_of_many_characters_gets_room_for_them() -> None:
    assert vocabulary_size(27_000, 2_800) > vocabulary_size(27_000, 100) + 2_000


def test_a_smaller_gpu_takes_the_same_update_in_more_parts() -> None:
    for pairs in (200_000, 5_000_000):
        updates = set()
        for memory in (4, 16, 80):
            proposal = choose(*made_up(pairs), Machine(8, "x", memory * 10**9))
            parts = [c.value for c in proposal.sections["training"] if c.key == "accumulate"] or [1]
            updates.add(round(parts[0] * proposal.value("batching", "max_tokens"), -3))
        assert len(updates) == 1


# What is held out


def in_common(one: Path, other: Path) -> set[str]:
    return {key(line) for line in read_lines(one)} & {key(line) for line in read_lines(other)}


def write_corpus(folder: Path, pairs: list[tuple[str, str]], name: str = "c") -> Corpus:
    for side, language in enumerate(("en", "xx")):
        text = "".join(pair[side] + "\n" for pair in pairs)
        (folder / f"{name}.{language}").write_bytes(text.encode("utf-8"))
    return Corpus(name=name, source=str(folder / f"{name}.en"), target=str(folder / f"{name}.xx"))


def test_without_validation_files_some_pairs_are_held_out(folder: Path) -> None:
    before = snapshot(folder)
    held = initialize(Request(Path("my.yaml"), pair("train"), (), pair("test")), CPU)
    assert held is not None
    after = snapshot(folder)
    assert set(after) - set(before) == {
        "my.yaml",
        *(f"my-data/{n}.{s}" for n in ("train", "valid") for s in ("en", "xx")),
    }
    assert {name: after[name] for name in before} == before, "the originals are as they were"
    recipe = Recipe.load("my.yaml")
    counts = check_corpora([*recipe.data.train, *recipe.data.valid], Path(recipe.data.root))
    assert counts == [held.train_pairs, held.valid_pairs]
    assert held.train_pairs + held.valid_pairs + held.dropped == 600
    assert 0 < held.valid_pairs <= 30
    for language in ("en", "xx"):
        assert in_common(Path(f"my-data/train.{language}"), Path(f"my-data/valid.{language}")) == set()


SENTENCES = st.sampled_from(["a b", "A  b!", "a, b", "c", "d", "e f", "g", "?", "", "h i", "j", "k"])


@given(st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=60), st.integers(1, 10), st.booleans())
def test_nothing_held_out_is_left_in_training(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], count: int, two: bool
) -> None:
    folder = tmp_path_factory.mktemp("held")
    corpora = [write_corpus(folder, pairs)]
    if two:
        corpora.append(write_corpus(folder, pairs[::-1], "valid"))
    try:
        held = hold_out(corpora, count, folder / "out", ("en", "xx"))
    except DataError:
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"{corpus.name}.{language}" for corpus in corpora for language in ("en", "xx")
        )
        return
    assert held.valid.source is not None
    assert held.valid.target is not None
    valid = list(zip(read_lines(held.valid.source), read_lines(held.valid.target), strict=True))
    train = []
    for corpus in held.train:
        assert corpus.source is not None
        assert corpus.target is not None
        train += list(zip(read_lines(corpus.source), read_lines(corpus.target), strict=True))
    assert 0 < len(valid) <= count
    for side in (0, 1):
        assert {key(pair[side]) for pair in valid}.isdisjoint({key(pair[side]) for pair in train})
        assert len({key(pair[side]) for pair in valid}) == len(valid), "none is there twice"
    originals = [*pairs, *pairs] if two else pairs
    assert len(valid) + len(train) + held.dropped == len(originals)
    assert set(valid) | set(train) <= set(originals)


def test_sentences_that_are_everywhere_are_not_held_out(tmp_path: Path) -> None:
    """Holding out one pair of a greeting that stands in half of a corpus would cost half of the corpus."""
    pairs = [("hello", "halo")] * 500 + [(f"number {n}", f"nombro {n}") for n in range(500)]
    random.Random(3).shuffle(pairs)
    held = hold_out([write_corpus(tmp_path, pairs)], 50, tmp_path / "out", ("en", "xx"))
    assert (held.valid_pairs, held.dropped) == (50, 0)


def test_the_same_corpus_gives_the_same_files(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [(f"number {n % 170}", f"nombro {n % 130}") for n in range(400)])
    for name in "ab":
        hold_out([corpus], 20, tmp_path / name, ("en", "xx"))
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_compressed_and_several_corpora(folder: Path) -> None:
    Path("more.en.gz").write_bytes(gzip.compress(Path("train.en").read_bytes()))
    Path("more.xx.gz").write_bytes(gzip.compress(Path("train.xx").read_bytes()))
    held = initialize(Request(Path("my.yaml"), [*pair("train"), ("more.en.gz", "more.xx.gz")]), CPU)
    assert held is not None
    data = Recipe.load("my.yaml").data
    assert [corpus.name for corpus in data.train] == ["train", "more"]
    for corpus in data.train:
        assert in_common(Path(data.root) / str(corpus.source), Path("my-data/valid.en")) == set()


# Languages and names


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("corpus.en", "en"), ("a/b.c/train.de.gz", "de"), ("n.2014.cs.xz", "cs"), ("x.pt-BR", "pt-BR"), ("x.gz", None),
        ("corpus.txt", None), ("corpus", None), ("corpus.gz", None), ("en", None), ("a.en.txt", None), ("x.2014", None),
    ],
)  # fmt: skip
def test_the_language_in_a_name(name: str, language: str | None) -> None:
    assert language_of(name) == language


def test_languages_can_be_named() -> None:
    train = [("a.txt", "b.txt")]
    assert languages_of(Request(Path("r"), train, (), (), "en", "de")) == ("en", "de")
    with pytest.raises(UsageError, match=r"b\.txt: its name does not tell the language"):
        languages_of(Request(Path("r"), train, (), (), "en"))


REFUSED: list[tuple[str, Callable[[], Request], str]] = [
    ("turned round", lambda: Request(Path("r.yaml"), pair("train"), [("valid.xx", "valid.en")]), "two languages"),
    ("the same twice", lambda: Request(Path("r.yaml"), [("train.en", "test.en")]), "both en"),
    ("missing", lambda: Request(Path("r.yaml"), pair("train"), pair("gone")), "gone.en"),
    ("unequal", lambda: Request(Path("r.yaml"), [("train.en", "valid.xx")]), "600 lines"),
    ("recipe exists", lambda: Request(Path("train.en"), pair("train"), pair("valid")), "nothing is overwritten"),
    ("folder exists", lambda: Request(Path("there.yaml"), pair("train")), "there-data: is there already"),
    ("blank", lambda: Request(Path("r.yaml"), [("blank.en", "blank.xx")], pair("valid")), "no pair has text"),
    ("tiny", lambda: Request(Path("r.yaml"), [("one.en", "one.xx")]), "too small to hold anything out"),
]


@pytest.mark.parametrize(("request_of", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_leaves_nothing(folder: Path, request_of: Callable[[], Request], said: str) -> None:
    Path("there-data").mkdir()
    for language in ("en", "xx"):
        Path(f"blank.{language}").write_text("\n \n")
        Path(f"one.{language}").write_text("one\n")
    before = snapshot(folder)
    with pytest.raises(MtkitError, match=re.escape(said)):
        initialize(request_of(), CPU)
    assert snapshot(folder) == before
    assert not list(folder.glob(".*"))


# The command


def test_the_command_takes_pairs_of_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "mtkit", "init", "my.yaml", "--train", "train.en", "train.xx"]
    tests = ["--test", "test.en", "test.xx", "--test", "valid.en", "valid.xx"]
    result = subprocess.run([*command, *tests], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("my.yaml: written")
    assert "my-data: " in result.stdout
    assert [corpus.name for corpus in Recipe.load("my.yaml").data.test] == ["test", "valid"]


@pytest.mark.parametrize(
    ("train", "valid", "said"),
    [
        ([], [], "--train is missing"),
        (["train.en"], [], "--train takes two files"),
        (["a", "b"], ["c"], "--valid takes two"),
    ],
)
def test_pairs_that_are_not(
    train: list[str], valid: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(lambda: init(Path("my.yaml"), train=train, valid=valid)) == 2
    assert said in capsys.readouterr().err


def test_a_vocabulary_that_the_text_cannot_fill_is_made_smaller(folder: Path) -> None:
    words = ["stone", "water", "light", "mirror", "garden"]
    pairs = [(f"{one} {other}", f"{other} {one}") for one in words for other in words] * 40
    write_corpus(folder, pairs, "few")
    initialize(Request(Path("my.yaml"), [("few.en", "few.xx")], pair("valid")), CPU)
    recipe = Recipe.load("my.yaml", [f"run_dir={folder / 'run'}"])
    assert pipeline.ensure_tokenizer(recipe).source.size == recipe.tokenizer.vocab_size < vocabulary_size(1000, 0)


def test_invented_pairs_are_enough_for_holding_out() -> None:
    assert len({source for source, _ in invent_pairs(600, 1)}) > 100
