"""Variants of recipes, and looking at recipes: origins, differences, the schema for editors."""

import json
from pathlib import Path
from typing import Any

import pytest

from mtkit.cli.recipe import diff, schema, show
from mtkit.errors import RecipeError
from mtkit.recipe import Recipe, load_with_source
from mtkit.recipe_view import compare, json_schema, render, settings
from mtkit.sections.search import Greedy
from mtkit.sections.training import Cosine

BASE = """\
languages: {source: en, target: no}
run_dir: runs/of-the-base
data:
  root: corpora
  train:
    - {name: news, source: news.en, target: news.no}
    - {name: talks, source: talks.en, target: talks.no}
search:
  beam_size: 7
  rules:
    max_length: 99
schedule: {name: linear, rate: 1e-3, warmup_steps: 30}
training:
  max_steps: 20
  patience: 3
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path, "base.yaml", BASE)


def variant(base: Path, text: str, name: str = "variant.yaml") -> Path:
    return write(base.parent, name, f"extends: base.yaml\n{text}")


# Variants


def test_a_variant_has_what_it_says_and_otherwise_what_it_extends(base: Path) -> None:
    path = variant(base, "training: {max_steps: 50}\ndata: {train: [{name: a, tsv: a.tsv}]}\nschedule:\n")
    recipe, plain = Recipe.load(path), Recipe.load(base)
    assert recipe.training.max_steps == 50
    assert recipe.training.patience == 3, "sections are merged"
    assert [corpus.name for corpus in recipe.data.train] == ["a"], "lists are replaced"
    assert recipe.data.root == "corpora", "the folder of the data is that of the base, from the current folder"
    assert recipe.schedule.name == "inverse_sqrt", "null brings back the default"
    assert recipe.run_dir == "runs/variant", "two variants must not share a run folder"
    assert plain.run_dir == "runs/of-the-base"
    assert Recipe.load(variant(base, "")) == plain.model_copy(update={"run_dir": "runs/variant"})


def test_overrides_come_last(base: Path) -> None:
    path = variant(base, "training: {max_steps: 50}\n")
    assert Recipe.load(path, ["training.max_steps=60", "data.train.1.name=x"]).training.max_steps == 60


def test_variants_of_variants_and_paths_from_their_own_folders(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that started at the current folder would make a recipe depend on where it is called."""
    write(base.parent, "small/middle.yaml", "extends: ../base.yaml\nmodel: {d_model: 64, heads: 4}\n")
    top = write(base.parent, "small/deep/top.yaml", "extends: ../middle.yaml\nmodel: {heads: 2}\n")
    monkeypatch.chdir("/")
    recipe = Recipe.load(top)
    assert (recipe.model.d_model, recipe.model.heads, recipe.training.max_steps) == (64, 2, 20)


def test_a_variant_of_another_method_keeps_what_both_have(base: Path) -> None:
    """beam_size of the base was an error in a variant with greedy search, with no way to take it back."""
    recipe = Recipe.load(variant(base, "search: {method: greedy}\nschedule: {name: cosine, final_rate: 1e-5}\n"))
    assert isinstance(recipe.search, Greedy)
    assert recipe.search.rules.max_length == 99
    assert isinstance(recipe.schedule, Cosine)
    assert (recipe.schedule.rate, recipe.schedule.warmup_steps, recipe.schedule.final_rate) == (1e-3, 30, 1e-5)


