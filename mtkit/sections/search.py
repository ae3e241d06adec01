"""The recipe section about decoding: one model a method, so that an option of another method is an error."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mtkit.sections.base import Section


class Rules(Section):
    """Limits that every method obeys. Lengths are in tokens without EOS; a hypothesis of the longest length is cut."""

    min_length: int = Field(0, ge=0, le=100_000, description="Least tokens, unless the longest allowed is less")
    min_length_ratio: float = Field(0.0, ge=0, le=100, description="Least tokens per source token")
    max_length: int = Field(512, ge=1, le=100_000, description="Most tokens, whatever the source")
    max_length_ratio: float = Field(2.0, ge=0, le=100, description="Most tokens per source token ...")
    max_length_offset: int = Field(30, ge=0, le=100_000, description="... plus so many")
    no_repeat_ngram: int = Field(
        0, ge=0, le=100, description="No n-gram of so many tokens occurs twice in a hypothesis; 0: off"
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Divides positive (multiplies negative) logits of tokens already produced "
        "(Keskar et al. 2019, section 4.1); 1: off",
    )
    allow_unknown: bool = Field(False, description="Let the unknown token be produced")


class Lines(Section):
    """How lines of text become work."""

    max_source_length: int = Field(
        256,
        ge=4,
        le=100_000,
        description="Source tokens translated in one piece; longer lines go by `on_long`",
    )
    on_long: Literal["split", "truncate", "error"] = Field(
        "split",
        description="A longer line is split at sentence ends, clause marks, then anywhere; cut; or refused",
    )
    max_tokens: int = Field(1024, ge=16, le=10_000_000, description="Most source tokens in a batch, padding included")
    batch_size: int = Field(64, ge=1, le=100_000, description="Most sentences in a batch")
    buffer_size: int = Field(
        2048, ge=1, le=10_000_000, description="Lines read ahead to be sorted by length; bounds the memory"
    )


class Greedy(Section):
    """The likeliest token at every step."""

    method: Literal["greedy"] = Field(description="greedy")
    rules: Rules = Field(default_factory=Rules, description="Limits")
    lines: Lines = Field(default_factory=Lines, description="Batches and long lines")


class Beam(Section):
    """Beam search (Graves 2012), scored as log P / length penalty (Wu et al. 2016, equation 14)."""

    method: Literal["beam"] = Field("beam", description="beam")
    beam_size: int = Field(5, ge=1, le=256, description="Hypotheses kept alive for each sentence")
    n_best: int = Field(1, ge=1, le=256, description="Hypotheses returned for each sentence; at most beam_size")
    length_penalty: float = Field(1.0, ge=0, le=10, description="alpha: 0 no normalisation; see length_normalization")
    length_normalization: Literal["wu", "plain"] = Field(
        "plain",
        description="plain: log P / length^alpha; wu: log P / ((5 + length) / 6)^alpha; length counts EOS",
    )
    patience: float = Field(
        0.0,
        ge=0,
        le=100,
        description="From 1 on: stop a sentence when patience * beam_size hypotheses have ended (Kasai et al. 2022), "
        "which is quicker; 0: when none alive would score better than enough that have ended",
    )
    coverage_penalty: float = Field(
        0.0,
        ge=0,
        le=10,
        description="beta of Wu et al. 2016, equation 14: adds beta * sum over source tokens of log min(attention, 1) "
        "to the score of a whole hypothesis; 0: off",
    )
    groups: int = Field(
        1,
        ge=1,
        le=256,
        description="Diverse beam search (Vijayakumar et al. 2018): groups of beam_size / groups",
    )
    diversity: float = Field(0.5, ge=0, le=100, description="What a token costs that an earlier group chose this step")
    mbr: Literal["off", "chrf", "bleu"] = Field(
        "off",
        description="Choose among the n_best by expected utility (Eikema and Aziz 2020) instead of score",
    )
    rules: Rules = Field(default_factory=Rules, description="Limits")
    lines: Lines = Field(default_factory=Lines, description="Batches and long lines")

    @model_validator(mode="after")
    def _fits(self) -> "Beam":
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best ({self.n_best}) cannot exceed beam_size ({self.beam_size})")
        if 0 < self.patience < 1:
            raise ValueError(f"patience ({self.patience:g}) is 0 or at least 1")
        if self.beam_size % self.groups:
            raise ValueError(f"groups ({self.groups}) must divide beam_size ({self.beam_size})")
        return self


class Sampling(Section):
    """Ancestral sampling, with the usual truncations, applied in the order temperature, top_k, top_p, min_p."""

    method: Literal["sampling"] = Field(description="sampling")
    temperature: float = Field(1.0, gt=0, le=100, description="Logits are divided by it; near 0 is greedy")
    top_k: int = Field(0, ge=0, le=1_000_000, description="Only the k likeliest tokens (Fan et al. 2018); 0: all")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Only the likeliest tokens that reach so much mass (Holtzman et al. 2020)",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Only tokens at least so likely, relative to the likeliest (Nguyen et al. 2024)",
    )
    samples: int = Field(1, ge=1, le=1024, description="Hypotheses drawn for each sentence")
    seed: int = Field(1, ge=0, lt=2**63, description="With the line number it fixes the noise of each line")
    mbr: Literal["off", "chrf", "bleu"] = Field(
        "off", description="Return the sample of highest expected utility (Eikema and Aziz 2020), first"
    )
    rules: Rules = Field(default_factory=Rules, description="Limits")
    lines: Lines = Field(default_factory=Lines, description="Batches and long lines")


Search = Annotated[Greedy | Beam | Sampling, Field(discriminator="method")]
