"""Maps model architectures to tasks, by patterns of the architecture's name."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

NOT = "!"
"""Prefix of a negative pattern. An architecture that matches it is not served, even if it also
matches other patterns.
"""

PAGES = ("!LayoutLM*", "!Lilt*", "!Bros*", "!MarkupLM*")
"""Negative patterns for families that read words with their positions on a page.

They would accept plain text too, and answer as if all words had the same position.
"""


def matching(architecture: str, patterns: Sequence[str]) -> list[str]:
    """Returns the patterns that an architecture matches. Returns none if it matches a pattern with
    `NOT`.
    """
    if any(
        fnmatchcase(architecture, pattern[1:]) for pattern in patterns if pattern.startswith(NOT)
    ):
        return []
    return [pattern for pattern in patterns if fnmatchcase(architecture, pattern)]