def test_what_a_run_folder_gets_extends_nothing(base: Path, tmp_path: Path) -> None:
    recipe = Recipe.load(variant(base, "model: {dropout: 0.3}\n"))
    assert "extends" not in recipe.dump()
    assert Recipe.load(write(tmp_path / "elsewhere", "recipe.yaml", recipe.dump())) == recipe


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, overrides)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_errors_name_the_file_and_line_of_the_value(base: Path) -> None:
    base.write_text(BASE + "model:\n  dropuot: 0.1\n  heads: 7\n", encoding="utf-8")
    said = refusal(variant(base, "training:\n  max_steps: -1\nsearch: {beam_size: 0}\n"), "training.seed=x")
    assert [line.split(", expected")[0] for line in said.split("\n")[1:]] == [
        "base.yaml:17: model.dropuot is not a setting of model; did you mean dropout?",
        "variant.yaml:3: training.max_steps: value is -1",
        "variant.yaml:4: search.beam_size: value is 0",
        '--set training.seed=x: training.seed: value is "x"',
    ]
    base.write_text(BASE + "model:\n  heads: 7\n", encoding="utf-8")
    assert refusal(variant(base, "")).startswith("base.yaml:17: model: heads (7) must divide d_model (512)")


def test_a_circle_is_refused_by_its_chain(base: Path) -> None:
    write(base.parent, "a.yaml", "extends: b.yaml\n")
    write(base.parent, "b.yaml", "# the second\nextends: ./a.yaml\n")
    said = refusal(base.parent / "a.yaml")
    assert said.startswith("b.yaml:2: extends goes round in a circle: a.yaml -> b.yaml -> a.yaml\n")
    said = refusal(write(base.parent, "self.yaml", "extends: self.yaml\n"))
    assert "self.yaml -> self.yaml" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: gone.yaml\n", "top.yaml:1: extends: gone.yaml: no such file"),
        ("\nextends: .\n", "is a folder, a recipe file is expected"),
        ("extends: [base.yaml]\n", "top.yaml:1: extends: expected the path of one other recipe"),
        ("extends:\n", "top.yaml:1: extends: expected the path of one other recipe"),
        ("model: {extends: base.yaml}\n", "top.yaml:1: model.extends is not a setting of model"),
        ("extend: base.yaml\n", "top.yaml:1: extend is not a setting of a recipe; did you mean extends?"),
        ("extends: list.yaml\n", "list.yaml:1: a recipe is made of sections"),
        ("extends: base.yaml\nextends: base.yaml\n", "top.yaml:2: extends is set twice"),
    ],
)
def test_what_cannot_be_extended(base: Path, text: str, said: str) -> None:
    write(base.parent, "list.yaml", "- a\n")
    assert said in refusal(write(base.parent, "top.yaml", text))


def test_extends_is_no_override(base: Path) -> None:
    assert "--set extends=x.yaml: extends is read from the file alone" in refusal(base, "extends=x.yaml")


# Where values come from


def test_every_value_says_where_it_comes_from(base: Path) -> None:
    path = variant(base, "training:\n  max_steps: 50\nsearch: {rules: }\n")
    rows = {row.key: row for row in settings(*load_with_source(path, ["model={d_model: 64}", "data.train.0.weight=2"]))}
    origins = {
        "training.max_steps": f"{path}:3",
        "training.patience": f"{base}:15",
        "training.seed": "default",
        "data.train.0.name": f"{base}:6",
        "data.train.0.weight": "--set data.train.0.weight=2",
        "data.train.1.weight": "default",
        "model.d_model": "--set model={d_model: 64}",
        "model.heads": "default",
        "search.beam_size": f"{base}:9",
        "search.method": "default",
        "search.rules.max_length": "default",
        "run_dir": "default",
        "data.valid": "default",
    }
    assert {key: rows[key].origin for key in origins} == origins
    assert rows["training.max_steps"].value == 50
    dumped = Recipe.load(path, ["model={d_model: 64}", "data.train.0.weight=2"]).model_dump(mode="json")
    assert {key.split(".")[0] for key in rows} == set(dumped), "nothing is left out"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["tokenizer.user_defined_symbols=['# x', '<a>', ' ', \"a\\u2028b\", '- b', 'no', '1e3', 'a: b']"],
        ["data.downloads=[{url: 'http://x/y', path: 'a b', sha256: '" + "0" * 64 + "', members: {'a: b': c, d: e}}]"],
        ["data.train.0.tags=[<a>]", "evaluation.metrics=[bleu, ter]", "training.freeze=[]", "search={method: greedy}"],
    ],
)
def test_what_is_shown_is_the_same_recipe(base: Path, overrides: list[str], tmp_path: Path) -> None:
    recipe, source = load_with_source(variant(base, ""), overrides)
    assert Recipe.load(write(tmp_path, "shown.yaml", render(recipe, source))) == recipe


