"""A model as a CTranslate2 model folder, through CTranslate2's public specification API.

Every architecture of the section `model` can be held. What CTranslate2 cannot be told is how to search: its options are
given at each call, so `README.md` in the folder says which ones equal the recipe's search.

Shapes: V vocabulary, D d_model, P positions.
"""

from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mtkit.convert.folder import Origin
from mtkit.errors import UsageError
from mtkit.files import atomic_write
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.model.attention import MultiHeadAttention
from mtkit.model.layers import DecoderLayer, EncoderLayer, FeedForward
from mtkit.model.positions import Learned, sinusoids
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.sections.model import Model
from mtkit.sections.search import Beam
from mtkit.text.names import piece_names
from mtkit.text.tokenizer import Tokenizers

Quantization = Literal["float32", "int8", "int16", "float16", "bfloat16"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)
MODEL_FILE = "model.bin"

NEVER = -1e4
"""The bias of PAD and BOS, which are never to be produced; finite, as CTranslate2 stores it in half precision too."""

_LEAST_POSITIONS = 1024


def require_ctranslate2() -> Any:
    """The package ctranslate2. Raises UsageError when the extra is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise UsageError(
            "CTranslate2 is not installed", "install the extra: python -m pip install 'mtkit[ctranslate2]'"
        ) from None
    return ctranslate2


def positions_needed(recipe: Recipe) -> int:
    """How many positions of a side the exported table holds: all that the recipe's limits allow, and 1,024 at least."""
    longest = max(recipe.search.lines.max_source_length, recipe.search.rules.max_length) + 1
    return max(_LEAST_POSITIONS, 1 << (longest - 1).bit_length())


def ctranslate2_origin(
    weights: Path, recipe: Recipe, tokenizers: Tokenizers, quantization: Quantization, positions: int
) -> Origin:
    """What such an export depends on; CTranslate2's version is part of it."""
    return Origin.of(
        weights,
        recipe,
        tokenizers,
        kind="ctranslate2",
        writer=f"2 ctranslate2 {metadata.version('ctranslate2')}",
        quantization=quantization,
        positions=positions,
    )


def write_ctranslate2(
    folder: Path,
    model: Transformer,
    recipe: Recipe,
    tokenizers: Tokenizers,
    quantization: Quantization = "float32",
    positions: int | None = None,
) -> None:
    """Write the model into a folder that is there and empty; `model` is on the CPU.

    `positions` is the length of the table of positions (those of learned ones are as many as there are).
    """
    require_ctranslate2()
    spec = _spec(model, recipe.model, positions or positions_needed(recipe))
    names = [piece_names(tokenizers.source), piece_names(tokenizers.target)]
    spec.register_source_vocabulary(names[0])
    spec.register_target_vocabulary(names[1])
    target = names[1]
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = target[BOS], target[EOS], target[UNK]
    spec.config.decoder_start_token = target[BOS]
    spec.config.add_source_eos = names[0][EOS] == target[EOS]
    spec.config.layer_norm_epsilon = model.encoder[0].self_frame.norm.eps  # type: ignore[union-attr]
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    tokenizers.save(folder)
    with atomic_write(folder / "README.md") as stream:
        stream.write(_readme(recipe, tokenizers))


def _readme(recipe: Recipe, tokenizers: Tokenizers) -> str:
    """How to call CTranslate2 so that it searches as the recipe does."""
    search, rules = recipe.search, recipe.search.rules
    options: dict[str, object] = {"beam_size": 1, "length_penalty": 0}
    notes = [
        "A translation's length is limited by `max_decoding_length` alone; mtkit's limit depends on the source.",
        "Text goes in as mtkit reads it: in NFC, runs of white space as one space.",
    ]
    if isinstance(search, Beam):
        options = {"beam_size": search.beam_size, "patience": search.patience or 2}
        options["length_penalty"] = search.length_penalty
        if search.length_normalization != "plain":
            notes.append(f"`length_normalization: {search.length_normalization}` has no like in CTranslate2.")
    options |= {"return_end_token": True, "disable_unk": not rules.allow_unknown}
    options |= {"max_decoding_length": rules.max_length, "min_decoding_length": rules.min_length, "max_input_length": 0}
    options |= {"no_repeat_ngram_size": rules.no_repeat_ngram, "repetition_penalty": rules.repetition_penalty}
    names, end = [path.name for path, _ in tokenizers.files("")], piece_names(tokenizers.target)[EOS]
    return "\n".join(
        [
            f"# Translation from {recipe.languages.source} to {recipe.languages.target}, for CTranslate2",
            "",
            "```python",
            "import ctranslate2",
            "import sentencepiece",
            "",
            f'source = sentencepiece.SentencePieceProcessor(model_file="{names[0]}")',
            f'target = sentencepiece.SentencePieceProcessor(model_file="{names[-1]}")',
            'translator = ctranslate2.Translator(".")',
            "[result] = translator.translate_batch(",
            '    [source.encode("...", out_type=str)],',
            *(f"    {name}={value}," for name, value in options.items()),
            ")",
            f'pieces = [piece for piece in result.hypotheses[0] if piece != "{end}"]',
            "print(target.decode(pieces))",
            "```",
            "",
            "`return_end_token` makes the length that scores are divided by count the end, as mtkit does; `patience`",
            "makes the search go on about as long as mtkit's.",
            "",
            *(f"- {note}" for note in notes),
            "",
        ]
    )


