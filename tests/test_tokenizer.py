"""The tokenizer: ids, round trips, literal specials, symbols, and how training fails."""

import hashlib
import logging
import pickle
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mtkit.errors import DataError, ModelError, RecipeError
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.sections.data import TokenizerSection
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import UNKNOWN_SURFACE, Tokenizer, Tokenizers
from mtkit.text.train import draw, train

# Training text in which the names of special pieces stand as words, in several scripts.
LINES = [
    "the <s> gate opens.",
    "an old </s> gate creaks.",
    "<unk> waits by the <pad> wall.",
    "3 < 4 and 44 > 30 / 2",
    "[BOS] <0x41> [EOS] <news> ⁇",
    "门开了，风很大。旧门响了！",
    "Über die Brücke führt kein Weg.",
] * 30
ANY_TEXT = st.text(max_size=40)
LIKELY_TEXT = st.lists(
    st.sampled_from([*" <>/▁\u2028", "<s>", "</s>", "<unk>", "<0x41>", *"abgt", "门", "\U0001f34e"])
).map("".join)


def make(folder: Path, lines=LINES, symbols=(), **settings) -> Tokenizer:
    settings.setdefault("vocab_size", 100)
    return train(TokenizerSection(**settings), lines, lines, symbols, folder).source


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("bytewise"), byte_fallback=True, vocab_size=380)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("tagged"), symbols=["<news>", "<f,g>", 'q"q'])


# Round trips.


@given(ANY_TEXT | LIKELY_TEXT)
def test_byte_fallback_loses_nothing(bytewise, text):
    ids = bytewise.encode(text)
    assert bytewise.decode(ids) == normalize(text)
    assert UNK not in ids


@given(ANY_TEXT | LIKELY_TEXT)
def test_what_is_known_comes_back_and_what_is_not_is_stable(plain, text):
    ids = plain.encode(text)
    once = plain.decode(ids)
    if UNK not in ids:
        assert once == normalize(text)
    else:
        assert UNKNOWN_SURFACE in once
    assert plain.decode(plain.encode(once)) == once


@given(st.text(max_size=40) | LIKELY_TEXT)
def test_no_text_becomes_a_control_id(plain, bytewise, tagged, text):
    for tokenizer in (plain, bytewise, tagged):
        assert not {PAD, BOS, EOS} & set(tokenizer.encode(text))


@given(st.lists(st.integers(0, 99), max_size=30))
def test_any_ids_decode_to_stable_normalised_text(plain, tagged, ids):
    for tokenizer in (plain, tagged):
        text = tokenizer.decode(ids)
        assert text == normalize(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 259).filter(lambda number: number != 4 + ord("<")), max_size=30))
def test_byte_pieces_never_make_a_line_end_or_show_as_names(bytewise, ids):
    text = bytewise.decode(ids)
    assert text == normalize(text)
    assert "<0x" not in text


@pytest.mark.parametrize("name", ["plain", "bytewise", "tagged"])
@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "<pad>", "a <s> b", "the <unk></s> gate", "< s >", "< unk >"])
def test_names_of_special_pieces_are_plain_text(request, name, text):
    """SentencePiece's trainer drops the characters of special pieces' names from sentences that hold them; with the
    usual names it learnt neither < nor >, and the text came back with unknowns."""
    tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert tokenizer.decode(ids) == text


def test_name_of_a_byte_piece_is_plain_text(bytewise):
    ids = bytewise.encode("<0x41> is <0x0A>")
    assert bytewise.decode(ids) == "<0x41> is <0x0A>"
    assert bytewise.decode([*bytewise.encode("a"), *bytewise.encode("\U0001f34e")[1:]]) == "a\U0001f34e"


@pytest.mark.parametrize("text", ["", " ", "▁", "▁ ▁\u2028", "\ufeff", "\x00", "\u3000"])
def test_blank_text_has_no_ids(plain, text):
    assert plain.encode(text) == []
    assert plain.encode_batch([text, "a"])[0] == []
    assert plain.decode([]) == ""


def test_the_word_start_sign_reads_as_a_space(plain):
    assert plain.encode("the▁old▁▁gate") == plain.encode("the old gate")


