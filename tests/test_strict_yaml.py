"""Strict YAML reads what a person expects, or says in which line it does not."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.errors import RecipeError
from mtkit.strict_yaml import dump_yaml, parse_yaml, read_yaml


@pytest.mark.parametrize("word", ["no", "No", "NO", "yes", "on", "off", "y", "n", "On", "OFF"])
def test_words_of_yaml_1_1_stay_text(word: str) -> None:
    """A recipe for Norwegian must not translate into False."""
    assert parse_yaml(f"code: {word}", "f").value == {"code": word}
    assert parse_yaml(f"{word}: 1", "f").value == {word: 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("7", 7),
        ("-3", -3),
        ("10_000", 10_000),
        ("1e-4", 0.0001),
        ("1e-9", 1e-9),
        ("1E5", 100_000.0),
        ("+.5", 0.5),
        ("2.", 2.0),
        ("0", 0),
        ("0.10", 0.1),
        ("-.inf", -math.inf),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ("2024_01", "2024_01"),
        ("0x10", "0x10"),
        ("1.2.3", "1.2.3"),
        ("'010'", "010"),
        ('"1e-4"', "1e-4"),
        ("!!str 12", "12"),
        ("<news>", "<news>"),
        ("[a, 1, no]", ["a", 1, "no"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("=", "="),
    ],
)
def test_values_mean_what_they_look_like(text: str, value: Any) -> None:
    found = parse_yaml(f"key: {text}", "f").value["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 010", 2, ["010", "write 10", "'010'"]),
        ("a: -007", 1, ["write -7", "'-007'"]),
        ("a: 00.5", 1, ["write 0.5"]),
        ("a: 1\n\na: 2", 3, ["a is set twice", "line 1"]),
        ("a:\n  b: 1\n  c: {d: 1, d: 2}", 3, ["a.c.d is set twice"]),
        ("a:\n\tb: 1", 2, ["tab", "spaces"]),
        ("a: 1\nb:\t2", 2, ["tab"]),
        ("a: 1\n---\nb: 2", 3, ["second document"]),
        ("a: 1\nb: c: d", 2, ["needs quotes"]),
        ("a: 1\nb: @x", 2, ["quotes"]),
        ("a: 1\nb c\nd: 1", 2, ["key: value"]),
        ("a: 1\nb: [1,\n  2\n\n", 2, ["brackets"]),
        ("a: 'x\n\n  y\n", 1, ["quotes"]),
        ("a: 1\nb: &x [*x]", 2, ["alias"]),
        ("a: 1\n<<: {b: 1}", 2, ["merge"]),
        ("a: 1\n? [b]\n: c", 2, ["key must be text"]),
        ("a: 1\n~: c", 2, ["key must be text"]),
        ("a: !!python/object/apply:os.getcwd []", 1, ["python/object", "tag"]),
        ("a: 1\nb: !!int 3", 2, ["!!int"]),
        ("a: 1\nb: \x07", 2, ["U+0007"]),
        ("a: 1\nb: x\u2028y", 2, ["U+2028"]),
        ("a: 1\rb: 2", 1, ["U+000D"]),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(text: str, line: int, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_yaml(text, "r.yaml")
    assert str(caught.value).startswith(f"r.yaml:{line}: ")
    for word in words:
        assert word in str(caught.value)


def test_bottomless_and_endless_files_are_refused() -> None:
    with pytest.raises(RecipeError, match="nested too deeply"):
        parse_yaml("[" * 100_000, "f")
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 10)}]\n" for level in range(8)
    )
    with pytest.raises(RecipeError, match="more than"):
        parse_yaml(bomb, "f")


def test_every_key_knows_its_line_and_every_scalar_its_spelling() -> None:
    document = parse_yaml("# top\na:\n  b: 1.10\n  c:\n  - x\n  -\n    d: no\n", "f")
    assert document.value == {"a": {"b": 1.1, "c": ["x", {"d": "no"}]}}
    assert document.lines[("a",)] == 2
    assert document.lines[("a", "b")] == 3
    assert document.lines[("a", "c", 0)] == 5
    assert document.lines[("a", "c", 1, "d")] == 7
    assert document.spelled[("a", "b")] == "1.10"


def test_crlf_and_byte_order_mark_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: x\r\nb: y\r\n")
    document = read_yaml(path)
    assert document.value == {"a": "x", "b": "y"}
    assert document.lines[("b",)] == 2


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "latin.yaml"
    bad.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"latin\.yaml:2: byte 0xE9 is not UTF-8"):
        read_yaml(bad)
    with pytest.raises(RecipeError, match="is a folder"):
        read_yaml(tmp_path)
    with pytest.raises(RecipeError, match=r"gone\.yaml: no such file"):
        read_yaml(tmp_path / "gone.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_yaml(bad / "below-a-file.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_yaml("nul\0byte")


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["no", "on", "010", "-0_7", "1e-4", "1_000", "1:30", "<<", "~", "", "2024-01-31", ".inf", "a: b"])
)
_TREES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), _TREES, max_size=3))
def test_what_is_dumped_loads_back_equal(tree: dict[str, Any]) -> None:
    """The run folder's recipe must be the recipe of the run, whatever its texts look like."""
    found = parse_yaml(dump_yaml(tree), "f").value
    assert found == tree
    assert repr(found) == repr(tree), "equal, and of the same types: 1 is not 1.0"
