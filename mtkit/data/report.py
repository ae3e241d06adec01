"""What binarization did, corpus by corpus: counts, drops by reason, files; as JSON and as a table to read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtkit.errors import ModelError
from mtkit.files import read_json

REPORT_FILE = "report.json"
WHY = {
    "empty": "a side has no token",
    "too_short": "shorter than filters.min_length",
    "too_long": "longer than filters.max_length",
    "ratio": "lengths differ by more than filters.max_ratio",
    "identical": "the target copies the source",
    "duplicate": "the pair came before",
}
"""Every reason to drop a pair, explained."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Pairs left out for one reason: how many, and the line numbers of the first few."""

    count: int
    first_lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One shard: its path inside the folder, its pairs, the SHA-256 of the file."""

    file: str
    pairs: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """One corpus. `part` is "train" or "valid"; token counts are of kept pairs, without BOS and EOS."""

    part: str
    corpus: str
    pairs: int
    kept: int
    dropped: Mapping[str, Dropped]
    source_tokens: int
    target_tokens: int
    source_unknown: int
    target_unknown: int
    source_sha256: str
    target_sha256: str
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All corpora of a recipe; `dtype` is that of the ids. Equal data make equal reports: no time, no path."""

    tokenizer_sha256: str
    dtype: str
    corpora: tuple[CorpusReport, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    @classmethod
    def load(cls, folder: Path) -> "Report":
        """The report in a folder of shards. Raises ModelError when it is damaged, DataError when missing."""
        value = read_json(folder / REPORT_FILE)
        try:
            corpora = tuple(
                CorpusReport(
                    **{
                        **row,
                        "dropped": {
                            reason: Dropped(drop["count"], tuple(drop["first_lines"]))
                            for reason, drop in row["dropped"].items()
                        },
                        "shards": tuple(ShardFile(**shard) for shard in row["shards"]),
                    }
                )
                for row in value["corpora"]
            )
            return cls(value["tokenizer_sha256"], value["dtype"], corpora)
        except (KeyError, TypeError, AttributeError):
            raise ModelError(
                f"{folder / REPORT_FILE}: is not a report of mtkit binarize",
                "make the shards again with: mtkit binarize RECIPE",
            ) from None

    def render(self) -> str:
        """The report as text: a table of corpora, then why and where pairs were dropped."""
        head = ("corpus", "pairs", "kept", "source tokens", "target tokens", "unknown", "shards")
        rows = [
            (
                f"{row.part} {row.corpus}",
                f"{row.pairs:,}",
                f"{row.kept:,}",
                f"{row.source_tokens:,}",
                f"{row.target_tokens:,}",
                f"{_share(row.source_unknown, row.source_tokens)} / {_share(row.target_unknown, row.target_tokens)}",
                f"{len(row.shards)}",
            )
            for row in self.corpora
        ]
        lines = _table([head, *rows])
        for row in self.corpora:
            for reason, drop in row.dropped.items():
                numbers = ", ".join(str(number) for number in drop.first_lines)
                more = ", ..." if drop.count > len(drop.first_lines) else ""
                lines.append(
                    f"dropped from {row.part} {row.corpus}: {drop.count:,} ({_share(drop.count, row.pairs)}) "
                    f"{reason}: {WHY[reason]}; line{'s' if drop.count > 1 else ''} {numbers}{more}"
                )
        return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
