"""Every recipe of the project loads, explains itself, and says only what it means to."""

import re
from pathlib import Path

import pytest
from conftest import TinyCorpus

from mtkit import pipeline
from mtkit.files import read_json
from mtkit.recipe import Recipe
from mtkit.recipe_view import json_schema
from mtkit.sections.model import Model
from mtkit.sections.search import Beam
from mtkit.sections.training import InverseSquareRoot
from mtkit.strict_yaml import read_yaml

FOLDER = Path(__file__).parent.parent / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_recipes() -> None:
    assert {path.stem for path in RECIPES} >= {
        "multi30k-en-de", "multi30k-de-en", "tatoeba-zh-en", "wmt14-en-de", "iwslt14-de-en",
    }  # fmt: skip


def test_it_loads_and_survives_being_written_out(path: Path, tmp_path: Path) -> None:
    recipe = Recipe.load(path)
    assert recipe.run_dir == f"runs/{path.stem}"
    (tmp_path / "resolved.yaml").write_text(recipe.dump(), encoding="utf-8")
    assert Recipe.load(tmp_path / "resolved.yaml") == recipe


def test_it_opens_with_what_it_does_and_the_command(path: Path) -> None:
    comment = re.match(r"(#.*\n)+", path.read_text(encoding="utf-8"))
    assert comment is not None
    assert comment[0].startswith("# yaml-language-server: $schema=schema.json\n")
    assert f"\n#   mtkit run recipes/{path.name}\n" in comment[0]


def test_the_schema_for_editors_is_current_and_accepts_it(path: Path) -> None:
    """When it is not: mtkit recipe schema > recipes/schema.json"""
    jsonschema = pytest.importorskip("jsonschema", reason="needs the extra dev")
    schema = read_json(FOLDER / "schema.json")
    assert schema == json_schema(), "make it anew: mtkit recipe schema > recipes/schema.json"
    jsonschema.Draft202012Validator(schema).validate(read_yaml(path).value)


def test_its_name_ends_with_its_languages(path: Path) -> None:
    languages = Recipe.load(path).languages
    if re.search(r"-[a-z]{2}-[a-z]{2}$", path.stem):
        assert path.stem.endswith(f"-{languages.source}-{languages.target}")


def test_it_has_data_for_training_validation_and_test_on_relative_paths(path: Path) -> None:
    data = Recipe.load(path).data
    assert data.valid
    assert data.test
    files = [name for part in (data.train, data.valid, data.test) for one in part for name in (one.source, one.target)]
    assert len(set(files)) == len(files)
    assert not any(Path(name).is_absolute() for name in (data.root, *filter(None, files)))
    places = {place for one in data.downloads for place in ({one.path, *one.members.values()} if one.path else ())}
    assert not data.downloads or set(files) <= places


def test_the_two_directions_of_multi30k_share_their_files() -> None:
    there, back = (Recipe.load(FOLDER / f"multi30k-{name}.yaml").data for name in ("en-de", "de-en"))
    assert there.root == back.root
    assert {one.path: one for one in there.downloads} == {one.path: one for one in back.downloads}
    commit = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
    for one in there.downloads:
        address = f"https://raw.githubusercontent.com/multi30k/dataset/{commit}/data/task1/raw/{one.path}"
        assert one.url == address
    for part in ("train", "valid", "test"):
        turned = [(one.name, one.target, one.source) for one in getattr(back, part)]
        assert [(one.name, one.source, one.target) for one in getattr(there, part)] == turned


def test_wmt14_is_the_papers_base_model_and_recipe() -> None:
    """Vaswani et al. 2017: table 3 and sections 5.1 to 6.1."""
    recipe = Recipe.load(FOLDER / "wmt14-en-de.yaml")
    assert recipe.model == Model()
    assert recipe.schedule == InverseSquareRoot(rate=None, warmup_steps=4000)
    assert recipe.batching.max_tokens * recipe.training.accumulate == 25_000
    assert recipe.training.max_steps == 100_000
    assert recipe.training.label_smoothing == 0.1
    assert recipe.training.keep_last >= recipe.average.checkpoints == 5
    assert isinstance(recipe.search, Beam)
    assert (recipe.search.beam_size, recipe.search.length_penalty, recipe.search.length_normalization) == (4, 0.6, "wu")


def test_every_setting_in_it_is_read(path: Path) -> None:
    """What a file says is what the recipe holds: nothing is ignored, renamed or rounded."""

    def compare(written: object, loaded: object, where: str) -> None:
        if isinstance(written, dict):
            for key, value in written.items():
                compare(value, loaded[key] if isinstance(loaded, dict) else getattr(loaded, key), f"{where}.{key}")
        elif isinstance(written, list):
            assert isinstance(loaded, tuple), where
            assert len(written) == len(loaded), where
            for one, other in zip(written, loaded, strict=True):
                compare(one, other, where)
        else:
            assert written == loaded, where

    written = read_yaml(path).value
    assert isinstance(written, dict)
    compare({key: value for key, value in written.items() if key != "extends"}, Recipe.load(path), path.stem)


TINY = [
    "tokenizer.vocab_size=120",
    "filters.max_length=100",
    "batching.max_tokens=512",
    "model.d_model=16",
    "model.heads=2",
    "model.d_ff=32",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "training.max_steps=4",
    "training.validate_every_steps=2",
    "training.save_every_steps=1",
    "training.log_every_steps=1",
    "training.device=cpu",
    "training.threads=1",
    "search.rules.max_length=10",
    "data.downloads=[]",
]


def test_it_runs_from_corpus_to_score_at_a_tiny_size(path: Path, tiny_corpus: TinyCorpus, tmp_path: Path) -> None:
    """All that the recipe asks for besides its size: optimizer, schedule, precision, averaging, search, scores."""
    corpora = [
        f"data.{part}=[{{name: tiny, source: {part}.source, target: {part}.target}}]"
        for part in ("train", "valid", "test")
    ]
    places = [f"data.root={tiny_corpus.folder}", f"run_dir={tmp_path / 'run'}"]
    recipe = Recipe.load(path, [*TINY, *corpora, *places])
    outcome, scores = pipeline.run(recipe)
    assert (outcome.state.step, outcome.reason) == (4, "max_steps")
    assert scores["tiny"].sentences == 40
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert len((tmp_path / "run" / "test" / "tiny.txt").read_bytes().split(b"\n")) == 41
