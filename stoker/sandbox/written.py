"""Limit on the bytes that a process with a model may write."""

import os
from pathlib import Path

_TIMES = 8
"""Maximum ratio of a converted model's size to the size of its files, which may have four bits per
weight.
"""
_LEAST_BYTES = 1 << 30


def most_written(model: Path) -> int:
    """Returns the maximum bytes that such a process may write into a file, and a replica into its
    own folder.
    """
    paths = (Path(place, name) for place, _, names in os.walk(model) for name in names)
    return _LEAST_BYTES + _TIMES * sum(path.stat().st_size for path in paths if path.exists())
