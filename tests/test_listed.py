"""Tokenizers that a list numbers: symbols, unknown pieces, files, and lists that cannot be."""

import pickle
from pathlib import Path

import pytest

from mtkit.errors import ModelError
from mtkit.ids import UNK
from mtkit.text.extend import extended
from mtkit.text.listed import SPECIALS, ListedTokenizer, PieceList
from mtkit.text.tokenizer import JOINT_LIST, SOURCE_LIST, TARGET_LIST, Tokenizers

TEXT = "the red baker sees the river today."


@pytest.fixture
def listed(tiny_tokenizers: Tokenizers) -> ListedTokenizer:
    """The joint tokenizer of the tests with its pieces numbered backwards, one piece missing, one symbol more."""
    plain = tiny_tokenizers.source
    pieces = [piece for piece in reversed(plain.pieces(range(4, plain.size))) if piece != "."]
    return ListedTokenizer(plain.model, PieceList([*SPECIALS, *pieces, ">>xx<<"], [">>xx<<"]))


def test_pieces_are_sentencepieces_and_ids_the_lists(listed: ListedTokenizer, tiny_tokenizers: Tokenizers) -> None:
    plain = tiny_tokenizers.source
    ids = listed.encode(TEXT)
    assert listed.pieces(ids[:-1]) == plain.pieces(plain.encode(TEXT)[:-1])
    assert ids[-1] == UNK
    assert listed.decode(ids) == TEXT[:-1] + "\ufffd"
    assert listed.encode_batch([TEXT, ""] * 20) == [ids, []] * 20
    assert pickle.loads(pickle.dumps(listed)).encode(TEXT) == ids
    assert not listed.encodes_by_words()


def test_symbols_stand_for_themselves(listed: ListedTokenizer) -> None:
    number = listed.symbol_id(">>xx<<")
    assert listed.encode(f">>xx<< {TEXT}") == [number, *listed.encode(TEXT)]
    more = extended(listed, ["<talk>"])
    assert more.symbol_id("<talk>") == listed.size
    assert more.encode(f"<talk>>>xx<< {TEXT}") == [listed.size, number, *listed.encode(TEXT)]
    assert more.sha256 != listed.sha256
    assert extended(more, ["<talk>"]) is more


@pytest.mark.parametrize("shared", [True, False])
def test_files_come_back(listed: ListedTokenizer, tmp_path: Path, shared: bool) -> None:
    other = ListedTokenizer(listed.model, listed.listed if shared else listed.listed.with_symbols(["<x>"]))
    before = Tokenizers(listed, other)
    before.save(tmp_path)
    names = {path.name for path in tmp_path.glob("*.json")}
    assert names == ({JOINT_LIST} if shared else {SOURCE_LIST, TARGET_LIST})
    after = Tokenizers.load(tmp_path)
    assert after.sha256 == before.sha256
    assert after.target.encode(TEXT) == other.encode(TEXT)


def test_a_plain_tokenizer_takes_the_place_of_a_listed_one(
    listed: ListedTokenizer, tiny_tokenizers: Tokenizers, tmp_path: Path
) -> None:
    Tokenizers(listed, listed).save(tmp_path)
    assert isinstance(Tokenizers.load(tmp_path).source, ListedTokenizer)
    tiny_tokenizers.save(tmp_path)
    assert Tokenizers.load(tmp_path).sha256 == tiny_tokenizers.sha256


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "is not a list of pieces"),
        ('{"format": 1, "pieces": 3, "symbols": []}', "is not a list of pieces"),
        ('{"format": 9, "pieces": [], "symbols": []}', "has format 9, this mtkit reads up to 1"),
        ('{"format": 1, "pieces": ["a", "b"], "symbols": []}', "first pieces are not"),
        ('{"format": 1, "pieces": ["<pad>", "<unk>", "<s>", "</s>", "a", "a"], "symbols": []}', "listed twice"),
        ('{"format": 1, "pieces": ["<pad>", "<unk>", "<s>", "</s>", "a"], "symbols": ["b"]}', "not among the pieces"),
    ],
)
def test_a_list_that_cannot_be_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / JOINT_LIST).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=told):
        PieceList.load(tmp_path / JOINT_LIST)