def test_unknown_characters_decode_to_one_sign_where_they_stood(plain):
    assert plain.decode(plain.encode("the \U00012000\U00012001 gate \U0001f34e.")) == "the \ufffd gate \ufffd."
    assert plain.unknown_count(plain.encode("the \U00012000\U00012001 gate \U0001f34e.")) == 2
    assert plain.decode([UNK, UNK]) == UNKNOWN_SURFACE


def test_special_ids_vanish_in_decode(plain):
    ids = plain.encode("an old gate")
    assert plain.decode([BOS, *ids, EOS, PAD, PAD]) == "an old gate"
    assert plain.decode(np.array(ids, dtype=np.uint16)) == "an old gate"


def test_batches_equal_single_encoding(plain, tagged):
    texts = [*LINES[:7], "", "<news> x", "\u2028"] * 3
    for tokenizer in (plain, tagged):
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
        assert tokenizer.encode_batch(texts[:2]) == [tokenizer.encode(text) for text in texts[:2]]
        assert tokenizer.encode_batch([]) == []


def test_pieces_are_for_reading(plain):
    pieces = plain.pieces([BOS, *plain.encode("the gate"), UNK, EOS, PAD])
    assert (pieces[0], *pieces[-3:]) == ("<s>", "<unk>", "</s>", "<pad>")
    assert "".join(pieces[1:-3]) == "▁the▁gate"


# Options.


def test_nfkc_is_stored_in_the_model_and_nfc_leaves_compatibility_characters(tmp_path, plain):
    lines = [*LINES, *["２ ﬁsh … ½，。！", "2 fish ... 1⁄2,。!"] * 9]
    nfkc = make(tmp_path / "nfkc", lines, normalization="nfkc", vocab_size=110)
    nfc = make(tmp_path / "nfc", lines, vocab_size=110)
    assert Tokenizer.load(tmp_path / "nfkc" / "tokenizer.model").normalization == "nfkc"
    assert (plain.normalization, nfc.normalization) == ("nfc", "nfc")
    text = "２ ﬁsh … ½，。！"
    assert nfc.decode(nfc.encode(text)) == text
    assert nfkc.decode(nfkc.encode(text)) == unicodedata.normalize("NFKC", text)


def test_split_digits(tmp_path):
    lines = ["1984 and 1984 were 1984 years"] * 50
    whole, split = (make(tmp_path / str(on), lines, split_digits=on, vocab_size=30) for on in (False, True))
    assert len(whole.encode("1984")) < 4
    assert [piece.strip("▁") for piece in split.pieces(split.encode("1984")) if piece != "▁"] == list("1984")


def test_character_coverage_leaves_rare_characters_out(tmp_path, caplog):
    lines = [*["the old gate"] * 200, "鑫"]
    assert UNK not in make(tmp_path / "all", lines, vocab_size=24).encode("鑫")
    with caplog.at_level(logging.INFO):
        assert UNK in make(tmp_path / "most", lines, vocab_size=24, character_coverage=0.99).encode("鑫")
    assert "8 of 9 characters, 99.950% of their occurrences" in caplog.text


def test_sentencepiece_takes_the_least_character_coverage_that_the_recipe_takes(tmp_path):
    """It refuses less than 0.98, with an error of its own that names no setting of ours."""
    bounds = TokenizerSection.model_fields["character_coverage"].metadata
    (least,) = (bound.ge for bound in bounds if hasattr(bound, "ge"))
    make(tmp_path, ["the old gate"] * 200, vocab_size=20, character_coverage=least)
    with pytest.raises(ValidationError, match=r"greater than or equal to 0\.98"):
        TokenizerSection(character_coverage=0.979)


