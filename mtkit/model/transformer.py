"""The encoder-decoder Transformer of Vaswani et al. 2017.

Shapes: B sentences, S source length, T target length, D d_model, V target vocabulary, K rows a sentence in decoding,
N = B * K. Fixed once: a source ends with EOS, target_in begins with BOS, both are padded on the right with PAD.
With packings, rows_BSD and rows_BTD are those of the real positions alone.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mtkit.ids import PAD
from mtkit.model.dropout import Dropout
from mtkit.model.layers import DecoderLayer, EncoderLayer
from mtkit.model.packing import Packing, Packings
from mtkit.model.positions import make_positions
from mtkit.model.state import DecoderState, LayerCache
from mtkit.sections.model import Model


class Transformer(nn.Module):
    """Encoder, decoder and output projection. `forward` trains, `start` and `step` decode.

    Decoder self-attention has no padding mask: under right padding the causal rule hides pads from real tokens, and
    what stands at pads never reaches the loss.
    """

    def __init__(self, section: Model, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        assert section.share_embeddings != "all" or source_vocab == target_vocab
        self.vocab_size = target_vocab
        self.scale = math.sqrt(section.d_model)
        self.share_embeddings = section.share_embeddings
        self.target_embedding = nn.Embedding(target_vocab, section.d_model)
        self.source_embedding = (
            self.target_embedding if section.share_embeddings == "all" else nn.Embedding(source_vocab, section.d_model)
        )
        self.output = nn.Linear(section.d_model, target_vocab, bias=section.output_bias)
        if section.share_embeddings != "none":
            self.output.weight = self.target_embedding.weight
        self.source_positions = make_positions(section)
        self.target_positions = make_positions(section)
        self.dropout = Dropout(section.dropout)
        self.layer_dropout = section.layer_dropout
        self.encoder = nn.ModuleList(EncoderLayer(section) for _ in range(section.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(section) for _ in range(section.decoder_layers))
        pre = section.norm == "pre"
        self.encoder_norm = nn.LayerNorm(section.d_model) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(section.d_model) if pre else nn.Identity()
        self._initialize(section.d_model)

    def _initialize(self, d_model: int) -> None:
        """Glorot-uniform matrices, zero biases, embeddings of standard deviation D^-0.5 (unit after scaling)."""
        for name, weight in self.named_parameters():
            if "embedding" in name or "positions" in name or name == "output.weight":
                nn.init.normal_(weight, std=d_model**-0.5)
            elif name.endswith("attention.input.weight"):
                for part in weight.chunk(3):
                    nn.init.xavier_uniform_(part)
            elif weight.dim() == 2:
                nn.init.xavier_uniform_(weight)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def encode(
        self,
        source_BS: Tensor,
        heads: list[Tensor] | None = None,
        packing: Packing | None = None,
        checkpointing: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The encoder's memory_BSD, and mask_B11S: True where the source is real. `heads` as for the layers."""
        mask_B11S = (source_BS != PAD)[:, None, None, :]
        x_BSD = self.source_positions.embed(self.source_embedding(source_BS) * self.scale, 0)
        x_BSD = self.dropout(packing.pack(x_BSD) if packing else x_BSD)
        for layer, kept in zip(self.encoder, self._kept(len(self.encoder)), strict=True):
            if kept:
                x_BSD = _apply(layer, checkpointing, x_BSD, mask_B11S, self.source_positions, heads, packing)
        return self.encoder_norm(x_BSD), mask_B11S

    def decode(
        self,
        target_in_BT: Tensor,
        memory_BSD: Tensor,
        mask_B11S: Tensor,
        heads: list[Tensor] | None = None,
        packings: Packings | None = None,
        checkpointing: bool = False,
    ) -> Tensor:
        """Hidden states_BTD, each of which has seen the target up to its own position. `heads` as for the layers."""
        x_BTD = self.target_positions.embed(self.target_embedding(target_in_BT) * self.scale, 0)
        if packings is not None:
            x_BTD, memory_BSD = packings.target.pack(x_BTD), memory_BSD.index_select(0, packings.memory_P)
        x_BTD = self.dropout(x_BTD)
        shared = {"heads": heads, "packings": packings}
        for layer, kept in zip(self.decoder, self._kept(len(self.decoder)), strict=True):
            if kept:
                x_BTD = _apply(layer, checkpointing, x_BTD, memory_BSD, mask_B11S, self.target_positions, **shared)
        return self.decoder_norm(x_BTD)

    def _kept(self, layers: int) -> list[bool]:
        """Which layers this batch goes through: all, but for LayerDrop in training (Fan et al. 2020, section 3.1).

        Each is skipped with probability `layer_dropout`, by torch's random state; nothing is scaled up for it.
        """
        if not self.training or self.layer_dropout == 0:
            return [True] * layers
        return [draw >= self.layer_dropout for draw in torch.rand(layers, device="cpu").tolist()]

    def _cross(self, memory_BSD: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every decoder layer's cross keys and values_BHSE, made once a sentence in decoding."""
        layers: Iterable[DecoderLayer] = self.decoder  # type: ignore[assignment]
        return [layer.cross_attention.keys_values(memory_BSD) for layer in layers]

    def forward(
        self,
        source_BS: Tensor,
        target_in_BT: Tensor,
        packings: Packings | None = None,
        checkpointing: bool = False,
    ) -> Tensor:
        """Hidden states_BTD under teacher forcing; `logits` projects the ones that matter.

        With `packings` they are hidden_PD, of the real target positions alone, in the order of the target's packing,
        and no layer sees padding.
        With `checkpointing` a layer keeps no more than its input for the backward pass, which computes the rest again,
        with the same dropout (Chen et al. 2016, section 4).
        """
        packing = packings.source if packings else None
        memory_BSD, mask_B11S = self.encode(source_BS, packing=packing, checkpointing=checkpointing)
        return self.decode(target_in_BT, memory_BSD, mask_B11S, packings=packings, checkpointing=checkpointing)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, (..., D) -> (..., V), before the softmax."""
        return F.linear(hidden, self.output.weight, self.output.bias)

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> DecoderState:
        """The state before the first step, with `per_source` rows a sentence, sentence-major."""
        memory_BSD, mask_B11S = self.encode(source_BS)
        return DecoderState(
            per_source=per_source,
            cross=self._cross(memory_BSD),
            mask_B11S=mask_B11S,
            caches=[LayerCache() for _ in self.decoder],
            record_attention=attention,
        )

    def step(self, ids_N: Tensor, state: DecoderState) -> Tensor:
        """Feed one id a row (BOS first); returns the logits_NV of the next. Mutates `state`."""
        x_N1D = self.target_positions.embed(self.target_embedding(ids_N[:, None]) * self.scale, state.length)
        record: list[Tensor] | None = [] if state.record_attention else None
        last = len(self.decoder) - 1
        for index, (layer, cross, cache) in enumerate(zip(self.decoder, state.cross, state.caches, strict=True)):
            x_N1D = layer(
                x_N1D,
                cross,
                state.mask_B11S,
                self.target_positions,
                past=cache,
                start=state.length,
                record=record if index == last else None,
            )
        state.length += 1
        if record:
            state.attention_NS = record[0].squeeze(1)
        return self.logits(self.decoder_norm(x_N1D.squeeze(1))).float()


def _apply(layer: nn.Module, checkpointing: bool, *arguments: Any, **named: Any) -> Tensor:
    """The layer's result; where it is checkpointed, torch puts back its random state to compute it again."""
    if not checkpointing:
        return layer(*arguments, **named)
    return checkpoint(layer, *arguments, use_reentrant=False, **named)


def count_parameters(model: nn.Module) -> int:
    """How many numbers the weights hold, shared ones counted once."""
    return sum(weight.numel() for weight in model.parameters())
