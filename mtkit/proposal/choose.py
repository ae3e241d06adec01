"""Which settings suit a corpus and a machine: three sizes of corpus, each with settings that are known to work there.

Small corpora get what was measured on Multi30k (recipes/multi30k-en-de.yaml), medium ones what is usual for IWSLT 2014
(recipes/iwslt14-de-en.yaml), large ones the base model of Vaswani et al. 2017 (recipes/wmt14-en-de.yaml); in between,
vocabulary and passes over the data follow the size. Without a GPU the larger models would take weeks, so that a CPU
gets a smaller one, and fewer updates where even these would take more than a day.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from mtkit.data.batching import plan
from mtkit.figures import duration, size
from mtkit.proposal.survey import Survey, Tokens
from mtkit.sections.data import Batching, TokenizerSection

SMALL, LARGE = 100_000, 1_000_000
_LENGTHS = (50, 64, 100, 128, 175, 256)
_MEASURED_RATE = 3_700
"""Target tokens a second on one core (AMD Zen 4, bf16) with the small model and 6,000 entries."""
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to train on: CPU cores, and the memory in bytes of the first GPU, None where there is none."""

    cores: int
    gpu_name: str | None = None
    gpu_bytes: int | None = None

    def __str__(self) -> str:
        cores = f"{self.cores} CPU core{'s' * (self.cores != 1)}"
        return f"{self.gpu_name} ({size(self.gpu_bytes)}), {cores}" if self.gpu_bytes else f"{cores}, no GPU"


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, its value, and why; without a reason it stands with the setting before."""

    key: str
    value: Any
    why: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The chosen settings by section, in the order of a recipe, and about how long training takes."""

    sections: dict[str, list[Choice]] = field(default_factory=dict)
    seconds: float | None = None

    def add(self, section: str, *choices: Choice) -> None:
        """Append choices to a section."""
        self.sections.setdefault(section, []).extend(choices)

    def value(self, section: str, key: str) -> Any:
        """The value chosen for a setting."""
        return next(choice.value for choice in self.sections[section] if choice.key == key)


def vocabulary_size(pairs: int, characters: int) -> int:
    """How many entries of a joint vocabulary suit a corpus, before it is tried on the text.

    35 * sqrt(pairs) goes through the sizes that are known to work: 2,500 for 5,000 pairs, 6,000 for Multi30k's 29,000,
    32,000 and more for millions. A script of thousands of characters needs room for them besides.
    """
    wanted = 35 * math.sqrt(pairs) + (characters if characters > 500 else 0)
    step = 500 if wanted >= 2000 else 100
    return int(min(32_000, max(200, round(wanted / step) * step)))


def tokenizer_section(vocab_size: int, characters: int) -> TokenizerSection:
    """The tokenizer settings for a size; rare characters are left out where they would fill the vocabulary."""
    return TokenizerSection(vocab_size=vocab_size, character_coverage=0.9995 if characters > vocab_size / 2 else 1.0)


def choose(found: Survey, tokens: Tokens, machine: Machine) -> Proposal:
    """Settings for a corpus that was surveyed, and for a machine."""
    proposal = Proposal()
    _text(proposal, found, tokens)
    seconds = None
    if found.pairs < SMALL:
        seconds = _small(proposal, found, tokens, machine)
    elif machine.gpu_bytes is None:
        seconds = _larger_on_cpu(proposal, found, tokens, machine)
    elif found.pairs < LARGE:
        _medium(proposal, machine)
    else:
        _large(proposal, found, tokens, machine)
    beam = Choice("beam_size", 5, "4 to 5 is usual; a wider beam is slower and rarely better (Koehn and Knowles 2017)")
    proposal.add("search", Choice("method", "beam"), beam, Choice("length_penalty", 1.0))
    return Proposal(proposal.sections, seconds)


def _text(proposal: Proposal, found: Survey, tokens: Tokens) -> None:
    """Tokenizer and filters."""
    section = tokenizer_section(tokens.vocab_size, found.characters)
    tried = f"tried on this text: {tokens.characters_a_token:.1f} characters a token"
    proposal.add(
        "tokenizer",
        Choice("vocabulary", "joint", "one for both languages, so that one matrix serves both (Press and Wolf 2017)"),
        Choice(
            "vocab_size",
            tokens.vocab_size,
            f"small corpora want small ones (Sennrich and Zhang 2019; Gowda and May 2020); {tried}",
        ),
    )
    if section.character_coverage < 1:
        why = f"the text has {found.characters:,} different characters, most of them rare"
        proposal.add("tokenizer", Choice("character_coverage", section.character_coverage, why))
    most = tokens.length_of(0.999)
    limit = next((length for length in _LENGTHS if length >= 1.5 * most), _LENGTHS[-1])
    proposal.add("filters", Choice("max_length", limit, f"tokens; 99.9 % of the pairs have at most {most} on a side"))
    if found.pairs >= SMALL:
        proposal.add(
            "filters", Choice("max_ratio", 3, "larger corpora hold misaligned pairs (Khayrallah and Koehn 2018)")
        )


