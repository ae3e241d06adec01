"""Force-decoding: the probability that a model gives to translations that are already there.

One pass over source and target, in which the decoder sees the true tokens before each one, gives what a search would
have added up had it chosen them: `mtkit.search`'s log-probabilities before any of its rules. A text has many
tokenisations; the one that the tokenizer makes of it is scored.

Shapes: B pairs, S source length, T target length, D d_model, N real target positions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import ValidationError

from mtkit.checkpoint import load_model
from mtkit.data.batching import plan as plan_batches
from mtkit.engine import padded
from mtkit.errors import DataError, ModelError, UsageError
from mtkit.ids import BOS, EOS, PAD
from mtkit.model.transformer import Transformer
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device
from mtkit.scored import ScoredPair, Status
from mtkit.sections.data import Batching
from mtkit.text.tokenizer import Tokenizers

Pairs = Iterable[tuple[str, str]]
"""Sources with their targets."""
OnLong = Literal["error", "skip"]

# A buffer also ends at so many characters, so that a stretch of huge lines does not fill the memory.
_BUFFER_CHARACTERS = 1 << 20
# Positions whose logits over the vocabulary exist at once.
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class _Plan:
    """What holds for all pairs of one call: `limit` is the most tokens of a side, tags included, EOS not."""

    tag_ids: list[int]
    batching: Batching
    limit: int
    on_long: OnLong
    details: bool
    on_batch: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Job:
    """A pair on its way. Ids are without EOS; those of the source begin with the tags, unless it is blank."""

    number: int
    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    status: Status


class Scorer:
    """A model with its tokenizers and its recipe, ready to score pairs. Holds no state between calls."""

    def __init__(
        self, model: Transformer, recipe: Recipe, tokenizers: Tokenizers, device: torch.device | str = "cpu"
    ) -> None:
        """`model` is on `device`, in evaluation mode."""
        self.model = model
        self.recipe = recipe
        self.tokenizers = tokenizers
        self.device = torch.device(device)

    @classmethod
    def load(cls, folder: str | PathLike[str], device: str = "auto") -> "Scorer":
        """The scorer for a model folder such as runs/quickstart/model; `device` is auto, cpu, cuda, cuda:N or mps.

        Raises ModelError when the folder is damaged, UsageError for the device.
        """
        target = resolve_device(device)
        return cls(*load_model(Path(folder), target), target)

    def score(self, pairs: Pairs) -> list[ScoredPair]:
        """The pairs with their probabilities, in order; see `score_stream`.

        >>> Scorer.load("runs/quickstart/model").score([("我爱北京。", "I love Beijing.")])  # doctest: +SKIP
        """
        return list(self.score_stream(pairs))

    def score_stream(
        self,
        pairs: Pairs,
        *,
        tags: Sequence[str] = (),
        max_tokens: int | None = None,
        on_long: OnLong = "error",
        details: bool = False,
        on_batch: Callable[[int], None] = lambda pairs: None,
    ) -> Iterator[ScoredPair]:
        """Yield each pair with its probability, in order.

        Pairs are read in buffers of the recipe's `search.lines.buffer_size`; a buffer is cut into batches of similar
        lengths and answered before the next one is read. A batch has at most `max_tokens` tokens on either side,
        padding and EOS included (default: the recipe's `search.lines.max_tokens`). A pair that exceeds that by itself,
        or the model's learned positions, is an error or skipped, by `on_long`; nothing is ever cut. `tags` are
        user-defined symbols put before every source; `details` asks for the tokens as text; `on_batch` is called with
        the number of pairs that became complete, once for those of a buffer that are not scored and after every batch.

        Raises UsageError or ModelError at once for `max_tokens` or tags that do not fit, DataError for a long pair
        before anything of its buffer is yielded, ModelError for a model whose probabilities are not numbers.
        """
        return self._stream(pairs, self._plan(tags, max_tokens, on_long, details, on_batch))

    def refuse_long(self, pairs: Pairs, *, tags: Sequence[str] = (), max_tokens: int | None = None) -> None:
        """Raise DataError when a pair has more tokens than can be scored; nothing is scored."""
        plan = self._plan(tags, max_tokens, "error", False, lambda pairs: None)
        number = 1
        for buffer in self._buffers(pairs):
            self._jobs(buffer, number, plan)
            number += len(buffer)

    def _plan(
        self,
        tags: Sequence[str],
        max_tokens: int | None,
        on_long: OnLong,
        details: bool,
        on_batch: Callable[[int], None],
    ) -> _Plan:
        try:
            batching = Batching(max_tokens=self.recipe.search.lines.max_tokens if max_tokens is None else max_tokens)
        except ValidationError as error:
            raise UsageError(f"max_tokens {max_tokens}: {error.errors()[0]['msg']}", "choose another number") from None
        most = batching.budget
        if self.recipe.model.positions == "learned":
            most = min(most, self.recipe.model.max_positions)
        tag_ids = [self.tokenizers.source.symbol_id(tag) for tag in tags]
        return _Plan(tag_ids, batching, most - 1, on_long, details, on_batch)

    def _stream(self, pairs: Pairs, plan: _Plan) -> Iterator[ScoredPair]:
        number = 1
        for buffer in self._buffers(pairs):
            yield from self._score_buffer(self._jobs(buffer, number, plan), plan)
            number += len(buffer)

    def _buffers(self, pairs: Pairs) -> Iterator[list[tuple[str, str]]]:
        buffer: list[tuple[str, str]] = []
        characters = 0
        for source, target in pairs:
            buffer.append((source, target))
            characters += len(source) + len(target)
            if len(buffer) >= self.recipe.search.lines.buffer_size or characters >= _BUFFER_CHARACTERS:
                yield buffer
                buffer, characters = [], 0
        if buffer:
            yield buffer

    def _jobs(self, buffer: list[tuple[str, str]], first: int, plan: _Plan) -> list[_Job]:
        """The pairs of a buffer, the first of which has the number `first`, encoded. Raises DataError for a long one.

        A blank source never enters the model, which has not been trained on one: no probability follows from nothing.
        """
        sources = self.tokenizers.source.encode_batch([source for source, _ in buffer])
        targets = self.tokenizers.target.encode_batch([target for _, target in buffer])
        jobs = []
        for number, (texts, source_ids, target_ids) in enumerate(zip(buffer, sources, targets, strict=True), first):
            status: Status = "ok" if target_ids else "empty"
            if not source_ids:
                status = "blank"
            else:
                source_ids = [*plan.tag_ids, *source_ids]
                for side, ids in (("source", source_ids), ("target", target_ids)):
                    if len(ids) > plan.limit:
                        status = "too_long"
                        if plan.on_long == "error":
                            raise _too_long(number, side, len(ids), plan)
            jobs.append(_Job(number, *texts, source_ids, target_ids, status))
        return jobs

    def _score_buffer(self, jobs: list[_Job], plan: _Plan) -> Iterator[ScoredPair]:
        scored = [job for job in jobs if job.status in ("ok", "empty")]
        logs: dict[int, list[float]] = {}
        plan.on_batch(len(jobs) - len(scored))
        source_lengths = np.array([len(job.source_ids) + 1 for job in scored], dtype=np.int64)
        target_lengths = np.array([len(job.target_ids) + 1 for job in scored], dtype=np.int64)
        for indices in plan_batches(source_lengths, target_lengths, plan.batching, 0, 0):
            batch = [scored[index] for index in indices]
            found = log_probabilities(
                self.model, [job.source_ids for job in batch], [job.target_ids for job in batch], self.device
            )
            logs |= {job.number: values for job, values in zip(batch, found, strict=True)}
            plan.on_batch(len(batch))
        for job in jobs:
            yield self._scored_pair(job, logs.get(job.number), plan)

    def _scored_pair(self, job: _Job, logs: list[float] | None, plan: _Plan) -> ScoredPair:
        if logs is not None and not math.isfinite(sum(logs)):
            raise ModelError(
                f"the model gives no finite probability to the target of line {job.number}",
                "its weights may hold values that are not numbers, as after training with too high a learning rate",
            )
        source, target = self.tokenizers.source, self.tokenizers.target
        details = plan.details and logs is not None
        return ScoredPair(
            number=job.number,
            source=job.source,
            target=job.target,
            status=job.status,
            source_tokens=len(job.source_ids),
            target_tokens=len(job.target_ids),
            unknown_source_tokens=source.unknown_count(job.source_ids),
            unknown_target_tokens=target.unknown_count(job.target_ids),
            token_log_probabilities=logs[:-1] if logs is not None else (),
            end_log_probability=logs[-1] if logs is not None else None,
            source_pieces=source.pieces(job.source_ids) if details else (),
            tokens=target.pieces(job.target_ids) if details else (),
        )


@torch.inference_mode()
def log_probabilities(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    device: torch.device | str = "cpu",
) -> list[list[float]]:
    """For each pair, log P of every target token and of EOS after them, given the source and the tokens before.

    Ids are bare, without BOS and EOS, as in `Hypothesis.ids`; all pairs are one batch. `model` is on `device`, in
    evaluation mode. log P = log_softmax of the model's logits, in float32.
    """
    source_BS = padded([[*ids, EOS] for ids in sources]).to(device)
    target_in_BT = padded([[BOS, *ids] for ids in targets]).to(device)
    target_out_BT = padded([[*ids, EOS] for ids in targets]).to(device)
    real_BT = target_out_BT != PAD
    hidden_ND, target_N1 = model(source_BS, target_in_BT)[real_BT], target_out_BT[real_BT][:, None]
    logs = [
        model.logits(hidden_CD).float().log_softmax(1).gather(1, target_C1)
        for hidden_CD, target_C1 in zip(hidden_ND.split(_CHUNK), target_N1.split(_CHUNK), strict=True)
    ]
    values = iter(torch.cat(logs).squeeze(1).tolist())
    return [[next(values) for _ in range(len(ids) + 1)] for ids in targets]


def _too_long(number: int, side: str, length: int, plan: _Plan) -> DataError:
    message = f"line {number} has {length} {side} tokens, and at most {plan.limit} can be scored"
    skip = "or leave such pairs out with on_long skip (--on-long skip)"
    if plan.limit + 1 < plan.batching.budget:
        return DataError(
            f"{message}: the model has {plan.limit + 1} learned positions, the end takes one", f"shorten it, {skip}"
        )
    return DataError(message, f"raise max_tokens (--max-tokens {length + 1}), {skip}")
