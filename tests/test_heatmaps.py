"""Heat maps: labels, views, words, alignments; and that pictures show the weights and nothing that text smuggles in."""

import io
import logging
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from mtkit.errors import MtkitError, UsageError
from mtkit.heatmaps import png, svg, terminal
from mtkit.heatmaps.maps import KINDS, AttentionMaps, by_words, pharaoh

SOURCE, TARGET = ["<news>", "▁mir", "ulo", "▁kort"], ["▁the", "▁ba", "ker", "."]


def softmaxed(seed: int, *shape: int) -> np.ndarray:
    weights = np.exp(np.random.default_rng(seed).normal(size=shape) * 2)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make(source: list[str] = SOURCE, target: list[str] = TARGET, tags: int = 1) -> AttentionMaps:
    """Three decoder and two encoder layers of four heads, with invented weights."""
    columns, rows = len(source) + 1, len(target) + 1
    decoder = np.tril(softmaxed(3, 3, 4, rows, rows))
    weights = {
        "encoder": softmaxed(1, 2, 4, columns, columns),
        "decoder": decoder / decoder.sum(-1, keepdims=True),
        "cross": softmaxed(2, 3, 4, rows, columns),
    }
    return AttentionMaps("", "", source, target, tags, True, weights)  # type: ignore[arg-type]


