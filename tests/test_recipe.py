"""The recipe: what loads, what is refused, and what the refusal says."""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mtkit.errors import RecipeError
from mtkit.recipe import Recipe
from mtkit.recipe_errors import OTHER_NAMES
from mtkit.sections.search import Beam, Greedy, Sampling
from mtkit.sections.training import Cosine

BASE = """\
languages:
  source: en
  target: no
data:
  root: corpora
  train:
    - name: news
      source: news.en
      target: news.no
      tags: [<news>]
    - name: talks
      tsv: talks.tsv.gz
      weight: 0.5
  valid:
    - {name: dev, source: dev.en, target: dev.no}
  test:
    - {name: test, source: test.en, target: test.no}
  downloads:
    - url: https://example.org/corpus.tgz
      path: corpus.tgz
      sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
      members: {a/b.en: news.en}
filters:
# every line of this section is a comment
schedule:
  rate: 1e-4
optimizer:
  epsilon: 1e-9
training:
  max_steps: 20
"""

MINIMAL = """\
languages: {source: en, target: de}
data:
  train: [{name: a, source: a.en, target: a.de}]
"""


def write(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str, *overrides: str) -> str:
    """What loading says, with the folder's name taken out."""
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(folder, text), overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{folder}/", "")


# What loads


def test_values_arrive_as_written(tmp_path: Path) -> None:
    """A recipe for Norwegian with rates such as 1e-4 trains Norwegian at that rate."""
    recipe = Recipe.load(write(tmp_path, BASE))
    assert recipe.languages.target == "no"
    assert recipe.schedule.rate == 0.0001
    assert recipe.optimizer.epsilon == 1e-9
    assert recipe.data.train[1].weight == 0.5
    assert recipe.symbols() == ("<news>",)


def test_the_run_folder_is_named_after_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL, "tiny.yaml")
    assert Recipe.load(path).run_dir == "runs/tiny"
    assert Recipe.load(str(path), ["run_dir=null"]).run_dir == "runs/tiny"
    assert Recipe.load(path, ["run_dir=elsewhere"]).run_dir == "elsewhere"


def test_sections_may_be_left_empty_and_methods_unnamed(tmp_path: Path) -> None:
    text = MINIMAL + "search:\n  beam_size: 7\n  rules:\nschedule: {warmup_steps: 9}\nmodel:\nevaluation:\n"
    recipe = Recipe.load(write(tmp_path, text))
    assert isinstance(recipe.search, Beam)
    assert recipe.search.beam_size == 7
    assert recipe.schedule.warmup_steps == 9
    assert recipe.model.d_model == 512


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["search={method: greedy}", "schedule={name: cosine, rate: 0.1}"],
        ["search={method: sampling, seed: 9223372036854775807, temperature: 1e-7}", "data.root='on'"],
        ["languages.source='1e5'", "tokenizer.user_defined_symbols=['010', '', ' x ', \"a\\u2028b\", 'null']"],
    ],
)
def test_a_dumped_recipe_loads_back_equal(tmp_path: Path, overrides: list[str]) -> None:
    recipe = Recipe.load(write(tmp_path, BASE), overrides)
    again = Recipe.load(write(tmp_path, recipe.dump(), "other-name.yaml"))
    assert again == recipe
    assert again.dump() == recipe.dump()
    assert again.sha256() == recipe.sha256()


def test_the_hash_is_of_the_content_alone(tmp_path: Path) -> None:
    recipe = Recipe.load(write(tmp_path, BASE))
    reordered = re.sub(r"(?s)(languages:.*?)(data:.*)", r"\2\1# a comment\n", BASE)
    assert Recipe.load(write(tmp_path, reordered)).sha256() == recipe.sha256()
    assert Recipe.load(write(tmp_path, BASE), ["model.dropout=0.2"]).sha256() != recipe.sha256()
    assert re.fullmatch("[0-9a-f]{64}", recipe.sha256())


def test_sections_are_frozen(tmp_path: Path) -> None:
    recipe = Recipe.load(write(tmp_path, BASE))
    for name in Recipe.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(recipe, name, getattr(recipe, name))
        section = getattr(recipe, name)
        for key in getattr(type(section), "model_fields", ()):
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, key, getattr(section, key))


# Overrides


