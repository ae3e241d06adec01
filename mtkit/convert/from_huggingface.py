"""A MarianMT (OPUS-MT) folder of Hugging Face transformers as a model folder. transformers is not needed.

mtkit's ids hold: PAD, UNK, BOS, EOS are 0 to 3. So the vocabulary is put in another order, embedding rows, output rows
and biases with it. Marian has no BOS: its decoder starts from its padding, whose row BOS gets a copy of, with an output
bias that makes it impossible.

Shapes: V vocabulary, D d_model.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from mtkit.checkpoint import build_model, load_tensors, save_model, set_weights, weights_of
from mtkit.convert.marian import BIAS, from_marian, halves, marian_names
from mtkit.convert.marian_vocabulary import WHOLE_FOLDER, Vocabulary, read_vocabularies, tokenizers_of
from mtkit.errors import DataError, ModelError, UsageError
from mtkit.files import read_json, sha256_file
from mtkit.folders import WEIGHTS_FILE
from mtkit.ids import BOS
from mtkit.model.positions import sinusoids
from mtkit.recipe import Recipe
from mtkit.sections.model import Model
from mtkit.text.tokenizer import Tokenizers

IMPOSSIBLE = -1000.0
"""The output bias of a BOS that is a copy: no probability is left in float32, and label smoothing stays finite."""

_PICKLED = "pytorch_model.bin"
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_NOT_MARIAN = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_TIED = (
    "model.shared.weight",
    "model.decoder.embed_tokens.weight",
    "model.encoder.embed_tokens.weight",
    "lm_head.weight",
)


@dataclass(frozen=True, slots=True)
class Languages:
    """What the user says about the languages; None: what the folder says."""

    source: str | None = None
    target: str | None = None


def import_huggingface(folder: Path, output: Path, languages: Languages) -> Recipe:
    """Write the model folder `output` and return its recipe.

    Raises ModelError, naming the file, for a folder that is no MarianMT model, is damaged, or holds what mtkit cannot;
    UsageError when nothing says which languages it translates.
    """
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: no such folder", "give a folder with config.json, model.safetensors and source.spm"
        )
    config = _read(folder, "config.json")
    _refuse_unlike(folder, config)
    tensors, weights_path = _tensors(folder)
    vocabularies = read_vocabularies(folder, config)
    section = _section(folder, config, tensors, vocabularies)
    _refuse_surplus(weights_path, tensors, section)
    tokenizers = tokenizers_of(folder, vocabularies)
    recipe = _recipe(folder, config, section, tokenizers, languages)
    model = build_model(recipe, tokenizers)
    scaled = bool(config.get("scale_embedding", False))
    set_weights(model, _weights(weights_path, tensors, section, vocabularies, scaled), weights_path)
    lineage = {
        "imported": {"format": "huggingface", "folder": folder.resolve().name, "sha256": sha256_file(weights_path)},
        "recipe_sha256": recipe.sha256(),
    }
    save_model(output, weights_of(model), recipe, tokenizers, lineage)
    return recipe


def _read(folder: Path, name: str, needed: bool = True) -> dict[str, Any]:
    """A JSON file of the folder as an object; empty where it is missing and not needed. Raises ModelError."""
    if not needed and not (folder / name).is_file():
        return {}
    try:
        document = read_json(folder / name)
    except DataError as error:
        raise ModelError(error.message, f"{folder} is not a whole Hugging Face model") from None
    if not isinstance(document, dict):
        raise ModelError(f"{folder / name}: is not a JSON object", f"{folder} is not a Hugging Face model")
    return document


def _refuse_unlike(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError for another kind of model, or a Marian model that is unlike those of OPUS-MT."""
    path = folder / "config.json"
    if config.get("model_type") != "marian":
        raise ModelError(
            f"{path}: model_type is {config.get('model_type')!r}, mtkit imports marian",
            "MarianMT models are those of OPUS-MT, and what mtkit export --to huggingface writes",
        )
    wrong = [f"{name}: true" for name in _NOT_MARIAN if config.get(name)]
    if config.get("static_position_embeddings") is False:
        wrong.append("static_position_embeddings: false")
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = config.get(f"encoder_{name}"), config.get(f"decoder_{name}")
        if encoder != decoder:
            wrong.append(f"encoder_{name}: {encoder}, decoder_{name}: {decoder}")
    if config.get("activation_function") not in _ACTIVATIONS:
        wrong.append(f"activation_function: {config.get('activation_function')}")
    if wrong:
        raise ModelError(f"{path}: mtkit has no model with {'; '.join(wrong)}", "choose a MarianMT model without these")


