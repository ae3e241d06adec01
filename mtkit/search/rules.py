"""What may be produced: the same for every method, or beam 1 and greedy would disagree.

At each step `Constraints.score` turns logits into log-probabilities and sets those of forbidden tokens to -inf, without
sharing their mass out. In this order:

- PAD and BOS never, UNK only with `allow_unknown`.
- No token that completes an n-gram which the hypothesis already holds (`no_repeat_ngram`). EOS is in no n-gram.
- No EOS before the minimum length, unless nothing else is left.
- Inside a forced prefix its token and no other, whatever the rules above say.

A hypothesis of maximum length is cut there: it ends without EOS and counts as unfinished. So none has more scored
tokens than the maximum, and log P of a cut one is compared with the others' by the same formula.

Shapes: B sentences, S source length, N = B * per_source rows, V vocabulary, T tokens produced.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtkit.errors import UsageError
from mtkit.ids import BOS, EOS, PAD
from mtkit.search.penalties import penalize_repetition_
from mtkit.search.protocol import Prefixes
from mtkit.search.trace import Step
from mtkit.sections.search import Rules

NEVER = -torch.inf


def length_limits(rules: Rules, source_tokens: int, prefix_tokens: int = 0) -> tuple[int, int]:
    """Least and most target tokens, without EOS, for a source of so many tokens without EOS.

    most = source * max_length_ratio + max_length_offset, rounded down, at least 1, at least one more than the forced
    prefix, and at most max_length; least = max(min_length, source * min_length_ratio), rounded up, at most `most`.

    >>> length_limits(Rules(max_length_ratio=1.5, max_length_offset=2), 5)
    (0, 9)
    """
    slack = 1e-9  # 20 * 1.15 is 22.999999999999996
    most = math.floor(source_tokens * rules.max_length_ratio + slack) + rules.max_length_offset
    most = min(rules.max_length, max(most, 1, prefix_tokens + 1))
    least = max(rules.min_length, math.ceil(source_tokens * rules.min_length_ratio - slack))
    return min(least, most), most


@dataclass(slots=True)
class Scores:
    """Log-probabilities of the next token: what the search adds up, and the model's own (the same unless penalised)."""

    search_NV: Tensor
    model_NV: Tensor

    def step(self, ids_N: Tensor, attention_NS: Tensor | None) -> Step:
        """What the trace keeps of a choice for each row."""
        chosen_N = self.model_NV.gather(1, ids_N[:, None]).squeeze(1)
        ranked_N = None
        if self.search_NV is not self.model_NV:
            ranked_N = self.search_NV.gather(1, ids_N[:, None]).squeeze(1)
        return Step(ids_N, chosen_N, ranked_N, None, attention_NS)


def _log_softmax_(logits_NV: Tensor) -> Tensor:
    """log_softmax; on a CPU it overwrites the logits, which is 2 to 4 times as fast as into fresh memory."""
    return torch.log_softmax(logits_NV, 1, out=logits_NV if logits_NV.device.type == "cpu" else None)


def real_type(device: torch.device) -> torch.dtype:
    """The type in which scores are added up: float64 but where there is none."""
    return torch.float32 if device.type == "mps" else torch.float64


