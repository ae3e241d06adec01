"""The report in a real browser: it works from a disk, asks for nothing, and by mouse, keyboard and on a phone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, browser_path, open_browser
from conftest import TinyCorpus
from test_report import EVIL
from toy_run import Runs

from mtkit import pipeline
from mtkit.files import append_json_line
from mtkit.folders import RunFolder
from mtkit.heatmaps.maps import by_words
from mtkit.heatmaps.record import Recorder
from mtkit.report.build import Options, build

pytestmark = pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome is installed")


@pytest.fixture(scope="module")
def run(tiny_corpus: TinyCorpus, prepared_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with two layers of four heads, and a sample that would like to be a script."""
    runs = Runs(tiny_corpus, prepared_run, tmp_path_factory.mktemp("run"))
    training = {"max_steps": 12, "validate_every_steps": 6, "log_every_steps": 2, "samples": 1}
    model = {"heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    pipeline.run(runs.recipe(training=training, model=model, evaluation={"resamples": 0}))
    folder = RunFolder(runs.folder / "run")
    append_json_line(folder.metrics, {"event": "samples", "step": 12, "samples": [[EVIL, EVIL, EVIL]]})
    (folder.path / "report.html").write_text(build(folder.path, Options(2, "cpu")), "utf-8")
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab: Page, run: RunFolder) -> Iterator[Page]:
    """The report, just opened; afterwards nothing may have gone wrong, and nothing but the file been asked for."""
    tab.problems.clear()
    tab.requests.clear()
    tab.emulate(1280, 900)
    tab.open(run.path / "report.html")
    yield tab
    tab.run("1")
    assert tab.problems == []
    assert tab.requests == [(run.path / "report.html").resolve().as_uri()]


def shown(page: Page) -> list[list[float]]:
    """The weights that the heat map shows, row by row."""
    cells = page.run(
        "[...document.querySelectorAll('#heat .cell')].map(c => [c.dataset.row, c.getAttribute('fill-opacity')])"
    )
    rows: dict[int, list[float]] = {}
    for row, weight in cells:
        rows.setdefault(int(row), []).append(float(weight))
    return [rows[row] for row in sorted(rows)]


def choose(page: Page, selector: str, value: Any) -> None:
    """Choose a value in a selector, as a person does: it changes, and says so."""
    page.run(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(str(value))};"
        " e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def click(page: Page, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def test_selectors_of_kind_layer_and_head_show_the_models_weights(page: Page, run: RunFolder) -> None:
    """All of them, to three digits; the alignment is the one that `mtkit attention` prints."""
    source = page.run("document.querySelector('#pair-source').textContent")
    maps = Recorder.load(run.model, "cpu").record(source)
    assert maps is not None
    pictures = set()
    for kind in ("cross", "encoder", "decoder"):
        click(page, f"input[value={kind}]")
        for layer in range(2):
            choose(page, "#layer", layer)
            for head in ("mean", 0, 1, 2, 3):
                choose(page, "#head", head)
                view = maps.view(kind, layer, None if head == "mean" else int(head))  # type: ignore[arg-type]
                weights = shown(page)
                assert [len(row) for row in weights] == [len(view.columns)] * len(view.rows)
                for row, expected in zip(weights, view.weights_RC, strict=True):
                    assert row == pytest.approx(expected.tolist(), abs=6e-4)
                pictures.add(json.dumps(weights))
                pressed = page.run("document.querySelector('#overview [aria-pressed=true]').getAttribute('aria-label')")
                assert pressed == f"layer {layer}, {'mean of heads' if head == 'mean' else f'head {head}'}"
                assert page.run("document.querySelectorAll('#heat .mark').length") == len(view.alignment())
    assert len(pictures) == 30, "every choice shows another picture"


def test_the_alignment_is_drawn_and_written(page: Page, run: RunFolder) -> None:
    source = page.run("document.querySelector('#pair-source').textContent")
    maps = Recorder.load(run.model, "cpu").record(source)
    assert maps is not None
    for words in (False, True):
        view = by_words(maps.view()) if words else maps.view()
        expected = " ".join(f"{column}-{row}" for column, row in view.alignment())
        assert page.run("document.querySelector('#pharaoh').textContent") == expected
        assert page.run("document.querySelectorAll('#alignment .link.best').length") == len(view.alignment())
        labels = page.run("[...document.querySelectorAll('#heat text.row')].map(t => t.textContent)")
        assert labels == list(view.rows)
        for row, weights in zip(shown(page), view.weights_RC, strict=True):
            assert row == pytest.approx(weights.tolist(), abs=6e-4)
        click(page, "#words")