def _tensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The weights and their file: model.safetensors, or pytorch_model.bin read without running code in it."""
    if (folder / WEIGHTS_FILE).is_file():
        return load_tensors(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE
    path = folder / _PICKLED
    if not path.is_file():
        raise ModelError(
            f"{folder}: holds neither {WEIGHTS_FILE} nor {_PICKLED}", "models in several files are not read"
        )
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        first = str(error).partition("\n")[0]
        raise ModelError(
            f"{path}: cannot be read as plain tensors ({first})", "the file is damaged or not safe"
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise ModelError(f"{path}: is not a dictionary of tensors", WHOLE_FOLDER)
    return tensors, path


def _section(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], vocabularies: tuple[Vocabulary, Vocabulary]
) -> Model:
    """The model section. An output bias is there where the checkpoint has one, or BOS is a copy."""
    shared, tied = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    share = "none" if not tied or not config.get("scale_embedding", False) else "all" if shared else "target"
    bias = tensors.get(BIAS)
    try:
        return Model(
            d_model=config["d_model"],
            heads=config["encoder_attention_heads"],
            d_ff=config["encoder_ffn_dim"],
            encoder_layers=config["encoder_layers"],
            decoder_layers=config["decoder_layers"],
            dropout=config.get("dropout", 0.1),
            attention_dropout=config.get("attention_dropout", 0.0),
            activation_dropout=config.get("activation_dropout", 0.0),
            norm="post",
            activation=_ACTIVATIONS[config["activation_function"]],
            positions="sinusoidal",
            share_embeddings=share,
            output_bias=vocabularies[1].start_is_copy or (bias is not None and bool(bias.any())),
        )
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'}: {error.args[0]} is missing", WHOLE_FOLDER) from None
    except ValidationError as error:
        row = error.errors()[0]
        raise ModelError(
            f"{folder / 'config.json'}: {'.'.join(map(str, row['loc']))}: {row['msg']}", WHOLE_FOLDER
        ) from None


def _refuse_surplus(path: Path, tensors: Mapping[str, Tensor], section: Model) -> None:
    """Raise ModelError for tensors that MarianMT does not have, and for positions that are not its sine waves."""
    surplus = sorted(tensors.keys() - marian_names(section) - set(_TIED) - set(_POSITIONS))
    if surplus:
        raise ModelError(f"{path}: {surplus[0]} is no tensor of MarianMT's ({len(surplus)} such tensors)", WHOLE_FOLDER)
    for name in _POSITIONS:
        if name in tensors:
            table_PD = tensors[name].float()
            waves_PD = sinusoids(table_PD.shape[0], section.d_model, torch.device("cpu"))[:, halves(section.d_model)]
            if table_PD.shape != waves_PD.shape or not torch.allclose(table_PD, waves_PD, atol=1e-3):
                raise ModelError(f"{path}: {name} is not the table of sine waves that MarianMT has", WHOLE_FOLDER)


def _weights(
    path: Path,
    tensors: Mapping[str, Tensor],
    section: Model,
    vocabularies: tuple[Vocabulary, Vocabulary],
    scaled: bool,
) -> dict[str, Tensor]:
    """mtkit's weights, in the order of its ids. Raises ModelError when a tensor is missing or too short."""
    source, target = vocabularies
    try:
        weights = from_marian(_with_embeddings(tensors, scaled), section)
        if "source_embedding.weight" in weights:
            weights["source_embedding.weight"] = weights["source_embedding.weight"][source.rows]
        for name in ("target_embedding.weight", "output.weight", "output.bias"):
            if name in weights:
                weights[name] = weights[name][target.rows]
    except KeyError as error:
        raise ModelError(
            f"{path}: tensor {error.args[0]} is missing", "the file is not a whole MarianMT model"
        ) from None
    except (IndexError, RuntimeError) as error:
        raise ModelError(f"{path}: its tensors do not fit config.json and vocab.json ({error})", WHOLE_FOLDER) from None
    if target.start_is_copy:
        weights["output.bias"][BOS] = IMPOSSIBLE
    return weights


