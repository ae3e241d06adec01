"""The four special ids, the same in every tokenizer, shard and model."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
