"""The prepared Transformer is the Transformer: the same logits, through any selection of rows, and the same text."""

import random
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch_model import build, framed, random_rows

from mtkit.checkpoint import weights_of
from mtkit.ids import BOS
from mtkit.model import one_query
from mtkit.model.kernels import Precision, available
from mtkit.model.prepared import PreparedTransformer
from mtkit.model.transformer import Transformer
from mtkit.search.run import search
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Greedy, Rules, Sampling


def choices(field: str) -> tuple[Any, ...]:
    """The values that the schema allows for a field of the model section."""
    return get_args(Model.model_fields[field].annotation)


ARCHITECTURES: list[dict[str, Any]] = [
    *({"norm": norm, "positions": positions} for norm in choices("norm") for positions in choices("positions")),
    *({"activation": activation} for activation in choices("activation")),
    *({"share_embeddings": share} for share in choices("share_embeddings")),
    {"output_bias": True},
    {"encoder_layers": 3, "decoder_layers": 1, "norm": "pre"},
    {"max_positions": 64, "positions": "learned"},
]


def walk(model: Any, source_BS: Tensor, per_source: int, seed: int, vocabulary: int = 50) -> list[Tensor]:
    """Logits and attention of 20 steps, between which rows are permuted and repeated, and sentences leave or move."""
    draw = random.Random(seed)
    found = []
    with torch.inference_mode():
        state = model.start(source_BS, per_source, attention=True)
        ids_N = torch.full((len(source_BS) * per_source,), BOS)
        for step in range(20):
            found += [model.step(ids_N, state).clone(), state.attention_NS]
            sentences = list(range(len(ids_N) // per_source))
            if step % 5 == 4 and len(sentences) > 1:
                draw.shuffle(sentences)
                sentences = sentences[:-1]
            rows = [
                sentence * per_source + draw.randrange(per_source) for sentence in sentences for _ in range(per_source)
            ]
            state.select(torch.tensor(rows))
            ids_N = torch.tensor([draw.randrange(4, vocabulary) for _ in rows])
    return found


@pytest.mark.parametrize("options", ARCHITECTURES, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("per_source", [1, 3])
def test_equals_the_transformer(options: dict[str, Any], per_source: int) -> None:
    model = build(**options)
    for lengths in ([5, 9, 1, 4, 4], [6, 6, 6]):
        source_BS = framed(random_rows(lengths, 50, 3))
        wanted = walk(model, source_BS, per_source, 7)
        for got, one in zip(walk(PreparedTransformer(model), source_BS, per_source, 7), wanted, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", choices("positions"))
@pytest.mark.parametrize("per_source", [1, 3])
def test_equals_the_transformer_whoever_multiplies_the_keys(
    positions: str, per_source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many keys are left to the BLAS, few are not: all one way here, then all the other, padding included."""
    model = build(positions=positions)
    source_BS = framed(random_rows([5, 9, 1, 4, 4], 50, 3))
    wanted = walk(model, source_BS, per_source, 7)
    for size in (0, 1 << 30):
        monkeypatch.setattr(one_query, "_BLAS_SIZE", size)
        for got, one in zip(walk(PreparedTransformer(model), source_BS, per_source, 7), wanted, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("piece", [1, 12, 20, 49, 50])
def test_equals_the_transformer_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder takes a few sentences at a time, which may be shorter than the longest of all."""
    monkeypatch.setattr("mtkit.model.prepared._PIECE", piece)
    model = build(norm="pre", positions="rotary")
    source_BS = framed(random_rows([4, 9, 1, 2, 8], 50, 3))
    wanted = walk(model, source_BS, 2, 7)
    for got, one in zip(walk(PreparedTransformer(model), source_BS, 2, 7), wanted, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.05), ("int8", 0.06)])
@pytest.mark.parametrize("options", ARCHITECTURES, ids=lambda options: "-".join(map(str, options.values())))
def test_low_precision_stays_near(options: dict[str, Any], precision: Precision, tolerance: float) -> None:
    """Relative to the spread of the logits."""
    model, source_BS = build(**options), framed(random_rows([5, 9, 1, 4, 4], 50, 3))
    wanted, found = walk(model, source_BS, 2, 7), walk(PreparedTransformer(model, precision), source_BS, 2, 7)
    for got, one in zip(found[::2], wanted[::2], strict=True):
        assert (got - one).square().mean().sqrt() < tolerance * one.std()


@pytest.fixture(scope="module")
def untrained() -> Transformer:
    """Near-ties are rare and hypotheses run to their limit in a model that has learnt nothing."""
    return build(vocab=200, seed=4, encoder_layers=1, decoder_layers=1, norm="pre")


SOURCES = sorted(random_rows([1 + number % 9 for number in range(1000)], 200, 5), key=len)
RULES = Rules(max_length=6)


def texts(model: Any, config: Any, size: int, every: int = 1) -> list[list[list[int]]]:
    """The ids of all hypotheses of all 1,000 sentences, or of every so manieth, in batches of `size`."""
    sources = SOURCES[::every]
    batches = (sources[at : at + size] for at in range(0, len(sources), size))
    found = [hypotheses for batch in batches for hypotheses in search(model, framed(batch), config)]
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("beam_size", [1, 4, 5, 8])
def test_the_same_text_for_a_thousand_sentences(untrained: Transformer, beam_size: int) -> None:
    config = Greedy(method="greedy", rules=RULES) if beam_size == 1 else Beam(beam_size=beam_size, rules=RULES)
    wanted, prepared = texts(untrained, config, 64), PreparedTransformer(untrained)
    for size in (7, 64):
        assert texts(prepared, config, size) == wanted
    assert texts(prepared, config, 1, every=10) == wanted[::10]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_sampling_does_not_depend_on_the_batch(untrained: Transformer, precision: Precision) -> None:
    config, prepared = Sampling(method="sampling", samples=2, rules=RULES), PreparedTransformer(untrained, precision)
    source_BS = framed(SOURCES[-12:])
    whole = search(prepared, source_BS, config)
    parts = [search(prepared, source_BS[at : at + 1], config, line_keys=[at])[0] for at in range(12)]
    assert [[h.ids for h in hypotheses] for hypotheses in whole] == [
        [h.ids for h in hypotheses] for hypotheses in parts
    ]


def test_int8_keeps_one_table_for_embedding_and_rows_of_the_output() -> None:
    if not available("integers"):
        pytest.skip("this processor has no quick product of int8 matrices as they lie")
    prepared = PreparedTransformer(build(share_embeddings="all"), "int8", narrowing=True)
    assert prepared.source_embedding is prepared.target_embedding
    assert prepared.output.weight_IO.data_ptr() == prepared.target_embedding.table_VD.data_ptr()


@pytest.mark.parametrize("share", choices("share_embeddings"))
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_weights_may_come_one_by_one(share: str, positions: str) -> None:
    """Each is asked for once, layer by layer, and matrices are given up again; the logits are the same, to a bit."""
    options = {"share_embeddings": share, "positions": positions}
    model, hollow = build(**options, seed=3), build(**options, seed=4)
    asked = []

    class Weights(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            asked.append(name)
            return super().__getitem__(name).clone()

    prepared = PreparedTransformer(hollow, "float32", weights=Weights(weights_of(model)))
    assert sorted(asked) == sorted(weights_of(model))
    layers = [name.split(".")[1] for name in asked if name.startswith("encoder.")]
    assert layers == sorted(layers)
    assert sum(weight.numel() for weight in hollow.decoder.parameters() if weight.dim() > 1) == 0
    source_BS = framed(random_rows([5, 9, 1, 4, 4], 50, 3))
    wanted = walk(PreparedTransformer(model), source_BS, 2, 5)
    assert all(map(torch.equal, walk(prepared, source_BS, 2, 5), wanted))


def test_packed_matrices_are_not_asked_what_they_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asked them for `__torch_function__`, and every map took 12 us longer: a quarter of a line translated alone.

    The caller's own tensors are asked again afterwards.
    """
    asked: list[bool] = []
    enabled = torch._C._is_torch_function_enabled

    def noting(linear: Any) -> Any:
        return lambda x: asked.append(enabled()) or linear(x)

    model = PreparedTransformer(build(norm="pre").eval(), "int8")
    for maps in (model.encoder[0].maps, model.decoder[0].maps, model.decoder[0].cross_maps):
        monkeypatch.setattr(maps, "output", noting(maps.output))
    monkeypatch.setattr(model.decoder[0].cross_maps, "_keys_values", noting(model.decoder[0].cross_maps._keys_values))
    monkeypatch.setattr(model, "output", noting(model.output))
    search(model, framed([[5, 6], [7]]), Greedy(method="greedy", rules=Rules(max_length=4)))
    assert len(asked) > 8
    assert not any(asked)
    assert enabled()
