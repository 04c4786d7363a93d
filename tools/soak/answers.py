"""Compares responses to the same call at different times."""

import json
from typing import Any, cast

import httpx

OF_THE_CALL = frozenset({"id", "created", "created_at", "completed_at", "expires_at", "url"})
"""Fields that differ from call to call."""
TOLERANCE = 2e-3
"""Relative tolerance of numbers, because the engine and the batch may differ."""


def same(found: Any, known: Any) -> bool:
    """True if two responses are equal, with a tolerance for numbers. Ignores ids and times."""
    if isinstance(known, dict):
        fields = cast(dict[str, Any], known)
        return isinstance(found, dict) and all(
            name in found and same(found[name], value)
            for name, value in fields.items()
            if name not in OF_THE_CALL
        )
    if isinstance(known, list):
        items = cast(list[Any], known)
        return (
            isinstance(found, list)
            and len(cast(list[Any], found)) == len(items)
            and all(map(same, cast(list[Any], found), items))
        )
    if isinstance(known, float) or isinstance(found, float):
        return abs(found - known) <= TOLERANCE * max(1.0, abs(known))
    return found == known


def parsed(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    return json.loads(response.content) if kind.startswith("application/json") else response.content
