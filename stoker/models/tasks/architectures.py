"""Which tasks an architecture fits, by patterns of its name."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

NOT = "!"
"""Before a pattern: what it matches is not served, whatever else does match."""

PAGES = ("!LayoutLM*", "!Lilt*", "!Bros*", "!MarkupLM*")
"""Families that read words with their places on a page.

They would take plain text too, and answer as if all words stood in one place.
"""


def matching(architecture: str, patterns: Sequence[str]) -> list[str]:
    """The patterns that an architecture matches; none where one with `NOT` does."""
    if any(fnmatchcase(architecture, one[1:]) for one in patterns if one.startswith(NOT)):
        return []
    return [one for one in patterns if fnmatchcase(architecture, one)]
