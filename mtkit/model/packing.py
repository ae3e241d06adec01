"""Training on real tokens alone: padding is left out of everything but attention.

Shapes: B sentences, T positions, P real ones of all sentences together, W any width.
"""

from typing import NamedTuple, Self

from torch import Tensor


class Packing(NamedTuple):
    """Where the real tokens of one side of a batch stand: `real_BT` is True there, `places_P` counts along its rows.

    real_BT = 1 1 0    places_P = 0 1 3 4 5
              1 1 1
    """

    real_BT: Tensor
    places_P: Tensor

    @classmethod
    def of(cls, real_BT: Tensor) -> Self:
        """The packing for a mask; on a GPU this waits for the device once, to learn P."""
        return cls(real_BT, real_BT.flatten().nonzero().squeeze(1))

    def pack(self, x_BTW: Tensor) -> Tensor:
        """The rows_PW of the real tokens, one after the other."""
        return x_BTW.flatten(0, 1).index_select(0, self.places_P)

    def unpack(self, x_PW: Tensor) -> Tensor:
        """The rows_BTW in their places, with zeros at the padding."""
        # Adding to zeros instead of copying: on a CPU it is the quicker of the two.
        rows = x_PW.new_zeros(self.real_BT.numel(), x_PW.shape[1]).index_add(0, self.places_P, x_PW)
        return rows.view(*self.real_BT.shape, -1)


class Packings(NamedTuple):
    """Those of both sides of a batch."""

    source: Packing
    target: Packing
