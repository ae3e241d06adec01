"""Models for tests of translation: one that says its source again, so that what is dropped, merged or shuffled shows at
once, and an untrained Transformer, on which near-ties are rare and translations run to the limit.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from conftest import TinyCorpus
from torch import Tensor

from mtkit.checkpoint import save_model, weights_of
from mtkit.engine import ModelEngine
from mtkit.ids import BOS, EOS
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.sections.data import TokenizerSection
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

CERTAINTY = 12.0
"""The logit of the next source token; all others are 0."""


@dataclass
class CopyState:
    """The sources of all rows and how far each one is; a row at its end stays on EOS."""

    source_NS: Tensor
    step: int = 0
    attention: bool = False
    attention_NS: Tensor | None = None

    def select(self, rows_N: Tensor) -> None:
        self.source_NS = self.source_NS[rows_N]


@dataclass
class CopyModel:
    """Copies its source, token for token. `shapes` notes the source tensors it was given; `fed` counts steps."""

    vocab_size: int
    shapes: list[tuple[int, int]] = field(default_factory=list)
    sources: list[list[int]] = field(default_factory=list)

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> CopyState:
        self.shapes.append((source_BS.shape[0], source_BS.shape[1]))
        self.sources += [[token for token in row if token != 0] for row in source_BS.tolist()]
        return CopyState(source_BS.repeat_interleave(per_source, 0), attention=attention)

    def step(self, ids_N: Tensor, state: CopyState) -> Tensor:
        assert state.step > 0 or bool((ids_N == BOS).all())
        place = min(state.step, state.source_NS.shape[1] - 1)
        next_N = state.source_NS[:, place]
        next_N = torch.where(next_N == 0, EOS, next_N)
        state.step += 1
        if state.attention:
            state.attention_NS = torch.nn.functional.one_hot(
                torch.full_like(next_N, place), state.source_NS.shape[1]
            ).float()
        return torch.nn.functional.one_hot(next_N, self.vocab_size) * CERTAINTY


def copying_recipe(**search: object) -> Recipe:
    """A recipe with this search section; nothing else in it matters here."""
    return Recipe.model_validate(
        {
            "languages": {"source": "en", "target": "en"},
            "data": {"train": [{"name": "none", "source": "a", "target": "b"}]},
            "search": search or {"method": "greedy"},
        }
    )


def copying_translator(tokenizers: Tokenizers, **search: object) -> Translator:
    """A translator whose translations are its lines, normalised."""
    return Translator(ModelEngine(CopyModel(tokenizers.target.size)), copying_recipe(**search), tokenizers)


BYTES = TokenizerSection(vocab_size=400, byte_fallback=True)
"""A tokenizer to which nothing is unknown, so that any text comes back as it is but for white space."""


MODEL = {"d_model": 32, "heads": 4, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 2}
RULES = {"max_length_ratio": 1.0, "max_length_offset": 3}


def save_untrained(folder: Path, corpus: TinyCorpus, tokenizers: Tokenizers, seed: int, **sections: object) -> Path:
    """A model folder with random weights."""
    recipe = corpus.recipe(**{"model": MODEL, "search": {"method": "beam", "rules": RULES}, **sections})
    torch.manual_seed(seed)
    model = Transformer(recipe.model, tokenizers.source.size, tokenizers.target.size)
    save_model(folder, weights_of(model), recipe, tokenizers, {})
    return folder
