"""What the decoder remembers between two steps of decoding.

Shapes: B sentences, K rows a sentence, N = B * K rows, T steps so far, S source length, H heads, E head width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class LayerCache:
    """Keys and values of one layer's self-attention, one column a step."""

    keys_NHTE: Tensor | None = None
    values_NHTE: Tensor | None = None

    def append(self, k_NH1E: Tensor, v_NH1E: Tensor) -> tuple[Tensor, Tensor]:
        """Add this step's column (mutates the cache); returns all keys and values so far."""
        if self.keys_NHTE is None or self.values_NHTE is None:
            self.keys_NHTE, self.values_NHTE = k_NH1E, v_NH1E
        else:
            self.keys_NHTE = torch.cat((self.keys_NHTE, k_NH1E), dim=2)
            self.values_NHTE = torch.cat((self.values_NHTE, v_NH1E), dim=2)
        return self.keys_NHTE, self.values_NHTE

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order."""
        if self.keys_NHTE is not None and self.values_NHTE is not None:
            self.keys_NHTE = self.keys_NHTE.index_select(0, rows_N)
            self.values_NHTE = self.values_NHTE.index_select(0, rows_N)


@dataclass(slots=True)
class DecoderState:
    """Everything that a step reads: caches a layer, cross-attention a sentence, the source mask and the length.

    Cross keys and values are kept once a sentence and serve all its `per_source` rows.
    """

    per_source: int
    cross: list[tuple[Tensor, Tensor]]
    mask_B11S: Tensor
    caches: list[LayerCache]
    record_attention: bool = False
    length: int = 0
    attention_NS: Tensor | None = field(default=None)

    def select(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order (mutates the state).

        Each group of `per_source` rows must come from one sentence: sentences may be dropped or moved whole, rows
        within a sentence repeated or permuted.
        """
        for cache in self.caches:
            cache.select(rows_N)
        sentences = rows_N[:: self.per_source] // self.per_source
        before = self.mask_B11S.shape[0]
        if sentences.shape[0] != before or not torch.equal(sentences, torch.arange(before, device=rows_N.device)):
            self.cross = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.cross]
            self.mask_B11S = self.mask_B11S.index_select(0, sentences)
