"""Sandbox of a replica: the walls that it puts up before it reads a model.

Each wall is best effort, because kernels and containers differ. Missing walls are logged when a
replica starts, and `stoker doctor` shows them. docs/security.md describes the purpose of each.
"""

from stoker.sandbox.openings import Opening, Wall
from stoker.sandbox.walls import (
    Standing,
    Walls,
    adopt_orphans,
    children,
    confine,
    die_with_parent,
    keep_to_itself,
    limit_file_size,
    machine_bytes,
    seal,
    tell_nobody,
)

__all__ = [
    "Opening",
    "Standing",
    "Wall",
    "Walls",
    "adopt_orphans",
    "children",
    "confine",
    "die_with_parent",
    "keep_to_itself",
    "limit_file_size",
    "machine_bytes",
    "seal",
    "tell_nobody",
]
