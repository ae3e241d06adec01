"""Counting lines that show something, with the numbers of the first few."""

from dataclasses import dataclass, field

EXAMPLES = 5


@dataclass(slots=True)
class Tally:
    """How many lines show something, and the numbers of the first few."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        """Count one more line; changes the tally."""
        self.count += 1
        if len(self.lines) < EXAMPLES:
            self.lines.append(line)

    def merge(self, later: "Tally") -> None:
        """Add the counts of later lines; changes the tally."""
        self.count += later.count
        self.lines = (self.lines + later.lines)[:EXAMPLES]
