"""The one entrance to search: source ids to hypotheses.

Shapes: B sentences, S source length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mtkit.search.beam import beam
from mtkit.search.greedy import greedy
from mtkit.search.protocol import Hypothesis, Prefixes, SearchModel
from mtkit.search.rules import Constraints
from mtkit.search.sampling import sampling
from mtkit.sections.search import Beam, Greedy, Sampling


@torch.inference_mode()
def search(
    model: SearchModel,
    source_BS: Tensor,
    config: Greedy | Beam | Sampling,
    *,
    line_keys: Sequence[int] | None = None,
    prefixes: Prefixes | None = None,
    attention: bool = False,
    scores: bool = True,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first: one (greedy), n_best (beam) or all samples (sampling).

    `source_BS` is padded with PAD on the right, each row ends with EOS before the padding. `line_keys` key the noise of
    sampling, one integer a sentence; by default the sentence's place in the batch. `prefixes` are token ids that the
    hypotheses of each sentence must begin with. `attention` asks for the attention of every hypothesis. Without
    `scores` greedy search is quicker, and leaves them NaN.

    A hypothesis does not depend on the other sentences of the batch, as far as the model's arithmetic does not. Beam
    returns fewer than n_best only where the rules allow no more. Raises UsageError for a prefix longer than
    rules.max_length, ModelError for a model whose probabilities are not numbers.
    """
    if len(source_BS) == 0:
        return []
    match config:
        case Greedy():
            constraints = Constraints(config.rules, source_BS, 1, prefixes)
            return greedy(model, source_BS, constraints, attention, scores)
        case Beam():
            constraints = Constraints(config.rules, source_BS, config.beam_size, prefixes)
            return beam(model, source_BS, config, constraints, attention)
        case Sampling():
            constraints = Constraints(config.rules, source_BS, config.samples, prefixes)
            keys = range(len(source_BS)) if line_keys is None else line_keys
            return sampling(model, source_BS, config, constraints, keys, attention)
