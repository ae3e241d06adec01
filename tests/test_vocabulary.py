"""The recipe's training corpora to its tokenizers."""

import pytest

from mtkit.data.vocabulary import train_tokenizer
from mtkit.errors import DataError
from mtkit.text.tokenizer import Tokenizers


@pytest.fixture
def two_corpora(tiny_corpus, tmp_path):
    """A recipe on two small corpora, the first with a tag, and a validation corpus with other characters."""
    texts = {"one": ("abc\nabd\n", "xyz\nxyw\n"), "two": ("qq rr\n", "st\n"), "v": ("!\n", "?\n")}
    for name, sides in texts.items():
        for side, text in zip(("source", "target"), sides, strict=True):
            (tmp_path / f"{name}.{side}").write_bytes(20 * text.encode())
    one, two, valid = ({"name": name, "source": f"{name}.source", "target": f"{name}.target"} for name in texts)
    data = {"root": str(tmp_path), "train": [{**one, "tags": ["<one>"]}, two], "valid": [valid], "test": []}
    return tiny_corpus.recipe(data=data, tokenizer={"vocab_size": 26, "user_defined_symbols": ["<x>"]})


def test_the_tokenizer_is_learnt_from_all_training_corpora_and_no_other(two_corpora, tmp_path):
    tokenizers = train_tokenizer(two_corpora, tmp_path / "run")
    assert tokenizers.joint
    assert tokenizers.source.unknown_count(tokenizers.source.encode("abcd qr xyzw st")) == 0
    assert tokenizers.source.unknown_count(tokenizers.source.encode("a! b?")) == 2
    assert tokenizers.source.symbols == ("<x>", "<one>")
    assert Tokenizers.load(tmp_path / "run").sha256 == tokenizers.sha256


@pytest.mark.parametrize(("content", "message"), [(b"a\nb\n", "corpus two"), (b"a\n\xff\n", r"two\.source:2")])
def test_a_bad_corpus_leaves_the_old_tokenizer(two_corpora, tmp_path, content, message):
    (tmp_path / "two.source").write_bytes(content)
    (tmp_path / "tokenizer.model").write_bytes(b"old")
    with pytest.raises(DataError, match=message):
        train_tokenizer(two_corpora, tmp_path)
    assert (tmp_path / "tokenizer.model").read_bytes() == b"old"
