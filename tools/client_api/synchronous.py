"""Turns the source of an asynchronous module into its synchronous twin."""

import re

REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\.async_(\w+) import", r".\1 import"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\bAsync([A-Z]\w*)", r"\1"),
        (r"\bAwaitable\[(\w+)\]", r"\1"),
        (r"\bAwaitable, ", ""),
        (r"\b__a(enter|exit)__\b", r"__\1__"),
        (r"\ba(close|read|iter_lines|iter_bytes)\b", r"\1"),
        (r" +# noqa: ASYNC\d+", ""),
    )
]
NOTE = "# `python -m tools.client_api` writes this file from its asynchronous twin.\n"


def synchronous(source: str) -> str:
    """Returns the synchronous twin of a module."""
    for pattern, replacement in REPLACEMENTS:
        source = pattern.sub(replacement, source)
    return NOTE + source
