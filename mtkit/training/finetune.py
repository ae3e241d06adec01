"""Starting from another model's weights: new rows for new symbols, and parts that stay as they are.

Shapes: V vocabulary, D d_model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mtkit.checkpoint import load_tensors, weights_of
from mtkit.errors import RecipeError
from mtkit.initial import InitialModel
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.runtime import key_seed
from mtkit.sections.training import frozen_layers

NOISE = 0.1
"""Standard deviation of the noise on a new embedding row, as a share of that of the rows that are there."""

_EMBEDDINGS = ("source_embedding.weight", "target_embedding.weight", "output.weight")
_OUTPUT_BIAS = "output.bias"


def starting_weights(core: Transformer, initial: InitialModel, seed: int) -> dict[str, Tensor]:
    """The initial model's weights by name, its embeddings grown to the vocabularies of `core`.

    A new row is the mean of the old ones, so that a new symbol starts as an average word (Hewitt 2021), plus seeded
    noise of a tenth of their standard deviation in each column, so that new symbols differ. A new output bias is the
    median of the old ones.
    Raises ModelError when the file is damaged.
    """
    weights = load_tensors(initial.weights)
    own = weights_of(core)
    for name in _EMBEDDINGS:
        if name in weights and name in own:
            generator = torch.Generator().manual_seed(key_seed(seed, "new rows", name))
            weights[name] = _grown(weights[name], own[name].shape[0], generator)
    if _OUTPUT_BIAS in own:
        bias_V = weights[_OUTPUT_BIAS]
        more = len(own[_OUTPUT_BIAS]) - len(bias_V)
        weights[_OUTPUT_BIAS] = torch.cat((bias_V, bias_V.median().expand(more)))
    return weights


def _grown(weight_VD: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    new = rows - weight_VD.shape[0]
    if new <= 0:
        return weight_VD
    noise = torch.randn(new, weight_VD.shape[1], generator=generator) * weight_VD.std(0) * NOISE
    return torch.cat((weight_VD, weight_VD.mean(0) + noise))


def freeze(core: Transformer, parts: Sequence[str]) -> None:
    """Take the weights of these parts (as in `training.freeze`) out of training: no gradient, no decay, no update.

    embeddings are those of both sides, the tables of learned positions and, where it is shared, the output matrix;
    encoder and decoder are all layers and the last norm. Mutates the model. Dropout goes on in frozen parts.
    Raises RecipeError when nothing is left to train.
    """
    for part in parts:
        for module in _modules(core, part):
            module.requires_grad_(False)
    if not trained(core):
        raise RecipeError(f"training.freeze: {', '.join(parts)} leave no weight to train", "freeze fewer parts")


def _modules(core: Transformer, part: str) -> list[nn.Module]:
    stack, _, layers = part.partition(".")
    match stack:
        case "embeddings":
            return [core.source_embedding, core.target_embedding, core.source_positions, core.target_positions]
        case "output":
            return [core.output]
        case _:
            stacked, norm = (
                (core.encoder, core.encoder_norm) if stack == "encoder" else (core.decoder, core.decoder_norm)
            )
    if not layers:
        return [stacked, norm]
    first, last = frozen_layers(part)
    return list(stacked[first : last + 1])


def frozen_symbols(recipe: Recipe, initial: InitialModel) -> list[str]:
    """The recipe's symbols that the initial model lacks, where `training.freeze` keeps the run from learning them."""
    if not {"embeddings", "output"} & set(recipe.training.freeze):
        return []
    return [symbol for symbol in recipe.symbols() if symbol not in initial.tokenizers.source.symbols]


def trained(core: nn.Module) -> list[nn.Parameter]:
    """The weights that are trained, in the order of their names."""
    return [weight for weight in core.parameters() if weight.requires_grad]
