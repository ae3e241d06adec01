"""The compiled model trains as the plain one does.

Compiled as training compiles it, but by the backend that traces forward and backward pass and then runs torch's own
kernels: that takes seconds, and needs no C++ compiler. tests/benchmarks/train_paths.py does the same with the real one.
"""

import dataclasses

import pytest
import torch
from test_step import ROWS, SETTINGS, Update, assert_gradients_close, batch

from mtkit.model.attention import compile_without_groups
from mtkit.model.dropout import Dropout
from mtkit.training.step import StepSettings, train_step

SECTION = {"d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
VARIANTS = {
    "plain": SETTINGS,
    "packed and checkpointed": dataclasses.replace(SETTINGS, packing=True, gradient_checkpointing=True),
}


@pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo")
@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_compiled_equals_plain(settings: StepSettings) -> None:
    """Loss and all gradients, over two batches of other shapes, for which it compiles once."""
    plain, compiled = Update(**SECTION), Update(**SECTION)
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(len(graph.graph.nodes))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compile_without_groups(compiled.model)
    model = torch.compile(compiled.model, dynamic=True, backend=backend)
    made: list[int] = []
    for rows in (ROWS[:4], ROWS[4:7]):
        report = plain([batch(rows)], settings=settings)
        again = train_step(model, compiled.model, compiled.optimizer, compiled.scaler, [batch(rows)], 1, settings)
        assert again.loss == pytest.approx(report.loss, rel=1e-6)
        assert_gradients_close(compiled, plain, 1e-6)
        made.append(len(graphs))
    assert made[0] == made[1] > 0


@pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo")
def test_dropout_does_not_cut_the_compiled_graph() -> None:
    """Torch's own dropout takes part: mtkit's draw cut the graph in two wherever it stood."""
    dropout, graphs = Dropout(0.5), []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    model = torch.compile(lambda x: dropout(x + 1) * 3, backend=backend)
    x = torch.ones(1000)
    torch.manual_seed(1)
    first = model(x)
    assert set(first.tolist()) == {0.0, 12.0}
    torch.manual_seed(1)
    assert torch.equal(model(x), first)
    assert len(graphs) == 1