def test_overrides_reach_everything(tmp_path: Path) -> None:
    recipe = Recipe.load(
        write(tmp_path, BASE),
        [
            "data.train.0.weight=2",
            "filters.max_length=100",
            "search.rules.no_repeat_ngram=3",
            "training.max_steps=1e3",
            "training.max_steps=2000",
            "languages.target=yes",
            "optimizer.clip_norm=",
            "data.test=[]",
            "model={d_model: 64, heads: 4}",
            "model.heads=2",
        ],
    )
    assert recipe.data.train[0].weight == 2.0
    assert recipe.filters.max_length == 100
    assert recipe.search.rules.no_repeat_ngram == 3
    assert recipe.training.max_steps == 2000, "the last one wins"
    assert recipe.languages.target == "yes"
    assert recipe.optimizer.clip_norm is None
    assert recipe.data.test == ()
    assert (recipe.model.d_model, recipe.model.heads) == (64, 2)


def test_overrides_change_the_method(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    assert isinstance(Recipe.load(path, ["search.method=greedy"]).search, Greedy)
    assert isinstance(Recipe.load(path, ["search.method=sampling", "search.top_k=3"]).search, Sampling)
    assert isinstance(Recipe.load(path, ["schedule.name=cosine"]).schedule, Cosine)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_steps", ["section.key=value"]),
        ("=3", ["section.key=value"]),
        ("training.=3", ["section.key=value"]),
        ("training.max_steps.x=3", ["training.max_steps is a single value"]),
        ("data.train.2.name=x", ["data.train is a list", "0 to 1"]),
        ("data.train.first.name=x", ["'first'", "0 to 1"]),
        ("data.train.0.tags.1=x", ["data.train.0.tags is a list", "0 to 0"]),
        ("model.0.d_model=3", ["there is no list at model"]),
        ("tokenizer.user_defined_symbols.0=x", ["no list at tokenizer.user_defined_symbols", "whole"]),
        ("training.seed=010", ["octal", "'010'"]),
        ("training.seed=[1", ["not valid YAML"]),
        ("training.sead=1", ["training.sead is not a setting of training", "did you mean seed?"]),
        ("training.seed=-1", ["training.seed: value is -1", "at least 0"]),
        ("training.seed=abc", ['value is "abc"', "a whole number"]),
        ("languages=", ["languages is missing"]),
        ("data.valid={}", ["data.valid: value is {}", "a list of sections"]),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str, words: list[str]) -> None:
    said = refusal(tmp_path, BASE, override)
    assert said.startswith(f"--set {override}: ")
    for word in words:
        assert word in said
    assert "r.yaml" not in said


# What is refused, and in which words


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
# the story of someone's first recipe
languages: {source: 1.10, target: de}
lerning_rate: 0.001
data:
  train:
    - name: a/b
      sorce: a.en
    - just-a-name
  valid: [{name: b, source: b.en, target: b.de, weight: true}]
model:
  dropuot: 0.1
  d_model: 2
  positions: rotery
train:
  max_updates: 20
  d_model: 128
