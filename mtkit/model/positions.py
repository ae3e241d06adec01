"""Position encodings: each is one subclass with two hooks, `embed` (absolute) and `rotate` (queries and keys).

Shapes: B sentences, T positions, D d_model, H heads, E head width.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from mtkit.errors import ModelError
from mtkit.sections.model import Model


class Positions(nn.Module):
    """No positions at all; the base of the others."""

    def embed(self, x_BTD: Tensor, start: int) -> Tensor:
        """The embeddings with what this encoding adds to them; the first column stands at position `start`."""
        return x_BTD

    def rotate(self, x_BHTE: Tensor, start: int) -> Tensor:
        """Queries or keys of self-attention, turned by their position where the encoding is relative."""
        return x_BHTE

    def embed_each(self, x_ND: Tensor, places_N: Tensor) -> Tensor:
        """As `embed`, one embedding a row, each with a position of its own."""
        return x_ND

    def rotate_each(self, x_NHE: Tensor, places_N: Tensor) -> Tensor:
        """As `rotate`, one query or key a row, each with a position of its own."""
        return x_NHE


# Tables outlive the call that makes them: one made while translating, in inference mode, must serve training too.
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Table_TD: sin(t / 10000^(2i/D)) in even, cos in odd columns (Vaswani et al. 2017, section 3.5)."""
    angles = _angles(length, width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float().to(device)


def _angles(length: int, width: int) -> Tensor:
    """Angles_Ti = t / 10000^(2i/width) for i below width / 2, in float64 on the CPU, as not every device has it."""
    steps = torch.arange(length, dtype=torch.float64, device="cpu")
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)
    return torch.outer(steps, rates)


def _round_up(length: int) -> int:
    """Table sizes are powers of two, so that few distinct tables are ever made.

    By comparisons alone: a compiled model then serves all lengths up to the size, where the number of bits would have
    it compiled anew for every length.
    """
    size = 64
    while size < length:
        size *= 2
    return size


class Sinusoidal(Positions):
    """Fixed sine waves added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    def embed(self, x_BTD: Tensor, start: int) -> Tensor:
        length = x_BTD.shape[1]
        table_TD = sinusoids(_round_up(start + length), x_BTD.shape[2], x_BTD.device)
        return x_BTD + table_TD[start : start + length]

    def embed_each(self, x_ND: Tensor, places_N: Tensor) -> Tensor:
        table_TD = sinusoids(_round_up(int(places_N.max()) + 1), x_ND.shape[1], x_ND.device)
        return x_ND + table_TD[places_N]


class Learned(Positions):
    """A trained vector for each position up to a maximum (Gehring et al. 2017); ModelError beyond it."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_positions, d_model)

    def embed(self, x_BTD: Tensor, start: int) -> Tensor:
        length = x_BTD.shape[1]
        self._refuse(start + length)
        return x_BTD + self.table.weight[start : start + length]

    def embed_each(self, x_ND: Tensor, places_N: Tensor) -> Tensor:
        self._refuse(int(places_N.max()) + 1)
        return x_ND + self.table.weight[places_N]

    def _refuse(self, length: int) -> None:
        most = self.table.num_embeddings
        if length > most:
            raise ModelError(
                f"a sentence of {length} tokens, EOS included, exceeds the {most} positions of this model",
                "shorten it; or train with a larger model.max_positions, or with other model.positions than learned",
            )


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def rotations(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos_TE and sin_TE of the rotary angles, each pair (i, i + E/2) sharing one (Su et al. 2021, equation 34)."""
    angles = _angles(length, width)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos().float().to(device), doubled.sin().float().to(device)


class Rotary(Positions):
    """Queries and keys turned by their position, so that scores depend on distance (Su et al. 2021)."""

    def rotate(self, x_BHTE: Tensor, start: int) -> Tensor:
        length, width = x_BHTE.shape[2], x_BHTE.shape[3]
        cos, sin = rotations(_round_up(start + length), width, x_BHTE.device)
        return _turned(x_BHTE, cos[start : start + length], sin[start : start + length])

    def rotate_each(self, x_NHE: Tensor, places_N: Tensor) -> Tensor:
        cos, sin = rotations(_round_up(int(places_N.max()) + 1), x_NHE.shape[2], x_NHE.device)
        return _turned(x_NHE, cos[places_N][:, None], sin[places_N][:, None])


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def make_positions(section: Model) -> Positions:
    """The encoding that the recipe names."""
    match section.positions:
        case "sinusoidal":
            return Sinusoidal()
        case "learned":
            return Learned(section.max_positions, section.d_model)
        case "rotary":
            return Rotary()
        case "none":
            return Positions()
