"""A comparison takes every sentence once, agrees with `mtkit eval`, and mirrors when A and B change places."""

import json
import random
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mtkit.cli.compare import compare as command
from mtkit.compare import page, text
from mtkit.compare.analysis import Comparison, Texts, compare, count_words
from mtkit.compare.features import addresses, is_copied, loops, numbers, words
from mtkit.errors import DataError, UsageError
from mtkit.evaluate import score
from mtkit.sections.data import Evaluation

NOUNS = ["Gans", "Mühle", "Leiter", "Bäcker", "Turm", "Kahn", "Schleuse"]
NASTY = '<script>alert("1")</script> & \x1b[31m rot\u2028weiter'


def invented(sentences: int = 60) -> Texts:
    """A source, its reference, and two systems of which B is better."""
    chance = random.Random(5)
    source, reference, a, b = [], [], [], []
    for _ in range(sentences):
        nouns = chance.choices(NOUNS, k=chance.randint(1, 25))
        number = chance.randint(1, 2000)
        line = " ".join(f"die {noun}" for noun in nouns) + f" um {number} Uhr."
        reference.append(line)
        source.append(" ".join(f"koro {noun.lower()}ta" for noun in nouns) + f" {number} per.")
        for side, rate in ((a, 0.4), (b, 0.15)):
            side.append(" ".join(chance.choice(NOUNS) if chance.random() < rate else w for w in line.split(" ")))
    a[1], b[2], a[3], b[4] = source[1], "", NASTY, reference[4] + " die Gans die Gans die Gans"
    return Texts(reference, a, b, source)


@pytest.fixture(scope="module")
def texts() -> Texts:
    return invented()


@pytest.fixture(scope="module")
def found(texts: Texts) -> Comparison:
    frequencies = count_words(texts.reference[:20])
    return compare(texts, Evaluation(resamples=50), "de", frequencies)


# One sentence


def test_words() -> None:
    assert words("Don't shout, Äpfel-Anna! 3x") == ["don't", "shout", "äpfel-anna", "3x"]
    assert words("我爱 NLP。") == ["我", "爱", "nlp"]
    assert words("हिन्दी की किताब") == ["हिन्दी", "की", "किताब"], "combining marks belong to their words"
    assert words("a\u0301rbol") == ["a\u0301rbol"]
    assert words(" — … ") == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("the cat sat on the mat", 0),
        ("the cat the cat sat", 1),
        ("no no no", 2),
        ("one two three four one two three four", 1),
        ("Sehr, sehr gut", 1),
        ("看看吧", 0),
        ("看看看吧", 1),
        ("", 0),
    ],
)
def test_loops(line: str, count: int) -> None:
    assert loops(line) == count


def test_numbers_are_the_same_however_they_are_parted() -> None:
    assert numbers("3.000 Äpfel für 2,50 €") == numbers("3,000 apples at €2.50") == {"3000": 1, "250": 1}
    assert numbers("１２時３０分") == {"12": 1, "30": 1}
    assert numbers("im Jahr 1984, nicht 1985.") == {"1984": 1, "1985": 1}
    assert numbers("www.example.org/2024 hat 7") == {"7": 1}, "a number in an address is no number"


def test_addresses() -> None:
    line = "Siehe (https://example.org/a_(b)?c=1), www.example.org. Oder me+x@example.co.uk!"
    assert set(addresses(line)) == {"https://example.org/a_(b)?c=1", "www.example.org", "me+x@example.co.uk"}


@pytest.mark.parametrize(
    ("hypothesis", "source", "reference", "copied"),
    [
        ("Der Hund bellt laut", "Der Hund bellt laut", "The dog barks loudly", True),
        ("The Hund bellt laut", "Der Hund bellt laut", "The dog barks loudly", True),
        ("The dog bellt loudly", "Der Hund bellt laut", "The dog barks loudly", False),
        ("Anna Meier", "Anna Meier", "Anna Meier", False),
        ("Hund", "Hund", "Dog", True),
        ("", "", "Dog", False),
        ("木を見る", "木を見る", "to see the wood", True),
    ],
)
def test_copies(hypothesis: str, source: str, reference: str, copied: bool) -> None:
    assert is_copied(hypothesis, source, reference) == copied


