"""Corpora to shards: check everything, then encode, filter, write, and report."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import numpy as np

from mtkit.data.corpus import Inspection, inspect_corpora, read_pairs
from mtkit.data.duplicates import Repetitions, find_repetitions
from mtkit.data.encode import Encoded, Encoder, cut
from mtkit.data.filters import REASONS
from mtkit.data.progress import follow
from mtkit.data.report import REPORT_FILE, CorpusReport, Dropped, Report, ShardFile
from mtkit.data.shards import VERSION, shard_name, write_shard
from mtkit.data.unfinished import NOTES, Progress, clear_rest, kept, note, working_folder
from mtkit.data.workers import encode_all
from mtkit.errors import DataError
from mtkit.files import atomic_write, sha256_file, write_json
from mtkit.lineage import fingerprint
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)

_SHARD_PAIRS = 2**20
_SHARD_TOKENS = 2**24  # both sides together: at most 64 MB of ids in memory, twice that while they are joined
_WORTH_A_PROCESS = 10_000  # pairs; below, starting a process costs more than it saves


def binarize(recipe: Recipe, tokenizers: Tokenizers, folder: Path, workers: int | None = None) -> Report:
    """Encode the training and validation corpora of a recipe into `folder`, replacing it whole or not at all.

    Makes `train/CORPUS-00000.shard` ..., `valid/...` and `report.json`. Training pairs go through the filters; of
    validation pairs only those with an empty side are left out. `workers` is the number of processes, by default one a
    core; the bytes written do not depend on it. Memory is bounded by the size of a shard, not of the corpora.
    A call that is cut short leaves the shards that it has finished beside `folder`; the next one goes on after them,
    corpus by corpus, where nothing that they depend on has changed (`mtkit.data.unfinished`).
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
    with working_folder(folder) as work:
        jobs = [
            _Job(work, part, corpus, root, encoder, inspection, workers)
            for (part, corpus), encoder, inspection in zip(parts, encoders, inspections, strict=False)
        ]
        _go_on(jobs)
        report = Report(tokenizers.sha256, encoders[0].dtype, tuple(_binarize_corpus(job) for job in jobs))
        write_json(work / REPORT_FILE, report.to_json())
    return report


@dataclass(slots=True)
class _Job:
    """One corpus to be binarized, and how far it has come."""

    folder: Path
    part: str
    corpus: Corpus
    root: Path
    encoder: Encoder
    inspection: Inspection
    workers: int
    progress: Progress = field(default_factory=Progress)
    waiting: list[Encoded] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, object]:
        """What the header of each shard tells of corpus and tokenizer."""
        tokenizers = self.encoder.tokenizers
        return {
            "part": self.part,
            "corpus": self.corpus.name,
            "tags": list(self.corpus.tags),
            "tokenizer_sha256": tokenizers.sha256,
            "source_vocab_size": tokenizers.source.size,
            "target_vocab_size": tokenizers.target.size,
            "source_sha256": self.inspection.source_sha256,
            "target_sha256": self.inspection.target_sha256,
        }

    @property
    def key(self) -> str:
        """A fingerprint of all that the corpus's shards depend on."""
        filters = self.encoder.filters and self.encoder.filters.model_dump(mode="json")
        return fingerprint([VERSION, self.facts, filters, _SHARD_PAIRS, _SHARD_TOKENS])

    @property
    def repetitions(self) -> Path:
        """Where it is noted which lines repeat earlier ones, which depends on the text alone."""
        text = fingerprint([self.inspection.source_sha256, self.inspection.target_sha256])
        return self.folder / NOTES / f"{self.part}-{self.corpus.name}-{text[:16]}.repeated"

    def name(self, number: int) -> str:
        """The path of a shard in the folder."""
        return f"{self.part}/{shard_name(self.corpus.name, number)}"

    def add(self, encoded: Encoded) -> None:
        """Take one more chunk; writes a shard whenever there is enough for one."""
        self.progress.add(encoded)
        self.waiting.append(encoded)
        pairs = sum(len(chunk.line_numbers) for chunk in self.waiting)
        tokens = sum(len(chunk.source_ids) + len(chunk.target_ids) for chunk in self.waiting)
        if pairs >= _SHARD_PAIRS or tokens >= _SHARD_TOKENS:
            self.write()

    def write(self) -> None:
        """Write what is waiting as one shard, if anything is, and a note of it."""
        if not sum(len(chunk.line_numbers) for chunk in self.waiting):
            self.waiting.clear()
            return
        names = ("source_ids", "target_ids", "source_lengths", "target_lengths", "line_numbers")
        arrays = {name: np.concatenate([getattr(chunk, name) for chunk in self.waiting]) for name in names}
        self.waiting.clear()
        number = len(self.progress.shards)
        path = self.folder / self.name(number)
        write_shard(path, **arrays, facts={**self.facts, "number": number})
        self.progress.shards.append(ShardFile(self.name(number), len(arrays["line_numbers"]), sha256_file(path)))
        note(self.folder, self.key, self.progress)


