"""Beam search (Graves 2012), with length and coverage penalty (Wu et al. 2016) and diverse groups.

A sentence has beam_size slots, and beam_size hypotheses stay alive in them. At every step the continuations of all of
them are ranked. Those among the best beam_size that end (with EOS, or cut at the maximum length) are kept; the best
beam_size of those that do not end go on. CTranslate2 and Hugging Face transformers keep the beam full in the same way.

**Ranking.** Continuations that compete have the same number of scored tokens, so they are ranked by log P. Hypotheses
that ended are ranked by

    score = log P / length_penalty(scored tokens) + coverage_penalty

with log P after the repetition penalty, which leaves log-probabilities log-probabilities. The earlier one wins among
equals, then the one in the lower slot.

**Stopping.** A sentence is done when no continuation is allowed, and in two more cases. First, when beam_size
hypotheses have ended, and the worst of the best beam_size of these scores no less than the likeliest alive one would if
it ended now (transformers has this rule). Ended ones that are nonsense do not stop the search, then, and a beam of 1 is
greedy search. With a patience p (Kasai et al. 2022) it is enough instead that p * beam_size hypotheses have ended,
whatever they score (CTranslate2 has this rule). Second, when none of the hypotheses alive can still be among the
n_best. That is exact: let l be the log P of the likeliest alive hypothesis. Each further token adds a log-probability,
at most 0, so log P at its end is at most l <= 0; the length penalty never decreases with length and is at most its
value at the sentence's maximum length m; so log P divided by it is at most l / length_penalty(m). The coverage penalty
is at most 0. So `l / length_penalty(m)` bounds every score to come, and stopping when the n_best-th kept score has
reached it changes none of the n_best. The first case does not know n_best, nor does the choice of continuations. Hence
the results for n_best 1 are the first of those for any n_best.

**Groups** (Vijayakumar et al. 2018): each has its share of the slots, searches and stops as above, after the groups
before it, and ranks by log P less `diversity` for every hypothesis of theirs, alive or just ended, that chose the same
token at this step. Scores and kept sums do not contain that cost. A departure: a hypothesis that an earlier group just
ended cannot end once more, so that the n_best are different translations.

Shapes: B sentences still in the batch, K beam size, N = B * K, G groups, Q = K / G, S source length, V vocabulary,
C continuations considered of each hypothesis, M = Q * C, J n_best.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mtkit.ids import BOS, EOS, PAD
from mtkit.search.greedy import staying
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
    """The continuations that go on, and those that were good enough to end now.

    Each has log P (-inf: there is none), the slot that is continued, and the token.
    """

    sums_BK: Tensor
    parents_BK: Tensor
    tokens_BK: Tensor
    end_sums_BK: Tensor
    end_parents_BK: Tensor
    end_tokens_BK: Tensor

    def beside(self, other: "_Chosen") -> "_Chosen":
        """This one's slots, then the other's."""
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return _Chosen(*(torch.cat(pair, 1) for pair in pairs))


def _stay(chosen: _Chosen) -> None:
    """Give the first continuation of a hypothesis its slot, and the others the slots of those without one.

    What the model remembers of a row then mostly stays where it is. Changes the order of what goes on.
    """
    parents_BK = chosen.parents_BK
    size = parents_BK.shape[1]
    again_BK = (parents_BK[:, :, None] == parents_BK[:, None, :]).tril(-1).any(2)
    taken_BK = torch.zeros_like(parents_BK).scatter_(1, parents_BK, 1)
    free_BK = taken_BK.sort(dim=1, stable=True).indices
    slots_BK = torch.where(again_BK, free_BK.gather(1, (again_BK.cumsum(1) - 1).clamp_(min=0)), parents_BK)
    order_BK = torch.arange(size, device=parents_BK.device).expand_as(slots_BK)
    order_BK = torch.empty_like(slots_BK).scatter_(1, slots_BK, order_BK)
    chosen.sums_BK = chosen.sums_BK.gather(1, order_BK)
    chosen.parents_BK = parents_BK.gather(1, order_BK)
    chosen.tokens_BK = chosen.tokens_BK.gather(1, order_BK)


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
        self.trace = Trace(sentences, 2 * size, size)  # what goes on, then what ended
        self.ends: list[tuple[int, Tensor]] = []
        self.ids_N = torch.full((sentences * size,), BOS, device=device)
        self.first_B1 = torch.arange(0, sentences * size, size, device=device)[:, None]
        self.sums_BK = torch.full((sentences, size), NEVER, dtype=real_type(device), device=device)
        # All hypotheses of a group begin alike: only the first of each counts.
        self.sums_BK[:, :: size // config.groups] = 0.0
        # The best Q scores of each group, and the best n_best of all, -inf where fewer have ended.
        self.kept_BGQ = torch.full_like(self.sums_BK, NEVER).unflatten(1, (config.groups, -1))
        self.kept_BJ = torch.full_like(self.sums_BK[:, : config.n_best], NEVER)
        self.ended_BG = torch.zeros(sentences, config.groups, dtype=torch.long, device=device)
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
        tokens_BW = torch.cat((chosen.tokens_BK, chosen.end_tokens_BK), 1)
        parents_BW = torch.cat((chosen.parents_BK, chosen.end_parents_BK), 1)
        cells_BW = parents_BW * vocabulary + tokens_BW
        logs_BW = scores.model_NV.view(sentences, size * vocabulary).gather(1, cells_BW)
        self.trace.append(
            Step(
                tokens_N=tokens_BW.view(-1),
                log_probabilities_N=logs_BW.view(-1),
                parents_N=parents_BW.view(-1),
                attention_NS=attention_NS if self.attention else None,
            )
        )
        self.sums_BK = chosen.sums_BK
        if bool((chosen.end_sums_BK > NEVER).any()):
            self._keep(chosen, step + 1)
        if self.ends:
            self._stop_groups(step + 1)
        return self._go_on(chosen)

    def _choose(self, search_NV: Tensor) -> _Chosen:
        """Choose for all slots, group by group."""
        sentences, size = self.sums_BK.shape
        # Of one hypothesis at most Q continuations go on and one ends, while other groups make at most the tokens of
        # their K - Q slots and EOS dearer, or end what they share with this one.
        groups = self.config.groups
        logs_NC, ids_NC = top(search_NV, size + 1 if groups == 1 else 2 * size + 1)
        sums_BKC = self.sums_BK[:, :, None] + logs_NC.view(sentences, size, -1)
        ids_BKC = ids_NC.view(sentences, size, -1)
        chosen = self._fill(sums_BKC, ids_BKC, 0, None)
        for group in range(1, groups):
            chosen = chosen.beside(self._fill(sums_BKC, ids_BKC, group, chosen))
        if groups == 1 and size > 1:
            _stay(chosen)
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
        # At most Q continuations are ends, one of each hypothesis, unless all are.
        places_BR = places_BM[:, : 2 * share]
        sums_BR = sums_BM.gather(1, places_BR).masked_fill(ranked_BM[:, : 2 * share] == NEVER, NEVER)
        tokens_BR = ids_BM.gather(1, places_BR)
        parents_BR = places_BR // width + first
        end_BR = tokens_BR == EOS
        full_N = self.constraints.at_limit()
        if full_N is not None:
            end_BR |= full_N[::size, None]
        alive_BQ = end_BR.byte().sort(dim=1, stable=True).indices[:, :share]
        return _Chosen(
            sums_BK=sums_BR.masked_fill(end_BR, NEVER).gather(1, alive_BQ),
            parents_BK=parents_BR.gather(1, alive_BQ),
            tokens_BK=tokens_BR.gather(1, alive_BQ),
            end_sums_BK=sums_BR.masked_fill(~end_BR, NEVER)[:, :share],
            end_parents_BK=parents_BR[:, :share],
            end_tokens_BK=tokens_BR[:, :share],
        )

    def _beside(self, sums_BM: Tensor, ids_BM: Tensor, first: int, before: _Chosen) -> Tensor:
        """log P less the cost of choosing as earlier groups did; -inf for a hypothesis that they have just ended."""
        share = self.config.beam_size // self.config.groups
        like_BMP = (ids_BM[:, :, None] == before.tokens_BK[:, None, :]) & (before.sums_BK > NEVER)[:, None, :]
        ended_BMP = (ids_BM[:, :, None] == before.end_tokens_BK[:, None, :]) & (before.end_sums_BK > NEVER)[:, None, :]
        counts_BM = like_BMP.sum(2) + ended_BMP.sum(2)
        parents_BQP = before.end_parents_BK[:, None, :].expand(-1, share, -1)
        same_BQP = self.same_BKK[:, first : first + share].gather(2, parents_BQP)
        width = sums_BM.size(1) // share
        twice_BM = (ended_BMP & same_BQP.repeat_interleave(width, 1)).any(2)
        return (sums_BM - self.config.diversity * counts_BM).masked_fill(twice_BM, NEVER)

    def _keep(self, chosen: _Chosen, length: int) -> None:
        """Score the hypotheses that have just ended."""
        scores_BK = chosen.end_sums_BK / self._length_penalty(length)
        if self.config.coverage_penalty > 0:
            penalties_N = coverage_penalty(self.coverage_NS, self.mask_NS, self.config.coverage_penalty)
            scores_BK = scores_BK + penalties_N.view_as(scores_BK).gather(1, chosen.end_parents_BK)
        self.ends.append((length - 1, torch.cat((torch.full_like(scores_BK, NEVER), scores_BK), 1)))
        self.kept_BJ = torch.cat((self.kept_BJ, scores_BK), 1).topk(self.config.n_best, 1).values
        share = self.kept_BGQ.shape[2]
        self.kept_BGQ = torch.cat((self.kept_BGQ, scores_BK.view_as(self.kept_BGQ)), 2).topk(share, 2).values
        self.ended_BG += (scores_BK.view_as(self.kept_BGQ) > NEVER).sum(2)

    def _stop_groups(self, length: int) -> None:
        """Let groups go on no longer of which enough hypotheses have ended, or whose alive ones are no better."""
        alive_BGQ = self.sums_BK.view_as(self.kept_BGQ)
        if self.config.patience == 0:
            now_BG = alive_BGQ.amax(2) / self._length_penalty(length)
            over_BG = self.kept_BGQ[:, :, -1] >= now_BG
        else:
            over_BG = self.ended_BG >= self.config.patience * alive_BGQ.shape[2]
        self.sums_BK = alive_BGQ.masked_fill(over_BG[:, :, None], NEVER).flatten(1)

    def _go_on(self, chosen: _Chosen) -> bool:
        """Reorder everything by the choice, let sentences that are done leave; returns whether any are left.

        Nothing alive of a done sentence can still be among the n_best. A sentence stays, without a hypothesis, until
        enough are done: leaving copies what the model remembers, staying computes for nothing.
        """
        sentences, size = chosen.tokens_BK.shape
        kept_B = None
        if self.ends:
            alive_B = self.sums_BK.amax(1)
            done_B = (alive_B == NEVER) | (self.kept_BJ[:, -1] >= alive_B / self.most_penalty_B * (1.0 - _SLACK))
            left = sentences - int(done_B.sum())
            if left == 0:
                return False
            if left < sentences:
                self.sums_BK = self.sums_BK.masked_fill(done_B[:, None], NEVER)
                kept_B = staying(~done_B, left)
            if kept_B is not None:
                self.trace.keep(kept_B.cpu().numpy())
        if self.config.groups > 1:
            self._compare(chosen)
        rows_BK = chosen.parents_BK + self.first_B1[:sentences]
        tokens_BK = chosen.tokens_BK
        if kept_B is not None:
            rows_BK, tokens_BK = rows_BK[kept_B], tokens_BK[kept_B]
            self.sums_BK, self.kept_BGQ, self.kept_BJ = (
                self.sums_BK[kept_B],
                self.kept_BGQ[kept_B],
                self.kept_BJ[kept_B],
            )
            self.most_penalty_B, self.same_BKK = self.most_penalty_B[kept_B], self.same_BKK[kept_B]
            self.ended_BG = self.ended_BG[kept_B]
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