# All sentences


def test_the_scores_are_those_of_eval(texts: Texts, found: Comparison) -> None:
    section = Evaluation(metrics=("bleu", "chrf"))
    for side, system in zip((texts.a, texts.b), found.contest.systems, strict=True):
        expected = score(side, [texts.reference], section, "de", resamples=50).metrics
        for name, one in system.scores.metrics.items():
            assert one.score == expected[name].score
            assert one.half_width == pytest.approx(expected[name].half_width)
    assert set(found.contest.systems[1].p_values) == {"bleu", "chrf"}


def test_every_bucket_is_scored_alone_and_every_sentence_is_in_one(texts: Texts, found: Comparison) -> None:
    lengths, frequencies = found.breakdowns
    for breakdown in found.breakdowns:
        assert sum(bucket.sentences for bucket in breakdown.buckets) == len(texts.reference)
    assert texts.source is not None
    long = [n for n, line in enumerate(texts.source) if len(words(line)) > 40]
    (bucket,) = [bucket for bucket in lengths.buckets if bucket.label == "41-60"]
    assert bucket.sentences == len(long) > 0
    for name in ("bleu", "chrf"):
        for side, value in zip((texts.a, texts.b), bucket.scores[name], strict=True):
            alone = score([side[n] for n in long], [[texts.reference[n] for n in long]]).metrics[name].score
            assert value == alone
    assert lengths.unit == "words of the source"
    counts = count_words(texts.reference[:20])
    unseen = sum(any(word not in counts for word in words(line)) for line in texts.reference)
    assert frequencies.buckets[0].label == "0"
    assert frequencies.buckets[0].sentences == unseen > 0


