"""The Transformer as a whole: equal to torch's own layers, blind to padding and to what comes later."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch_model import TINY, TorchModel, build, framed, matching, random_rows, torch_twin

from mtkit.checkpoint import weights_of
from mtkit.ids import EOS, PAD
from mtkit.model.transformer import Transformer, count_parameters
from mtkit.sections.model import Model


def choices(field: str) -> tuple[Any, ...]:
    """The values that the schema allows for a field of the model section."""
    return get_args(Model.model_fields[field].annotation)


def assert_same(ours: Transformer, section: Model, tolerance: float) -> None:
    """Logits and all gradients of both models agree on a padded batch; gradients relative to their largest number."""
    theirs = torch_twin(ours, section)
    source_BS = framed(random_rows([5, 2, 8], ours.vocab_size, 1))
    target_in_BT = framed(random_rows([6, 7, 1], ours.vocab_size, 2), start=True)
    logits = ours.logits(ours(source_BS, target_in_BT)), theirs(source_BS, target_in_BT)
    real_BT = target_in_BT != PAD
    torch.testing.assert_close(logits[0][real_BT], logits[1][real_BT], rtol=tolerance, atol=tolerance)
    weighting = torch.randn(logits[0][real_BT].shape, generator=torch.Generator().manual_seed(3))
    for one in logits:
        (one[real_BT] * weighting.to(one)).sum().backward()
    for weight, other in matching(ours, theirs):
        assert weight.grad is not None
        assert other.grad is not None
        scale = other.grad.abs().max()
        assert scale > 0
        torch.testing.assert_close(weight.grad / scale, other.grad / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("norm", choices("norm"))
@pytest.mark.parametrize("activation", choices("activation"))
def test_equals_the_model_of_torchs_layers(norm: str, activation: str) -> None:
    options = {"norm": norm, "activation": activation, "encoder_layers": 3, "decoder_layers": 2}
    ours = build(**options).double()
    assert_same(ours, Model.model_validate({**TINY, **options}), 1e-11)


def test_unequal_depths_equal_the_model_of_torchs_layers() -> None:
    depths = {"encoder_layers": 12, "decoder_layers": 1}
    ours = build(**depths).double()
    assert len(ours.encoder) == 12
    assert len(ours.decoder) == 1
    assert_same(ours, Model.model_validate({**TINY, **depths}), 1e-10)


def test_the_default_is_the_papers_base_model() -> None:
    """Table 3 of Vaswani et al. 2017, in float32, with its dropout in place but off."""
    section = Model()
    assert section.dropout == 0.1
    torch.manual_seed(1)
    assert_same(Transformer(section, 60, 60).eval(), section, 2e-5)


def test_the_base_model_has_the_papers_number_of_parameters() -> None:
    vocab, d_model, d_ff, layers = 37_000, 512, 2048, 6
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder = layers * (attention + feed_forward + 2 * norm)
    decoder = layers * (2 * attention + feed_forward + 3 * norm)
    with torch.device("meta"):
        ours, theirs = Transformer(Model(), vocab, vocab), TorchModel(Model(), vocab)
    assert count_parameters(ours) == encoder + decoder + vocab * d_model == 63_082_496
    assert count_parameters(ours) == count_parameters(theirs)


@pytest.mark.parametrize("positions", choices("positions"))
@pytest.mark.parametrize("norm", choices("norm"))
def test_padding_and_order_of_the_batch_are_irrelevant(positions: str, norm: str) -> None:
    model = build(positions=positions, norm=norm)
    sources, targets = random_rows([5, 1, 9, 3], 50, 1), random_rows([4, 6, 2, 8], 50, 2)
    with torch.no_grad():
        alone = [model(framed([s]), framed([t], start=True))[0] for s, t in zip(sources, targets, strict=True)]
        for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
            source_BS = widen(framed([sources[row] for row in order]), 3)
            target_in_BT = widen(framed([targets[row] for row in order], start=True), 2)
            hidden_BTD = model(source_BS, target_in_BT)
            for place, row in enumerate(order):
                torch.testing.assert_close(hidden_BTD[place, : len(targets[row]) + 1], alone[row], rtol=0, atol=1e-5)


def widen(ids_BT: Tensor, columns: int) -> Tensor:
    """More padding on the right."""
    return torch.nn.functional.pad(ids_BT, (0, columns), value=PAD)


def test_bf16_stays_close_to_fp32_whatever_the_padding() -> None:
    """bfloat16 has 8 bits of mantissa: hidden states, of unit size, may differ by 0.1 and by 0.02 on average."""
    model = build(norm="pre")
    sources, targets = random_rows([5, 1, 9, 3], 50, 1), random_rows([4, 6, 2, 8], 50, 2)
    source_BS, target_in_BT = framed(sources), framed(targets, start=True)
    with torch.no_grad():
        exact_BTD = model(source_BS, target_in_BT)
        with torch.autocast("cpu", torch.bfloat16):
            rough_BTD = model(source_BS, target_in_BT)
            alone_TD = model(framed(sources[1:2]), framed(targets[1:2], start=True))[0]
    real_BT = target_in_BT != PAD
    for difference in (rough_BTD[real_BT] - exact_BTD[real_BT], rough_BTD[1, :7] - alone_TD):
        assert difference.abs().max() < 0.1
        assert difference.abs().mean() < 0.02
    assert (rough_BTD != exact_BTD).any()


@pytest.mark.parametrize("positions", choices("positions"))
def test_a_target_token_changes_nothing_before_it(positions: str) -> None:
    model = build(positions=positions)
    source_BS = framed(random_rows([6], 50, 1))
    target_in_BT = framed(random_rows([7], 50, 2), start=True)
    with torch.no_grad():
        before_BTD = model(source_BS, target_in_BT)
        for place in range(target_in_BT.shape[1]):
            changed_BT = target_in_BT.clone()
            changed_BT[0, place] = 4 + (changed_BT[0, place] - 3) % 46
            after_BTD = model(source_BS, changed_BT)
            assert torch.equal(after_BTD[:, :place], before_BTD[:, :place])
            assert (after_BTD[:, place:] - before_BTD[:, place:]).abs().amax(-1).min() > 1e-3


def test_every_source_token_reaches_every_target_position() -> None:
    model = build()
    source_BS = framed(random_rows([6], 50, 1))
    target_in_BT = framed(random_rows([3], 50, 2), start=True)
    with torch.no_grad():
        before_BTD = model(source_BS, target_in_BT)
        for place in range(source_BS.shape[1]):
            changed_BS = source_BS.clone()
            changed_BS[0, place] = 4 + (changed_BS[0, place] - 3) % 46
            assert (model(changed_BS, target_in_BT) - before_BTD).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize(("sharing", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_shared_embeddings_are_one_tensor_and_saved_once(sharing: str, matrices: int) -> None:
    section = Model.model_validate({**TINY, "share_embeddings": sharing})
    model = Transformer(section, 50, 50)
    source, target, output = model.source_embedding.weight, model.target_embedding.weight, model.output.weight
    assert (target is output) == (sharing != "none")
    assert (source is target) == (sharing == "all")
    saved = weights_of(model)
    assert len({weight.data_ptr() for weight in saved.values()}) == len(saved)
    assert sum(weight.shape == (50, 32) for weight in saved.values()) == matrices
    layers = count_parameters(model) - matrices * 50 * 32
    assert layers == count_parameters(model.encoder) + count_parameters(model.decoder)


def test_sharing_covers_every_name_of_the_schema() -> None:
    assert set(choices("share_embeddings")) == {"all", "target", "none"}


def test_separate_vocabularies_may_differ_in_size() -> None:
    model = Transformer(Model.model_validate({**TINY, "share_embeddings": "target"}), 70, 40)
    assert model.source_embedding.num_embeddings == 70
    assert model.logits(model(torch.tensor([[69, EOS]]), torch.tensor([[2, 39]]))).shape == (1, 2, 40)
    with pytest.raises(AssertionError):
        Transformer(Model.model_validate(TINY), 70, 40)


def test_initial_weights() -> None:
    """Glorot bounds for each matrix (queries, keys and values each by itself), D^-0.5 for embeddings, zero biases."""
    torch.manual_seed(1)
    options = {**TINY, "d_model": 64, "positions": "learned", "max_positions": 900, "share_embeddings": "none"}
    model = Transformer(Model.model_validate(options), 1000, 1000)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert (weight == (0.0 if name.endswith("bias") else 1.0)).all(), name
        elif "embedding" in name or "positions" in name or name == "output.weight":
            assert weight.std().item() == pytest.approx(64**-0.5, rel=0.03), name
            assert weight.mean().abs() < 0.002, name
        else:
            for part in weight.chunk(3) if name.endswith("attention.input.weight") else [weight]:
                bound = (6 / (part.shape[0] + part.shape[1])) ** 0.5
                assert 0.97 * bound < part.abs().max() <= bound, name
                assert part.std().item() == pytest.approx(bound / 3**0.5, rel=0.05), name


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (build(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["output.weight"], other["output.weight"])


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_alone(option: str) -> None:
    model = build(**{option: 0.5})
    ids = framed(random_rows([6], 50, 1))
    plain = build()(ids, ids)
    torch.testing.assert_close(model(ids, ids), plain)
    model.train()
    torch.manual_seed(7)
    first = model(ids, ids)
    torch.manual_seed(7)
    assert torch.equal(model(ids, ids), first)
    assert not torch.allclose(first, plain, atol=1e-3)
