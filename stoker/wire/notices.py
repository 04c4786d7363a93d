"""Notices: what a replica says of its model when it has loaded it, for the model's owner."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

_SHOWN_CHARS = 80
MOST_NOTICES, MOST_NOTICE_CHARS = 32, 1000
"""Of one load: further notices are left out, longer messages are cut."""


class Notice(msgspec.Struct, frozen=True):
    """One fact that callers of the model should know, such as a file's field that has no effect."""

    code: str
    """Lower case with underscores, and stable: `generation_field`, `no_end_of_text`."""
    message: str
    """A sentence or two that name the file, the field and its value."""


def unserved(name: str, value: Any, why: str, file: str) -> Notice:
    """Returns a notice of a field of a model's file that has no effect."""
    shown = json.dumps(value, default=str)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}…"
    return Notice("generation_field", f'"{name}": {shown} of {file} has no effect: {why}.')


def bounded(notices: Iterable[Notice]) -> list[Notice]:
    """Returns the notices without duplicates, within the limits, as text that can be encoded."""
    kept = dict.fromkeys(Notice(_cut(one.code, 64), _cut(one.message)) for one in notices)
    return list(kept)[:MOST_NOTICES]


def _cut(text: str, most: int = MOST_NOTICE_CHARS) -> str:
    clean = text.encode("utf-8", "replace").decode().replace("\0", "")
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
