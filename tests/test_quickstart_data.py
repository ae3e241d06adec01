"""The embedded corpus: it is what its script writes, its splits are clean, and Chinese determines English."""

import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "data" / "quickstart"
SPLITS = {"train": 20_000, "valid": 500, "test": 1_000}
EXAMPLE = ("我爱北京天安门。", "I love Tiananmen in Beijing.")

# What translation needs beyond substitution: a pattern for each side; a pair must match both.
PHENOMENA = {
    "relative clause, subject": (r"在公园里\w+的", r" who is \w+ing .*in the park"),
    "relative clause, object": (r"(我|你|他|她)们?昨天\w+的", r" that (I|you|he|she|we|they) \w+ yesterday"),
    "time before the verb": (r"明天\w", r" tomorrow\.$"),
    "place before the verb": (r"在图书馆里\w", r" in the library"),
    "measure word": (r"三[本只]", r"three [a-z]+s"),
    "mass noun": (r"杯茶", r"cups? of tea"),
    "irregular plural": (r"孩子们", r"children"),
    "an": (r"一个", r"\ban [aeiou]"),
    "了": (r"吃了", r"\bate\b"),
    "过": (r"去过", r"(have|has) (never |not )?been to"),
    "过 in a question": (r"去过.*吗？", r"^Ha(ve|s) .* ever been to"),
    "正在": (r"正在", r"(am|is|are) (also )?\w+ing"),
    "已经": (r"已经", r"(have|has) already"),
    "还没": (r"还没", r"not .* yet\.$"),
    "third person": (r"^她每天", r"^She \w+s "),
    "不": (r"不喜欢", r"(do|does) not like"),
    "没": (r"没买", r"did not buy"),
    "吗": (r"了吗？", r"^Did .*\?$"),
    "什么": (r"什么？", r"^What .*\?$"),
    "谁": (r"^谁", r"^Who .*\?$"),
    "哪里": (r"哪里", r"^Where .*\?$"),
    "什么时候": (r"什么时候", r"^When .*\?$"),
    "为什么": (r"为什么", r"^Why .*\?$"),
    "怎么": (r"怎么", r"^How .*\?$"),
    "几": (r"几本", r"^How many .*\?$"),
    "比": (r"比.*高。", r"taller than"),
    "没有 in comparison": (r"没有.*高。", r"not as tall as"),
    "最": (r"最聪明", r"smartest"),
    "把": (r"把.*放在", r"\bput\b"),
    "被": (r"被", r"(was|were) \w+ .*by "),
    "会, skill": (r"会说汉语", r"(can|Can|cannot) .*speak Chinese|(can|cannot) speak Chinese"),
    "会, future": (r"明天会", r"will .* tomorrow"),
    "应该": (r"应该", r"should"),
    "因为": (r"^因为.*，所以", r"^Because [^,]*, "),
    "如果": (r"^如果.*就", r"^If [^,]*, "),
    "的时候": (r"的时候", r"^When "),
    "虽然": (r"^虽然.*但是", r"^Although [^,]*, "),
    "给": (r"给.*买了", r"bought .* for "),
    "得": (r"跑得很快", r"very fast"),
    "landmark": (r"北京天安门", r"Tiananmen in Beijing"),
    "我爱": (r"^我爱", r"^I love "),
}


def lines(name: str) -> list[str]:
    text = (FOLDER / name).read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[tuple[str, str]]]:
    return {name: list(zip(lines(f"{name}.zh"), lines(f"{name}.en"), strict=True)) for name in SPLITS}


@pytest.fixture(scope="module")
def held_out() -> list[tuple[str, str, int]]:
    header, *rows = [line.split("\t") for line in lines("held_out.tsv")]
    assert header == ["kind", "first", "second", "test sentences"]
    assert {row[0] for row in rows} == {"verb-object", "adjective-noun", "person-place"}
    return [(first, second, int(count)) for _, first, second, count in rows]


def generate(folder: Path, *options: str, hash_seed: str = "0") -> None:
    command = [sys.executable, str(FOLDER / "generate.py"), "--output", str(folder), *options]
    environment = {"PYTHONHASHSEED": hash_seed, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, check=True, env=environment, capture_output=True)


