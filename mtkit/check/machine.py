"""What training would run on, as the command line finds out; torch stays outside."""

from dataclasses import asdict, dataclass
from typing import Any

from mtkit.check.size import Precision


@dataclass(frozen=True, slots=True)
class Machine:
    """The device of training and the precision of its matrix products. `kind` is cpu, cuda or mps.

    `visible` lists all devices in words; `memory` is what is free there in bytes, None where that is unknown; `caution`
    says, in words, what is unwise about the choice.
    """

    device: str
    kind: str
    precision: str
    visible: str
    memory: int | None
    caution: str | None = None

    @property
    def how(self) -> Precision:
        """The same for sums of memory."""
        return Precision(self.kind, self.precision in ("bfloat16", "float16"))

    def to_json(self) -> dict[str, Any]:
        """The machine as JSON values."""
        return asdict(self)
