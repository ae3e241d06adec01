"""How much arithmetic a model takes, counted by formula.

A product of an a x b with a b x c matrix is 2abc floating-point operations. Counted are the matrix products of the
Transformer (Vaswani et al. 2017, sections 3.2 and 3.3) and of the output projection, at real positions only; not
embeddings, softmax, normalisation, activations and padding. The backward pass takes twice the forward pass, as each
product has a gradient for either factor.
"""

import numpy as np

from mtkit.sections.model import Model


def training_flops(section: Model, target_vocab: int, source_lengths: np.ndarray, target_lengths: np.ndarray) -> int:
    """Floating-point operations of forward and backward pass over sentence pairs of these lengths, with EOS.

    >>> one = np.array([1])
    >>> training_flops(Model(d_model=4, heads=1, d_ff=4, encoder_layers=1, decoder_layers=1), 10, one, one)
    2064
    """
    source = source_lengths.astype(np.int64)
    target = target_lengths.astype(np.int64)
    width, inner = section.d_model, section.d_ff
    square, feed_forward = 2 * width * width, 4 * width * inner
    # Self-attention: queries, keys, values, output; scores and their mix, causal ones half of them.
    encoder = (4 * square + feed_forward) * source.sum() + 4 * width * (source * source).sum()
    causal = 4 * width * (target * (target + 1) // 2).sum()
    # Cross-attention: queries and output of the target, keys and values of the source.
    cross = 2 * square * (target.sum() + source.sum()) + 4 * width * (source * target).sum()
    decoder = (4 * square + feed_forward) * target.sum() + causal + cross
    output = 2 * width * target_vocab * target.sum()
    forward = section.encoder_layers * encoder + section.decoder_layers * decoder + output
    return 3 * int(forward)
