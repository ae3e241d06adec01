"""Training on real tokens alone: sentences without padding, one after the other, those of equal length side by side.

    source_BS = a a a 0      rows_PD of  f f f f b b b a a a d d d ...
                b b b 0
                f f f f      groups: 1 sentence of 4, 3 of 3, ...

A group of n sentences of length L is a piece of n * L rows, which attention reads as n x L without moving anything.

Shapes: B sentences, S source length, T target length, P real tokens of one side together, W any width.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mtkit.ids import PAD


@dataclass(frozen=True, slots=True)
class Group:
    """`sentences` neighbours, each with so many queries and so many keys."""

    sentences: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class Packing:
    """One side of a batch: `places_P`, where each token stands in the padded rows laid end to end, and the groups."""

    places_P: Tensor
    groups: tuple[Group, ...]

    def pack(self, x_BTW: Tensor) -> Tensor:
        """The rows_PW of the real tokens, one after the other."""
        return x_BTW.flatten(0, 1).index_select(0, self.places_P)


@dataclass(frozen=True, slots=True)
class Packings:
    """Both sides. The target side has an order of its own, by target and then by source length.

    `memory_P` are the source side's rows in the order of the target side's sentences, which `cross` groups by both
    lengths.
    """

    source: Packing
    target: Packing
    memory_P: Tensor
    cross: tuple[Group, ...]

    @classmethod
    def of(cls, source_BS: Tensor, target_BT: Tensor) -> Self:
        """The packings of a batch with padding on the right; on a GPU this waits for the device once."""
        device = source_BS.device
        source_B, target_B = torch.stack([(ids != PAD).sum(1) for ids in (source_BS, target_BT)]).cpu().numpy()
        by_source, by_both = np.argsort(source_B, kind="stable"), np.lexsort((source_B, target_B))
        starts_B = np.empty(len(source_B), dtype=np.int64)
        starts_B[by_source] = np.cumsum(source_B[by_source]) - source_B[by_source]
        pieces = (
            (by_source * source_BS.shape[1], source_B[by_source]),
            (by_both * target_BT.shape[1], target_B[by_both]),
            (starts_B[by_both], source_B[by_both]),
        )
        source_P, target_P, memory_P = (torch.from_numpy(_runs(*piece)).to(device) for piece in pieces)
        return cls(
            source=Packing(source_P, _groups(source_B[by_source], source_B[by_source])),
            target=Packing(target_P, _groups(target_B[by_both], target_B[by_both])),
            memory_P=memory_P,
            cross=_groups(target_B[by_both], source_B[by_both]),
        )


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whole numbers from each start on, as many as its length.

    >>> _runs(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])


def _groups(queries_B: np.ndarray, keys_B: np.ndarray) -> tuple[Group, ...]:
    """Neighbours with equally many queries and equally many keys."""
    shapes = groupby(zip(queries_B.tolist(), keys_B.tolist(), strict=True))
    return tuple(Group(len(list(members)), *shape) for shape, members in shapes)
