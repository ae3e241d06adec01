"""Word dropout, R-Drop and LayerDrop: what each does, and that each at rate 0 is no training of another kind."""

import dataclasses

import pytest
import torch
from conftest import TinyCorpus
from test_step import ROWS, SETTINGS, Update, assert_gradients_close, batch
from torch import Tensor
from torch_model import build, framed

from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.training.loss import CHUNK
from mtkit.training.regularize import drop_words, symmetric_divergence
from mtkit.training.step import training_loss

# Word dropout


def test_words_become_unknown_at_the_rate_and_nothing_else_changes() -> None:
    torch.manual_seed(1)
    whole = batch(ROWS * 50)
    dropped = drop_words(whole, 0.3)
    assert torch.equal(dropped.target_out_BT, whole.target_out_BT)
    assert (dropped.kept, dropped.source_tokens) == (whole.kept, whole.source_tokens)
    for before, after in ((whole.source_BS, dropped.source_BS), (whole.target_in_BT, dropped.target_in_BT)):
        words = (before != PAD) & (before != BOS) & (before != EOS)
        assert torch.equal(before[~words], after[~words])
        changed = before != after
        assert bool((after[changed] == UNK).all())
        assert changed.sum().item() / words.sum().item() == pytest.approx(0.3, abs=0.03)


def test_word_dropout_of_zero_draws_nothing() -> None:
    state = torch.get_rng_state()
    whole = batch(ROWS)
    assert drop_words(whole, 0.0) is whole
    assert torch.equal(state, torch.get_rng_state())


# R-Drop


def pair_of_passes(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draws = [torch.randn(count, 6, generator=generator, dtype=torch.float64) for count in (rows, rows, 11)]
    first, second, weight = (draw.requires_grad_() for draw in draws)
    return first, second, weight


@pytest.mark.parametrize("rows", [1, CHUNK, CHUNK + 3])
def test_the_divergence_and_its_gradients_equal_those_of_all_logits(rows: int) -> None:
    passes = pair_of_passes(rows)
    first, second, weight = passes
    ours = symmetric_divergence(first, second, weight)
    gradients = torch.autograd.grad(2 * ours, passes)
    log_p, log_q = ((hidden @ weight.t()).log_softmax(-1) for hidden in (first, second))
    theirs = torch.nn.functional.kl_div(log_q, log_p, reduction="sum", log_target=True) + torch.nn.functional.kl_div(
        log_p, log_q, reduction="sum", log_target=True
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients, torch.autograd.grad(2 * theirs, passes))


def test_the_divergence_of_equal_passes_is_zero() -> None:
    first, _, weight = pair_of_passes(5)
    assert symmetric_divergence(first, first, weight).item() == 0


def test_without_dropout_r_drop_is_plain_training() -> None:
    plain, twice = Update(), Update()
    reports = plain([batch(ROWS)]), twice([batch(ROWS)], settings=dataclasses.replace(SETTINGS, r_drop=5.0))
    assert_gradients_close(twice, plain, 1e-7)
    assert reports[1].loss == pytest.approx(reports[0].loss, rel=1e-6)
    assert reports[1].nll == pytest.approx(reports[0].nll, rel=1e-6)


@pytest.mark.parametrize("output_bias", [False, True])
def test_r_drop_is_the_mean_loss_and_a_quarter_of_alpha_times_both_divergences(output_bias: bool) -> None:
    model = build(dropout=0.3, output_bias=output_bias).train()
    if output_bias:
        torch.nn.init.normal_(model.output.bias)
    losses = []
    for alpha in (1e-9, 2.0):
        torch.manual_seed(1)
        losses.append(training_loss(model, model.output, batch(ROWS), dataclasses.replace(SETTINGS, r_drop=alpha)))
    torch.manual_seed(1)
    sources, targets = [source for source, _ in ROWS], [target for _, target in ROWS]
    real = framed(targets) != PAD
    logits = [model.logits(model(framed(sources), framed(targets, start=True)))[real] for _ in range(2)]
    wanted = framed(targets)[real]
    nll = (
        sum(torch.nn.functional.cross_entropy(one, wanted, reduction="sum", label_smoothing=0.1) for one in logits) / 2
    )
    p, q = (one.softmax(-1) for one in logits)
    divergence = ((p - q) * (p.log() - q.log())).sum()
    assert divergence > 1
    torch.testing.assert_close(losses[0][0], nll)
    torch.testing.assert_close(losses[1][0], nll + 2.0 / 4 * divergence)
    assert losses[0][1] == losses[1][1], "the divergence is no part of the negative log-likelihood"


def test_the_two_passes_drop_different_words() -> None:
    model = build().train()
    torch.manual_seed(1)
    settings = dataclasses.replace(SETTINGS, word_dropout=0.3)
    losses = []
    for alpha in (1e-9, 1.0):
        torch.manual_seed(1)
        losses.append(training_loss(model, model.output, batch(ROWS), dataclasses.replace(settings, r_drop=alpha)))
    assert losses[1][0] > losses[0][0] + 0.01


def test_r_drop_in_low_precision_is_close() -> None:
    model = build(dropout=0.3).train()
    losses = []
    for dtype in (None, torch.bfloat16):
        torch.manual_seed(1)
        settings = dataclasses.replace(SETTINGS, r_drop=2.0, dtype=dtype)
        loss = training_loss(model, model.output, batch(ROWS), settings)[0]
        (gradient,) = torch.autograd.grad(loss, [model.output.weight])
        losses.append((loss.item(), gradient.flatten()))
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.02)
    assert losses[1][0] != losses[0][0]
    assert torch.nn.functional.cosine_similarity(losses[0][1], losses[1][1], dim=0) > 0.99


