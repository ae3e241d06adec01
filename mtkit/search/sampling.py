"""Ancestral sampling, truncated in the order temperature, top_k, top_p, min_p.

The noise of a token is a hash of (seed, line key, sample number, step), so a line's samples depend on nothing else: not
on the batch, its size, or the order of lines. One uniform number draws a token by inverting the distribution function.

Shapes: N rows = sentences * samples, V vocabulary, M tokens still possible, C chunks, W their width.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mtkit.search.greedy import Run
from mtkit.search.protocol import Hypothesis, SearchModel
from mtkit.search.rank import top
from mtkit.search.rules import Constraints, real_type
from mtkit.sections.search import Sampling

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of SplitMix64 (Steele, Lea and Flood 2014)
_BLOCK = 64  # steps whose noise is made at once
_CHUNK = 64
_NUCLEUS = 64  # the likeliest tokens among which a nucleus is looked for first
_COLDEST = 1e-30  # a lower temperature would be 0 in float32


def sampling(
    model: SearchModel,
    source_BS: Tensor,
    config: Sampling,
    constraints: Constraints,
    line_keys: Sequence[int],
    attention: bool,
) -> list[list[Hypothesis]]:
    """config.samples hypotheses a sentence, the likeliest first; their score is log P after the repetition penalty."""
    keys_N = row_keys(config.seed, line_keys, config.samples).to(source_BS.device)
    run = Run.begin(model, source_BS, config.samples, constraints, _Sampler(config, keys_N), attention)
    run.go()
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in run.read()]


class _Sampler:
    """Draws the next token of each row. Keeps the rows' keys and a block of uniform numbers."""

    def __init__(self, config: Sampling, keys_N: Tensor) -> None:
        self._config = config
        self._keys_N = keys_N
        self._uniform_NT = torch.empty(len(keys_N), 0)

    def __call__(self, search_NV: Tensor, step: int) -> Tensor:
        """See greedy.Chooser."""
        if step % _BLOCK == 0:
            self._uniform_NT = uniform(self._keys_N, step, _BLOCK)
        return draw(search_NV, self._config, self._uniform_NT[:, step % _BLOCK])

    def select(self, rows_N: Tensor) -> None:
        """See greedy.Chooser."""
        self._keys_N, self._uniform_NT = self._keys_N[rows_N], self._uniform_NT[rows_N]


def draw(search_NV: Tensor, config: Sampling, uniform_N: Tensor) -> Tensor:
    """One id for each row, from the log-probabilities (-inf: forbidden) and a number in [0, 1).

    Each truncation sees what the one before it left, renormalised. Among equally likely tokens the lower ids stay.
    """
    # Relative to the likeliest: weights are at most 1, one of them is 1, and no temperature makes inf or nan.
    heat_NV = search_NV - search_NV.amax(1, keepdim=True)
    if config.temperature != 1:
        heat_NV.div_(max(config.temperature, _COLDEST))
    if config.top_k > 0:
        heat_NM, ids_NM = top(heat_NV, config.top_k)
        weights_NM = heat_NM.exp().to(real_type(heat_NM.device))
        if config.top_p < 1:
            weights_NM = _nucleus(weights_NM, weights_NM.sum(1), config.top_p)
    elif config.top_p < 1:
        weights_NM, ids_NM = _find_nucleus(heat_NV, config.top_p)
    else:
        weights_NV = heat_NV.exp_()
        if config.min_p > 0:
            weights_NV.masked_fill_(weights_NV < config.min_p, 0.0)
        return _draw_all(weights_NV, uniform_N)
    weights_NM = weights_NM.masked_fill(weights_NM < config.min_p, 0.0)
    place_N1, _ = invert(weights_NM, uniform_N)
    return ids_NM.gather(1, place_N1).squeeze(1)


