"""What a replica gives up before it touches a model: the walls between it and all else.

Each is best effort, as kernels and containers differ: what is missing is logged where a replica
begins, and `stoker doctor` shows it. docs/security.md says what each of them is for.
"""

from stoker.sandbox.walls import (
    Standing,
    Walls,
    adopt_orphans,
    children,
    confine,
    die_with_parent,
    keep_to_itself,
    seal,
    tell_nobody,
)

__all__ = [
    "Standing",
    "Walls",
    "adopt_orphans",
    "children",
    "confine",
    "die_with_parent",
    "keep_to_itself",
    "seal",
    "tell_nobody",
]
