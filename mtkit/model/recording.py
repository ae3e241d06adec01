"""What a model looked at: the attention weights of every layer and head over pairs that are already there.

Shapes: B sentences, S source length, T target length, H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtkit.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One tensor a layer; each row over the last axis sums to 1, and is 0 where it may not look.

    `encoder_BHSS` are from source to source. Row t of the others is the state that predicts target_out[t], the first
    being fed BOS: `decoder_BHTT` look at target_in up to t, `cross_BHTS` at the source. Rows of padding mean nothing.
    """

    encoder_BHSS: list[Tensor]
    decoder_BHTT: list[Tensor]
    cross_BHTS: list[Tensor]


@torch.inference_mode()
def attention_weights(model: Transformer, source_BS: Tensor, target_in_BT: Tensor) -> AttentionWeights:
    """The weights of all layers under teacher forcing, in float32; `model` is in evaluation mode."""
    assert not model.training
    encoder: list[Tensor] = []
    decoder: list[Tensor] = []
    memory_BSD, mask_B11S = model.encode(source_BS, encoder)
    model.decode(target_in_BT, memory_BSD, mask_B11S, decoder)
    return AttentionWeights(encoder, decoder[::2], decoder[1::2])
