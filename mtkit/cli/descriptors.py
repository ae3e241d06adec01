"""Writing to a descriptor of the system, without Python's buffers in between."""

import os
import select


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, and wait where the descriptor is full. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