def _spec(model: Transformer, section: Model, positions: int) -> Any:
    """The whole specification, its weights set."""
    from ctranslate2.specs import common_spec, transformer_spec

    activations = {
        "relu": common_spec.Activation.RELU,
        "gelu": common_spec.Activation.GELU,
        "swish": common_spec.Activation.SWISH,
    }
    options: dict[str, Any] = {
        "num_heads": section.heads,
        "pre_norm": section.norm == "pre",
        "activation": activations[section.activation],
    }
    if section.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # 0: the whole head
    encoder = transformer_spec.TransformerEncoderSpec(section.encoder_layers, **options)
    decoder = transformer_spec.TransformerDecoderSpec(
        section.decoder_layers, alignment_layer=-1, alignment_heads=section.heads, **options
    )
    _set_side(encoder, encoder.embeddings[0], model.source_embedding, model.source_positions, section, positions)
    _set_side(decoder, decoder.embeddings, model.target_embedding, model.target_positions, section, positions)
    if section.norm == "pre":
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)
    for layer_spec, layer in zip(encoder.layer, model.encoder, strict=True):
        assert isinstance(layer, EncoderLayer)
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.self_frame.norm)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_frame.norm)
    for layer_spec, layer in zip(decoder.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        _set_self_attention(layer_spec.self_attention, layer.self_attention, layer.self_frame.norm)
        _set_cross_attention(layer_spec.attention, layer.cross_attention, layer.cross_frame.norm)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_frame.norm)
    _set_output(decoder.projection, model)
    return transformer_spec.TransformerSpec(encoder, decoder)


def _set_side(
    spec: Any, embedding_spec: Any, embedding: nn.Embedding, positions: nn.Module, section: Model, length: int
) -> None:
    """Embeddings, scaled by sqrt(d_model) there too, and the table that is added to them."""
    embedding_spec.weight = _numbers(embedding.weight)
    spec.scale_embeddings = True
    match section.positions:
        case "sinusoidal":
            spec.position_encodings.encodings = _numbers(sinusoids(length, section.d_model, torch.device("cpu")))
        case "learned":
            assert isinstance(positions, Learned)
            spec.position_encodings.encodings = _numbers(positions.table.weight)
        case "none":
            # Without a table CTranslate2 would make one of its own.
            spec.position_encodings.encodings = _numbers(torch.zeros(length, section.d_model))


def _set_output(spec: Any, model: Transformer) -> None:
    """The output layer, with a bias that keeps PAD and BOS out whatever options the caller gives."""
    bias_V = torch.zeros(model.vocab_size) if model.output.bias is None else model.output.bias.detach().clone()
    bias_V[[PAD, BOS]] = NEVER
    spec.weight = _numbers(model.output.weight)
    spec.bias = _numbers(bias_V)


def _set_self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    _set_norm(spec.layer_norm, norm)
    _set_linear(spec.linear[0], attention.input)
    _set_linear(spec.linear[1], attention.output)


def _set_cross_attention(spec: Any, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    """Queries apart from keys and values, which are made from the memory."""
    width = attention.d_model
    _set_norm(spec.layer_norm, norm)
    for part, rows in ((spec.linear[0], slice(0, width)), (spec.linear[1], slice(width, None))):
        part.weight = _numbers(attention.input.weight[rows])
        part.bias = _numbers(attention.input.bias[rows])
    _set_linear(spec.linear[2], attention.output)


def _set_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.LayerNorm) -> None:
    _set_norm(spec.layer_norm, norm)
    _set_linear(spec.linear_0, feed_forward.inner)
    _set_linear(spec.linear_1, feed_forward.outer)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _numbers(linear.weight), _numbers(linear.bias)


def _numbers(tensor: Tensor) -> Any:
    """The tensor as CTranslate2 takes it: float32, in an array of its own, as quantization overwrites it."""
    return tensor.detach().float().contiguous().clone().numpy()