def _go_on(jobs: list[_Job]) -> None:
    """Take over what an earlier call has finished, and delete what else it has left."""
    for job in jobs:
        job.progress = kept(job.folder, job.key, map(job.name, count()))
    shards = [shard for job in jobs for shard in job.progress.shards]
    clear_rest(jobs[0].folder, shards, [job.repetitions for job in jobs])
    for job in jobs:
        (job.folder / job.part).mkdir(exist_ok=True)
    if shards:
        log.info("binarize: going on; %d shards are there already", len(shards))


def _binarize_corpus(job: _Job) -> CorpusReport:
    """Write the shards of one corpus that are not there yet; a DataError when no pair is left."""
    progress, inspection, corpus = job.progress, job.inspection, job.corpus
    for encoded in _encoded(job):
        job.add(encoded)
    job.write()
    if progress.read != inspection.pairs:
        raise DataError(f"corpus {corpus.name}: its files changed while they were read", "run binarize again")
    drops = progress.drops
    dropped = {
        reason: Dropped(drops[reason].count, tuple(drops[reason].lines)) for reason in REASONS if reason in drops
    }
    if not progress.kept:
        reasons = ", ".join(f"{reason} {drop.count:,}" for reason, drop in dropped.items())
        raise DataError(
            f"corpus {corpus.name} ({job.part}): none of its {inspection.pairs:,} pairs is left: {reasons}",
            "check the files and the filters section",
        )
    return CorpusReport(
        part=job.part,
        corpus=corpus.name,
        pairs=inspection.pairs,
        kept=progress.kept,
        dropped=dropped,
        source_tokens=progress.source_tokens,
        target_tokens=progress.target_tokens,
        source_unknown=progress.source_unknown,
        target_unknown=progress.target_unknown,
        source_sha256=inspection.source_sha256,
        target_sha256=inspection.target_sha256,
        shards=tuple(progress.shards),
    )


def _encoded(job: _Job) -> Iterator[Encoded]:
    """The encoded chunks of a corpus that are still to come, in order."""
    total, done = job.inspection.pairs, job.progress.read
    if done == total:
        return
    repeated = _repetitions(job) if job.encoder.filters and job.encoder.filters.drop_duplicates else None
    pairs = follow(read_pairs(job.corpus, job.root), f"{job.part} {job.corpus.name}", total)
    useful = max(1, min(job.workers, (total - done) // _WORTH_A_PROCESS))
    yield from encode_all(cut(islice(pairs, done, None), repeated), job.encoder, useful)


def _repetitions(job: _Job) -> Repetitions:
    """Which lines of the corpus repeat earlier ones; found once, and read back when an earlier call has found it."""
    total = job.inspection.pairs
    if job.repetitions.is_file():
        bits = np.fromfile(job.repetitions, dtype=np.uint8)
        if len(bits) == (total + 7) // 8:
            return Repetitions(bits)
    pairs = follow(read_pairs(job.corpus, job.root), f"duplicates {job.corpus.name}", total)
    found = find_repetitions(pairs, total, job.folder)
    with atomic_write(job.repetitions, "wb") as stream:
        stream.write(found.bits.tobytes())
    return found