def _small(proposal: Proposal, found: Survey, tokens: Tokens, machine: Machine) -> float | None:
    few = found.pairs < 10_000
    budget = max(1200 if few else 2400, proposal.value("filters", "max_length") + 20)
    why = "tokens a side; small batches suit small corpora (Sennrich and Zhang 2019)"
    proposal.add("batching", Choice("max_tokens", budget, why))
    _model(proposal, (128, 4, 256, 4, 4), "small, as measured on Multi30k: a larger one learns so few pairs by heart")
    dropout, amount = (0.3, "less than 20,000 pairs") if found.pairs < 20_000 else (0.2, "20,000 to 100,000 pairs")
    proposal.add(
        "model",
        Choice("dropout", dropout, f"strong, for {amount} (Sennrich and Zhang 2019)"),
        Choice("norm", "pre", "steadier on little data (Nguyen and Salazar 2019), and needs no long warm-up"),
    )
    proposal.add("optimizer", Choice("name", "muon", "as measured on Multi30k: it learns more from each update"))
    _linear_schedule(proposal, 8e-3)
    steps, passes = _steps(found, tokens, budget)
    steps, seconds = _in_time(proposal, found, tokens, machine, budget, steps)
    why = f"about {passes:.0f} passes over the data; the rate falls to 0 there, so a shorter run is another recipe"
    _training(proposal, steps, why, validations=4)
    return seconds


def _larger_on_cpu(proposal: Proposal, found: Survey, tokens: Tokens, machine: Machine) -> float | None:
    budget = 4096
    proposal.add("batching", Choice("max_tokens", budget, "tokens a side"))
    _model(proposal, (256, 4, 1024, 4, 4), "as large as a CPU trains in a day or so; with a GPU, run mtkit init there")
    proposal.add(
        "model",
        Choice("dropout", 0.2 if found.pairs < LARGE else 0.1, "less, the more data there is"),
        Choice("norm", "pre", "needs no long warm-up (Xiong et al. 2020)"),
    )
    _linear_schedule(proposal, 2e-3)
    wanted, _ = _steps(found, tokens, budget)
    steps, seconds = _in_time(proposal, found, tokens, machine, budget, wanted)
    passes = steps / _batches(found, tokens, budget)
    why = f"about {passes:.1f} passes over the data; the rate falls to 0 there, so a shorter run is another recipe"
    if steps < wanted:
        why += f"; {wanted:,} would be better, and take longer than a day"
    _training(proposal, steps, why)
    return seconds


def _medium(proposal: Proposal, machine: Machine) -> None:
    _gpu_batches(proposal, machine, 4096, 512)
    _model(proposal, (512, 4, 1024, 6, 6), "usual for some 100,000 pairs, as in IWSLT 2014")
    proposal.add("model", Choice("dropout", 0.3, "usual for this size (Sennrich and Zhang 2019 for why strong)"))
    proposal.add(
        "optimizer",
        Choice("name", "adamw", "decoupled weight decay (Loshchilov and Hutter 2019)"),
        Choice("weight_decay", 1e-4),
    )
    proposal.add(
        "schedule",
        Choice("name", "inverse_sqrt", "Vaswani et al. 2017, section 5.3"),
        Choice("rate", 5e-4),
        Choice("warmup_steps", 4000),
    )
    proposal.add(
        "training",
        Choice("max_steps", 50_000, "an upper bound: patience ends training earlier"),
        Choice("patience", 10, "validations without a new best"),
        Choice("precision", "auto", "bf16 where the hardware has it"),
        Choice("validate_every_steps", 1000),
    )


def _large(proposal: Proposal, found: Survey, tokens: Tokens, machine: Machine) -> None:
    _gpu_batches(proposal, machine, 25_000, 512)
    _model(proposal, (512, 8, 2048, 6, 6), "the base model of Vaswani et al. 2017, table 3")
    proposal.add("model", Choice("dropout", 0.1, "as there"))
    proposal.add(
        "schedule",
        Choice("name", "inverse_sqrt", "Vaswani et al. 2017, section 5.3, with the rate given there"),
        Choice("warmup_steps", 4000),
    )
    passes = 20 * math.sqrt(4_500_000 / found.pairs)
    steps = _rounded(min(100_000, passes * _batches(found, tokens, 25_000)))
    proposal.add(
        "training",
        Choice("max_steps", steps, "100,000 for the 4.5 million pairs of Vaswani et al. 2017, fewer for less data"),
        Choice("precision", "auto", "bf16 where the hardware has it"),
        Choice("validate_every_steps", 3000),
        Choice("save_every_steps", 1500),
        Choice("keep_last", 5),
    )
    proposal.add(
        "average",
        Choice("select", "last", "the mean of the last 5 checkpoints (Vaswani et al. 2017, section 6.1)"),
        Choice("checkpoints", 5),
    )