def invert(weights_NM: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """The place_N1 where the running sum of the weights passes that share of their total, and how far into its weight.

    The weight at that place is not 0; the second result, a number in [0, 1), is again uniform and can draw inside it.
    """
    sums_NM = weights_NM.cumsum(1)
    goal_N1 = uniform_N[:, None] * sums_NM[:, -1:]
    # Only sums that are not numbers put the goal beyond the last place: rows that have ended may have nothing left to
    # choose; where another row has not, the search reports it at its end.
    place_N1 = torch.searchsorted(sums_NM, goal_N1, right=True).clamp_(max=weights_NM.size(1) - 1)
    weight_N1 = weights_NM.gather(1, place_N1)
    inside_N1 = 1.0 - (sums_NM.gather(1, place_N1) - goal_N1) / weight_N1
    return place_N1, inside_N1.squeeze(1).clamp(0.0, 1.0 - torch.finfo(inside_N1.dtype).eps)


def _draw_all(weights_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """A token by its weight: first a chunk of neighbours, then one of them, which spares the running sum over V."""
    missing = -weights_NV.size(1) % _CHUNK
    padded_NV = F.pad(weights_NV, (0, missing)) if missing else weights_NV
    weights_NCW = padded_NV.unflatten(1, (-1, _CHUNK))
    chunk_N1, inside_N = invert(weights_NCW.sum(2, dtype=uniform_N.dtype), uniform_N)
    neighbours_NW = weights_NCW.gather(1, chunk_N1[:, :, None].expand(-1, -1, _CHUNK)).squeeze(1)
    place_N1, _ = invert(neighbours_NW.to(uniform_N.dtype), inside_N)
    return (chunk_N1 * _CHUNK + place_N1).squeeze(1).clamp_(max=weights_NV.size(1) - 1)


def _nucleus(weights_NM: Tensor, total_N: Tensor, top_p: float) -> Tensor:
    """The weights, highest first, with 0 after the first ones that reach top_p of the total (Holtzman et al. 2020)."""
    before_NM = weights_NM.cumsum(1) - weights_NM
    return weights_NM.masked_fill(before_NM >= top_p * total_N[:, None], 0.0)


def _find_nucleus(heat_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Weights and ids of the nucleus: among the likeliest few tokens where they hold enough mass, else among all."""
    dtype = real_type(heat_NV.device)
    total_N = heat_NV.exp().sum(1, dtype=dtype)
    for count in (_NUCLEUS, 16 * _NUCLEUS, heat_NV.size(1)):
        heat_NM, ids_NM = top(heat_NV, count)
        weights_NM = heat_NM.exp().to(dtype)
        if heat_NM.size(1) == heat_NV.size(1) or bool((weights_NM.sum(1) > top_p * total_N).all()):
            break
    return _nucleus(weights_NM, total_N, top_p), ids_NM


def row_keys(seed: int, line_keys: Sequence[int], samples: int) -> Tensor:
    """One 64-bit key for each row: a hash of the seed, its line's key and its number among the line's samples."""
    lines_B1 = torch.tensor([_signed(key) for key in line_keys], dtype=torch.long)[:, None]
    numbers_K = torch.arange(samples)
    # One after the other, never hashed alike and then added: seed 1 of line 2 is not seed 2 of line 1.
    return _mix(_mix(_mix(torch.tensor([_signed(seed)]) + _signed(_GOLDEN)) + lines_B1) + numbers_K).flatten()


def uniform(keys_N: Tensor, start: int, count: int) -> Tensor:
    """Numbers in [0, 1) for the steps from `start` on, (N, count): SplitMix64 seeded with each key."""
    steps_T = torch.arange(start + 1, start + count + 1, device=keys_N.device) * _signed(_GOLDEN)
    dtype = real_type(keys_N.device)
    bits = 53 if dtype == torch.float64 else 24
    return _shift(_mix(keys_N[:, None] + steps_T), 64 - bits).to(dtype) * 2.0**-bits


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The low 64 bits as torch's int64 sees them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
