"""`batching.max_tokens: auto`: how many tokens a batch may have on this machine, measured before the first update.

Real updates on made-up batches of the worst shapes, in doubling sizes, until one of three things ends it:

- memory: the size does not fit, or two sizes before it foretell that it would take more than `SHARE` of what is free
  (a GPU is asked for it and may refuse; a CPU is not, as a process that takes too much is killed without a word);
- speed: twice the tokens make training less than 5 % faster;
- corpus: an epoch would have fewer than `LEAST_UPDATES` updates.

Of the sizes that fit, the smallest within 5 % of the fastest is taken: fewer tokens make more updates of an epoch. All
ranks go through the same sizes, by the figures of the one that is nearest to its limit and of the slowest.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mtkit.data.loader import Batch, PairData
from mtkit.data.shards import Shard
from mtkit.errors import DataError, TrainingError
from mtkit.files import read_json, write_json
from mtkit.folders import RunFolder
from mtkit.ids import BOS, EOS
from mtkit.lineage import fingerprint
from mtkit.ranks import Ranks
from mtkit.recipe import Recipe
from mtkit.runtime import begin_peak, free_memory, held_memory, is_out_of_memory, job_share, peak_held_memory
from mtkit.search.rules import length_limits
from mtkit.search.run import search as run_search
from mtkit.sections.data import Batching
from mtkit.training.optimizer import set_rate
from mtkit.training.state import Learner
from mtkit.training.step import train_step
from mtkit.training.validate import ValidationText, validation_search

log = logging.getLogger(__name__)

SHARE = 0.8
"""Of the free memory; the rest is for what measuring does not see, such as fragments and other processes."""

WORTH = 1.05
"""Twice the tokens must make training so much faster."""

LEAST_UPDATES = 100
_FIRST = 512  # tokens; smaller batches are slow everywhere
TIMED = 3  # updates a size; the quickest counts
_NARROW = 1.1  # sizes nearer to each other than this are not told apart
_SPECIAL = 4  # ids below are no words


@dataclass(frozen=True, slots=True)
class Trial:
    """One size: the share of the memory allowed that it takes at its peak, and target tokens a second."""

    max_tokens: int
    used: float
    speed: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The number found, what bounds it, and what was measured; `decoding` is the share that validation takes."""

    max_tokens: int
    reason: Literal["memory", "speed", "corpus"]
    trials: list[Trial]
    decoding: float | None = None

    def row(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def pick(probe: Callable[[int], Trial | None], least: int, most: int) -> Budget:
    """The budget between `least` and `most` tokens; `probe` tries a size, and gives None where memory runs out.

    Raises TrainingError when the least does not fit.
    """
    size, fitting = min(max(least, _FIRST), max(least, most)), []  # type: tuple[int, list[Trial]]
    reason: Literal["memory", "speed", "corpus"] = "corpus"
    failed = math.inf
    while True:
        trial = probe(size)
        if trial is not None and trial.used <= 1:
            fitting.append(trial)
            if len(fitting) > 1 and failed == math.inf and trial.speed < WORTH * fitting[-2].speed:
                reason = "speed"
                break
            if size >= most:
                break
        elif size == least:
            raise TrainingError(
                f"batching.max_tokens: auto: out of memory with {least} tokens, the least for pairs as long as "
                "filters.max_length allows",
                "lower filters.max_length or the size of the model, or free memory on the device",
            )
        else:
            failed = size
        size, before = _next(fitting, least, most, failed), size
        if fitting and size < _NARROW * fitting[-1].max_tokens:
            reason = "memory" if size < most else "corpus"
            break
        assert size != before
    fastest = max(trial.speed for trial in fitting)
    chosen = min((trial for trial in fitting if trial.speed * WORTH >= fastest), key=lambda trial: trial.max_tokens)
    if chosen.max_tokens < max(trial.max_tokens for trial in fitting):
        reason = "speed"
    return Budget(chosen.max_tokens, reason, fitting)


def _next(fitting: Sequence[Trial], least: int, most: int, failed: float) -> int:
    """The size to try next: twice the last that fits, or half-way to one that has failed; no more than should fit."""
    if not fitting:
        return max(least, int(failed) // 2)
    last = fitting[-1]
    if len(fitting) == 1:
        each = last.used / last.max_tokens
    else:
        first = fitting[0]
        each = (last.used - first.used) / (last.max_tokens - first.max_tokens)
    room = last.max_tokens + (1 - last.used) / each if each > 0 else math.inf
    middle = 2 * last.max_tokens if failed == math.inf else (last.max_tokens + failed) / 2
    return int(min(middle, room, most))


def settle(
    run: RunFolder,
    recipe: Recipe,
    make: Callable[[], Learner],
    data: PairData,
    texts: Sequence[ValidationText],
    ranks: Ranks,
) -> Budget | None:
    """The budget for a run that is to begin; None where the recipe has a number, or there are checkpoints, which do.

    Measured once: it is written into the run folder, and read back when the run begins again before its first
    checkpoint. `make` makes a learner to try with.
    """
    if recipe.batching.max_tokens != "auto" or ranks.lead(lambda: bool(run.steps())):
        return None
    key = fingerprint([recipe.sha256(), recipe.training.device, ranks.world])
    budget = ranks.lead(lambda: _written(run, key))
    if budget is None:
        learner = make()
        budget = measure(learner, data, texts, ranks)
        device = learner.device
        del learner
        begin_peak(device)
        row = {"key": key, **budget.row()}
        ranks.lead(lambda: write_json(run.budget, row))
    log.info("batching.max_tokens: auto is %d (%s)", budget.max_tokens, _told(budget))
    return budget


def _written(run: RunFolder, key: str) -> Budget | None:
    """The budget in the run folder; None when it is missing, damaged or for other circumstances."""
    if not run.budget.is_file():
        return None
    try:
        row = read_json(run.budget)
        if row.pop("key") != key:
            return None
        return Budget(**{**row, "trials": [Trial(**trial) for trial in row["trials"]]})
    except (DataError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: cannot be read (%s); measuring again", run.budget, error)
        return None


def _told(budget: Budget) -> str:
    chosen = next(trial for trial in budget.trials if trial.max_tokens == budget.max_tokens)
    why = {
        "memory": "more would not fit",
        "speed": "more would hardly be faster",
        "corpus": f"more would leave less than {LEAST_UPDATES} updates an epoch",
    }[budget.reason]
    return f"{why}; {100 * chosen.used:.0f} % of the memory allowed, {chosen.speed:,.0f} tok/s"


def measure(learner: Learner, data: PairData, texts: Sequence[ValidationText], ranks: Ranks) -> Budget:
    """Measure with a learner, which is then of no use (mutates weights and optimizer). For all ranks together."""
    recipe, device = learner.recipe, learner.device
    least = recipe.filters.max_length + 1
    begin_peak(device)
    allowed = held_memory(device) + SHARE * free_memory(device) / (1 if device.type == "cuda" else job_share())
    longest, mean, total = _lengths(recipe, data)
    updates = LEAST_UPDATES * recipe.training.accumulate * ranks.world
    most = max(least, min(10_000_000, int(total / updates)))
    if recipe.tokenizer.bpe_dropout:
        longest = least
    log.info("batching.max_tokens: auto: measuring, with pairs of %d tokens, and of %d", longest, round(mean))
    probe = Probe(learner, longest, max(1, round(mean)), recipe.batching, allowed, ranks)
    budget = pick(probe, least, most)
    decoding = _decoding(learner, texts, allowed, ranks)
    return Budget(budget.max_tokens, budget.reason, budget.trials, decoding)


def _lengths(recipe: Recipe, data: PairData) -> tuple[int, float, float]:
    """Of the longer sides of the pairs, EOS included: the longest, the mean, and the sum over an epoch."""
    weights = {corpus.name: corpus.weight for corpus in recipe.data.train}
    longest, pairs, total = 1, 0.0, 0.0
    for shard in data.shards:
        assert isinstance(shard, Shard)
        weight = weights[shard.header["corpus"]]
        for longer in shard.longer_lengths():
            longest = max(longest, int(longer.max()) + 1)
            total += weight * (int(longer.sum()) + len(longer))
        pairs += weight * len(shard)
    return longest, total / max(pairs, 1.0), total


@dataclass(slots=True)
class Probe:
    """Tries a size: an update on a batch of the longest pairs, and timed ones on a batch of typical pairs."""

    learner: Learner
    longest: int
    typical: int
    batching: Batching
    allowed: float
    ranks: Ranks

    def __call__(self, max_tokens: int) -> Trial | None:
        learner = self.learner
        begin_peak(learner.device)
        batches = []
        for length in (self.longest, self.typical):
            rows = max(1, max_tokens // length)
            if self.batching.max_sentences is not None:
                rows = min(rows, self.batching.max_sentences)
            batches.append(made_up(rows, length, learner.tokenizers.source.size, learner.tokenizers.target.size))
        seconds = []
        for batch in (*batches, *batches[1:] * (TIMED - 1)):
            began = time.perf_counter()
            if not self._update(batch):
                return None
            seconds.append(time.perf_counter() - began)
        slowest = self.ranks.largest(int(1e6 * min(seconds[1:])) + 1)
        used = self.ranks.largest(int(1e6 * peak_held_memory(learner.device) / self.allowed))
        return Trial(max_tokens, used / 1e6, batches[1].kept * self.ranks.world / slowest * 1e6)

    def _update(self, batch: Batch) -> bool:
        """An update, at a rate of zero; False when memory has run out, on any rank."""
        learner = self.learner
        set_rate(learner.optimizer, 0.0)
        whole = (learner.model, learner.core, learner.optimizer, learner.scaler)
        tokens = batch.kept * self.ranks.world
        return train_step(*whole, [batch], 1, learner.settings, tokens, self.ranks).halvings == 0


def made_up(rows: int, length: int, source_words: int, target_words: int) -> Batch:
    """A batch of so many pairs of random words, `length` tokens on each side with EOS, without padding."""
    generator = torch.Generator().manual_seed(length)

    def ids(words: int) -> Tensor:
        ids_BL = torch.randint(min(_SPECIAL, words - 1), words, (rows, length), generator=generator)
        ids_BL[:, -1] = EOS
        return ids_BL

    target_out_BT = ids(target_words)
    target_in_BT = target_out_BT.roll(1, 1)
    target_in_BT[:, 0] = BOS
    return Batch(ids(source_words), target_in_BT, target_out_BT, rows * length, rows * length)


def _decoding(learner: Learner, texts: Sequence[ValidationText], allowed: float, ranks: Ranks) -> float | None:
    """The share of the memory that validation's largest search takes; None when there is none, or it does not fit.

    As many rows of the validation's lengths as take the most cells, decoded to the longest length allowed.
    """
    search = validation_search(learner.recipe)
    rules, lines = search.rules, search.lines
    encode = learner.tokenizers.source.encode_batch
    widths = {
        min(len(ids) + len(text.tags), lines.max_source_length) + 1 for text in texts for ids in encode(text.sources)
    }
    if not widths:
        return None
    count = sum(len(text.sources) for text in texts)

    def size(width: int) -> tuple[int, int]:
        rows = max(1, min(lines.batch_size, lines.max_tokens // width, -(-count // ranks.world)))
        longest = length_limits(rules, width)[1]
        return rows * (longest + width), rows

    width = max(widths, key=size)
    source_BS = made_up(size(width)[1], width, learner.tokenizers.source.size, _SPECIAL + 1).source_BS
    full = search.model_copy(update={"rules": rules.model_copy(update={"min_length": rules.max_length})})
    learner.core.eval()
    begin_peak(learner.device)
    try:
        run_search(learner.core, source_BS.to(learner.device), full)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        used = math.inf
    else:
        used = peak_held_memory(learner.device) / allowed
    finally:
        learner.core.train()
    percent = ranks.largest(10**6 if math.isinf(used) else int(100 * used))
    if percent > 100:
        log.warning(
            "validation decodes %d sentences at once, and they do not fit into memory; it will have to cut batches in "
            "halves (search.lines.batch_size, search.lines.max_tokens)",
            len(source_BS),
        )
    return None if math.isinf(used) else percent / 100
