"""Attention for the report: some sentences of the run's own corpora, translated and recorded, small enough to embed."""

import base64
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtkit.data.corpus import read_pairs
from mtkit.errors import MtkitError
from mtkit.folders import WEIGHTS_FILE
from mtkit.heatmaps.maps import KINDS, AttentionMaps
from mtkit.heatmaps.record import Recorder
from mtkit.report.facts import Facts, samples
from mtkit.sections.data import Corpus

log = logging.getLogger(__name__)

BUDGET = 1_200_000
"""Most characters that all weights together may take in the page."""
LEAST_TOKENS, MOST_TOKENS = 4, 40
"""Of a source that is shown: shorter ones tell little, larger pictures do not fit on a screen."""
_FULL = 65535


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that could be shown."""

    source: str
    reference: str
    tags: tuple[str, ...]


def watch(facts: Facts, count: int, device: str) -> list[dict[str, Any]]:
    """At most `count` sentences with all their weights, for the script; what is not there goes to `facts.missing`.

    Fewer where the weights of so many would exceed `BUDGET`.
    """
    if facts.recipe is None or facts.model is None:
        facts.missing.append("Attention: it needs a model.")
        return []
    run = facts.run
    steps = run.steps()
    folder = run.model if (run.model / WEIGHTS_FILE).is_file() else run.checkpoint(steps[-1])
    try:
        recorder = Recorder.load(folder, device)
        found = [document for document in _documents(recorder, _candidates(facts), count)]
    except MtkitError as error:
        facts.missing.append(f"Attention: {error.message}")
        return []
    if not found:
        facts.missing.append("Attention: neither the corpora nor the validation samples have a sentence to show.")
    return found


def _candidates(facts: Facts) -> list[Candidate]:
    """The sentences of the first test or validation corpus that is there, else of the validation samples."""
    assert facts.recipe is not None
    for corpus in (*facts.recipe.data.test, *facts.recipe.data.valid):
        try:
            return _read(corpus, Path(facts.recipe.data.root))
        except MtkitError as error:
            log.warning("%s; its sentences cannot be shown", error.message)
    last = samples(facts.events, 100, 2)[-1:]
    return [Candidate(source, reference, ()) for _, rows in last for source, _, reference in rows]


def _read(corpus: Corpus, root: Path) -> list[Candidate]:
    return [Candidate(pair.source, pair.target, tuple(corpus.tags)) for pair in read_pairs(corpus, root)]


def _documents(recorder: Recorder, candidates: list[Candidate], count: int) -> Iterator[dict[str, Any]]:
    """Yield the sentences, from evenly spread places of the corpus, as long as they fit into the budget."""
    lengths = [len(ids) for ids in recorder.tokenizers.source.encode_batch([one.source for one in candidates])]
    fitting = [one for one, length in zip(candidates, lengths, strict=True) if LEAST_TOKENS <= length <= MOST_TOKENS]
    if not fitting:
        shortest = sorted(range(len(candidates)), key=lengths.__getitem__)
        fitting = [candidates[index] for index in shortest if lengths[index]][:count]
    places = np.linspace(0, len(fitting) - 1, min(count, len(fitting)), dtype=int).tolist() if fitting else []
    left = BUDGET
    for number, place in enumerate(places):
        one = fitting[place]
        maps = recorder.record(one.source, None, one.tags, f"sentence {number + 1}")
        if maps is None:
            continue
        weights = {kind: packed(maps, kind) for kind in KINDS}
        left -= sum(map(len, weights.values()))
        if left < 0:
            log.warning("attention: %d sentences of %d fit into the page", number, len(places))
            return
        yield {
            "source": maps.source,
            "target": maps.target,
            "reference": one.reference,
            "sourcePieces": list(maps.source_pieces),
            "targetPieces": list(maps.target_pieces),
            "tags": maps.tags,
            "layers": {kind: maps.weights[kind].shape[0] for kind in KINDS},
            "heads": maps.weights["cross"].shape[1],
            "weights": weights,
        }


def packed(maps: AttentionMaps, kind: Any) -> str:
    """The weights of one kind as Base64 of 16-bit numbers, little end first, in the order layer, head, row, column."""
    numbers = np.rint(maps.weights[kind] * _FULL).astype("<u2")
    return base64.b64encode(numbers.tobytes()).decode("ascii")
