"""Encoding word by word equals encoding sentences."""

import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.sections.data import TokenizerSection
from mtkit.text.tokenizer import Tokenizer, Tokenizers
from mtkit.text.train import train
from mtkit.text.words import LONGEST, WordMemory

WORDS = [
    "the",
    "baker",
    "sees",
    "<news>",
    "<news>the",
    "Ω",
    "ΩΩ",
    "\U00012000",
    "▁",
    "e\u0301",
    "ﬁ",
    "´",
    "好",
    "a" * 40,
]
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=8).map(" ".join), min_size=1, max_size=30
)


@pytest.fixture(scope="session")
def others(tiny_corpus, tmp_path_factory) -> dict[str, Tokenizer]:
    """Tokenizers with the settings that change how text is cut."""
    made = {}
    for name, settings_ in {
        "bytes": {"byte_fallback": True, "vocab_size": 380},
        "digits": {"split_digits": True},
        "nfkc": {"normalization": "nfkc"},
    }.items():
        section = TokenizerSection(**{"vocab_size": 120, **settings_})
        folder = tmp_path_factory.mktemp(name)
        made[name] = train(section, tiny_corpus.source, tiny_corpus.target, ["<news>"], folder).source
    return made


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(TEXTS, min_size=1, max_size=3), most=st.sampled_from([1, 5, 1000]))
@pytest.mark.parametrize("name", ["plain", "bytes", "digits", "nfkc"])
def test_any_text_has_the_ids_that_the_tokenizer_gives_it(
    tiny_tokenizers: Tokenizers, others: dict[str, Tokenizer], name: str, batches: list[list[str]], most: int
) -> None:
    tokenizer = tiny_tokenizers.source if name == "plain" else others[name]
    memory = WordMemory(tokenizer, most)
    for texts in batches:
        assert memory.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_words_are_encoded_once_and_long_ones_forgotten(tiny_tokenizers: Tokenizers, monkeypatch) -> None:
    asked: list[str] = []
    real = Tokenizer.encode_words
    monkeypatch.setattr(Tokenizer, "encode_words", lambda self, words: asked.extend(words) or real(self, words))
    memory = WordMemory(tiny_tokenizers.source)
    for _ in range(3):
        memory.encode_batch(["the baker", "the river", "x" * (LONGEST + 1)])
    assert sorted(word for word in asked if len(word) <= LONGEST) == ["baker", "river", "the"]
    assert asked.count("x" * (LONGEST + 1)) == 3


def test_memory_is_bounded(tiny_tokenizers: Tokenizers) -> None:
    memory = WordMemory(tiny_tokenizers.source, most=10)
    for number in range(50):
        memory.encode_batch([f"w{number} v{number}", "the"])
        assert len(memory._ids) <= 10


@pytest.mark.parametrize(("kind", "across"), [("unigram", False), ("bpe", True), ("bpe", False)])
def test_a_model_that_looks_across_words_is_left_alone(tmp_path: Path, kind: str, across: bool) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["of the baker of the river", "of the lantern"] * 50),
        model_writer=model,
        model_type=kind,
        vocab_size=40,
        hard_vocab_limit=False,
        split_by_whitespace=not across,
        normalization_rule_name="identity",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model.getvalue())
    assert tokenizer.encodes_by_words() == (kind == "bpe" and not across)
    texts = ["of the baker", "the river of the lantern"]
    assert WordMemory(tokenizer).encode_batch(texts) == tokenizer.encode_batch(texts)
