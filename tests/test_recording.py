"""Recorded attention: torch's own weights, head by head, and nothing else changes for being watched.

Shapes: B sentences, S source length, T target length, D d_model, H heads.
"""

import pytest
import torch
from torch import Tensor, nn
from torch_model import build, framed, random_rows

from mtkit.ids import BOS, PAD
from mtkit.model.attention import MultiHeadAttention
from mtkit.model.recording import attention_weights
from mtkit.model.transformer import Transformer

SOURCE_BS = framed(random_rows([5, 2, 8], 50, 1))
TARGET_IN_BT = framed(random_rows([6, 7, 1], 50, 2), start=True)
KINDS = ("encoder_BHSS", "decoder_BHTT", "cross_BHTS")


def torchs(attention: MultiHeadAttention, query_BTD: Tensor, key_BSD: Tensor, mask: Tensor) -> Tensor:
    """The weights_BHTS of nn.MultiheadAttention with our matrices; its mask is True where it may not look."""
    width, heads = attention.d_model, attention.heads
    twin = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    with torch.no_grad():
        twin.in_proj_weight.copy_(attention.input.weight)
        twin.in_proj_bias.copy_(attention.input.bias)
        options = {"key_padding_mask": mask} if mask.shape[0] == len(query_BTD) else {"attn_mask": mask}
        return twin(query_BTD, key_BSD, key_BSD, average_attn_weights=False, **options)[1]


@torch.no_grad()
def slow_weights(model: Transformer) -> dict[str, list[Tensor]]:
    """Every attention's weights, each from what its layer is given by the layer before."""
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    pad_BS = SOURCE_BS == PAD
    later_TT = torch.ones(TARGET_IN_BT.shape[1], TARGET_IN_BT.shape[1]).triu(1).bool()

    def asked(frame: nn.Module, x_BTD: Tensor) -> Tensor:
        return frame.norm(x_BTD) if frame.pre else x_BTD

    x_BSD = model.source_positions.embed(model.source_embedding(SOURCE_BS) * model.scale, 0)
    for layer in model.encoder:
        y_BSD = asked(layer.self_frame, x_BSD)
        found["encoder_BHSS"].append(torchs(layer.self_attention, y_BSD, y_BSD, pad_BS))
        x_BSD = layer(x_BSD, ~pad_BS[:, None, None, :], model.source_positions)
    memory_BSD = model.encoder_norm(x_BSD)
    x_BTD = model.target_positions.embed(model.target_embedding(TARGET_IN_BT) * model.scale, 0)
    for layer in model.decoder:
        y_BTD = asked(layer.self_frame, x_BTD)
        found["decoder_BHTT"].append(torchs(layer.self_attention, y_BTD, y_BTD, later_TT))
        q, k, v = layer.self_attention.queries_keys_values(y_BTD)
        mixed_BTD = layer.self_attention(q, k, v, None, causal=True)
        z_BTD = x_BTD + mixed_BTD if layer.self_frame.pre else layer.self_frame.norm(x_BTD + mixed_BTD)
        z_BTD = asked(layer.cross_frame, z_BTD)
        found["cross_BHTS"].append(torchs(layer.cross_attention, z_BTD, memory_BSD, pad_BS))
        cross = layer.cross_attention.keys_values(memory_BSD)
        x_BTD = layer(x_BTD, cross, ~pad_BS[:, None, None, :], model.target_positions)
    return found


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recorded_weights_are_those_of_torchs_own_attention(norm: str) -> None:
    model = build(norm=norm, encoder_layers=3)
    recorded, expected = attention_weights(model, SOURCE_BS, TARGET_IN_BT), slow_weights(model)
    for kind, layers in (("encoder_BHSS", 3), ("decoder_BHTT", 2), ("cross_BHTS", 2)):
        ours = getattr(recorded, kind)
        assert len(ours) == layers
        for mine, theirs in zip(ours, expected[kind], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_what_is_recorded_is_a_distribution_over_what_may_be_seen(positions: str) -> None:
    recorded = attention_weights(build(positions=positions), SOURCE_BS, TARGET_IN_BT)
    real_BS = SOURCE_BS != PAD
    for kind in KINDS:
        for weights in getattr(recorded, kind):
            assert weights.dtype == torch.float32
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    for weights in (*recorded.encoder_BHSS, *recorded.cross_BHTS):
        assert (weights.masked_select(~real_BS[:, None, None, :]) == 0).all()
    for weights in recorded.decoder_BHTT:
        assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_padding_changes_no_weight(positions: str) -> None:
    model = build(positions=positions)
    together = attention_weights(model, SOURCE_BS, TARGET_IN_BT)
    for row in range(3):
        source, target = SOURCE_BS[row][SOURCE_BS[row] != PAD], TARGET_IN_BT[row][TARGET_IN_BT[row] != PAD]
        alone = attention_weights(model, source[None], target[None])
        for kind in KINDS:
            for many, one in zip(getattr(together, kind), getattr(alone, kind), strict=True):
                queries, keys = one.shape[2:]
                torch.testing.assert_close(many[row, :, :queries, :keys], one[0], rtol=0, atol=1e-6)


def test_to_be_watched_changes_nothing() -> None:
    model = build()
    watched: list[Tensor] = []
    with torch.inference_mode():
        plain = model(SOURCE_BS, TARGET_IN_BT)
        seen = model.decode(TARGET_IN_BT, *model.encode(SOURCE_BS, watched), watched)
    assert torch.equal(plain, seen)
    assert len(watched) == len(model.encoder) + 2 * len(model.decoder)


def test_the_last_layers_mean_is_what_decoding_gives_step_by_step() -> None:
    """So that alignments of `mtkit attention` and of `mtkit translate --json` are the same thing."""
    model = build()
    mean_BTS = attention_weights(model, SOURCE_BS, TARGET_IN_BT).cross_BHTS[-1].mean(1)
    with torch.inference_mode():
        state = model.start(SOURCE_BS, 1, attention=True)
        for position, ids_N in enumerate(TARGET_IN_BT.T):
            assert position or (ids_N == BOS).all()
            model.step(ids_N, state)
            assert state.attention_NS is not None
            torch.testing.assert_close(state.attention_NS, mean_BTS[:, position], rtol=0, atol=1e-6)
