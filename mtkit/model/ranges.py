"""Linear maps rewritten so that int8 knows the range of their inputs before it sees them.

Three rewritings, none of which changes what the model computes:

- LayerNorm's scale and shift go into the map behind it, whose input then has mean 0 and variance 1 in every row.
- A value of attention, v = w x + b, comes from such an x: |w x| is |w| times what a direction of x can show, which is
  Gaussian for most. So |b| + c |w| bounds it, and with it every mean of values. Divided by that bound, which the output
  map multiplies in again, all lie within [-1, 1].
- The same for the units of the feed-forward block, ReLU being homogeneous (Nagel et al. 2019, section 4.1): within
  [0, 1] after it.

Needs pre-norm, where nothing but the block itself reads what the norm gives.

Shapes: I inputs, O outputs, D d_model, F d_ff.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from mtkit.model.kernels import LinearMap, Range, Rows, normalised_range, prepare_int8

# How many standard deviations a value, and a unit, may be from its mean. On trained models the most were 5 and 7.
_VALUES, _UNITS = 6.0, 8.0
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Affine:
    """x W^T + b for an x of mean 0 and variance 1, with the scale and shift of the norm that gave it."""

    weight_OI: Tensor
    bias_O: Tensor

    @classmethod
    def after(cls, norm: nn.LayerNorm, weight_OI: Tensor, bias_O: Tensor | None) -> "Affine":
        """The map behind this norm."""
        weight_OI = weight_OI.detach()
        shift_O = weight_OI @ norm.bias.detach()
        return cls(weight_OI * norm.weight.detach(), shift_O if bias_O is None else shift_O + bias_O.detach())

    def prepared(self, rows: Rows, relu: bool = False) -> LinearMap:
        """The map in int8."""
        return prepare_int8(self.weight_OI, self.bias_O, normalised_range(self.weight_OI.shape[1]), relu, rows)

    def reach(self, deviations: float) -> Tensor:
        """How far from 0 each output comes, within so many standard deviations."""
        return deviations * self.weight_OI.norm(dim=1) + self.bias_O.abs() + _TINY

    def divided(self, by_O: Tensor) -> "Affine":
        """The map whose outputs are divided by these numbers."""
        return Affine(self.weight_OI / by_O[:, None], self.bias_O / by_O)


def attention_maps(
    norm: nn.LayerNorm, weight_OD: Tensor, bias_O: Tensor, output: nn.Linear, rows: tuple[Rows, Rows]
) -> tuple[LinearMap, LinearMap]:
    """The map to (queries and) keys and values, the last D of its outputs, behind `norm`; and the output map.

    `rows` are those of the one and of the other.
    """
    inner = Affine.after(norm, weight_OD, bias_O)
    d_model = output.in_features
    reach_O = inner.reach(_VALUES)
    reach_O[:-d_model] = 1  # of queries and keys nothing has to be known
    outer = prepare_int8(output.weight.detach() * reach_O[-d_model:], output.bias, Range(1.0), rows=rows[1])
    return inner.divided(reach_O).prepared(rows[0]), outer


def feed_forward_maps(
    norm: nn.LayerNorm, inner: nn.Linear, outer: nn.Linear, rows: Rows
) -> tuple[LinearMap, LinearMap]:
    """max(0, x W1 + b1) behind `norm`, ReLU included, and the map from there."""
    first = Affine.after(norm, inner.weight, inner.bias)
    reach_F = first.reach(_UNITS)
    second = prepare_int8(outer.weight.detach() * reach_F, outer.bias, Range(1.0, signed=False), rows=rows)
    return first.divided(reach_F).prepared(rows, relu=True), second
