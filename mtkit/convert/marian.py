"""The weights of a post-norm Transformer under the names and in the order of Hugging Face's MarianMTModel, both ways.

Two things differ. MarianMT has queries, keys and values in three matrices, mtkit in one. And MarianMT's table of
positions has all sines before all cosines, where mtkit has them in turns (Vaswani et al. 2017, section 3.5): the
columns of everything that the layers add up are put in the other order, which changes no result.

Shapes: V vocabulary, D d_model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mtkit.sections.model import Model

BIAS = "final_logits_bias"
_PARTS = ("q_proj", "k_proj", "v_proj")
_FRAMES = {
    "encoder": {"self_frame": "self_attn_layer_norm", "feed_forward_frame": "final_layer_norm"},
    "decoder": {
        "self_frame": "self_attn_layer_norm",
        "cross_frame": "encoder_attn_layer_norm",
        "feed_forward_frame": "final_layer_norm",
    },
}
_ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}


@dataclass(frozen=True, slots=True)
class _Row:
    """A tensor of mtkit's, the tensors of MarianMT's it consists of, and its axis (if any) of D columns to reorder."""

    ours: str
    theirs: tuple[str, ...]
    axis: int | None


def halves(width: int) -> Tensor:
    """For each of MarianMT's columns the column of mtkit's: even ones (sines), then odd ones (cosines).

    >>> halves(6).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))


def to_marian(weights: Mapping[str, Tensor], section: Model) -> dict[str, Tensor]:
    """MarianMT's tensors from mtkit's, as `weights_of` gives them; `final_logits_bias` is zero where there is none."""
    order = halves(section.d_model)
    made: dict[str, Tensor] = {}
    for row in _rows(section):
        tensor = weights[row.ours].detach().float()
        if row.axis is not None:
            tensor = tensor.index_select(row.axis, order)
        for name, part in zip(row.theirs, tensor.chunk(len(row.theirs)), strict=True):
            made[name] = part.contiguous()
    vocabulary = weights["target_embedding.weight"].shape[0]
    bias_V = weights["output.bias"].detach().float() if section.output_bias else torch.zeros(vocabulary)
    made[BIAS] = bias_V[None].contiguous()
    return made


def from_marian(tensors: Mapping[str, Tensor], section: Model) -> dict[str, Tensor]:
    """mtkit's tensors from MarianMT's; the output bias, where there is one, is its `final_logits_bias`.

    Raises KeyError, with the name, when one is missing. What else `tensors` holds is left alone; see `marian_names`.
    """
    back = halves(section.d_model).argsort()
    made: dict[str, Tensor] = {}
    for row in _rows(section):
        tensor = torch.cat([tensors[name].float() for name in row.theirs])
        made[row.ours] = (tensor if row.axis is None else tensor.index_select(row.axis, back)).contiguous()
    if section.output_bias:
        bias_1V = tensors.get(BIAS)
        vocabulary = made["target_embedding.weight"].shape[0]
        made["output.bias"] = torch.zeros(vocabulary) if bias_1V is None else bias_1V.float().reshape(-1).contiguous()
    return made


def marian_names(section: Model) -> set[str]:
    """The names of all of MarianMT's tensors that `from_marian` reads."""
    return {name for row in _rows(section) for name in row.theirs} | {BIAS}


def _rows(section: Model) -> Iterator[_Row]:
    """Every tensor but the output bias."""
    match section.share_embeddings:
        case "all":
            yield _Row("target_embedding.weight", ("model.shared.weight",), 1)
        case "target" | "none":
            yield _Row("source_embedding.weight", ("model.encoder.embed_tokens.weight",), 1)
            yield _Row("target_embedding.weight", ("model.decoder.embed_tokens.weight",), 1)
    if section.share_embeddings == "none":
        yield _Row("output.weight", ("lm_head.weight",), 1)
    for stack, layers in (("encoder", section.encoder_layers), ("decoder", section.decoder_layers)):
        for layer in range(layers):
            yield from _layer_rows(stack, f"{stack}.{layer}", f"model.{stack}.layers.{layer}")


def _layer_rows(stack: str, ours: str, theirs: str) -> Iterator[_Row]:
    for mine, other in _ATTENTIONS[stack].items():
        parts = [f"{theirs}.{other}.{part}" for part in _PARTS]
        yield _Row(f"{ours}.{mine}.input.weight", tuple(f"{part}.weight" for part in parts), 1)
        yield _Row(f"{ours}.{mine}.input.bias", tuple(f"{part}.bias" for part in parts), None)
        yield _Row(f"{ours}.{mine}.output.weight", (f"{theirs}.{other}.out_proj.weight",), 0)
        yield _Row(f"{ours}.{mine}.output.bias", (f"{theirs}.{other}.out_proj.bias",), 0)
    for mine, other, axes in (("inner", "fc1", (1, None)), ("outer", "fc2", (0, 0))):
        yield _Row(f"{ours}.feed_forward.{mine}.weight", (f"{theirs}.{other}.weight",), axes[0])
        yield _Row(f"{ours}.feed_forward.{mine}.bias", (f"{theirs}.{other}.bias",), axes[1])
    for mine, other in _FRAMES[stack].items():
        for part in ("weight", "bias"):
            yield _Row(f"{ours}.{mine}.norm.{part}", (f"{theirs}.{other}.{part}",), 0)