def test_joint_tokenizer_is_one_object_and_separate_ones_are_two(tmp_path):
    source, target = ["aab abb bab"] * 20, ["ccd cdd dcd"] * 20
    joint = train(TokenizerSection(vocab_size=16), source, target, (), tmp_path / "joint")
    assert joint.joint
    assert UNK not in joint.source.encode("aab") + joint.source.encode("ccd")
    separate = train(TokenizerSection(vocab_size=16, vocabulary="separate"), source, target, (), tmp_path / "separate")
    assert not separate.joint
    assert UNK in separate.source.encode("ccd")
    assert UNK in separate.target.encode("aab")
    for folder, tokenizers in ((tmp_path / "joint", joint), (tmp_path / "separate", separate)):
        loaded = Tokenizers.load(folder)
        assert (loaded.joint, loaded.sha256) == (tokenizers.joint, tokenizers.sha256)
        assert loaded.target.encode("ccd aab") == tokenizers.target.encode("ccd aab")
    assert joint.sha256 == hashlib.sha256((tmp_path / "joint" / "tokenizer.model").read_bytes()).hexdigest()


def test_saving_the_other_kind_replaces_the_files(tmp_path, plain, tagged):
    Tokenizers(plain, plain).save(tmp_path)
    Tokenizers(plain, tagged).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.source.model", "tokenizer.target.model"]
    Tokenizers(tagged, tagged).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.model"]
    assert Tokenizers.load(tmp_path).joint


def test_pickling_keeps_a_joint_tokenizer_joint(tagged):
    copy = pickle.loads(pickle.dumps(Tokenizers(tagged, tagged)))
    assert copy.joint
    assert copy.source.encode("<news> the gate") == tagged.encode("<news> the gate")


# Symbols.


def test_symbols_are_found_in_text_and_by_name(tagged):
    news = tagged.symbol_id("<news>")
    assert tagged.encode("<news> an old gate") == [news, *tagged.encode("an old gate")]
    assert tagged.encode("<news><f,g> a") == [news, tagged.symbol_id("<f,g>"), *tagged.encode("a")]
    assert news in tagged.encode("old<news>gate")
    assert tagged.symbol_id('q"q') in tagged.encode('q"q')
    assert tagged.symbols == ("<news>", "<f,g>", 'q"q')


@given(st.lists(st.sampled_from(["<news>", "<f,g>", " ", "a", "gate"])).map("".join))
def test_text_with_symbols_comes_back(tagged, text):
    assert tagged.decode(tagged.encode(text)) == normalize(text)


def test_an_unknown_symbol_is_refused_by_name(plain, tagged):
    with pytest.raises(ModelError, match=r"'<sport>' is not one of its symbols \(<news>, "):
        tagged.symbol_id("<sport>")
    with pytest.raises(ModelError, match=r"\(none\)"):
        plain.symbol_id("the")


@pytest.mark.parametrize("symbols", [[""], ["a b"], ["▁x"], ["a\nb"], ["e\u0301"], ["\ufeffx"], ["<a>", "<a>"]])
def test_symbols_that_could_not_be_found_are_refused(tmp_path, symbols):
    with pytest.raises(RecipeError, match="user_defined_symbols"):
        make(tmp_path / "new", symbols=symbols)
    assert not (tmp_path / "new").exists()


# Loading.


def test_a_model_with_other_special_ids_is_refused(tmp_path):
    prefix = str(tmp_path / "foreign")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=prefix, vocab_size=100, model_type="bpe", minloglevel=2
    )
    with pytest.raises(ModelError, match=r"foreign\.model: its special ids are .*'pad': -1.* mtkit needs"):
        Tokenizer.load(f"{prefix}.model")


