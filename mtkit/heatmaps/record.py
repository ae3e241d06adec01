"""Pairs of sentences in, what the model looked at out: tokenizes, translates where there is no target, and records.

Shapes: B sentences, S source length, T target length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch

from mtkit.checkpoint import load_model
from mtkit.engine import Batch, ModelEngine, padded
from mtkit.errors import DataError, ModelError
from mtkit.heatmaps.maps import AttentionMaps
from mtkit.ids import BOS, EOS
from mtkit.model.recording import attention_weights
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device
from mtkit.text.tokenizer import Tokenizers

MOST_TOKENS = 400
"""Of a side, its end included: all weights of a pair exist at once, and are many."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorder:
    """A model with its recipe and tokenizers; `model` is on `device`, in evaluation mode."""

    model: Transformer
    recipe: Recipe
    tokenizers: Tokenizers
    device: torch.device

    @classmethod
    def load(cls, folder: str | PathLike[str], device: str = "auto") -> "Recorder":
        """The recorder of a model folder or checkpoint. Raises ModelError or UsageError."""
        target = resolve_device(device)
        return cls(*load_model(Path(folder), target), target)

    def limit(self) -> int:
        """The most tokens of a side, its end included."""
        section = self.recipe.model
        return min(MOST_TOKENS, section.max_positions) if section.positions == "learned" else MOST_TOKENS

    def record(
        self, source: str, target: str | None = None, tags: Sequence[str] = (), name: str = "the source"
    ) -> AttentionMaps | None:
        """What the model looked at; without a `target` while it translated by its recipe's search. None for blank text.

        `tags` are user-defined symbols before the source; `name` is what to call the pair in errors.
        Raises DataError when a side is too long, ModelError for an unknown tag or a model whose weights are no numbers.
        """
        source_ids = self.tokenizers.source.encode(source)
        if not source_ids:
            return None
        source_ids = [*map(self.tokenizers.source.symbol_id, tags), *source_ids]
        self._refuse_long(name, "source", source_ids)
        if target is None:
            target_ids = self._translate(source_ids)
        else:
            target_ids = self.tokenizers.target.encode(target)
        self._refuse_long(name, "target", target_ids)
        found = attention_weights(
            self.model,
            padded([[*source_ids, EOS]]).to(self.device),
            torch.tensor([[BOS, *target_ids]], device=self.device),
        )
        kinds = {"encoder": found.encoder_BHSS, "decoder": found.decoder_BHTT, "cross": found.cross_BHTS}
        weights = {kind: torch.cat(layers).float().cpu() for kind, layers in kinds.items()}
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise ModelError(
                "the model's attention is not made of numbers",
                "its weights are damaged, as after training with too high a learning rate",
            )
        return AttentionMaps(
            source=source,
            target=self.tokenizers.target.decode(target_ids) if target is None else target,
            source_pieces=self.tokenizers.source.pieces(source_ids),
            target_pieces=self.tokenizers.target.pieces(target_ids),
            tags=len(tags),
            own=target is None,
            weights={kind: tensor.numpy() for kind, tensor in weights.items()},  # type: ignore[misc]
        )

    def _translate(self, source_ids: list[int]) -> list[int]:
        engine = ModelEngine(self.model, self.device)
        batch = Batch(rows=[[*source_ids, EOS]], keys=[1], prefixes=None)
        ((_, (hypotheses,)),) = engine.search([batch], self.recipe.search, attention=False)
        return hypotheses[0].ids

    def _refuse_long(self, name: str, side: str, ids: Sequence[int]) -> None:
        limit = self.limit()
        if len(ids) + 1 > limit:
            raise DataError(
                f"{name} has {len(ids)} {side} tokens, and at most {limit - 1} can be shown", "shorten it, or split it"
            )
