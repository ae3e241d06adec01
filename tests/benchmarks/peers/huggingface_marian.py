"""A plain training loop around Hugging Face's MarianMT model; run by train_peers.py in that peer's own environment.

    python huggingface_marian.py PAIRS.npz '{"d_model": 128, ...}'

Adam, label-smoothed cross-entropy as the library's own trainer computes it, batches of similar lengths on both sides
under the token budget, fused attention. Prints one JSON object: target tokens, EOS included, and seconds of the updates
that count.
"""

import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

PAD, BOS, EOS = 0, 2, 3


def batches(
    pairs: list[tuple[np.ndarray, np.ndarray]], max_tokens: int, chance: np.random.Generator
) -> list[list[int]]:
    """All pairs once, in batches of neighbours by target and source length, in random order."""
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]) // 4, len(pairs[i][0]), len(pairs[i][1])))
    cut: list[list[int]] = [[]]
    longest = 0
    for index in order:
        longest = max(longest, *(len(side) + 1 for side in pairs[index]))
        if cut[-1] and longest * (len(cut[-1]) + 1) > max_tokens:
            cut.append([])
            longest = max(len(side) + 1 for side in pairs[index])
        cut[-1].append(index)
    return [cut[place] for place in chance.permutation(len(cut))]


def padded(rows: list[np.ndarray], fill: int, first: list[int], last: list[int]) -> torch.Tensor:
    """Rows between `first` and `last` as one matrix."""
    whole = [torch.tensor([*first, *row.tolist(), *last]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(whole, batch_first=True, padding_value=fill)


def main() -> None:
    """Train and print the figures."""
    options = json.loads(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(options["threads"])
    stored = np.load(sys.argv[1])
    sides = [
        np.split(stored[f"{side}_ids"].astype(np.int64), stored[f"{side}_ends"][:-1]) for side in ("source", "target")
    ]
    pairs = list(zip(*sides, strict=True))
    config = MarianConfig(
        vocab_size=options["vocabulary"],
        d_model=options["d_model"],
        encoder_layers=options["layers"],
        decoder_layers=options["layers"],
        encoder_attention_heads=options["heads"],
        decoder_attention_heads=options["heads"],
        encoder_ffn_dim=options["d_ff"],
        decoder_ffn_dim=options["d_ff"],
        dropout=0.1,
        attention_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="sdpa",
    )
    model = MarianMTModel(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.98), eps=1e-9)
    chance = np.random.default_rng(1)
    tokens, began, done = 0, 0.0, 0
    while done < options["warmup"] + options["updates"]:
        for batch in batches(pairs, options["max_tokens"], chance):
            if done == options["warmup"]:
                tokens, began = 0, time.perf_counter()
            source = padded([pairs[i][0] for i in batch], PAD, [], [EOS])
            target_in = padded([pairs[i][1] for i in batch], PAD, [BOS], [])
            labels = padded([pairs[i][1] for i in batch], -100, [], [EOS])
            logits = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target_in).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += int((labels != -100).sum())
            done += 1
            if done == options["warmup"] + options["updates"]:
                break
    seconds = time.perf_counter() - began
    print(json.dumps({"target_tokens": tokens, "seconds": seconds, "loss": float(loss)}))


if __name__ == "__main__":
    main()
