"""Beam search (Graves 2012), with length and coverage penalty (Wu et al. 2016) and diverse groups.

A sentence has beam_size slots. At every step the likeliest continuations of its hypotheses fill the slots that are
left; one that ends (with EOS, or cut at the maximum length) is kept and its slot is spent, so the beam narrows by one
(Sutskever et al. 2014). A beam of 1 therefore is greedy search, and no hypothesis is ever dropped for one that ended.

**Ranking.** Continuations that compete have the same number of scored tokens, so they are ranked by log P. Hypotheses
that ended are ranked by

    score = log P / length_penalty(scored tokens) + coverage_penalty

with log P after the repetition penalty, which leaves log-probabilities log-probabilities. The earlier one wins among
equals, then the one in the lower slot.

**Stopping.** A sentence is done when its slots are spent, when no continuation is allowed, or when none of the
hypotheses alive can still reach the n_best kept ones. The last is exact: let l be the log P of the likeliest alive
hypothesis. Each further token adds a log-probability, at most 0, so log P at its end is at most l <= 0; the length
penalty never decreases with length and is at most its value at the sentence's maximum length m; so log P divided by it
is at most l / length_penalty(m). The coverage penalty is at most 0. So `l / length_penalty(m)` bounds every score to
come, and stopping when the n_best-th kept score has reached it changes none of the n_best. Hence the results for n_best
1 are the first of those for any n_best: what is not kept plays no part in the choice of continuations.

**Groups** (Vijayakumar et al. 2018): each has its share of the slots and fills it after the groups before it, with
log P less `diversity` for every hypothesis of theirs that chose the same token at this step. Scores and kept sums do
not contain that cost. A departure: a hypothesis that an earlier group just ended cannot end once more, so that the
n_best are different translations.

Shapes: B sentences still in the batch, K beam size, N = B * K, G groups, Q = K / G, S source length, V vocabulary,
C continuations considered of each hypothesis, J n_best.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtkit.ids import BOS, EOS, PAD
from mtkit.search.penalties import coverage_mask, coverage_penalty, length_penalty
from mtkit.search.protocol import Hypothesis, SearchModel
from mtkit.search.rank import top
from mtkit.search.rules import NEVER, Constraints, real_type
from mtkit.search.trace import Step, Trace, arrays
from mtkit.sections.search import Beam

# Rounding must not let the bound fall below a score to come.
_SLACK = 1e-6


def beam(
    model: SearchModel, source_BS: Tensor, config: Beam, constraints: Constraints, attention: bool
) -> list[list[Hypothesis]]:
    """The n_best hypotheses of each sentence, best first, all different; fewer only where the rules allow no more.

    (With groups also where all that a group has left is what an earlier group ended.)
    """
    search = _Search(model, source_BS, config, constraints, attention)
    for _ in range(constraints.longest):
        if not search.step():
            break
    return search.hypotheses((source_BS != PAD).sum(1).tolist())


@dataclass(slots=True)
class _Chosen:
    """What fills the slots: log P (-inf: the slot is empty), the slot that is continued, the token, has it ended."""

    sums_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    ended_BK: Tensor


class _Search:
    """A beam search under way: the hypotheses of the sentences in the batch, and what has ended so far."""

    def __init__(
        self, model: SearchModel, source_BS: Tensor, config: Beam, constraints: Constraints, attention: bool
    ) -> None:
        device, sentences, size = source_BS.device, len(source_BS), config.beam_size
        self.model = model
        self.config = config
        self.constraints = constraints
        self.attention = attention
        self.state = model.start(source_BS, size, attention or config.coverage_penalty > 0)
        self.trace = Trace(sentences, size)
        self.ends: list[tuple[int, Tensor]] = []
        self.ids_N = torch.full((sentences * size,), BOS, device=device)
        self.first_B1 = torch.arange(0, sentences * size, size, device=device)[:, None]
        self.sums_BK = torch.full((sentences, size), NEVER, dtype=real_type(device), device=device)
        # All hypotheses of a group begin alike: only the first of each counts.
        self.sums_BK[:, :: size // config.groups] = 0.0
        self.slots_BG = torch.full((sentences, config.groups), size // config.groups, device=device)
        self.kept_BJ = torch.full_like(self.sums_BK[:, : config.n_best], NEVER)
        self.most_penalty_B = torch.tensor(
            [self._length_penalty(length) for length in constraints.most_N[::size].tolist()],
            dtype=self.sums_BK.dtype,
            device=device,
        )
        self.coverage_NS = torch.zeros(sentences * size, source_BS.size(1), device=device)
        self.mask_NS = coverage_mask(source_BS).repeat_interleave(size, 0)
        self.same_BKK = torch.ones(sentences, size, size, dtype=torch.bool, device=device)

    def step(self) -> bool:
        """Add one token to all hypotheses; returns whether any sentence is still under way."""
        step = self.constraints.step
        scores = self.constraints.score(self.model.step(self.ids_N, self.state))
        attention_NS = self.state.attention_NS
        if self.config.coverage_penalty > 0:
            assert attention_NS is not None
            self.coverage_NS = self.coverage_NS + attention_NS
        chosen = self._choose(scores.search_NV)
        sentences, size = chosen.tokens_BK.shape
        vocabulary = scores.model_NV.size(1)
        cells_BK = chosen.parents_BK * vocabulary + chosen.tokens_BK
        logs_BK = scores.model_NV.view(sentences, size * vocabulary).gather(1, cells_BK)
        self.trace.append(
            Step(
                tokens_N=chosen.tokens_BK.view(-1),
                log_probabilities_N=logs_BK.view(-1),
                parents_N=chosen.parents_BK.view(-1),
                attention_NS=attention_NS if self.attention else None,
            )
        )
        self.sums_BK = chosen.sums_BK
        if bool(chosen.ended_BK.any()):
            self._keep(chosen, step + 1)
        return self._go_on(chosen, self._done())

    def _choose(self, search_NV: Tensor) -> _Chosen:
        """Fill the slots that are left, group by group."""
        sentences, size = self.sums_BK.shape
        # No hypothesis can have more than K of the best K continuations, nor lose more than K - Q to other groups.
        logs_NC, ids_NC = top(search_NV, size)
        sums_BKC = self.sums_BK[:, :, None] + logs_NC.view(sentences, size, -1)
        ids_BKC = ids_NC.view(sentences, size, -1)
        if self.config.groups == 1:
            return self._fill(sums_BKC, ids_BKC, 0, None)
        chosen = None
        for group in range(self.config.groups):
            part = self._fill(sums_BKC, ids_BKC, group, chosen)
            if chosen is not None:
                part = _Chosen(
                    torch.cat((chosen.sums_BK, part.sums_BK), 1),
                    torch.cat((chosen.parents_BK, part.parents_BK), 1),
                    torch.cat((chosen.tokens_BK, part.tokens_BK), 1),
                    torch.cat((chosen.ended_BK, part.ended_BK), 1),
                )
            chosen = part
        assert chosen is not None
        return chosen

    def _fill(self, sums_BKC: Tensor, ids_BKC: Tensor, group: int, before: _Chosen | None) -> _Chosen:
        """The best continuations of one group, in view of what the groups before it have chosen."""
        _, size, width = sums_BKC.shape
        share = size // self.config.groups
        first = group * share
        sums_BM = sums_BKC[:, first : first + share].flatten(1)
        ids_BM = ids_BKC[:, first : first + share].flatten(1)
        ranked_BM = sums_BM if before is None else self._beside(sums_BM, ids_BM, first, before)
        ranked_BM, places_BM = ranked_BM.sort(dim=1, descending=True, stable=True)
        places_BQ = places_BM[:, :share]
        sums_BQ = ranked_BM[:, :share]
        if before is not None:
            sums_BQ = sums_BM.gather(1, places_BQ).masked_fill(sums_BQ == NEVER, NEVER)
        if self.ends:
            ranks_Q = torch.arange(share, device=sums_BQ.device)
            sums_BQ = sums_BQ.masked_fill(ranks_Q >= self.slots_BG[:, group, None], NEVER)
        tokens_BQ = ids_BM.gather(1, places_BQ)
        ended_BQ = tokens_BQ == EOS
        full_N = self.constraints.at_limit()
        if full_N is not None:
            ended_BQ |= full_N[::size, None]
        return _Chosen(sums_BQ, places_BQ // width + first, tokens_BQ, ended_BQ & (sums_BQ > NEVER))

    def _beside(self, sums_BM: Tensor, ids_BM: Tensor, first: int, before: _Chosen) -> Tensor:
        """log P less the cost of choosing as earlier groups did; -inf for a hypothesis that they have just ended."""
        share = self.config.beam_size // self.config.groups
        like_BMP = ids_BM[:, :, None] == before.tokens_BK[:, None, :]
        counts_BM = (like_BMP & (before.sums_BK > NEVER)[:, None, :]).sum(2)
        parents_BQP = before.parents_BK[:, None, :].expand(-1, share, -1)
        same_BQP = self.same_BKK[:, first : first + share].gather(2, parents_BQP) & before.ended_BK[:, None, :]
        width = sums_BM.size(1) // share
        twice_BM = (like_BMP & same_BQP.repeat_interleave(width, 1)).any(2)
        return (sums_BM - self.config.diversity * counts_BM).masked_fill(twice_BM, NEVER)

    def _keep(self, chosen: _Chosen, length: int) -> None:
        """Score the hypotheses that have just ended and take them out of the beams; their slots are spent."""
        scores_BK = chosen.sums_BK / self._length_penalty(length)
        if self.config.coverage_penalty > 0:
            penalties_N = coverage_penalty(self.coverage_NS, self.mask_NS, self.config.coverage_penalty)
            scores_BK = scores_BK + penalties_N.view_as(scores_BK).gather(1, chosen.parents_BK)
        scores_BK = scores_BK.masked_fill(~chosen.ended_BK, NEVER)
        self.ends.append((length - 1, scores_BK))
        self.kept_BJ = torch.cat((self.kept_BJ, scores_BK), 1).topk(self.config.n_best, 1).values
        self.sums_BK = chosen.sums_BK.masked_fill(chosen.ended_BK, NEVER)
        self.slots_BG = self.slots_BG - chosen.ended_BK.unflatten(1, (self.config.groups, -1)).sum(2)

    def _done(self) -> Tensor | None:
        """True for sentences of which nothing alive can still be among the n_best; None before any hypothesis ended."""
        if not self.ends:
            return None
        alive_B = self.sums_BK.amax(1)
        return (alive_B == NEVER) | (self.kept_BJ[:, -1] >= alive_B / self.most_penalty_B * (1.0 - _SLACK))

    def _go_on(self, chosen: _Chosen, done_B: Tensor | None) -> bool:
        """Reorder everything by the choice, let sentences that are done leave; returns whether any are left."""
        sentences, size = chosen.tokens_BK.shape
        kept_B = None
        if done_B is not None and bool(done_B.any()):
            kept_B = (~done_B).nonzero().squeeze(1)
            if len(kept_B) == 0:
                return False
            self.trace.keep(kept_B.cpu().numpy())
        if self.config.groups > 1:
            self._compare(chosen)
        rows_BK = chosen.parents_BK + self.first_B1[:sentences]
        tokens_BK = chosen.tokens_BK
        if kept_B is not None:
            rows_BK, tokens_BK = rows_BK[kept_B], tokens_BK[kept_B]
            self.sums_BK, self.slots_BG, self.kept_BJ = (
                self.sums_BK[kept_B],
                self.slots_BG[kept_B],
                self.kept_BJ[kept_B],
            )
            self.most_penalty_B, self.same_BKK = self.most_penalty_B[kept_B], self.same_BKK[kept_B]
        rows_N, self.ids_N = rows_BK.flatten(), tokens_BK.flatten()
        if size > 1 or kept_B is not None:
            self.state.select(rows_N)
            self.constraints.select(rows_N)
            if self.config.coverage_penalty > 0:
                self.coverage_NS, self.mask_NS = self.coverage_NS[rows_N], self.mask_NS[rows_N]
        self.constraints.advance(self.ids_N)
        return True

    def _compare(self, chosen: _Chosen) -> None:
        """Note which slots of a sentence now hold the same tokens."""
        size = self.config.beam_size
        rows_BKK = self.same_BKK.gather(1, chosen.parents_BK[:, :, None].expand(-1, -1, size))
        both_BKK = rows_BKK.gather(2, chosen.parents_BK[:, None, :].expand(-1, size, -1))
        self.same_BKK = both_BKK & (chosen.tokens_BK[:, :, None] == chosen.tokens_BK[:, None, :])

    def _length_penalty(self, length: int) -> float:
        return length_penalty(length, self.config.length_penalty, self.config.length_normalization)

    def hypotheses(self, source_lengths: list[int]) -> list[list[Hypothesis]]:
        """The n_best of what has ended, read out of the trace."""
        ends = self.trace.ends([step for step, _ in self.ends], arrays([scores for _, scores in self.ends]))
        return self.trace.read(ends.best(self.config.n_best), source_lengths)