def test_labels_say_what_looks_and_what_is_looked_at() -> None:
    maps = make()
    assert maps.labels("encoder") == ([*SOURCE, "</s>"], [*SOURCE, "</s>"])
    assert maps.labels("decoder") == ([*TARGET, "</s>"], ["<s>", *TARGET])
    assert maps.labels("cross") == ([*TARGET, "</s>"], [*SOURCE, "</s>"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_one_head_or_the_mean_of_all(kind: str) -> None:
    maps = make()
    weights = maps.weights[kind]  # type: ignore[index]
    for layer in range(len(weights)):
        for head in range(4):
            np.testing.assert_array_equal(maps.view(kind, layer, head).weights_RC, weights[layer, head])  # type: ignore[arg-type]
        np.testing.assert_allclose(maps.view(kind, layer).weights_RC, weights[layer].mean(0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(maps.view(kind).weights_RC, maps.view(kind, len(weights) - 1).weights_RC)  # type: ignore[arg-type]


def test_a_layer_or_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="layer 2: this model's encoder attention has 2 layers, 0 to 1"):
        make().view("encoder", 2)
    with pytest.raises(UsageError, match="head 4: this model's cross attention has 4 heads, 0 to 3"):
        make().view("cross", 2, 4)


def test_alignments_leave_out_tags_and_ends() -> None:
    """The column of the largest weight among real source pieces, counted without the tag before them."""
    weights = np.array(
        [[0.5, 0.1, 0.2, 0.1, 0.1], [0, 0.3, 0.1, 0.0, 0.6], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    )
    maps = make()
    maps = AttentionMaps("", "", SOURCE, TARGET, 1, False, {**maps.weights, "cross": weights[None, None]})
    assert maps.view().alignment() == [(1, 0), (0, 1), (2, 2), (1, 3)]
    assert pharaoh(maps.view().alignment()) == "1-0 0-1 2-2 1-3"


def test_the_first_word_looks_at_no_word_before_it() -> None:
    assert [row for _, row in make().view("decoder").alignment()] == [1, 2, 3]


def test_words_are_sums_of_columns_and_means_of_rows() -> None:
    view = make().view("cross", 1, 2)
    words = by_words(view)
    assert words.rows == ["the", "baker.", "</s>"]
    assert words.columns == ["<news>", "mirulo", "kort", "</s>"]
    assert (words.aligned_rows, words.aligned_columns) == (range(2), range(1, 3))
    weights = view.weights_RC
    assert words.weights_RC[1, 1] == pytest.approx(weights[1:4, 1:3].sum() / 3)
    np.testing.assert_allclose(words.weights_RC.sum(1), 1, rtol=1e-6)


def test_rows_by_words_of_every_kind_stay_distributions() -> None:
    for kind in KINDS:
        words = by_words(make().view(kind))
        assert words.weights_RC.shape == (len(words.rows), len(words.columns))
        np.testing.assert_allclose(words.weights_RC.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁", "ж", "▁x"], ["ж", "x"]),
        (["▁a", "▁", "▁b"], ["a", "b"]),
        (["▁a", "▁"], ["a"]),
        (["a", "b", "▁c"], ["ab", "c"]),
        (["▁北京", "。"], ["北京。"]),
    ],
)
def test_words_are_those_between_spaces(pieces: list[str], words: list[str]) -> None:
    """Also where a word start stands by itself, so that the numbers of an alignment are those of the text's words."""
    view = by_words(make([*pieces], [*pieces], 0).view())
    assert view.rows == view.columns == [*words, "</s>"]
    assert view.aligned_rows == view.aligned_columns == range(len(words))


def test_nothing_to_align_gives_no_alignment() -> None:
    assert make(["▁a"], [], 0).view().alignment() == []
    assert make(["<news>"], ["▁a"], 1).view().alignment() == []
    assert by_words(make(["<news>"], ["▁a"], 1).view()).alignment() == []


# In the terminal


def test_the_terminal_shows_every_weight_in_percent() -> None:
    view = make().view("cross", 0, 0)
    lines = terminal.render(view).splitlines()
    body = lines[-len(view.rows) :]
    for row, line in enumerate(body):
        shown = [0 if cell == "·" else int(cell.rstrip("*")) for cell in line.split()[1:]]
        assert shown == [round(100 * float(weight)) for weight in view.weights_RC[row]]
    marks = {
        (row, line.split().index(cell) - 1) for row, line in enumerate(body) for cell in line.split() if "*" in cell
    }
    assert marks == {(row, column + 1) for column, row in view.alignment()}


def test_the_terminal_keeps_columns_straight_under_wide_characters() -> None:
    view = make(["▁北京", "ab"], ["▁né", "。"], 0).view()
    lines = terminal.render(view).splitlines()
    body = lines[-len(view.rows) :]
    width = max(map(terminal.cells, view.rows))
    for line in body:
        cut = next(n for n in range(len(line) + 1) if terminal.cells(line[:n]) == width)
        assert all(terminal.cells(cell) == 4 for cell in re.findall(".{4}", line[cut:].ljust(12)))


def test_a_narrow_terminal_gets_blocks_one_below_the_other() -> None:
    view = make().view()
    lines = terminal.render(view, width=20).splitlines()
    assert max(map(terminal.cells, lines[1:])) <= 20
    assert sum(line.lstrip().startswith("▁the") for line in lines) == 2


def test_colours_are_only_added() -> None:
    view = make().view()
    coloured = terminal.render(view, colours=True)
    assert "\x1b[48;5;" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == terminal.render(view).splitlines()


# Pictures


def cells_of(picture: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(picture).iter() if one.get("class") == "c"]


def test_the_svg_has_a_cell_with_a_tooltip_for_every_weight() -> None:
    view = make().view("cross", 0, 1)
    cells = cells_of(svg.render(view))
    assert len(cells) == view.weights_RC.size
    tips = [cell[0].text for cell in cells]
    assert tips[1] == f"▁the ← ▁mir: {float(view.weights_RC[0, 1]):.3f}"
    assert svg.render(view).count('class="m"') == len(view.alignment())


def test_text_in_an_svg_stays_text() -> None:
    evil = ['▁<script>alert("1")</script>', "]]>&amp;", "\ufffe\x01"]
    picture = svg.render(make(evil, evil, 0).view())
    root = ElementTree.fromstring(picture)
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert '▁<script>alert("1")</script>' in [one.text for one in root.iter()]
    assert not re.search(
        r"(href|src|url\(|@import|on\w+)\s*=", re.sub(r"<text.*?</text>|<title>.*?</title>", "", picture)
    )


def test_the_png_is_a_picture_of_a_size_that_grows_with_the_sentence() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra: plot")
    pytest.importorskip("matplotlib", reason="needs the extra: plot")
    small, large = make(), make(SOURCE * 6, TARGET * 5)
    sizes = [image.open(io.BytesIO(png.render(maps.view()))).size for maps in (small, large)]
    assert sizes[0][0] < sizes[1][0]
    assert sizes[0][1] < sizes[1][1]


def test_the_png_survives_formulas_and_tells_of_missing_signs(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra: plot")
    with caplog.at_level(logging.WARNING):
        png.render(make(["▁$x^", "\\frac$"], ["▁\U00013080"], 0).view())
    assert "no font here has \U00013080" in caplog.text


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MtkitError) as caught:
        png.render(make().view())
    assert 'pip install "mtkit[plot]"' in str(caught.value)