def test_show_prints_it(base: Path, capsys: Any) -> None:
    show(base, ["training.max_steps=9"])
    lines = capsys.readouterr().out.split("\n")
    assert "  max_steps: 9                                    # --set training.max_steps=9" in lines
    assert f"  source: en                                      # {base}:1" in lines
    show(base, ["training.max_steps=9"], as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert {"key": "training.max_steps", "value": 9, "origin": "--set training.max_steps=9"} in rows


# Differences


def test_a_recipe_does_not_differ_from_itself_however_written(base: Path, tmp_path: Path) -> None:
    one = settings(*load_with_source(base))
    dumped = write(tmp_path, "dumped.yaml", Recipe.load(base).dump())
    assert compare(one, settings(*load_with_source(dumped))) == []
    assert compare(one, settings(*load_with_source(write(tmp_path, "b.yaml", BASE.replace("run_dir", "#"))))) != []
    a, b = (write(tmp_path, f"{name}.yaml", BASE.replace("run_dir", "#")) for name in "ab")
    assert compare(settings(*load_with_source(a)), settings(*load_with_source(b))) == []


def test_differences_are_those_of_the_resolved_recipes(base: Path, tmp_path: Path, capsys: Any) -> None:
    other = variant(base, "training: {patience: null}\nsearch: {method: greedy}\ndata: {train: [{name: n, tsv: a}]}\n")
    diff(base, other)
    text = capsys.readouterr().out
    assert f"training.patience\n  - 3{'':<44}# {base}:15\n  + null{'':<41}# {other}:2\n".replace(" ", "") in (
        text.replace(" ", "")
    )
    assert "search.beam_size\n  - 7 " in text
    assert "\n  + " not in text.split("search.beam_size\n")[1].split("search.n_best")[0]
    assert "data.train.1.name\n  - talks" in text
    assert "languages" not in text
    diff(base, other, as_json=True)
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["training.patience"]["first"] == {"value": 3, "origin": f"{base}:15"}
    assert rows["search.beam_size"]["second"] is None


def test_equal_recipes_print_nothing(base: Path, capsys: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        diff(base, base)
    assert capsys.readouterr().out == ""
    assert "resolve to the same settings" in caplog.text


# The schema for editors


def test_the_schema_describes_every_setting(capsys: Any) -> None:
    schema()
    printed = json.loads(capsys.readouterr().out)
    assert printed == json_schema()
    for node in printed["$defs"].values():
        for key, inner in node["properties"].items():
            assert "description" in inner or "$ref" in json.dumps(inner), key


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (BASE, True),
        ("extends: base.yaml\nmodel: {dropout: 0.3}\n", True),
        (BASE + "filters:\nmodel:\nevaluation: {metrics: [ter]}\n", True),
        (BASE.replace("beam_size", "method: greedy #"), True),
        (BASE + "model: {dropuot: 0.3}\n", False),
        (BASE + "model: {dropout: 1}\n", False),
        (BASE + "optimiser: {}\n", False),
        (BASE.replace("beam_size", "method: greedy\n  beam_size"), False),
        ("model: {dropout: 0.3}\n", False),
    ],
)
def test_the_schema_accepts_and_refuses_what_the_loader_does(tmp_path: Path, text: str, good: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs the extra dev")
    from mtkit.strict_yaml import parse_yaml

    write(tmp_path, "base.yaml", BASE)
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid(parse_yaml(text, "r.yaml").value) == good
    if good:
        Recipe.load(write(tmp_path, "r.yaml", text))
    else:
        with pytest.raises(RecipeError):
            Recipe.load(write(tmp_path, "r.yaml", text))