@pytest.mark.parametrize(
    ("rarest", "label"), [(0, "0"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-9"), (99, "10-99"), (1000, "1000+")]
)
def test_the_rarest_word_decides(rarest: int, label: str) -> None:
    texts = Texts(["ein Kahn", "..."], ["ein Kahn", "."], ["ein Turm", "."])
    _, frequencies = compare(texts, Evaluation(resamples=0), "de", {"ein": 5000, "kahn": rarest}).breakdowns
    assert [bucket.label for bucket in frequencies.buckets] == [label, "no words"]


@pytest.mark.parametrize(("length", "label"), [(0, "0"), (1, "1-10"), (10, "1-10"), (11, "11-20"), (61, "61+")])
def test_lengths_are_the_references_without_a_source(length: int, label: str) -> None:
    texts = Texts(["wort " * length], ["wort"], ["Wort"])
    (lengths,) = compare(texts, Evaluation(resamples=0), "de").breakdowns
    assert (lengths.unit, [bucket.label for bucket in lengths.buckets]) == ("words of the reference", [label])


def test_orders_are_what_bleu_is_made_of(texts: Texts, found: Comparison) -> None:
    section = Evaluation(metrics=("bleu",))
    for number, side in enumerate((texts.a, texts.b)):
        precisions = score(side, [texts.reference], section, "de").metrics["bleu"].detail.split(" ")[0]
        assert precisions == "/".join(f"{one.precision[number]:.1f}" for one in found.orders)
        recalls = score(texts.reference, [side], section, "de").metrics["bleu"].detail.split(" ")[0]
        assert recalls == "/".join(f"{one.recall[number]:.1f}" for one in found.orders)


def test_habits_are_counted_where_they_are(texts: Texts, found: Comparison) -> None:
    habits = {one.name: one for one in found.habits}
    assert habits["empty"].lines == ((), (3,))
    assert habits["copied source"].lines[0] == (2,)
    assert 5 in habits["repeating"].lines[1]
    assert habits["numbers kept"].total == len(texts.reference)
    for one in found.habits:
        if one.total is not None and "kept" not in one.name:
            assert one.values == tuple(len(lines) for lines in one.lines)
    kept = habits["numbers kept"]
    assert kept.values == tuple(kept.total - len(lines) for lines in kept.lines), "one number a sentence"
    assert habits["URLs kept"].total == 0
    no_source = Texts(texts.reference, texts.a, texts.b)
    assert "copied source" not in {one.name for one in compare(no_source, Evaluation(resamples=0), "de").habits}


def test_gains_and_losses_are_the_extremes_in_order(found: Comparison) -> None:
    better, worse, same = found.tally()
    assert better + worse + same == len(found.sentences)
    gains, losses = found.gains(1000), found.losses(1000)
    assert (len(gains), len(losses)) == (better, worse)
    assert [one.difference for one in gains] == sorted((one.difference for one in gains), reverse=True)
    assert [one.difference for one in losses] == sorted(one.difference for one in losses)
    assert found.gains(3) == gains[:3]
    assert losses[0].line == 3, "nothing loses more than an empty line"
    assert all(one.reference == found.sentences[one.line - 1].reference for one in gains)


def test_changing_places_mirrors_everything(texts: Texts, found: Comparison) -> None:
    mirrored = compare(
        Texts(texts.reference, texts.b, texts.a, texts.source),
        Evaluation(resamples=50),
        "de",
        count_words(texts.reference[:20]),
    )
    better, worse, same = found.tally()
    assert mirrored.tally() == (worse, better, same)
    assert [one.line for one in mirrored.losses(9)] == [one.line for one in found.gains(9)]
    for one, other in zip(found.habits, mirrored.habits, strict=True):
        assert one.values == other.values[::-1]
    for one, other in zip(found.breakdowns, mirrored.breakdowns, strict=True):
        for bucket, twin in zip(one.buckets, other.buckets, strict=True):
            assert {name: pair[::-1] for name, pair in twin.scores.items()} == bucket.scores


def test_a_system_against_itself_differs_nowhere(texts: Texts) -> None:
    found = compare(Texts(texts.reference, texts.b, texts.b, texts.source), Evaluation(resamples=20), "de")
    assert found.tally() == (0, 0, len(texts.reference))
    assert found.gains(5) == found.losses(5) == []
    assert "none" in text.render(found, 5)
    assert "Nowhere" in page.render(found, 5)


# How it is told


def test_text_and_json_hold_the_same(found: Comparison) -> None:
    shown, plain = text.render(found, 4), json.loads(json.dumps(text.as_dict(found, 4)))
    for breakdown in plain["breakdowns"]:
        assert breakdown["title"] in shown
        for bucket in breakdown["buckets"]:
            assert f"{bucket['bleu']['A']:.2f}" in shown
            assert f"{bucket['chrf']['B'] - bucket['chrf']['A']:+.2f}" in shown
    for one in plain["gains"] + plain["losses"]:
        assert f"line {one['line']}: {one['chrf']['A']:.1f} -> {one['chrf']['B']:.1f}" in shown
    assert len(plain["gains"]) == len(plain["losses"]) == 4
    assert len(plain["sentence_chrf"]["A"]) == len(found.sentences)
    assert plain["systems"][1]["metrics"]["bleu"]["p_value"] == found.contest.systems[1].p_values["bleu"]
    assert {one["name"] for one in plain["habits"]} == {one.name for one in found.habits}
    assert "gains most" not in text.render(found, 0)
    assert "(few)" in shown


def test_control_characters_are_shown_and_not_obeyed(found: Comparison) -> None:
    shown = text.render(found, 60)
    assert "\\x1b[31m rot\\u2028weiter" in shown
    assert "\x1b" not in shown + page.render(found, 60)


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "xlink:href")]
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_loads_nothing_and_escapes_text(found: Comparison) -> None:
    html = page.render(found, 60)
    parsed = Page()
    parsed.feed(html)
    assert parsed.open == []
    assert "script" not in parsed.tags
    assert parsed.loads == ["data:,"]
    assert "url(" not in html
    assert '<script>alert("1")</script>' in parsed.text
    assert "prefers-color-scheme: dark" in html
    assert "color-scheme: light dark" in html
    for sentence in found.gains(3) + found.losses(3):
        for one in (sentence.source, sentence.reference, sentence.a, sentence.b):
            assert text.printable(str(one)) in parsed.text
    for name in ("bleu", "chrf"):
        assert f"{found.contest.systems[1].scores.metrics[name].score:.2f}" in parsed.text


