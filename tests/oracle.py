"""Slow and obvious answers for the search tests: two small models, and every method in plain Python without batches.

Shapes: B sentences, S source length, N = B * per_source rows, V vocabulary, D width.
"""

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.sections.search import Beam, Rules

FIRSTS, POSITIONS = 5, 12


def pad(sources: list[list[int]]) -> Tensor:
    """Sources without EOS as the tensor that a model is given."""
    width = max(len(source) for source in sources) + 1
    return torch.tensor([[*source, EOS, *([PAD] * (width - len(source) - 1))] for source in sources])


class StrictState:
    """Knows which sentence each row belongs to, and refuses a selection against the contract."""

    def __init__(self, source_BS: Tensor, per_source: int) -> None:
        self.per_source = per_source
        self.source_NS = source_BS.repeat_interleave(per_source, 0)
        self.sentence_N = torch.arange(len(source_BS)).repeat_interleave(per_source)
        self.attention_NS: Tensor | None = None
        self.rows_fed: list[int] = []

    def select(self, rows_N: Tensor) -> None:
        """As protocol.State.select; subclasses move their own tensors."""
        assert len(rows_N) % self.per_source == 0
        assert len(rows_N) <= len(self.sentence_N)
        groups = self.sentence_N[rows_N].view(-1, self.per_source)
        assert (groups == groups[:, :1]).all(), "a group of rows mixes sentences"
        assert len(groups[:, 0].unique()) == len(groups), "a sentence occurs twice"
        self.sentence_N = self.sentence_N[rows_N]
        self.source_NS = self.source_NS[rows_N]


class TableState(StrictState):
    """The last two tokens of each row, and the position."""

    def __init__(self, source_BS: Tensor, per_source: int, attention: bool) -> None:
        super().__init__(source_BS, per_source)
        self.wants_attention = attention
        self.last_N = torch.full((len(self.source_NS),), PAD)
        self.position = 0

    def select(self, rows_N: Tensor) -> None:
        """Move the remembered token."""
        super().select(rows_N)
        self.last_N = self.last_N[rows_N]


