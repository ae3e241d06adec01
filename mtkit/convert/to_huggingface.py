"""A model as a MarianMT folder: what Hugging Face transformers loads with AutoModelForSeq2SeqLM and AutoTokenizer.

transformers itself is not needed to write it. MarianMT is post-norm with sinusoidal positions; ids stay mtkit's, BOS
being what its decoder starts from.
"""

import json
import logging
from pathlib import Path
from typing import Any

from safetensors.torch import save

from mtkit.checkpoint import weights_of
from mtkit.convert.card import model_card
from mtkit.convert.folder import Origin
from mtkit.convert.marian import to_marian
from mtkit.errors import UsageError
from mtkit.files import atomic_write, write_json
from mtkit.folders import WEIGHTS_FILE
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Greedy, Sampling
from mtkit.text.names import piece_names
from mtkit.text.tokenizer import Tokenizers

_LOG = logging.getLogger(__name__)

_LEAST_POSITIONS = 1024


def huggingface_origin(weights: Path, recipe: Recipe, tokenizers: Tokenizers) -> Origin:
    """What such an export depends on."""
    return Origin.of(weights, recipe, tokenizers, kind="huggingface", writer="1", quantization="float32", positions=0)


def refuse_unlike_marian(section: Model) -> None:
    """Raise UsageError, naming them, for settings of the model that MarianMT cannot hold."""
    problems = []
    if section.norm != "post":
        problems.append("model.norm: pre (MarianMT normalises after each block)")
    if section.positions != "sinusoidal":
        problems.append(f"model.positions: {section.positions} (MarianMT adds fixed sine waves)")
    if problems:
        raise UsageError(
            f"a MarianMT model cannot hold {' and '.join(problems)}",
            "export --to ctranslate2, or train with model.norm: post and model.positions: sinusoidal",
        )


def write_huggingface(folder: Path, model: Transformer, recipe: Recipe, tokenizers: Tokenizers, home: Path) -> None:
    """Write the model into a folder that is there and empty; `home` is the model's own folder, for the card.

    Raises UsageError for an architecture that MarianMT cannot hold.
    """
    refuse_unlike_marian(recipe.model)
    config = _config(recipe, tokenizers)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", _generation(recipe))
    with atomic_write(folder / WEIGHTS_FILE, "wb") as stream:
        stream.write(save(to_marian(weights_of(model), recipe.model), {"format": "pt"}))
    _write_tokenizers(folder, recipe, tokenizers)
    with atomic_write(folder / "README.md") as stream:
        stream.write(model_card(home, recipe, tokenizers))


def huggingface_search(recipe: Recipe) -> Greedy | Beam:
    """The recipe's search as far as transformers can do it: greedy, or a plain beam; the rules are the recipe's."""
    search = recipe.search
    if not isinstance(search, Beam):
        return Greedy(method="greedy", rules=search.rules, lines=search.lines)
    return Beam(
        beam_size=search.beam_size, length_penalty=search.length_penalty, rules=search.rules, lines=search.lines
    )


def _longest(recipe: Recipe) -> int:
    """The longest source or target, EOS included."""
    return max(recipe.search.lines.max_source_length, recipe.search.rules.max_length) + 1


def _config(recipe: Recipe, tokenizers: Tokenizers) -> dict[str, Any]:
    section = recipe.model
    layers: dict[str, Any] = {}
    for stack, count in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        layers |= {
            f"{stack}_layers": count,
            f"{stack}_attention_heads": section.heads,
            f"{stack}_ffn_dim": section.d_ff,
            f"{stack}_layerdrop": section.layer_dropout,
        }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": section.d_model,
        **layers,
        "num_hidden_layers": section.encoder_layers,
        "vocab_size": tokenizers.source.size,
        "decoder_vocab_size": tokenizers.target.size,
        "max_position_embeddings": max(_LEAST_POSITIONS, _longest(recipe)),
        "activation_function": section.activation,
        "dropout": section.dropout,
        "attention_dropout": section.attention_dropout,
        "activation_dropout": section.activation_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": section.share_embeddings == "all",
        "tie_word_embeddings": section.share_embeddings != "none",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "init_std": section.d_model**-0.5,
        "use_cache": True,
        "dtype": "float32",
    }


def _generation(recipe: Recipe) -> dict[str, Any]:
    """The recipe's search as transformers' defaults; what they cannot say is told in the log, and left out."""
    search, rules = recipe.search, recipe.search.rules
    lost = []
    made: dict[str, Any] = {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "suppress_tokens": [PAD, BOS] if rules.allow_unknown else [PAD, UNK, BOS],
        "max_length": rules.max_length + 1,  # it counts the BOS that decoding starts from
        "num_beams": 1,
        "do_sample": isinstance(search, Sampling),
    }
    if isinstance(search, Beam):
        made |= {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
        made["early_stopping"] = search.patience == 1
        if search.patience > 1:
            lost.append(f"search.patience: {search.patience:g}")
        if search.length_normalization != "plain" and search.length_penalty:
            lost.append(f"search.length_normalization: {search.length_normalization}")
        lost += [f"search.{name}: {value}" for name, value in _unusual(search)]
    if isinstance(search, Sampling):
        made |= {"temperature": search.temperature, "top_k": search.top_k, "top_p": search.top_p}
        made |= {"min_p": search.min_p} if search.min_p else {}
    if rules.no_repeat_ngram:
        made["no_repeat_ngram_size"] = rules.no_repeat_ngram
    if rules.min_length:
        made["min_length"] = rules.min_length + 1
    if rules.min_length_ratio:
        lost.append(f"search.rules.min_length_ratio: {rules.min_length_ratio:g}")
    if rules.repetition_penalty != 1.0:
        lost.append(f"search.rules.repetition_penalty: {rules.repetition_penalty:g}")
    if lost:
        _LOG.warning("transformers has no setting for %s; left out of generation_config.json", ", ".join(lost))
    return made


def _unusual(search: Beam) -> list[tuple[str, object]]:
    """Settings of beam search that are not at their defaults, and that transformers lacks or counts otherwise."""
    names = ("coverage_penalty", "groups", "mbr")
    return [(name, getattr(search, name)) for name in names if getattr(search, name) != Beam.model_fields[name].default]


def _write_tokenizers(folder: Path, recipe: Recipe, tokenizers: Tokenizers) -> None:
    """SentencePiece models, the ids of their pieces, and how MarianTokenizer is to read them."""
    sides = (("source", tokenizers.source, "vocab.json"), ("target", tokenizers.target, "target_vocab.json"))
    shared = piece_names(tokenizers.source) == piece_names(tokenizers.target)
    for side, tokenizer, vocabulary in sides:
        with atomic_write(folder / f"{side}.spm", "wb") as stream:
            stream.write(tokenizer.model)
        if side == "source" or not shared:
            names = piece_names(tokenizer)
            with atomic_write(folder / vocabulary) as stream:
                json.dump({name: number for number, name in enumerate(names)}, stream, ensure_ascii=False, indent=1)
    names = piece_names(tokenizers.source)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": recipe.languages.source,
            "target_lang": recipe.languages.target,
            "unk_token": names[UNK],
            "eos_token": names[EOS],
            "pad_token": names[PAD],
            "bos_token": names[BOS],  # so that the start is left out of decoded text
            "additional_special_tokens": list(tokenizers.source.symbols),
            "model_max_length": recipe.search.lines.max_source_length + 1,
            "separate_vocabs": not shared,
            "sp_model_kwargs": {},
        },
    )