def test_names_of_files_are_escaped(texts: Texts) -> None:
    named = Texts(["a"], ["b"], ["c"], names={"reference": "<r>", "a": "<img src=x>", "b": "b&b"})
    html = page.render(compare(named, Evaluation(resamples=0)), 1)
    assert "<img" not in html
    assert "&lt;r&gt;" in html


# The command


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def files(tmp_path: Path, texts: Texts) -> dict[str, Path]:
    named = {"ref.de": texts.reference, "a.de": texts.a, "b.de": texts.b, "src.xx": texts.source or []}
    named["train.de"] = texts.reference[:20]
    for name, lines in named.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return {name: tmp_path / name for name in named}


def test_the_command_prints_what_is_found(files: dict[str, Path], found: Comparison, tmp_path: Path) -> None:
    three = [files[name] for name in ("ref.de", "a.de", "b.de")]
    options = ["--source", files["src.xx"], "--train", files["train.de"], "--resamples", 50]
    result = run(*three, *options, "--html", tmp_path / "page.html", "-n", 3)
    assert (
        result.stdout.split("\n")[1:]
        == (text.render(found, 3) + "\n")
        .replace("B: B", f"B: {three[2]}")
        .replace("reference: reference", f"reference: {three[0]}")
        .split("\n")[1:]
    )
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.endswith("</html>\n")
    assert str(three[1]) in html
    plain = json.loads(run(*three, *options, "--json", "-n", 3).stdout)
    assert plain == text.as_dict(found, 3) | {"reference": str(three[0]), "A": str(three[1]), "B": str(three[2])}


def test_one_text_may_come_from_stdin(files: dict[str, Path]) -> None:
    options = ["--resamples", 0, "--json"]
    expected = json.loads(run(files["ref.de"], files["a.de"], files["b.de"], *options).stdout)
    found = json.loads(run(files["ref.de"], files["a.de"], "-", *options, stdin=files["b.de"].read_bytes()).stdout)
    assert found == expected | {"B": "<stdin>"}
    with pytest.raises(UsageError, match="- is given twice"):
        run("-", files["a.de"], "-", stdin=b"")


def test_texts_that_do_not_line_up_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "short.de").write_bytes(b"eins\n")
    for bad in (("short.de", "b.de", "src.xx"), ("a.de", "short.de", "src.xx"), ("a.de", "b.de", "short.de")):
        a, b, source = (tmp_path / name for name in bad)
        with pytest.raises(DataError, match=r"short\.de: 1 line, .*ref\.de: 60 lines"):
            run(files["ref.de"], a, b, "--source", source)
    with pytest.raises(UsageError, match="one resample"):
        run(files["ref.de"], files["a.de"], files["b.de"], "--resamples", 1)


def test_chinese_is_compared_by_its_own_tokenizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, lines in {
        "ref.zh": ["门是开着的。", "山上下雪了。"],
        "a": ["门开着。", "山有雪 。"],
        "b": ["", "山上下雪了。"],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    plain = json.loads(run(tmp_path / "ref.zh", tmp_path / "a", tmp_path / "b", "--resamples", 0, "--json").stdout)
    assert "tok:zh" in plain["systems"][0]["metrics"]["bleu"]["signature"]
    (bucket,) = plain["breakdowns"][0]["buckets"]
    assert (bucket["label"], bucket["sentences"]) == ("1-10", 2), "a word is a letter here"
    assert "1 of 2 hypotheses are empty (line 1)" in caplog.text
