"""How much a process that runs a model may write."""

import os
from pathlib import Path

_TIMES = 8
"""A converted model is at most so many times larger than its files, which may be of four bits."""
_LEAST_BYTES = 1 << 30


def most_written(model: Path) -> int:
    """Bytes that such a process may write into a file, and a replica into its own folder."""
    found = (Path(place, name) for place, _, names in os.walk(model) for name in names)
    return _LEAST_BYTES + _TIMES * sum(path.stat().st_size for path in found if path.exists())