def test_the_committed_files_are_what_the_script_writes(tmp_path: Path) -> None:
    generate(tmp_path, hash_seed="7")
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted([f"{name}.{side}" for name in SPLITS for side in ("zh", "en")] + ["held_out.tsv"])
    for name in written:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_the_seed_and_nothing_else_changes_the_output(tmp_path: Path) -> None:
    for folder, seed, hash_seed in (("a", "1", "1"), ("b", "1", "2"), ("c", "2", "1")):
        generate(tmp_path / folder, "--seed", seed, "--train", "200", hash_seed=hash_seed)
    texts = [(tmp_path / folder / "train.zh").read_bytes() for folder in "abc"]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(("name", "count"), SPLITS.items())
def test_the_splits_have_their_sizes(splits: dict, name: str, count: int) -> None:
    assert len(splits[name]) == count


def test_no_sentence_occurs_twice_on_either_side(splits: dict) -> None:
    pairs = [pair for split in splits.values() for pair in split]
    assert len({zh for zh, _ in pairs}) == len(pairs)
    assert len({en for _, en in pairs}) == len(pairs)


def test_the_example_of_the_readme_has_to_be_composed(splits: dict) -> None:
    pairs = [pair for split in splits.values() for pair in split]
    assert EXAMPLE[0] not in [zh for zh, _ in pairs]
    assert EXAMPLE[1] not in [en for _, en in pairs]


def test_no_training_sentence_holds_a_held_out_combination(splits: dict, held_out: list) -> None:
    known = "\n".join(zh for name in ("train", "valid") for zh, _ in splits[name])
    for first, second, _ in held_out:
        both = f"({first}.*{second})|({second}.*{first})"
        assert not re.search(both, known), (first, second)
        assert first in known, "each word alone is known"
        assert second in known, "each word alone is known"


def test_three_tenths_of_the_test_set_combine_what_training_never_does(splits: dict, held_out: list) -> None:
    novel = [zh for zh, _ in splits["test"] if any(a in zh and b in zh for a, b, _ in held_out)]
    assert len(novel) >= 300
    for first, second, count in held_out:
        assert sum(first in zh and second in zh for zh, _ in splits["test"]) >= count, (first, second)


def test_every_line_is_plain_raw_text(splits: dict) -> None:
    chinese = re.compile(r"[\u4e00-\u9fff，]+[。？]")
    english = re.compile(r"[A-Z][A-Za-z',-]*( [A-Za-z',-]+)*[.?]")
    for zh, en in (pair for split in splits.values() for pair in split):
        assert chinese.fullmatch(zh), zh
        assert english.fullmatch(en), en
        assert (zh[-1], en[-1]) in (("。", "."), ("？", "?")), zh
        assert unicodedata.is_normalized("NFC", zh + en), zh
        assert 4 <= len(zh) <= 32, zh


@pytest.mark.parametrize("name", PHENOMENA)
def test_what_makes_translation_more_than_substitution_occurs(splits: dict, name: str) -> None:
    zh_pattern, en_pattern = PHENOMENA[name]
    assert sum(bool(re.search(zh_pattern, zh) and re.search(en_pattern, en)) for zh, en in splits["train"]) >= 3


def test_every_word_of_the_test_set_is_known(splits: dict) -> None:
    def words(pairs: list[tuple[str, str]]) -> set[str]:
        return {word.strip(".,?").lower() for _, en in pairs for word in en.split()}

    unknown = words(splits["test"]) - words(splits["train"])
    assert len(unknown) <= 3, unknown
    assert {c for zh, _ in splits["test"] for c in zh} <= {c for zh, _ in splits["train"] for c in zh}


def test_chinese_determines_english_and_every_construction_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of far more sentences than the files hold, none has two translations."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import generate
    from grammar import WEIGHTS

    rng = random.Random(0)
    english_of: dict[str, str] = {}
    constructions = set()
    for _ in range(60_000):
        pair = generate.draw(rng)
        assert english_of.setdefault(pair.zh, pair.en) == pair.en, pair
        constructions.add(pair.construction)
    assert constructions == {construct.__name__ for construct in WEIGHTS}


def test_the_readme_counts_what_is_there(splits: dict, held_out: list) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    words = {word.strip(".,?").lower() for split in splits.values() for _, en in split for word in en.split()}
    characters = {c for split in splits.values() for zh, _ in split for c in zh}
    for number in (*SPLITS.values(), len(words), len(characters), len(held_out)):
        assert f"{number:,}" in readme, number
