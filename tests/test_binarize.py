"""From corpora to shards."""

from mtkit.data.binarize import binarize
from mtkit.data.report import Report
from mtkit.data.shards import find_shards, open_shard


def test_shards_hold_the_encoded_corpus(tiny_corpus, tiny_tokenizers, tmp_path):
    recipe = tiny_corpus.recipe()
    report = binarize(recipe, tiny_tokenizers, tmp_path / "shards", workers=1)
    (path,) = find_shards(tmp_path / "shards" / "train", "tiny")
    shard = open_shard(path)
    shard.verify()
    assert len(shard) == 600 == report.corpora[0].kept
    for index in range(600):
        assert shard.source(index).tolist() == tiny_tokenizers.source.encode(tiny_corpus.source[index])
        assert shard.target(index).tolist() == tiny_tokenizers.target.encode(tiny_corpus.target[index])
    assert shard.line_numbers.tolist() == list(range(1, 601))
    assert Report.load(tmp_path / "shards") == report
