"""Corpora to shards: check everything, then encode, filter, write, and report."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtkit.data.corpus import Inspection, inspect_corpora, read_pairs
from mtkit.data.duplicates import find_repetitions
from mtkit.data.encode import Drop, Encoded, Encoder, cut
from mtkit.data.filters import REASONS
from mtkit.data.progress import follow
from mtkit.data.report import REPORT_FILE, CorpusReport, Dropped, Report, ShardFile
from mtkit.data.shards import shard_name, write_shard
from mtkit.data.workers import encode_all
from mtkit.errors import DataError
from mtkit.files import atomic_folder, sha256_file, write_json
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers

_SHARD_PAIRS = 2**20
_SHARD_TOKENS = 2**24  # both sides together: at most 64 MB of ids in memory, twice that while they are joined
_WORTH_A_PROCESS = 10_000  # pairs; below, starting a process costs more than it saves


def binarize(recipe: Recipe, tokenizers: Tokenizers, folder: Path, workers: int | None = None) -> Report:
    """Encode the training and validation corpora of a recipe into `folder`, replacing it whole or not at all.

    Makes `train/CORPUS-00000.shard` ..., `valid/...` and `report.json`. Training pairs go through the filters; of
    validation pairs only those with an empty side are left out. `workers` is the number of processes, by default one a
    core; the bytes written do not depend on it. Memory is bounded by the size of a shard, not of the corpora.
    Raises DataError, before anything is written, when any corpus (test corpora too) is missing, misaligned or not
    UTF-8; and when a corpus has no pair left. ModelError when a corpus tag is not a symbol of the tokenizer.
    """
    root = Path(recipe.data.root)
    workers = workers or os.cpu_count() or 1
    parts = [("train", corpus) for corpus in recipe.data.train] + [("valid", corpus) for corpus in recipe.data.valid]
    encoders = [
        Encoder(
            tokenizers,
            recipe.filters if part == "train" else None,
            tuple(tokenizers.source.symbol_id(tag) for tag in corpus.tags),
        )
        for part, corpus in parts
    ]
    corpora = [*(corpus for _, corpus in parts), *recipe.data.test]
    inspections = inspect_corpora(corpora, root)
    with atomic_folder(folder) as new:
        rows = []
        for (part, corpus), encoder, inspection in zip(parts, encoders, inspections, strict=False):
            (new / part).mkdir(exist_ok=True)
            rows.append(_binarize_corpus(new, part, corpus, root, encoder, inspection, workers))
        report = Report(tokenizers.sha256, encoders[0].dtype, tuple(rows))
        write_json(new / REPORT_FILE, report.to_json())
    return report


@dataclass(slots=True)
class _Writer:
    """Gathers encoded chunks of one corpus and writes a shard whenever there is enough for one."""

    folder: Path
    part: str
    corpus: str
    facts: dict[str, object]
    waiting: list[Encoded] = field(default_factory=list)
    shards: list[ShardFile] = field(default_factory=list)

    def add(self, encoded: Encoded) -> None:
        """Take one more chunk; may write a shard."""
        self.waiting.append(encoded)
        pairs = sum(len(chunk.line_numbers) for chunk in self.waiting)
        tokens = sum(len(chunk.source_ids) + len(chunk.target_ids) for chunk in self.waiting)
        if pairs >= _SHARD_PAIRS or tokens >= _SHARD_TOKENS:
            self.write()

    def write(self) -> None:
        """Write what is waiting as one shard, if anything is."""
        names = ("source_ids", "target_ids", "source_lengths", "target_lengths", "line_numbers")
        arrays = {name: np.concatenate([getattr(chunk, name) for chunk in self.waiting]) for name in names}
        self.waiting.clear()
        if not len(arrays["line_numbers"]):
            return
        name = f"{self.part}/{shard_name(self.corpus, len(self.shards))}"
        write_shard(self.folder / name, **arrays, facts={**self.facts, "number": len(self.shards)})
        self.shards.append(ShardFile(name, len(arrays["line_numbers"]), sha256_file(self.folder / name)))


def _binarize_corpus(
    folder: Path, part: str, corpus: Corpus, root: Path, encoder: Encoder, inspection: Inspection, workers: int
) -> CorpusReport:
    """Write the shards of one corpus; a DataError when no pair is left."""
    facts = {
        "part": part,
        "corpus": corpus.name,
        "tags": list(corpus.tags),
        "tokenizer_sha256": encoder.tokenizers.sha256,
        "source_vocab_size": encoder.tokenizers.source.size,
        "target_vocab_size": encoder.tokenizers.target.size,
        "source_sha256": inspection.source_sha256,
        "target_sha256": inspection.target_sha256,
    }
    writer = _Writer(folder, part, corpus.name, facts)
    totals = dict.fromkeys(("read", "kept", "source_tokens", "target_tokens", "source_unknown", "target_unknown"), 0)
    drops: dict[str, Drop] = {}
    for encoded in _encoded(folder, part, corpus, root, encoder, inspection, workers):
        totals["read"] += encoded.read
        totals["kept"] += len(encoded.line_numbers)
        totals["source_tokens"] += len(encoded.source_ids)
        totals["target_tokens"] += len(encoded.target_ids)
        totals["source_unknown"] += encoded.source_unknown
        totals["target_unknown"] += encoded.target_unknown
        for reason, drop in encoded.dropped.items():
            drops.setdefault(reason, Drop()).merge(drop)
        writer.add(encoded)
    if writer.waiting:
        writer.write()
    if totals["read"] != inspection.pairs:
        raise DataError(f"corpus {corpus.name}: its files changed while they were read", "run binarize again")
    dropped = {
        reason: Dropped(drops[reason].count, tuple(drops[reason].lines)) for reason in REASONS if reason in drops
    }
    if not totals["kept"]:
        reasons = ", ".join(f"{reason} {drop.count:,}" for reason, drop in dropped.items())
        raise DataError(
            f"corpus {corpus.name} ({part}): none of its {inspection.pairs:,} pairs is left: {reasons}",
            "check the files and the filters section",
        )
    totals.pop("read")
    return CorpusReport(
        part=part,
        corpus=corpus.name,
        pairs=inspection.pairs,
        dropped=dropped,
        source_sha256=inspection.source_sha256,
        target_sha256=inspection.target_sha256,
        shards=tuple(writer.shards),
        **totals,
    )


def _encoded(
    folder: Path, part: str, corpus: Corpus, root: Path, encoder: Encoder, inspection: Inspection, workers: int
) -> Iterator[Encoded]:
    """The encoded chunks of a corpus, in order."""
    repeated = None
    if encoder.filters is not None and encoder.filters.drop_duplicates:
        pairs = follow(read_pairs(corpus, root), f"duplicates {corpus.name}", inspection.pairs)
        repeated = find_repetitions(pairs, inspection.pairs, folder)
    pairs = follow(read_pairs(corpus, root), f"{part} {corpus.name}", inspection.pairs)
    useful = max(1, min(workers, inspection.pairs // _WORTH_A_PROCESS))
    yield from encode_all(cut(pairs, repeated), encoder, useful)