def test_another_sentence_is_another_picture(page: Page) -> None:
    before = shown(page)
    choose(page, "#sentence", 1)
    assert shown(page) != before


def test_pointing_at_a_cell_tells_its_weight(page: Page) -> None:
    page.point("#heat .cell[data-row='1'][data-column='2']")
    row, column = page.run(
        "[document.querySelectorAll('#heat text.row')[1].textContent,"
        " document.querySelectorAll('#heat text.column')[2].textContent]"
    )
    assert page.run("document.querySelector('#readout').textContent") == f"{row} ← {column}: {shown(page)[1][2]:.3f}"
    assert page.run("document.querySelectorAll('#heat text.on').length") == 2


def test_a_small_picture_is_a_button(page: Page) -> None:
    click(page, "#overview button[aria-label='layer 0, head 3']")
    assert page.run("[document.querySelector('#layer').value, document.querySelector('#head').value]") == ["0", "3"]
    assert page.run("document.querySelector('#heat-title').textContent") == "cross, layer 0, head 3"


def test_everything_works_by_keyboard(page: Page) -> None:
    """Tab reaches every control in order; arrow keys choose, move through the heat map and along the charts."""
    reached = []
    for _ in range(60):
        page.press("Tab")
        name = page.run("document.activeElement.id || document.activeElement.getAttribute('role') || ''")
        reached.append(name)
        if name == "step":
            page.press("Home")
            assert page.run("document.querySelector('#step-value').textContent") == "0"
        if name == "layer":
            before = shown(page)
            page.press("ArrowUp")
            assert shown(page) != before
        if name == "application":
            page.press("ArrowDown")
            page.press("ArrowRight")
            page.press("ArrowDown")
            cell = shown(page)[1][1]
            assert page.run("document.querySelector('#readout').textContent").endswith(f": {cell:.3f}")
            break
    assert [name for name in reached if name in ("step", "sentence", "layer", "head", "words", "application")] == [
        *("step", "sentence", "layer", "head", "words", "application")
    ]
    unnamed = page.run(
        "[...document.querySelectorAll('input, select, button')].filter(e => !e.labels?.length &&"
        " !e.getAttribute('aria-label')).map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_charts_are_read_off_at_a_step(page: Page) -> None:
    read = "[...document.querySelectorAll('[data-chart=\"2\"] [data-value]')].map(e => Number(e.textContent))"
    curves = page.run("JSON.parse(document.querySelector('#payload').textContent).charts[2].curves")
    for step, point in ((6, 0), (12, 1)):
        page.run(f"document.querySelector('#step').value = {step}")
        page.run("document.querySelector('#step').dispatchEvent(new Event('input'))")
        assert page.run(read) == pytest.approx([curve["points"][point][1] for curve in curves], abs=0.01)
    page.point("[data-chart='0'] svg")
    assert page.run("document.querySelector('[data-chart=\"5\"] .cursor').getAttribute('visibility')") == "visible"
    assert 0 < int(page.run("document.querySelector('#step').value")) < 12


def test_text_that_would_be_a_script_is_not_run(page: Page) -> None:
    assert page.run("document.title").endswith("mtkit report")
    assert page.run("document.images.length") == 0
    assert EVIL in page.run("document.querySelector('#samples').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_it_fits_and_can_be_read_in_light_and_dark(page: Page, run: RunFolder, scheme: str, width: int) -> None:
    """Nothing sticks out of the window, and text stands out from its ground by 4.5 : 1 at least (WCAG 2.2, AA)."""
    page.emulate(width, 800, scheme)
    page.requests.clear()
    page.open(run.path / "report.html")
    assert page.run("document.documentElement.scrollWidth") <= width
    faint = page.run(CONTRAST)
    assert faint == []
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) < 200) == (scheme == "dark")


CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e);
    const ink = rgb(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    const name = `${e.tagName}.${e.className.baseVal ?? e.className}`;
    if ((a + 0.05) / (b + 0.05) < 4.5) found.add(`${name}: ${e.textContent}`);
  }
  return [...found];
})()
"""
