"""Recipe sections about text: languages, corpora, tokenizer, filters and batches."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mtkit.sections.base import Section


class Languages(Section):
    """The two languages, as ISO 639 codes (quote "no": YAML may read it as false)."""

    source: str = Field(
        min_length=2,
        max_length=16,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Source language, ISO 639 code, e.g. zh",
    )
    target: str = Field(
        min_length=2,
        max_length=16,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Target language, ISO 639 code; it also chooses the BLEU tokenizer (zh, ja, ko)",
    )


class Corpus(Section):
    """A parallel corpus: two aligned files (plain, .gz, .xz, .bz2), or one TSV file. Paths start at `data.root`."""

    name: str = Field(
        min_length=1, max_length=64, pattern=r"^[\w.-]+$", description="Name in logs, reports and shard files"
    )
    source: str | None = Field(None, description="File of source sentences, one a line")
    target: str | None = Field(None, description="File of target sentences, one a line, aligned with `source`")
    tsv: str | None = Field(None, description="Instead of source and target: a file of tab-separated columns")
    source_column: int = Field(1, ge=1, le=1000, description="TSV column of the source sentence, counted from 1")
    target_column: int = Field(2, ge=1, le=1000, description="TSV column of the target sentence, counted from 1")
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="How often each pair is seen in an epoch: 2 twice, 0.5 a different random half every epoch",
    )
    tags: tuple[str, ...] = Field(
        (),
        description="User-defined symbols put before each source sentence, e.g. <news>; they mark a domain",
    )

    @model_validator(mode="after")
    def _one_form(self) -> "Corpus":
        if (self.tsv is None) == (self.source is None and self.target is None):
            raise ValueError("give either source and target, or tsv")
        if self.tsv is None and (self.source is None or self.target is None):
            raise ValueError("source and target come together")
        if self.tsv is not None and self.source_column == self.target_column:
            raise ValueError("source_column and target_column must differ")
        return self


class Download(Section):
    """A public file for `mtkit fetch`."""

    url: str = Field(pattern=r"^https?://\S+$", description="Where the file is, http or https")
    path: str = Field(min_length=1, description="Where to put it, from `data.root`")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file, 64 hexadecimal digits")
    members: dict[str, str] = Field(
        default_factory=dict,
        description="For a .tar, .tar.gz, .tgz or .zip: path inside the archive -> path to unpack to, from `data.root`",
    )


class Data(Section):
    """Where the sentences are."""

    root: str = Field(".", description="Folder that all data paths start at; itself from the current folder")
    train: tuple[Corpus, ...] = Field(min_length=1, description="Training corpora")
    valid: tuple[Corpus, ...] = Field((), description="Validation corpora, scored during training")
    test: tuple[Corpus, ...] = Field((), description="Test corpora, each scored at the end of `mtkit run`")
    downloads: tuple[Download, ...] = Field((), description="Files that `mtkit fetch` brings")

    @model_validator(mode="after")
    def _unique_names(self) -> "Data":
        for part in ("train", "valid", "test"):
            names = [corpus.name for corpus in getattr(self, part)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{part}: two corpora are named {twice[0]!r}; names must differ")
        return self


class TokenizerSection(Section):
    """SentencePiece BPE (Sennrich et al. 2016; Kudo and Richardson 2018)."""

    vocabulary: Literal["joint", "separate"] = Field(
        "joint", description="One vocabulary over both languages, or one for each"
    )
    vocab_size: int = Field(
        8000,
        ge=16,
        le=1_000_000,
        description="Entries of the vocabulary (of each one when separate), special ids included",
    )
    normalization: Literal["nfc", "nfkc"] = Field(
        "nfc",
        description="nfc: canonical composition and white space only; nfkc: also folds compatibility characters, "
        "which turns Chinese full-width punctuation into ASCII. Stored in the model; never applied to references",
    )
    character_coverage: float = Field(
        1.0,
        ge=0.98,
        le=1.0,
        description="Share of character occurrences the vocabulary must hold; 0.9995 suits zh, ja",
    )
    byte_fallback: bool = Field(
        False,
        description="Spell characters outside the vocabulary as UTF-8 bytes instead of an unknown token",
    )
    split_digits: bool = Field(False, description="Make every digit its own piece")
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Rate at which merges are left out in training, both sides cut anew every epoch (Provilkov et al. "
        "2020: 0.1, or 0.6 for zh, ja); begins each epoch with about a minute a million pairs; 0: off",
    )
    user_defined_symbols: tuple[str, ...] = Field((), description="Strings that are always one piece, such as tags")
    max_sentences: int = Field(
        1_000_000,
        ge=1,
        le=100_000_000,
        description="Sentences (both languages together) read into memory for training; larger corpora are sampled",
    )
    max_sentence_bytes: int = Field(
        4192, ge=16, le=1_000_000, description="Longer lines, in bytes, are left out of tokenizer training"
    )
    seed: int = Field(1, ge=0, lt=2**31, description="Seed of the sample")


class Filters(Section):
    """Which pairs stay in training. Every drop is counted by reason."""

    min_length: int = Field(1, ge=0, le=100_000, description="Least tokens on each side")
    max_length: int = Field(256, ge=1, le=100_000, description="Most tokens on each side, without EOS")
    max_ratio: float | None = Field(
        None, ge=1, le=1000, description="Most tokens of the longer side per token of the shorter; null: any"
    )
    drop_identical: bool = Field(False, description="Drop pairs whose target is a copy of the source")
    drop_duplicates: bool = Field(False, description="Keep only the first of exactly equal pairs of a corpus")


class Batching(Section):
    """How pairs become batches: similar lengths on both sides together, under a token budget."""

    max_tokens: Annotated[int, Field(ge=16, le=10_000_000)] | Literal["auto"] = Field(
        4096,
        description="Most tokens in a batch on either side, padding and EOS included: rows x longest; auto: measured "
        "before the first update, as many as fit into memory and still make training faster",
    )
    max_sentences: int | None = Field(None, ge=1, le=1_000_000, description="Most pairs in a batch; null: any")
    pool_size: int = Field(
        100_000, ge=1, le=10_000_000, description="Shuffled pairs that are sorted by length together"
    )
    block_size: int = Field(
        262_144,
        ge=1,
        le=100_000_000,
        description="Pairs held in memory and shuffled together (at least pool_size are); corpora of no more are "
        "shuffled as a whole, larger ones are dealt out anew every epoch in stretches of 1,024 neighbouring pairs",
    )

    @property
    def budget(self) -> int:
        """`max_tokens` where it is a number, as it is once `auto` has been measured."""
        assert self.max_tokens != "auto"
        return self.max_tokens

    def measured(self, max_tokens: int) -> "Batching":
        """The same with a number for `max_tokens`."""
        return self.model_copy(update={"max_tokens": max_tokens})


class Evaluation(Section):
    """How translations are scored, in validation and at the end (sacreBLEU, Post 2018)."""

    metrics: tuple[Literal["bleu", "chrf", "chrf++", "ter"], ...] = Field(
        ("bleu", "chrf"), min_length=1, description="Metrics of the test score"
    )
    tokenize: str | None = Field(
        None,
        pattern=r"^(13a|intl|zh|ja-mecab|ko-mecab|char|none|spm|flores101|flores200)$",
        description="BLEU tokenizer of sacreBLEU; null: by the target language",
    )
    lowercase: bool = Field(False, description="Score without regard to case")
    resamples: int = Field(
        1000,
        ge=0,
        le=100_000,
        description="Bootstrap resamples for the 95 % intervals of test scores (Koehn 2004); 0: no intervals",
    )

    @model_validator(mode="after")
    def _resamples_differ(self) -> "Evaluation":
        if self.resamples == 1:
            raise ValueError("resamples: one resample has no spread; 0 or at least 2, better 1000")
        return self