class Constraints:
    """The rules for N rows, and as much of their past as the rules need: `step` tokens so far."""

    def __init__(self, rules: Rules, source_BS: Tensor, per_source: int, prefixes: Prefixes | None = None) -> None:
        """Raises UsageError for a prefix longer than max_length."""
        device = source_BS.device
        prefixes = prefixes if prefixes is not None else [()] * len(source_BS)
        assert len(prefixes) == len(source_BS), "one prefix a sentence"
        source_tokens = ((source_BS != PAD).sum(1) - 1).tolist()
        limits = [
            length_limits(rules, count, len(prefix)) for count, prefix in zip(source_tokens, prefixes, strict=True)
        ]
        self.rules = rules
        self.step = 0
        self._limit(limits, per_source, device)
        self._forced_NT = _forced(prefixes, rules.max_length, per_source, device)
        self._remembers = rules.no_repeat_ngram > 0 or rules.repetition_penalty != 1.0
        self._produced_NT = torch.empty(len(self.most_N), 0, dtype=torch.long, device=device)

    @property
    def remembers(self) -> bool:
        """Whether a rule looks at the tokens that have been produced, or names them: a forced prefix."""
        return self._remembers or self._forced_NT is not None

    @classmethod
    def joined(cls, several: "Sequence[Constraints]") -> "Constraints":
        """One for the rows of all, after the most steps that any has done; the others count as that far, too.

        Their limits move with them. None may be one that `remembers`.
        """
        step = max(one.step for one in several)
        limits_N2 = torch.cat([torch.stack((one._least_N, one.most_N), 1) + (step - one.step) for one in several])
        both = copy.copy(several[0])
        both.step = step
        both._limit(limits_N2.tolist(), 1, limits_N2.device)
        return both

    def _limit(self, limits: Sequence[Sequence[int]], per_source: int, device: torch.device) -> None:
        """Set the least and most tokens of the rows of each sentence (mutates the constraints)."""
        self._least_N, self.most_N = torch.tensor(limits, device=device).repeat_interleave(per_source, 0).unbind(1)
        self.longest = max(most for _, most in limits)
        self._shortest_most = min(most for _, most in limits)
        self._longest_least = max(least for least, _ in limits)

    def score(self, logits_NV: Tensor) -> Scores:
        """Log-probabilities of the next token, -inf where it is forbidden; overwrites the logits."""
        model_NV = None
        if self.rules.repetition_penalty != 1.0 and self.step > 0:
            model_NV = torch.log_softmax(logits_NV, 1)
            penalize_repetition_(logits_NV, self._produced_NT, self.rules.repetition_penalty)
        search_NV = _log_softmax_(logits_NV)
        self._apply_(search_NV)
        return Scores(search_NV, search_NV if model_NV is None else model_NV)

    def rank(self, logits_NV: Tensor) -> Scores:
        """Numbers that rank the next tokens of each row as `score` does; overwrites the logits.

        They are the logits themselves, -inf where a token is forbidden, unless a rule needs their probabilities.
        """
        if self.rules.repetition_penalty != 1.0:
            return self.score(logits_NV)
        self._apply_(logits_NV)
        return Scores(logits_NV, logits_NV)

    def at_limit(self) -> Tensor | None:
        """True for rows whose hypothesis the token being chosen now will fill up; None when there is no such row."""
        return self.most_N <= self.step + 1 if self.step + 1 >= self._shortest_most else None

    def advance(self, ids_N: Tensor) -> None:
        """Note the token that was chosen for each row, after `select`."""
        self.step += 1
        if self._remembers:
            self._produced_NT = torch.cat((self._produced_NT, ids_N[:, None]), 1)

    def select(self, rows_N: Tensor) -> None:
        """Keep and reorder rows, as `State.select`."""
        if self._remembers:
            self._produced_NT = self._produced_NT[rows_N]
        if len(rows_N) < len(self.most_N):
            self.most_N, self._least_N = self.most_N[rows_N], self._least_N[rows_N]
            if self._forced_NT is not None:
                self._forced_NT = self._forced_NT[rows_N]

    def _apply_(self, search_NV: Tensor) -> None:
        """Forbid what the rules forbid now (changes the scores)."""
        if self._forced_NT is None or self.step >= self._forced_NT.size(1):
            self._forbid_(search_NV)
        else:
            self._force_(search_NV, self._forced_NT[:, self.step, None])

    def _force_(self, search_NV: Tensor, forced_N1: Tensor) -> None:
        """Forbid all but the forced token, or where there is none (-1) what `_forbid_` does (changes the scores)."""
        kept_N1 = search_NV.gather(1, forced_N1.clamp(min=PAD))
        self._forbid_(search_NV)
        free_N1 = forced_N1 < 0
        search_NV.masked_fill_(~free_N1, NEVER)
        # Rows without a forced token write -inf to PAD, where it already is.
        search_NV.scatter_(1, forced_N1.clamp(min=PAD), kept_N1.masked_fill(free_N1, NEVER))

    def _forbid_(self, search_NV: Tensor) -> None:
        """All rules but the forced prefix (changes the scores)."""
        if self.rules.allow_unknown:
            search_NV[:, PAD] = NEVER
            search_NV[:, BOS] = NEVER
        else:
            search_NV[:, : BOS + 1] = NEVER  # PAD, UNK, BOS are 0, 1, 2
        if 0 < self.rules.no_repeat_ngram <= self.step:
            self._block_repeated_(search_NV)
        if self.step < self._longest_least:
            self._postpone_end_(search_NV)

    def _block_repeated_(self, search_NV: Tensor) -> None:
        """Forbid what would complete an n-gram for the second time (changes the scores)."""
        past_NT, size = self._produced_NT, self.rules.no_repeat_ngram
        followers_NW = past_NT[:, size - 1 :]
        windows = followers_NW.size(1)
        match_NW = torch.ones_like(followers_NW, dtype=torch.bool)
        for place in range(size - 1):
            latest_N1 = past_NT[:, self.step - size + 1 + place, None]
            match_NW &= past_NT[:, place : place + windows] == latest_N1
        search_NV.scatter_(1, followers_NW.masked_fill(~match_NW, PAD), NEVER)

    def _postpone_end_(self, search_NV: Tensor) -> None:
        """Forbid EOS in rows that are too short, unless they would be left with nothing (changes the scores)."""
        end_N = search_NV[:, EOS].clone()
        search_NV[:, EOS] = end_N.masked_fill(self._least_N > self.step, NEVER)
        stuck_N = search_NV.amax(1) == NEVER
        search_NV[:, EOS] = torch.where(stuck_N, end_N, search_NV[:, EOS])


def _forced(prefixes: Prefixes, max_length: int, per_source: int, device: torch.device) -> Tensor | None:
    """The prefixes as one table of N rows, -1 where a prefix has ended; None when there are none."""
    longest = max(len(prefix) for prefix in prefixes)
    if longest > max_length:
        raise UsageError(
            f"a forced prefix has {longest} tokens, but search.rules.max_length is {max_length}",
            "shorten the prefix, or raise search.rules.max_length",
        )
    assert not any({PAD, BOS, EOS}.intersection(prefix) for prefix in prefixes)
    if longest == 0:
        return None
    rows = [[*prefix, *([-1] * (longest - len(prefix)))] for prefix in prefixes]
    return torch.tensor(rows, dtype=torch.long, device=device).repeat_interleave(per_source, 0)
