"""Reading facts from a SentencePiece model file: the wire format by hand, damage, and agreement with the trainer."""

import io

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from mtkit.text.model_file import ModelFacts, read_facts


def varint(number: int) -> bytes:
    """The number in base 128, least digit first."""
    head, digit = divmod(number, 128)
    return bytes([digit | 128]) + varint(head) if head else bytes([digit])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@given(st.lists(st.text(max_size=300), max_size=4), st.text(max_size=20))
def test_symbols_and_rule_are_found_among_fields_of_every_kind(symbols, rule):
    other = varint(9 << 3) + varint(2**63) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    trainer = other + b"".join(message(31, symbol.encode()) + other for symbol in symbols)
    model = message(1, b"a piece") + message(2, trainer) + other + message(3, message(1, rule.encode()))
    assert read_facts(model) == ModelFacts(rule, tuple(symbols))


@pytest.mark.parametrize("damage", [b"\x12", b"\x12\x7f", b"\x80", b"\x13\x00", b"\xff" * 12, b"\x12\x02\xfa\x01"])
def test_damage_is_a_value_error(damage):
    with pytest.raises(ValueError, match=r"cut off|unknown"):
        read_facts(damage)


@pytest.mark.parametrize("rule", ["identity", "nfkc", "nmt_nfkc"])
def test_agrees_with_the_trainer(rule):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab ba abba"] * 9),
        model_writer=model,
        model_type="bpe",
        vocab_size=12,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        user_defined_symbols=["<a>", "ä,ö"],
        minloglevel=2,
    )
    assert read_facts(model.getvalue()) == ModelFacts(rule, ("<a>", "ä,ö"))
