"""A model in int8: a quarter of the size, read by every command, and quantized once and for all."""

from pathlib import Path

import pytest
import torch
from conftest import TinyCorpus
from torch_model import build
from toy_models import save_untrained

from mtkit.checkpoint import load_model, weights_of
from mtkit.cli.quantize import quantize as quantize_command
from mtkit.decoding import stored_precision
from mtkit.errors import UsageError
from mtkit.folders import WEIGHTS_FILE
from mtkit.model.kernels import quantize
from mtkit.quantized import SCALE, quantized_weights, restored_weights
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

CPU = torch.device("cpu")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_matrices_shrink_and_come_back_within_half_a_step(positions: str) -> None:
    weights = weights_of(build(positions=positions, max_positions=64))
    small = quantized_weights(weights)
    restored = restored_weights(small)
    assert restored.keys() == weights.keys()
    for name, weight in weights.items():
        if name + SCALE in small:
            assert small[name].dtype == torch.int8
            assert ((restored[name] - weight).abs() <= small[name + SCALE][:, None] * 0.5001).all()
        else:
            assert torch.equal(restored[name], weight)
    assert sum(name.endswith(SCALE) for name in small) > 10
    assert not any("positions" in name and name.endswith(SCALE) for name in small)


def test_quantizing_again_changes_nothing() -> None:
    small = quantized_weights(weights_of(build()))
    for name, weight in restored_weights(small).items():
        if name + SCALE in small:
            assert torch.equal(quantize(weight)[0], small[name])


def test_other_weights_pass_through() -> None:
    weights = weights_of(build())
    assert all(restored_weights(weights)[name] is weight for name, weight in weights.items())


@pytest.fixture(scope="module")
def folders(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """An untrained model and its quantized copy."""
    home = tmp_path_factory.mktemp("quantized")
    whole = save_untrained(home / "model", tiny_corpus, tiny_tokenizers, 1)
    quantize_command(whole, home / "small")
    return whole, home / "small"


def test_the_folder_is_small_and_decodes_in_int8_by_itself(folders: tuple[Path, Path], tiny_corpus: TinyCorpus) -> None:
    whole, small = folders
    assert (small / WEIGHTS_FILE).stat().st_size < 0.5 * (whole / WEIGHTS_FILE).stat().st_size
    assert stored_precision(whole, CPU) == "float32"
    assert stored_precision(small, CPU) == "int8"
    lines = tiny_corpus.source[:20]
    wanted = Translator.load(whole, "cpu", precision="int8").translate(lines)
    assert Translator.load(small, "cpu").translate(lines) == wanted


def test_its_weights_are_near_the_whole_ones(folders: tuple[Path, Path]) -> None:
    (whole, _, _), (small, _, _) = (load_model(folder, CPU) for folder in folders)
    for (name, weight), other in zip(whole.named_parameters(), small.parameters(), strict=True):
        assert (weight - other).abs().max() <= weight.abs().max() / 200, name


def test_an_existing_folder_is_left_alone(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="exists already"):
        quantize_command(*folders)
