"""Learn the vocabularies with SentencePiece's BPE trainer: what goes in, in which order, and how it fails."""

import io
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from mtkit.errors import DataError, RecipeError
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.sections.data import TokenizerSection
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import UNKNOWN_SURFACE, Tokenizer, Tokenizers

log = logging.getLogger(__name__)

# SentencePiece keeps U+2585 for itself and leaves out sentences that hold it; without the character they can stay.
_RESERVED = "\u2585"
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


@dataclass(frozen=True, slots=True)
class Sample:
    """The sentences a vocabulary is learnt from: how many were seen, kept, and left out as too long."""

    sentences: list[str]
    seen: int
    too_long: int


def train(
    section: TokenizerSection,
    source_lines: Iterable[str],
    target_lines: Iterable[str],
    symbols: Sequence[str],
    folder: Path,
) -> Tokenizers:
    """Learn and save the tokenizers of a recipe; the same input gives the same bytes.

    `source_lines` and `target_lines` are read once, in turn. Of each side at most half of `section.max_sentences` are
    held in memory: a uniform sample, seeded. `symbols` are the user-defined symbols in the order of their ids.
    Writes the model files into `folder`, and only when all of it succeeded.
    Raises RecipeError for a vocabulary size the text cannot fill or that cannot hold its characters, and for unusable
    symbols; DataError when there is no text.
    """
    check_symbols(symbols)
    limit = max(1, section.max_sentences // 2)
    source = draw(source_lines, limit, section.max_sentence_bytes, section.seed)
    if section.vocabulary == "joint":
        target = draw(target_lines, limit, section.max_sentence_bytes, section.seed)
        both = _learn(section, [source, target], symbols, "source and target")
        tokenizers = Tokenizers(both, both)
    else:
        source_tokenizer = _learn(section, [source], symbols, "source")
        del source
        target = draw(target_lines, limit, section.max_sentence_bytes, section.seed)
        tokenizers = Tokenizers(source_tokenizer, _learn(section, [target], symbols, "target"))
    tokenizers.save(folder)
    return tokenizers


def check_symbols(symbols: Sequence[str]) -> None:
    """Raises RecipeError for a symbol that could never be found in normalised text, or is listed twice."""
    for symbol in symbols:
        if not symbol or symbol != normalize(symbol) or " " in symbol or "\n" in symbol:
            raise RecipeError(
                f"tokenizer.user_defined_symbols: {symbol!r} cannot be a symbol",
                "symbols are not empty, hold no white space, control characters or ▁, and are in NFC",
            )
    twice = [symbol for symbol, count in Counter(symbols).items() if count > 1]
    if twice:
        raise RecipeError(f"tokenizer.user_defined_symbols: {twice[0]!r} is listed twice", "remove one of them")


def draw(lines: Iterable[str], limit: int, max_bytes: int, seed: int) -> Sample:
    """A uniform sample of at most `limit` sentences, normalised, in their order; blank lines do not count.

    Lines of more than `max_bytes` bytes of UTF-8 are left out and counted. Reservoir sampling (Vitter 1985,
    algorithm R) holds `limit` sentences at a time; the same seed gives the same sample.
    """
    chance = random.Random(seed)
    kept: list[tuple[int, str]] = []
    seen = too_long = 0
    for line in lines:
        if len(line) > max_bytes or len(line.encode("utf-8", "replace")) > max_bytes:
            too_long += 1
            continue
        if not line or line.isspace():
            continue
        seen += 1
        if len(kept) < limit:
            kept.append((seen, line))
        else:
            place = chance.randrange(seen)
            if place < limit:
                kept[place] = (seen, line)
    kept.sort()
    sentences = [text for _, line in kept if (text := normalize(line.replace(_RESERVED, "")))]
    return Sample(sentences, seen, too_long)


def _learn(section: TokenizerSection, samples: Sequence[Sample], symbols: Sequence[str], side: str) -> Tokenizer:
    """One tokenizer from the samples; tells the log what it was learnt from and what it covers."""
    started = time.monotonic()
    sentences = [sentence for sample in samples for sentence in sample.sentences]
    if not sentences:
        raise DataError(f"no {side} text is left to learn a vocabulary from", "are the training files empty?")
    tokenizer = Tokenizer(_run_trainer(section, sentences, symbols))
    seen, too_long = (sum(getattr(sample, name) for sample in samples) for name in ("seen", "too_long"))
    log.info(
        "tokenizer (%s): %d pieces from %s of %s sentences in %.1f s; the vocabulary holds %s",
        side,
        tokenizer.size,
        f"{len(sentences):,}",
        f"{seen:,}",
        time.monotonic() - started,
        _coverage(tokenizer, sentences),
    )
    if too_long:
        log.warning(
            "tokenizer (%s): %s lines over %d bytes left out", side, f"{too_long:,}", section.max_sentence_bytes
        )
    return tokenizer


def _run_trainer(section: TokenizerSection, sentences: Sequence[str], symbols: Sequence[str]) -> bytes:
    """The serialized model SentencePiece's trainer makes; its complaints in our words.

    `hard_vocab_limit=False` lets the trainer stop where no pair is left to merge, so the size it reaches is the largest
    possible one, and known without reading its error message.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=section.vocab_size,
            hard_vocab_limit=False,
            character_coverage=section.character_coverage,
            byte_fallback=section.byte_fallback,
            split_digits=section.split_digits,
            user_defined_symbols=list(symbols),
            normalization_rule_name="nfkc" if section.normalization == "nfkc" else "identity",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece="< pad >",
            unk_piece="< unk >",
            bos_piece="< s >",
            eos_piece="< /s >",
            unk_surface=UNKNOWN_SURFACE,
            max_sentence_length=2**30,  # too long lines were left out, and counted, before
            minloglevel=2,
        )
    except RuntimeError as error:
        too_small = _TOO_SMALL.search(str(error))
        if too_small is None:
            raise
        raise RecipeError(
            f"tokenizer.vocab_size is {section.vocab_size}, but the characters of the corpus and the special pieces "
            f"alone take {too_small[1]}",
            f"set it to at least {too_small[1]}, or lower tokenizer.character_coverage",
        ) from None
    largest = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
    if largest < section.vocab_size:
        raise RecipeError(
            f"tokenizer.vocab_size is {section.vocab_size}, but the corpus allows at most {largest}",
            f"set it to {largest} or less, for example with: --set tokenizer.vocab_size={largest}",
        )
    return model.getvalue()


def _coverage(tokenizer: Tokenizer, sentences: Sequence[str]) -> str:
    """The share of characters that are in the vocabulary, in words."""
    counts = Counter[str]()
    for sentence in sentences:
        counts.update(sentence)
    counts.pop(" ", None)
    characters = list(counts)
    missing = [
        character
        for character, ids in zip(characters, tokenizer.encode_batch(characters), strict=True)
        if tokenizer.unknown_count(ids)
    ]
    share = 1 - sum(counts[character] for character in missing) / max(1, counts.total())
    return f"{len(characters) - len(missing):,} of {len(characters):,} characters, {share:.3%} of their occurrences"