class TableModel:
    """A Markov table: the next token depends on the source's first token, the position and the last two tokens.

    `step_size` rounds the logits, which makes ties. Attention comes from a table too. `calls` counts rows per step. The
    table has 60 * V^3 numbers.
    """

    def __init__(self, vocab_size: int, seed: int, scale: float = 1.5, step_size: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (FIRSTS, POSITIONS, vocab_size, vocab_size)
        self.vocab_size = vocab_size
        self.table = torch.randn(*shape, vocab_size, generator=generator) * scale
        if step_size:
            self.table = (self.table / step_size).round() * step_size
        self.gaze = torch.randn(*shape, 16, generator=generator) * 2
        self.calls: list[int] = []

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> TableState:
        """See SearchModel."""
        return TableState(source_BS, per_source, attention)

    def step(self, ids_N: Tensor, state: TableState) -> Tensor:
        """See SearchModel."""
        self.calls.append(len(ids_N))
        assert len(ids_N) == len(state.source_NS)
        cell = (state.source_NS[:, 0] % FIRSTS, state.position % POSITIONS, state.last_N, ids_N)
        if state.wants_attention:
            width = state.source_NS.size(1)
            gaze_NS = self.gaze[cell][:, :width].masked_fill(state.source_NS == PAD, -torch.inf)
            state.attention_NS = gaze_NS.softmax(1)
        state.last_N = ids_N
        state.position += 1
        return self.table[cell]


class RecurrentState(StrictState):
    """A hidden vector for each row, and the source's vectors."""

    def __init__(self, source_BS: Tensor, per_source: int, memory_BSD: Tensor) -> None:
        super().__init__(source_BS, per_source)
        self.memory_NSD = memory_BSD.repeat_interleave(per_source, 0)
        self.hidden_ND = self.memory_NSD.new_zeros(len(self.source_NS), memory_BSD.size(2))

    def select(self, rows_N: Tensor) -> None:
        """Move the hidden vectors and the memory."""
        super().select(rows_N)
        self.hidden_ND, self.memory_NSD = self.hidden_ND[rows_N], self.memory_NSD[rows_N]


class RecurrentModel:
    """An untrained recurrent decoder with attention: everything it says depends on the whole past and source."""

    def __init__(self, vocab_size: int, seed: int, width: int = 16, scale: float = 4.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.embedding_VD = torch.randn(vocab_size, width, generator=generator)
        self.recurrence_DD = torch.randn(width, width, generator=generator) / width**0.5 * 1.5
        self.output_DV = torch.randn(width, vocab_size, generator=generator) / width**0.5 * scale
        self.calls: list[int] = []

    def start(self, source_BS: Tensor, per_source: int, attention: bool = False) -> RecurrentState:
        """See SearchModel."""
        return RecurrentState(source_BS, per_source, self.embedding_VD[source_BS % self.vocab_size])

    def step(self, ids_N: Tensor, state: RecurrentState) -> Tensor:
        """See SearchModel."""
        self.calls.append(len(ids_N))
        state.hidden_ND = torch.tanh(state.hidden_ND @ self.recurrence_DD + self.embedding_VD[ids_N])
        scores_NS = (state.memory_NSD @ state.hidden_ND[:, :, None]).squeeze(2)
        state.attention_NS = scores_NS.masked_fill(state.source_NS == PAD, -torch.inf).softmax(1)
        context_ND = (state.attention_NS[:, :, None] * state.memory_NSD).sum(1)
        return (state.hidden_ND + context_ND) @ self.output_DV


@dataclass(frozen=True)
class Path:
    """A hypothesis: all scored tokens (EOS too), their log-probabilities, and the attention of each."""

    tokens: tuple[int, ...] = ()
    ranked: float = 0.0
    logs: tuple[float, ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it ended with EOS."""
        return self.tokens[-1:] == (EOS,)

    @property
    def ids(self) -> list[int]:
        """Its tokens without EOS."""
        return [token for token in self.tokens if token != EOS]


def log_softmax(logits: list[float]) -> list[float]:
    """Of one row, in double precision."""
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return [value - total for value in logits]


@dataclass
class Oracle:
    """All searches over one sentence (without EOS) of a model, one hypothesis at a time."""

    model: TableModel | RecurrentModel
    source: list[int]
    rules: Rules
    prefix: tuple[int, ...] = ()
    cache: dict[tuple[int, ...], tuple[list[float], tuple[float, ...]]] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The length limit."""
        relative = math.floor(len(self.source) * self.rules.max_length_ratio + 1e-9) + self.rules.max_length_offset
        return min(self.rules.max_length, max(relative, 1, len(self.prefix) + 1))

    @property
    def least(self) -> int:
        """The minimum length."""
        relative = math.ceil(len(self.source) * self.rules.min_length_ratio - 1e-9)
        return min(self.most, max(self.rules.min_length, relative))

    def force(self, tokens: tuple[int, ...]) -> tuple[list[float], tuple[float, ...]]:
        """Logits and attention after BOS and these tokens, from a run of their own."""
        if tokens not in self.cache:
            state = self.model.start(pad([self.source]), 1, attention=True)
            for token in (BOS, *tokens):
                logits_NV = self.model.step(torch.tensor([token]), state)
            assert state.attention_NS is not None
            self.cache[tokens] = logits_NV[0].double().tolist(), tuple(state.attention_NS[0].tolist())
        return self.cache[tokens]

    def allowed(self, tokens: tuple[int, ...]) -> set[int]:
        """What may follow these tokens."""
        if len(tokens) < len(self.prefix):
            return {self.prefix[len(tokens)]}
        ids = set(range(self.model.vocab_size)) - {PAD, BOS}
        if not self.rules.allow_unknown:
            ids.discard(UNK)
        size = self.rules.no_repeat_ngram
        if size:
            seen = {tokens[start : start + size] for start in range(len(tokens) - size + 1)}
            ids = {token for token in ids if token == EOS or (*tokens[len(tokens) - size + 1 :], token) not in seen}
        if len(tokens) < self.least and ids != {EOS}:
            ids.discard(EOS)
        return ids

    def extend(self, path: Path) -> list[Path]:
        """The path with each allowed token."""
        logits, attention = self.force(path.tokens)
        model_logs = log_softmax(logits)
        penalty = self.rules.repetition_penalty
        changed = list(logits)
        for token in set(path.tokens):
            changed[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        ranked = log_softmax(changed)
        return [
            Path(
                (*path.tokens, token),
                path.ranked + ranked[token],
                (*path.logs, model_logs[token]),
                (*path.attention, attention),
            )
            for token in sorted(self.allowed(path.tokens))
        ]

    def ended(self, path: Path) -> bool:
        """Whether nothing can follow."""
        return path.finished or len(path.tokens) >= self.most

    def all_paths(self, path: Path = Path()) -> list[Path]:
        """Everything that the rules allow."""
        if self.ended(path):
            return [path]
        return list(itertools.chain.from_iterable(self.all_paths(longer) for longer in self.extend(path)))

    def greedy(self) -> Path:
        """The likeliest token at each step."""
        path = Path()
        while not self.ended(path):
            path = max(self.extend(path), key=lambda longer: longer.ranked)
        return path

    def score(self, path: Path, config: Beam) -> float:
        """What beam search ranks ended hypotheses by."""
        length = len(path.tokens)
        if config.length_normalization == "plain":
            value = path.ranked / length**config.length_penalty
        else:
            value = path.ranked / ((5 + length) ** config.length_penalty / 6**config.length_penalty)
        if config.coverage_penalty:
            for place in range(len(self.source)):
                received = sum(weights[place] for weights in path.attention)
                value += config.coverage_penalty * math.log(max(1e-9, min(received, 1.0)))
        return value

    def beam(self, config: Beam) -> list[tuple[Path, float]]:
        """Beam search that stops only when enough hypotheses have ended."""
        share = config.beam_size // config.groups
        groups = [[Path()] for _ in range(config.groups)]
        ended: list[list[Path]] = [[] for _ in range(config.groups)]
        while any(groups):
            tokens_chosen: list[int] = []
            ended_now: list[tuple[int, ...]] = []
            for number, group in enumerate(groups):
                longer = [path for old in group for path in self.extend(old)]
                longer = [path for path in longer if not (self.ended(path) and path.tokens in ended_now)]
                cost = {path: config.diversity * tokens_chosen.count(path.tokens[-1]) for path in longer}
                longer.sort(key=lambda path: path.ranked - cost[path], reverse=True)
                finished = [path for path in longer[:share] if self.ended(path)]
                alive = [path for path in longer if not self.ended(path)][:share]
                tokens_chosen += [path.tokens[-1] for path in finished + alive]
                ended_now += [path.tokens for path in finished]
                ended[number] += finished
                groups[number] = [] if self.enough(ended[number], alive, share, config) else alive
        scored = [(path, self.score(path, config)) for path in itertools.chain.from_iterable(ended)]
        return sorted(scored, key=lambda entry: -entry[1])[: config.n_best]

    def enough(self, ended: list[Path], alive: list[Path], share: int, config: Beam) -> bool:
        """Whether `share` hypotheses have ended that are as good as the best alive one would be if it ended now.

        With patience, whether patience * share have ended.
        """
        if len(ended) < share or not alive:
            return False
        if config.patience:
            return len(ended) >= config.patience * share
        plain = config.model_copy(update={"coverage_penalty": 0.0})
        worst = sorted((self.score(path, config) for path in ended), reverse=True)[share - 1]
        return worst >= max(self.score(path, plain) for path in alive)