search: {method: beam, beam_sise: 4, top_k: 5, rules: {max_len: 9}}
schedule: {name: cosin}
optimizer: 3
evaluation: {metrics: [blue]}
"""
    said = refusal(tmp_path, text, "training.seed=x").splitlines()
    assert said[0] == "r.yaml: 19 problems in this recipe"
    starts = [line.split(", expected")[0] for line in said[1:]]
    assert starts == [
        "r.yaml:2: languages.source: value is 1.10",
        "r.yaml:3: lerning_rate is not a setting of a recipe; did you mean schedule.rate?",
        'r.yaml:6: data.train.0.name: value is "a/b"',
        "r.yaml:7: data.train.0.sorce is not a setting of data.train.0; did you mean source?",
        'r.yaml:8: data.train.1: value is "just-a-name"',
        "r.yaml:9: data.valid.0.weight: value is true",
        "r.yaml:11: model.dropuot is not a setting of model; did you mean dropout?",
        "r.yaml:12: model.d_model: value is 2",
        'r.yaml:13: model.positions: value is "rotery"',
        "r.yaml:14: train is not a setting of a recipe; did you mean training?",
        "r.yaml:15: train.max_updates is not a setting; did you mean training.max_steps?",
        "r.yaml:16: train.d_model is not a setting; did you mean model.d_model?",
        "r.yaml:17: search.beam_sise is not a setting of beam search; did you mean beam_size?",
        "r.yaml:17: search.top_k is a setting of sampling, not of beam",
        "r.yaml:17: search.rules.max_len is not a setting of search.rules; did you mean max_length?",
        'r.yaml:18: schedule.name: value is "cosin"',
        "r.yaml:19: optimizer: value is 3",
        'r.yaml:20: evaluation.metrics.0: value is "blue"',
        '--set training.seed=x: training.seed: value is "x"',
    ]
    assert said[1].endswith("; write '1.10' in quotes")
    assert said[8].endswith("expected a whole number from 4 to 16384 (Width of embeddings and layers)")
    assert said[9].endswith("; did you mean rotary?")
    assert said[16].endswith("inverse_sqrt or linear; did you mean cosine?")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("d_model: 64\n", "r.yaml:4: d_model is not a setting of a recipe; did you mean model.d_model?"),
        ("model:\n  d_model: 9\n", "r.yaml:4: model: heads (8) must divide d_model (9)".replace(":4", ":5")),
        ("model: {max_length: 9}\n", "r.yaml:4: model.max_length is not a setting of model; did you mean filters.max_"),
        ("batching:\n\n  max_tokens: 99\n", "r.yaml:6: batching.max_tokens (99) must exceed filters.max_length (256)"),
        (
            "batching: {max_tokens: 4k}\n",
            'r.yaml:4: batching.max_tokens: value is "4k", expected a whole number from 16 to 1',
        ),
        (
            "batching: {max_tokens: 15}\n",
            "r.yaml:4: batching.max_tokens: value is 15, expected a whole number from 16 to",
        ),
        ("search: {n_best: 9}\n", "r.yaml:4: search: n_best (9) cannot exceed beam_size (5)"),
        ("search: {temperature: 1}\n", "r.yaml:4: search.temperature is a setting of sampling, not of beam"),
        ("schedule: {name: constant}\n", "r.yaml:4: schedule.rate is missing, expected a number above 0"),
        ("schedule: {final_rate: 0}\n", "r.yaml:4: schedule.final_rate is a setting of cosine and linear, not of inv"),
        ("search: [beam]\n", 'r.yaml:4: search: value is ["beam"], expected a section with method: beam, greedy or'),
        ("training: {compile: maybe}\n", 'r.yaml:4: training.compile: value is "maybe", expected true or false'),
        ("zzz: 1\n", "r.yaml:4: zzz is not a setting of a recipe"),
        ("run_dir: 2024\n", "r.yaml:4: run_dir: value is 2024, expected text that is not empty (Run folder"),
    ],
)
def test_one_problem_is_one_line(tmp_path: Path, text: str, start: str) -> None:
    said = refusal(tmp_path, MINIMAL + text)
    assert said.startswith(start)
    assert "\n" not in said


def test_missing_sections_are_named(tmp_path: Path) -> None:
    said = refusal(tmp_path, "model: {}\n")
    assert "r.yaml: languages is missing, expected a section with settings such as source, target" in said
    assert "r.yaml: data is missing" in said


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "hello\n", "a: b: c\n"])
def test_what_is_no_recipe_at_all_is_refused(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text).startswith("r.yaml:")


def test_names_that_others_use_lead_to_settings_that_exist(tmp_path: Path) -> None:
    known = {key for key, _, _ in settings()}
    assert {dotted for dotted in OTHER_NAMES.values() if dotted not in known} == set()
    for other, ours in OTHER_NAMES.items():
        said = refusal(tmp_path, MINIMAL + f"{other}: 1\n")
        assert said.endswith(f"did you mean {ours}?"), said


def test_methods_names_are_no_part_of_the_keys(tmp_path: Path) -> None:
    """Pydantic puts the method's name into its locations; a reader's recipe has no key search.beam.rules."""
    for method in ("greedy", "beam", "sampling"):
        said = refusal(tmp_path, MINIMAL, f"search.method={method}", "search.rules.min_length=x", "search.beam=1")
        assert "search.rules.min_length: value is" in said
        assert f"search.beam is not a setting of {method} search" in said
        assert f"{method}." not in said


# Every bound of the schema, so that a new one is tested at birth


def settings() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Every setting in the schema: dotted key, its node, and the overrides that bring its section about."""
    schema = Recipe.model_json_schema()

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    def below(node: dict[str, Any], prefix: str, setup: list[str]) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        for key, inner in node["properties"].items():
            inner = resolved(inner)
            item = resolved(inner.get("items", {}))
            if "discriminator" in inner:
                for name, reference in inner["discriminator"]["mapping"].items():
                    start = f"{key}={{{inner['discriminator']['propertyName']}: {name}, rate: 1}}"
                    start = start if key == "schedule" else start.replace(", rate: 1", "")
                    yield from below(resolved({"$ref": reference}), f"{prefix}{key}.", [start])
            elif "properties" in inner:
                yield from below(inner, f"{prefix}{key}.", setup)
            else:
                yield f"{prefix}{key}", inner, setup
                if "properties" in item:
                    yield from below(item, f"{prefix}{key}.0.", setup)

    return below(schema, "", [])


