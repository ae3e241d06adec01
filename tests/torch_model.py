"""The encoder-decoder built from torch's own layers, as the oracle of mtkit's, and slow position encodings.

Shapes: B sentences, S source length, T target length, D d_model.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtkit.ids import BOS, EOS, PAD
from mtkit.model.layers import DecoderLayer, EncoderLayer
from mtkit.model.transformer import Transformer
from mtkit.sections.model import Model

Pairs = Iterator[tuple[nn.Parameter, nn.Parameter]]

TINY = {"d_model": 32, "heads": 4, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


def build(vocab: int = 50, seed: int = 1, **section: object) -> Transformer:
    """A tiny Transformer in evaluation mode, whose biases and norms are random too, so that none goes unnoticed."""
    torch.manual_seed(seed)
    model = Transformer(Model.model_validate({**TINY, **section}), vocab, vocab)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def framed(rows: list[list[int]], start: bool = False) -> Tensor:
    """Rows ended by EOS, or begun by BOS, padded on the right."""
    whole = [[BOS, *row] if start else [*row, EOS] for row in rows]
    width = max(map(len, whole))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in whole])


def random_rows(lengths: list[int], vocab: int, seed: int) -> list[list[int]]:
    """Rows of random ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocab, (length,), generator=generator).tolist() for length in lengths]


def slow_sinusoids(length: int, width: int) -> Tensor:
    """PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos(the same), number by number."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        for i in range(0, width, 2):
            angle = t / 10000 ** (i / width)
            table[t, i], table[t, i + 1] = math.sin(angle), math.cos(angle)
    return table


class TorchModel(nn.Module):
    """Embeddings, sinusoidal positions, nn.TransformerEncoder and nn.TransformerDecoder, sharing all embeddings."""

    def __init__(self, section: Model, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, section.d_model)
        options = {
            "d_model": section.d_model,
            "nhead": section.heads,
            "dim_feedforward": section.d_ff,
            "dropout": section.dropout,
            "activation": ACTIVATIONS[section.activation],
            "batch_first": True,
            "norm_first": section.norm == "pre",
        }
        last = [nn.LayerNorm(section.d_model) if section.norm == "pre" else None for _ in range(2)]
        encoder_layer, decoder_layer = nn.TransformerEncoderLayer(**options), nn.TransformerDecoderLayer(**options)
        self.encoder = nn.TransformerEncoder(encoder_layer, section.encoder_layers, last[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, section.decoder_layers, last[1])

    def _embed(self, ids_BT: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        x_BTD = self.embedding(ids_BT) * width**0.5
        return x_BTD + slow_sinusoids(ids_BT.shape[1], width).float().to(x_BTD)

    def forward(self, source_BS: Tensor, target_in_BT: Tensor) -> Tensor:
        """Logits_BTV."""
        hidden_from = source_BS == PAD
        memory_BSD = self.encoder(self._embed(source_BS), src_key_padding_mask=hidden_from)
        length = target_in_BT.shape[1]
        later_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden_BTD = self.decoder(
            self._embed(target_in_BT), memory_BSD, tgt_mask=later_TT, memory_key_padding_mask=hidden_from
        )
        return hidden_BTD @ self.embedding.weight.t()


def matching(ours: Transformer, theirs: TorchModel) -> Pairs:
    """Every weight of ours with the one that does the same in torch's layers."""
    yield ours.target_embedding.weight, theirs.embedding.weight
    for our_layer, layer in zip(ours.encoder, theirs.encoder.layers, strict=True):
        assert isinstance(our_layer, EncoderLayer)
        yield from _block(our_layer.self_attention, layer.self_attn, our_layer.self_frame.norm, layer.norm1)
        yield from _feed_forward(our_layer, layer, layer.norm2)
    for our_layer, layer in zip(ours.decoder, theirs.decoder.layers, strict=True):
        assert isinstance(our_layer, DecoderLayer)
        yield from _block(our_layer.self_attention, layer.self_attn, our_layer.self_frame.norm, layer.norm1)
        yield from _block(our_layer.cross_attention, layer.multihead_attn, our_layer.cross_frame.norm, layer.norm2)
        yield from _feed_forward(our_layer, layer, layer.norm3)
    for norm, other in ((ours.encoder_norm, theirs.encoder.norm), (ours.decoder_norm, theirs.decoder.norm)):
        if other is not None:
            yield from zip(norm.parameters(), other.parameters(), strict=True)


def _block(attention: nn.Module, other: nn.MultiheadAttention, norm: nn.Module, other_norm: nn.Module) -> Pairs:
    yield attention.input.weight, other.in_proj_weight
    yield attention.input.bias, other.in_proj_bias
    yield attention.output.weight, other.out_proj.weight
    yield attention.output.bias, other.out_proj.bias
    yield from zip(norm.parameters(), other_norm.parameters(), strict=True)


def _feed_forward(layer: EncoderLayer | DecoderLayer, other: nn.Module, other_norm: nn.Module) -> Pairs:
    yield from zip(layer.feed_forward.inner.parameters(), other.linear1.parameters(), strict=True)
    yield from zip(layer.feed_forward.outer.parameters(), other.linear2.parameters(), strict=True)
    yield from zip(layer.feed_forward_frame.norm.parameters(), other_norm.parameters(), strict=True)


def torch_twin(ours: Transformer, section: Model) -> TorchModel:
    """Torch's model with our weights."""
    theirs = TorchModel(section, ours.vocab_size).to(ours.output.weight.dtype).eval()
    pairs = list(matching(ours, theirs))
    assert len(pairs) == len(list(ours.parameters())) == len(list(theirs.parameters()))
    with torch.no_grad():
        for weight, other in pairs:
            other.copy_(weight)
    return theirs
