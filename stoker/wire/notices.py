"""Notices: a replica's remarks on its model after loading, for the model's owner."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

_SHOWN_CHARS = 80
MOST_NOTICES, MOST_NOTICE_CHARS = 32, 1000
"""Limits per load: further notices are left out, and longer messages are cut."""

PRECISION = "precision"
"""Code of the notice about the precision that `auto` chose."""


class Notice(msgspec.Struct, frozen=True):
    """Fact that callers of the model should know, such as a file's field without effect."""

    code: str
    """Stable code in lower case with underscores: `generation_field`, `no_end_of_text`."""
    message: str
    """A sentence or two that name the file, the field and its value."""


def unserved(name: str, value: Any, why: str, file: str) -> Notice:
    """Returns a notice for a field of a model's file that has no effect."""
    shown = json.dumps(value, default=str)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}…"
    return Notice("generation_field", f'"{name}": {shown} of {file} has no effect: {why}.')


def bounded(notices: Iterable[Notice]) -> list[Notice]:
    """Returns the notices without duplicates, within the limits, as text that can be encoded."""
    unique = dict.fromkeys(Notice(cut(item.code, 64), cut(item.message)) for item in notices)
    return list(unique)[:MOST_NOTICES]


def cut(text: str, most: int = MOST_NOTICE_CHARS) -> str:
    """Returns a text from a replica, cut to a length, that can be encoded and stored."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "")
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