def outside(node: dict[str, Any]) -> Iterator[str]:
    """Values, as written, that a setting with this schema must refuse: one beyond each bound, and wrong kinds."""
    kinds = node.get("anyOf", [node])
    nullable = {"type": "null"} in kinds
    kind = kinds[0]
    if not nullable and "default" not in node and "const" not in kind and kind.get("type") != "object":
        yield "null"
    if "enum" in kind or "const" in kind or "pattern" in kind:
        yield "'no such, choice!'"
    step = 1 if kind.get("type") == "integer" else 1e-6
    if "minimum" in kind:
        yield repr(kind["minimum"] - step)
    if "exclusiveMinimum" in kind:
        yield repr(kind["exclusiveMinimum"])
    if "maximum" in kind:
        yield repr(kind["maximum"] + (1 if kind["maximum"] > 1 else step))
    if "exclusiveMaximum" in kind:
        yield repr(kind["exclusiveMaximum"])
    if kind.get("minLength"):
        yield json.dumps("a" * (kind["minLength"] - 1))
    if "maxLength" in kind:
        yield json.dumps("a" * (kind["maxLength"] + 1))
    if kind.get("minItems"):
        yield "[]"
    match kind.get("type"):
        case "integer":
            yield from ("abc", "true", "1.5", "[1]", ".inf", ".nan", "{}")
        case "number":
            yield from ("abc", "false", "[1]", ".inf", "-.inf", ".nan", "{}")
        case "boolean":
            yield from ("maybe", "2", "[]")
        case "array":
            yield from ("text", "{}", "[[]]", "[7]")
        case "object":
            yield from ("text", "[1]", "{a: 1}")
        case _:
            yield from ("7", "true", "[a]", "{}", "1.10")


def rounds() -> Iterator[list[str]]:
    """Lists of overrides that are all wrong: a value for every setting at once, where they do not hide each other."""
    together: dict[tuple[str, ...], list[list[str]]] = {}
    for key, node, setup in settings():
        wrong = [f"{key}={value}" for value in outside(node)]
        if key in ("data.train", "data.valid", "data.test", "data.downloads", "search.method", "schedule.name"):
            yield from ([*setup, override] for override in wrong)
        else:
            together.setdefault(tuple(setup), []).append(wrong)
    for setup, wrongs in together.items():
        for turn in zip_longest(*wrongs):
            yield [*setup, *filter(None, turn)]


@pytest.mark.parametrize("overrides", rounds(), ids=lambda overrides: overrides[-1])
def test_every_bound_refuses_what_is_outside(tmp_path: Path, overrides: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(tmp_path, BASE), overrides)
    for override in overrides:
        key = override.partition("=")[0]
        if key not in ("search", "schedule"):
            assert f"--set {override}: {key}" in str(caught.value)


def test_every_setting_is_described_and_every_number_bounded() -> None:
    for key, node, _ in settings():
        assert node.get("description"), key
        kind = node.get("anyOf", [node])[0]
        if kind.get("type") in ("integer", "number"):
            assert {"minimum", "exclusiveMinimum"} & set(kind), key
            assert {"maximum", "exclusiveMaximum"} & set(kind), key


# Cross-checks


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tokenizer.vocabulary=separate"], "model.share_embeddings: all needs tokenizer.vocabulary: joint"),
        (["batching.max_tokens=256"], "batching.max_tokens (256) must exceed filters.max_length (256)"),
        (["model.positions=learned", "model.max_positions=100"], "model.max_positions (100) must be at least"),
        (["filters.min_length=9", "filters.max_length=8"], "filters.min_length"),
        (["model.heads=3"], "heads (3) must divide d_model (512)"),
        (["model={positions: rotary, d_model: 24, heads: 8}"], "even head width"),
        (["search.groups=2"], "groups (2) must divide beam_size (5)"),
        (["data.train.0.tsv=x"], "either source and target, or tsv"),
        (["data.train.0.target="], "source and target come together"),
        (["data.train.1.target_column=1"], "must differ"),
        (["data.train.1.name=news"], "two corpora are named 'news'"),
    ],
)
def test_sections_must_fit_together(tmp_path: Path, overrides: list[str], words: str) -> None:
    path = write(tmp_path, BASE)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, overrides)
    assert words in str(caught.value)
    assert str(caught.value).startswith(("--set ", f"{path}:"))


def test_a_number_or_a_word_is_described_as_both(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(write(tmp_path, MINIMAL), ["batching.max_tokens=car"])
    assert "expected a whole number from 16 to 10000000 or auto (Most tokens" in caught.value.message
    assert Recipe.load(write(tmp_path, MINIMAL), ["batching.max_tokens=auto"]).batching.max_tokens == "auto"