def _model(proposal: Proposal, shape: tuple[int, int, int, int, int], why: str) -> None:
    names = ("d_model", "heads", "d_ff", "encoder_layers", "decoder_layers")
    choices = [Choice(name, value) for name, value in zip(names, shape, strict=True)]
    proposal.add("model", Choice(names[0], shape[0], why), *choices[1:])


def _linear_schedule(proposal: Proposal, rate: float) -> None:
    why = "a short way up, then straight down to 0 at max_steps: with a moving average, best in a fixed time"
    proposal.add("schedule", Choice("name", "linear", why), Choice("rate", rate), Choice("warmup_steps", 500))


def _training(proposal: Proposal, steps: int, why: str, validations: int = 8) -> None:
    proposal.add(
        "training",
        Choice("max_steps", steps, why),
        Choice("precision", "auto", "bf16 where the hardware has it"),
        Choice("ema_decay", 0.997, "a moving average of the weights, in place of averaging late checkpoints"),
        Choice("validate_every_steps", steps // validations),
        Choice("keep_best", 1),
        Choice("keep_last", 2),
    )
    proposal.add(
        "average",
        Choice("select", "last", "the moving average is at its best at the end of the decay"),
        Choice("checkpoints", 1),
    )


def _gpu_batches(proposal: Proposal, machine: Machine, wanted: int, d_model: int) -> None:
    """Batches of `wanted` tokens an update, in as many parts as the GPU's memory asks for."""
    assert machine.gpu_bytes is not None
    fits = max(512, int(machine.gpu_bytes / 1e9 * 500 * 512 / d_model))
    parts = math.ceil(wanted / fits)
    why = f"tokens a side, of {wanted:,} an update; for {size(machine.gpu_bytes)} of GPU memory"
    proposal.add("batching", Choice("max_tokens", math.ceil(wanted / parts), why))
    if parts > 1:
        proposal.add("training", Choice("accumulate", parts, "batches an update"))


def _batches(found: Survey, tokens: Tokens, budget: int) -> float:
    """How many batches one pass over the corpus makes, by planning those of the sample."""
    batches = plan(tokens.source_lengths + 1, tokens.target_lengths + 1, Batching(max_tokens=budget), 1, 0)
    return len(batches) * found.pairs / len(found.sources)


def _steps(found: Survey, tokens: Tokens, budget: int) -> tuple[int, float]:
    """Updates for a corpus, and how many passes over it they are: 17.5 for Multi30k's 29,000 pairs, as measured there.

    More where there is less data, but never so few as to end before anything is learnt.
    """
    passes = 17.5 * math.sqrt(29_000 / found.pairs)
    a_pass = _batches(found, tokens, budget)
    steps = _rounded(max(1000, passes * a_pass))
    return steps, steps / a_pass


def _in_time(
    proposal: Proposal, found: Survey, tokens: Tokens, machine: Machine, budget: int, steps: int
) -> tuple[int, float | None]:
    """The updates that fit into a day on this CPU, and the seconds they take; any on a GPU, in unknown time."""
    if machine.gpu_bytes is not None:
        return steps, None
    a_pass = float((tokens.target_lengths + 1).sum()) * found.pairs / len(found.sources)
    tokens_a_step = a_pass / _batches(found, tokens, budget)
    rate = _MEASURED_RATE * machine.cores * _cost(128, 256, 4, 6000) / _cost_of(proposal, tokens.vocab_size)
    affordable = _rounded(max(2000, _DAY * rate / tokens_a_step))
    steps = min(steps, affordable)
    return steps, steps * tokens_a_step / rate


def _cost_of(proposal: Proposal, vocab_size: int) -> float:
    d_model, d_ff, layers = (int(proposal.value("model", key)) for key in ("d_model", "d_ff", "encoder_layers"))
    return _cost(d_model, d_ff, layers, vocab_size)


def _cost(d_model: int, d_ff: int, layers: int, vocab_size: int) -> float:
    """Multiplications a pair of tokens takes: encoder and decoder layers of equal number, and the output."""
    encoder, decoder = 4 * d_model**2 + 2 * d_model * d_ff, 8 * d_model**2 + 2 * d_model * d_ff
    return float(layers * (encoder + decoder) + d_model * vocab_size)


def _rounded(steps: float) -> int:
    """Updates in steps that eight validations divide."""
    step = 200 if steps < 20_000 else 2000
    return max(step, round(steps / step) * step)


def in_words(seconds: float | None) -> str:
    """How long training takes, roughly."""
    return "" if seconds is None else f"roughly {duration(seconds)} of training on this machine"
