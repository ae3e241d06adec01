"""Tiny models that were trained for a second or two on the invented corpus: what they say ends, and is hardly a tie."""

from pathlib import Path
from typing import Any

import torch
from conftest import TinyCorpus
from test_step import SETTINGS, batch

from mtkit.checkpoint import build_model, save_model, weights_of
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.step import batch_loss

MODEL = {"d_model": 32, "heads": 4, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 1}
SEARCH: dict[str, Any] = {"method": "beam", "beam_size": 4, "rules": {"max_length": 40}}


def trained_recipe(corpus: TinyCorpus, **sections: Any) -> Recipe:
    """A recipe of the tiny model, post-norm as MarianMT is; sections are merged over it."""
    model = {**MODEL, **sections.pop("model", {})}
    return corpus.recipe(**{"model": model, "search": SEARCH, **sections})


def save_trained(folder: Path, corpus: TinyCorpus, tokenizers: Tokenizers, updates: int = 120, **sections: Any) -> Path:
    """A model folder after so many updates of 32 pairs."""
    recipe = trained_recipe(corpus, **sections)
    torch.manual_seed(1)
    model = build_model(recipe, tokenizers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * (0.5 if name == "output.bias" else 0.1))
    pairs = list(
        zip(tokenizers.source.encode_batch(corpus.source), tokenizers.target.encode_batch(corpus.target), strict=True)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for step in range(updates):
        rows = batch(pairs[32 * step % len(pairs) :][:32])
        optimizer.zero_grad()
        (batch_loss(model, model.output, rows, SETTINGS)[0] / rows.kept).backward()
        optimizer.step()
    model.eval()
    save_model(folder, weights_of(model), recipe, tokenizers, {"steps": [updates], "scores": []})
    return folder
