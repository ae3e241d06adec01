"""The report of a check: one object, as text to read and as JSON for machines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtkit.check.batches import BatchPlan
from mtkit.check.examine import KINDS
from mtkit.check.facts import CorpusFacts, Lengths, Side
from mtkit.check.findings import Finding
from mtkit.check.leaks import Leak
from mtkit.check.machine import Machine
from mtkit.check.size import Disk, Memory
from mtkit.check.tokens import WITHOUT_SPACES, Choice, CorpusTokens


@dataclass(slots=True)
class Report:
    """All that a check has found. What could not be looked at is None or empty, and `skipped` says why."""

    subject: str
    languages: tuple[str | None, str | None]
    corpora: list[CorpusFacts]
    leaks: list[Leak] = field(default_factory=list)
    choice: Choice | None = None
    tokens: list[CorpusTokens] = field(default_factory=list)
    sample: int | None = None
    batches: BatchPlan | None = None
    parameters: int | None = None
    memory: Memory | None = None
    disk: Disk | None = None
    machine: Machine | None = None
    skipped: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        """The findings that stand in the way of a run."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The other findings."""
        return [finding for finding in self.findings if finding.severity == "warning"]

    def spaced(self, side: int) -> bool:
        """Whether the language of a side (0 source, 1 target) sets words apart by spaces."""
        language = self.languages[side]
        return language is None or language.replace("_", "-").split("-")[0].lower() not in WITHOUT_SPACES

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, numbers unrounded."""
        return {
            "subject": self.subject,
            "languages": {"source": self.languages[0], "target": self.languages[1]},
            "ok": not self.errors,
            "errors": [finding.to_json() for finding in self.errors],
            "warnings": [finding.to_json() for finding in self.warnings],
            "skipped": self.skipped,
            "corpora": [_corpus(facts) for facts in self.corpora],
            "leaks": [_leak(leak, self.corpora) for leak in self.leaks],
            "tokenizer": self._tokenizer(),
            "batches": self._batches(),
            "parameters": self.parameters,
            "memory_bytes": self.memory and {**asdict(self.memory), "total": self.memory.total},
            "disk_bytes": self.disk and {**asdict(self.disk), "total": self.disk.total},
            "machine": self.machine and self.machine.to_json(),
        }

    def _tokenizer(self) -> dict[str, Any] | None:
        if self.choice is None:
            return None
        tokenizers = self.choice.tokenizers
        return {
            "origin": self.choice.origin,
            "stands_in": self.choice.stands_in,
            "sha256": tokenizers.sha256,
            "joint": tokenizers.joint,
            "source_size": tokenizers.source.size,
            "target_size": tokenizers.target.size,
            "corpora": [
                {
                    "part": one.facts.part,
                    "name": one.facts.corpus.name,
                    "sampled_pairs": one.pairs,
                    "kept": one.kept,
                    "dropped": {reason: drop.count for reason, drop in one.dropped.items()},
                    "source": one.source.to_json(self.spaced(0)),
                    "target": one.target.to_json(self.spaced(1)),
                }
                for one in self.tokens
            ],
        }

    def _batches(self) -> dict[str, Any] | None:
        if self.batches is None:
            return None
        hidden = ("rows", "longest_source", "longest_target")
        return {key: value for key, value in asdict(self.batches).items() if key not in hidden}


def _corpus(facts: CorpusFacts) -> dict[str, Any]:
    if facts.error is not None:
        return {"part": facts.part, "name": facts.corpus.name, "error": facts.error.message}
    repeats = {
        "duplicate_pairs": facts.duplicates,
        "repeated_sources": facts.repeated_sources,
        "repeated_targets": facts.repeated_targets,
    }
    return {
        "part": facts.part,
        "name": facts.corpus.name,
        "pairs": facts.pairs,
        "whole": facts.whole,
        "source": _side(facts.source, facts.long_source.count),
        "target": _side(facts.target, facts.long_target.count),
        "identical": facts.identical.count,
        "half_blank": facts.half_blank.count,
        **{name: repeat.count if repeat else 0 for name, repeat in repeats.items()},
        "ratio_outliers": facts.ratio.count,
        "target_characters_per_source_character": facts.ratio_of_lengths,
        "length_correlation": facts.correlation,
        "slips": [asdict(slip) for slip in facts.slips],
    }


def _side(side: Side, long: int) -> dict[str, Any]:
    return {
        "lines": side.lines,
        "words": side.words,
        "bytes": side.bytes,
        "characters": asdict(Lengths.of(side.characters)) | {"sum": int(side.characters.sum(dtype="i8"))},
        "length_outliers": long,
        "lines_with": {kind: side.count(kind) for kind in KINDS if kind != "columns"},
    }


def _leak(leak: Leak, corpora: Sequence[CorpusFacts]) -> dict[str, Any]:
    return {
        "part": leak.held_out.part,
        "name": leak.held_out.corpus.name,
        "what": leak.what,
        "form": leak.form,
        "count": leak.count,
        "examples": [
            {"line": one.line, "train": corpora[one.train_corpus].corpus.name, "train_line": one.train_line}
            for one in leak.examples
        ],
    }