# LayerDrop


def count_layers(model: torch.nn.Module, batches: int) -> list[int]:
    calls = [0] * 4
    layers = [*model.encoder, *model.decoder]  # type: ignore[misc]
    for index, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    source, target = framed([row for row, _ in ROWS]), framed([row for _, row in ROWS], start=True)
    for _ in range(batches):
        model(source, target)
    return calls


def test_layers_are_skipped_at_the_rate_and_only_in_training() -> None:
    model = build(layer_dropout=0.4)
    torch.manual_seed(1)
    assert count_layers(model, 5) == [5] * 4
    calls = count_layers(build(layer_dropout=0.4).train(), 400)
    assert [count / 400 for count in calls] == pytest.approx([0.6] * 4, abs=0.08)
    assert len(set(calls)) > 1, "each layer for itself"


def test_layer_dropout_of_zero_draws_nothing() -> None:
    model = build().train()
    state = torch.get_rng_state()
    model(framed([[5, 6]]), framed([[7]], start=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_skipped_layer_passes_on_what_it_was_given_and_learns_nothing(norm: str) -> None:
    """At a rate next to 1 all layers are skipped: the gradient of each is zero, and embeddings still learn."""
    update = Update(rate=0.1, layer_dropout=0.999999, norm=norm)
    before = {name: weight.detach().clone() for name, weight in update.model.named_parameters()}
    assert update([batch(ROWS)]).applied
    for name, weight in update.model.named_parameters():
        if name.startswith(("encoder.", "decoder.")):
            assert torch.equal(weight, before[name]), name
            assert not bool(weight.grad.any()), name  # type: ignore[union-attr]
        elif "embedding" in name:
            assert not torch.equal(weight, before[name]), name


def test_randomness_depends_on_the_step_alone() -> None:
    settings = dataclasses.replace(SETTINGS, r_drop=1.0, word_dropout=0.2)
    losses = []
    for step in (1, 1, 2):
        torch.manual_seed(len(losses))
        update = Update(layer_dropout=0.3, dropout=0.1)
        losses.append(update([batch(ROWS)], step, settings).loss)
    assert losses[0] == losses[1] != losses[2]


def test_layer_dropout_and_compile_exclude_each_other(tiny_corpus: TinyCorpus) -> None:
    with pytest.raises(ValueError, match=r"model\.layer_dropout skips layers by chance"):
        tiny_corpus.recipe(model={"layer_dropout": 0.1}, training={"compile": True})
