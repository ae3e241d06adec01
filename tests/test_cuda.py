"""A GPU computes what the CPU computes. Skipped where there is none."""

import dataclasses

import pytest
import torch
from test_step import ROWS, SETTINGS, batch
from torch_model import build, framed

from mtkit.ids import BOS
from mtkit.sections.training import Optimizer
from mtkit.training.optimizer import make_optimizer, set_rate
from mtkit.training.step import train_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICES = ("cpu", "cuda")
OPTIONS = {"positions": "rotary", "norm": "pre"}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_decoding_on_a_gpu_equals_the_cpu(positions: str) -> None:
    sources = framed([source for source, _ in ROWS])
    results = []
    for device in DEVICES:
        model = build(positions=positions).to(device)
        with torch.inference_mode():
            state = model.start(sources.to(device), 2, attention=True)
            steps = []
            for token in (BOS, 7, 9, 11):
                steps.append(model.step(torch.full((16,), token, device=device), state))
                state.select(torch.tensor([3, 2, *range(4, 16), 1, 0], device=device))
            results.append([torch.stack(steps).cpu(), state.attention_NS.cpu()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_an_update_on_a_gpu_equals_the_cpu(dtype: torch.dtype | None) -> None:
    """In fp32 to 1e-4; with low precision on the GPU, the loss to 1 % and the gradient to a cosine of 0.99."""
    losses, gradients, weights = [], [], []
    for device in DEVICES:
        model = build(**OPTIONS).to(device).train()
        optimizer = make_optimizer(Optimizer(), model.parameters(), torch.device(device))
        set_rate(optimizer, 1e-3)
        used = dtype if device == "cuda" else None
        scaler = torch.amp.GradScaler(device, enabled=used == torch.float16)
        settings = dataclasses.replace(SETTINGS, clip_norm=1.0, dtype=used)
        report = train_step(model, model, optimizer, scaler, [batch(ROWS[:5]), batch(ROWS[5:])], 1, settings)
        assert report.applied
        losses.append(report.loss)
        gradients.append(torch.cat([weight.grad.flatten().cpu() for weight in model.parameters()]))
        weights.append([weight.detach().cpu() for weight in model.parameters()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4 if dtype is None else 0.01)
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.99
    if dtype is None:
        torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-4)
        # Adam's first update moves a weight by the rate whatever its gradient: where that is noise, so is the sign.
        moved = gradients[0].abs() > 1e-4
        one, other = (torch.cat([weight.flatten() for weight in part]) for part in weights)
        torch.testing.assert_close(one[moved], other[moved], rtol=0, atol=1e-4)


def test_dropout_on_a_gpu_depends_on_the_step() -> None:
    model = build(dropout=0.3).to("cuda").train()
    optimizer = make_optimizer(Optimizer(), model.parameters(), torch.device("cuda"))
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    losses = [train_step(model, model, optimizer, scaler, [batch(ROWS)], step, SETTINGS).loss for step in (1, 2, 1)]
    assert losses[0] == losses[2]
    assert losses[0] != losses[1]
