"""Read all corpora of a check once, in several processes, and put together what they hold."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtkit.check.examine import Block, CorpusForm, Examiner
from mtkit.check.facts import CorpusFacts
from mtkit.check.leaks import Leak, LeakFinder
from mtkit.check.reading import blocks, paths_of
from mtkit.check.scripts import expected_scripts
from mtkit.data.progress import bar
from mtkit.data.workers import encode_all
from mtkit.errors import DataError
from mtkit.sections.data import Corpus

_WORTH_A_PROCESS = 4_000_000  # bytes on the disk; below, starting processes costs more than it saves


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gather(
    corpora: Sequence[CorpusFacts],
    languages: tuple[str | None, str | None],
    symbols: Sequence[str] = (),
    workers: int | None = None,
    most_bytes: int | None = None,
) -> list[Leak]:
    """Read corpora and fill in their facts (changes them); returns which held-out lines occur in training.

    Held-out corpora are read first; without any in `corpora` the answer is empty. A corpus that cannot be read gets its
    `error`. `most_bytes` of source are read of each training corpus, by default all.
    """
    order = sorted(range(len(corpora)), key=lambda number: corpora[number].part == "train")
    forms = [_form(facts.corpus, symbols) for facts in corpora]
    examiner = Examiner(forms, *(expected_scripts(language) for language in languages))
    size = sum(
        path.stat().st_size for facts in corpora for path in paths_of(facts.corpus, facts.root) if path.is_file()
    )
    count = 1 if size < _WORTH_A_PROCESS or most_bytes is not None else workers or usable_cores()
    finder: LeakFinder | None = None
    with bar("checking", unit=" lines") as progress:
        for answer in encode_all(_blocks(corpora, order, most_bytes), examiner, count):
            facts = corpora[answer.corpus]
            if facts.part == "train":
                finder = finder or _finder(corpora)
                finder.look(answer)
            facts.add(answer)
            progress.update(len(answer.source.exact))
    for facts in corpora:
        facts.close()
    return (finder or _finder(corpora)).leaks()


def _form(corpus: Corpus, symbols: Sequence[str]) -> CorpusForm:
    if corpus.tsv is None:
        return CorpusForm(symbols=tuple(symbols))
    return CorpusForm(corpus.source_column, corpus.target_column, tuple(symbols))


def _blocks(corpora: Sequence[CorpusFacts], order: Sequence[int], most_bytes: int | None) -> Iterator[Block]:
    """The blocks of all corpora; one that cannot be read ends early, with its error noted."""
    for number in order:
        facts = corpora[number]
        limit = most_bytes if facts.part == "train" else None
        try:
            taken = 0
            for block in blocks(number, facts.corpus, facts.root, limit):
                taken += sum(map(len, block.source))
                yield block
            facts.whole = limit is None or taken < limit
        except DataError as error:
            facts.error = error


def _finder(corpora: Sequence[CorpusFacts]) -> LeakFinder:
    held_out = [facts for facts in corpora if facts.part in ("valid", "test")]
    for facts in held_out:
        facts.close()
    return LeakFinder(held_out)


def corpora_of(parts: Sequence[tuple[str, Sequence[Corpus]]], root: Path) -> list[CorpusFacts]:
    """Facts to be filled in, for corpora by part."""
    return [CorpusFacts(part, corpus, root) for part, listed in parts for corpus in listed]