def _with_embeddings(tensors: Mapping[str, Tensor], scaled: bool) -> dict[str, Tensor]:
    """The tensors with every matrix of embeddings and output under each of its names.

    Checkpoints keep a shared matrix once, under any of them. Where the checkpoint does not scale embeddings by
    sqrt(d_model), as mtkit does, the input's are made smaller by it, and are no longer the output's.
    """
    shared, decoder, encoder, output = (tensors.get(name) for name in _TIED)
    found = [one for one in (shared, decoder, output, encoder) if one is not None]
    if not found:
        raise KeyError(_TIED[0])
    shared = found[0] if shared is None else shared
    decoder = found[0] if decoder is None else decoder
    encoder = shared if encoder is None else encoder
    output = decoder if output is None else output
    made = dict(zip(_TIED, (shared, decoder, encoder, output), strict=True))
    if not scaled:
        made |= {name: made[name].float() / made[name].shape[1] ** 0.5 for name in _TIED[:3]}
    return {**tensors, **made}


def _recipe(
    folder: Path, config: Mapping[str, Any], section: Model, tokenizers: Tokenizers, languages: Languages
) -> Recipe:
    """The recipe of the model folder: languages, model, tokenizer and the checkpoint's way of searching."""
    told = _read(folder, "tokenizer_config.json", needed=False)
    source, target = languages.source or told.get("source_lang"), languages.target or told.get("target_lang")
    if not source or not target:
        raise UsageError(
            f"{folder}: does not say which languages it translates",
            "say it: --source-language en --target-language de",
        )
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in folder.resolve().name)[:64]
    nowhere = {"name": name or "imported", "source": "unknown", "target": "unknown"}
    shared = tokenizers.source.size == tokenizers.target.size and section.share_embeddings != "target"
    values = {
        "run_dir": f"runs/{name or 'imported'}",
        "languages": {"source": source, "target": target},
        "data": {"train": [nowhere]},
        "tokenizer": {
            "vocabulary": "joint" if shared else "separate",
            "vocab_size": tokenizers.target.size,
            "normalization": "nfc" if tokenizers.source.normalization == "nfc" else "nfkc",
        },
        "model": section.model_dump(),
        "search": _search(folder, config, told),
    }
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        row = error.errors()[0]
        raise ModelError(f"{folder}: {'.'.join(map(str, row['loc']))}: {row['msg']}", WHOLE_FOLDER) from None


def _search(folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The section `search`: beam, length penalty and limits of the generation config, or else of the config."""
    generation = {**config, **_read(folder, "generation_config.json", needed=False)}
    # transformers counts the start, and may force the last token to be the end.
    most = int(generation.get("max_length") or 512) - (1 if generation.get("forced_eos_token_id") is None else 2)
    positions = int(config.get("max_position_embeddings") or 512)
    most_source = max(4, min(positions, int(min(tokenizer.get("model_max_length") or positions, positions))) - 1)
    banned = {number for words in generation.get("bad_words_ids") or () for number in words if len(words) == 1}
    banned |= set(generation.get("suppress_tokens") or ())
    unknown = read_vocabularies(folder, config)[1].unknown
    beams = int(generation.get("num_beams") or 1)
    made: dict[str, Any] = {"method": "beam" if beams > 1 else "greedy"}
    if beams > 1:
        penalty = generation.get("length_penalty")
        made |= {"beam_size": beams, "length_penalty": 1.0 if penalty is None else penalty}
    made["rules"] = {
        "max_length": max(1, most),
        "max_length_ratio": 0.0,
        "max_length_offset": max(1, most),
        "no_repeat_ngram": int(generation.get("no_repeat_ngram_size") or 0),
        "allow_unknown": unknown not in banned,
    }
    made["lines"] = {"max_source_length": most_source, "max_tokens": max(1024, most_source + 1)}
    return made
