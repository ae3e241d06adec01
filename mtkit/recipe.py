"""The recipe: the one description of a run, as frozen sections."""

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from mtkit.recipe_errors import recipe_error
from mtkit.recipe_source import Source, complete, read_source
from mtkit.sections.base import Section
from mtkit.sections.data import Batching, Data, Evaluation, Filters, Languages, TokenizerSection
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Search
from mtkit.sections.training import Average, InverseSquareRoot, Optimizer, Schedule, Training, frozen_layers
from mtkit.strict_yaml import KeyPath, dump_yaml


class Recipe(Section):
    """Everything that decides what a run makes. Relative paths start at the current folder."""

    run_dir: str = Field(
        "runs/default", min_length=1, description="Run folder; null in a file: runs/NAME-OF-THE-RECIPE"
    )
    languages: Languages
    data: Data
    tokenizer: TokenizerSection = Field(default_factory=TokenizerSection)
    filters: Filters = Field(default_factory=Filters)
    batching: Batching = Field(default_factory=Batching)
    model: Model = Field(default_factory=Model)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=InverseSquareRoot)
    training: Training = Field(default_factory=Training)
    average: Average = Field(default_factory=Average)
    search: Search = Field(default_factory=Beam)
    evaluation: Evaluation = Field(default_factory=Evaluation)

    @classmethod
    def load(cls, path: str | PathLike[str], overrides: Sequence[str] = ()) -> "Recipe":
        """Read a recipe file and what it extends, merge overrides such as "training.max_steps=2000", and validate.

        The values of overrides are read by the rules of the file (strict_yaml). Without `run_dir` the run folder is
        runs/NAME-OF-THE-FILE. Raises RecipeError with every problem, each with its place, value and remedy.
        """
        return load_with_source(path, overrides)[0]

    def dump(self) -> str:
        """The recipe as YAML text with every setting written out; it loads back to an equal recipe."""
        return dump_yaml(self.model_dump(mode="json"))

    def sha256(self) -> str:
        """Hex SHA-256 of all settings (as JSON with sorted keys): equal recipes, however written, have equal hashes."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    def symbols(self) -> tuple[str, ...]:
        """The tokenizer's user-defined symbols: the listed ones and every corpus's tags, each once, in order."""
        corpora = (*self.data.train, *self.data.valid, *self.data.test)
        tags = [tag for corpus in corpora for tag in corpus.tags]
        return tuple(dict.fromkeys((*self.tokenizer.user_defined_symbols, *tags)))

    @model_validator(mode="after")
    def _cross_checks(self) -> "Recipe":
        if self.model.share_embeddings == "all" and self.tokenizer.vocabulary == "separate":
            raise ValueError(
                "model.share_embeddings: all needs tokenizer.vocabulary: joint; use target or none with separate"
            )
        if self.batching.max_tokens != "auto" and self.batching.max_tokens <= self.filters.max_length:
            raise ValueError(
                f"batching.max_tokens ({self.batching.max_tokens}) must exceed filters.max_length "
                f"({self.filters.max_length}), or the longest pair fits no batch"
            )
        if self.model.positions == "learned":
            needed = max(self.filters.max_length, self.search.lines.max_source_length, self.search.rules.max_length) + 1
            if self.model.max_positions < needed:
                raise ValueError(
                    f"model.max_positions ({self.model.max_positions}) must be at least {needed}: learned positions "
                    "must reach filters.max_length, search.lines.max_source_length, search.rules.max_length, and EOS"
                )
        if self.model.layer_dropout and self.training.compile:
            raise ValueError(
                "model.layer_dropout skips layers by chance, which training.compile cannot follow; choose one"
            )
        self._check_freeze()
        self._check_fsdp()
        if self.filters.min_length > self.filters.max_length:
            raise ValueError("filters.min_length exceeds filters.max_length")
        return self

    def _check_fsdp(self) -> None:
        if self.training.parallel != "fsdp":
            return
        clashes = {
            "model.layer_dropout: all processes must go through the same layers": self.model.layer_dropout > 0,
            "batching.max_tokens: auto: measuring runs out of memory on purpose": self.batching.max_tokens == "auto",
            "training.compile: layers whose weights come and go are not compiled": self.training.compile,
            "optimizer.name: muon: it needs whole matrices; use adamw": self.optimizer.name == "muon",
            "training.precision: fp16: its scaler needs whole gradients; use bf16": self.training.precision == "fp16",
            "training.checksum_every_steps: no two processes hold the same weights": self.training.checksum_every_steps
            is not None,
        }
        for clash, there in clashes.items():
            if there:
                raise ValueError(f"training.parallel: fsdp does not go together with {clash}")

    def _check_freeze(self) -> None:
        if self.training.freeze and self.training.initialize_from is None:
            raise ValueError("training.freeze needs training.initialize_from: random weights would stay random")
        if self.training.continue_schedule and self.training.initialize_from is None:
            raise ValueError("training.continue_schedule needs training.initialize_from, whose schedule it continues")
        for part in self.training.freeze:
            if part == "output" and self.model.share_embeddings != "none":
                raise ValueError(
                    f"training.freeze: with model.share_embeddings: {self.model.share_embeddings}, the output is the "
                    "target embedding; freeze embeddings, or share none"
                )
            stack, _, layers = part.partition(".")
            if not layers:
                continue
            first, last = frozen_layers(part)
            count = self.model.encoder_layers if stack == "encoder" else self.model.decoder_layers
            if not first <= last < count:
                raise ValueError(
                    f"training.freeze: {part} does not exist; the layers of model.{stack}_layers: {count} are "
                    f"{stack}.0 to {stack}.{count - 1}, a range is written low-high"
                )


def load_with_source(path: str | PathLike[str], overrides: Sequence[str] = ()) -> tuple[Recipe, Source]:
    """As `Recipe.load`, with what was written where."""
    source = read_source(path, overrides, Recipe)
    flags: list[KeyPath] = []
    values = complete(source.values, Recipe, (), flags)
    if values.get("run_dir") is None:
        values["run_dir"] = f"runs/{Path(path).stem}"
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise recipe_error(source, error.errors(), flags, Recipe) from None
    if flags:
        raise recipe_error(source, [], flags, Recipe)
    return recipe, source