@pytest.mark.parametrize("content", [b"", b"no model", None], ids=["empty", "text", "cut"])
def test_a_damaged_model_is_refused_by_name(tmp_path, tagged, content, capfd):
    tagged.save(tmp_path / "tokenizer.model")
    whole = (tmp_path / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ModelError, match=r"tokenizer\.model: .*(damaged|special ids)"):
        Tokenizers.load(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_missing_model_is_refused_by_name(tmp_path, plain):
    with pytest.raises(ModelError, match="holds neither"):
        Tokenizers.load(tmp_path)
    plain.save(tmp_path / "tokenizer.source.model")
    with pytest.raises(ModelError, match=r"tokenizer\.target\.model: the tokenizer cannot be read"):
        Tokenizers.load(tmp_path)


# Training.


@pytest.mark.parametrize("vocabulary", ["joint", "separate"])
def test_a_vocabulary_the_corpus_cannot_fill_is_refused_with_the_largest_possible(tmp_path, vocabulary, capfd):
    """The trainer's own words were a C++ source line; and the old model was already gone."""
    lines = ["a red cap", "a red cup", "two red caps"]
    section = TokenizerSection(vocab_size=8000, vocabulary=vocabulary)
    for name in ("tokenizer.model", "tokenizer.source.model"):
        (tmp_path / name).write_bytes(b"old")
    with pytest.raises(RecipeError) as caught:
        train(section, lines, lines, (), tmp_path)
    assert "8000" in str(caught.value)
    assert ".cc" not in str(caught.value)
    largest = int(str(caught.value.message).split()[-1])
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"old", b"old"]
    made = train(section.model_copy(update={"vocab_size": largest}), lines, lines, (), tmp_path)
    assert made.source.size == largest
    with pytest.raises(RecipeError):
        train(section.model_copy(update={"vocab_size": largest + 1}), lines, lines, (), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_vocabulary_too_small_for_the_characters_is_refused_with_the_smallest_possible(tmp_path, capfd):
    with pytest.raises(RecipeError) as caught:
        make(tmp_path, vocab_size=20)
    smallest = int(str(caught.value.message).split()[-1])
    assert make(tmp_path, vocab_size=smallest).size == smallest
    with pytest.raises(RecipeError, match=rf"vocab_size is {smallest - 1}"):
        make(tmp_path, vocab_size=smallest - 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("lines", [[], ["", " ", "\u2028"], ["x" * 5000]])
def test_no_text_is_an_error(tmp_path, lines):
    with pytest.raises(DataError, match="no source and target text is left"):
        make(tmp_path, lines)


def test_training_is_deterministic_across_processes(tmp_path):
    code = (
        "import sys; from pathlib import Path; from mtkit.text.train import train; "
        "from mtkit.sections.data import TokenizerSection; lines = sys.stdin.buffer.read().decode().split('\\n'); "
        "print(train(TokenizerSection(vocab_size=100, max_sentences=100), lines, lines, ['<b>', '<a>'], "
        "Path(sys.argv[1])).sha256)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            input="\n".join(LINES).encode(),
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_the_sample_is_bounded_uniform_in_order_and_keyed_by_the_seed():
    lines = [f"{number:04d}" for number in range(2000)]
    sample = draw(iter(lines), 100, 4192, seed=1)
    assert len(sample.sentences) == 100
    assert sample.seen == 2000
    assert sample.sentences == sorted(set(sample.sentences))
    assert draw(lines, 100, 4192, seed=1) == sample
    assert draw(lines, 100, 4192, seed=2) != sample
    averages = [np.mean([int(line) for line in draw(lines, 100, 4192, seed).sentences]) for seed in range(30)]
    assert abs(np.mean(averages) - 999.5) < 4 * 577 / np.sqrt(100 * 30)
    assert draw(lines, 5000, 4192, seed=1).sentences == lines


def test_too_long_lines_are_left_out_by_their_bytes_and_counted(tmp_path, caplog):
    sample = draw(["门" * 10, "x" * 16, "x" * 17, "é" * 8, "é" * 9, "", "  "], 99, 16, seed=1)
    assert sample.sentences == ["x" * 16, "é" * 8]
    assert (sample.seen, sample.too_long) == (2, 3)
    make(tmp_path, [*LINES, "鑫" * 2000])
    assert "2 lines over 4192 bytes left out" in caplog.text


def test_training_takes_text_the_trainer_is_known_to_stumble_over(tmp_path, capfd):
    """NUL and U+2585 made SentencePiece leave out the sentence; a line of one 100,000 character word is just long."""
    lines = [*LINES, "nu\x00l ▅ block q", "\ufffd", "\ufffe\uffff", "z" * 100_000]
    tokenizer = make(tmp_path, lines, vocab_size=130, max_sentence_bytes=1_000_000)
    assert tokenizer.decode(tokenizer.encode("q ▅ \ufffd")) == "q \ufffd \ufffd"
    assert UNK not in tokenizer.encode("q z \ufffd")
    assert capfd.readouterr() == ("", "")
