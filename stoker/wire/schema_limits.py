"""Size limits of a JSON schema that constrains answers. Imports little, because both sides import
it.
"""

import json
import math
from typing import Any, cast

MAX_CHARS = 64 << 10
MAX_DEPTH = 32
MAX_NODES = 2048
"""Maximum number of objects, lists and plain values of a schema together."""
MAX_MULTIPLE = 10_000
MAX_BITS = 63
"""Maximum bits of integers: the transport of a schema to a replica supports no larger ones."""


def excess(schema: Any, times: int = 1) -> str | None:
    """Returns the limit that a schema exceeds, in words that follow its name, or None if it exceeds
    none.

    Args:
        times: factor by which the schema may exceed the size limits.
    """
    nodes = 0
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} levels deep"
        if nodes > MAX_NODES * times:
            return f"has more than {MAX_NODES * times} values"
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            # An automaton for the multiples of a large number has as many states.
            multiple = members.get("multipleOf")
            if isinstance(multiple, int | float) and abs(multiple) > MAX_MULTIPLE:
                return f"has a 'multipleOf' above {MAX_MULTIPLE}"
            waiting += [(item, depth + 1) for item in members.values()]
        elif isinstance(value, list):
            waiting += [(item, depth + 1) for item in cast("list[Any]", value)]
        elif problem := _odd_number(value):
            return problem
    return _odd_text(schema, MAX_CHARS * times)


def _odd_number(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "has a number that JSON does not support"
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return f"has a number of more than {MAX_BITS} bits"
    return None


def _odd_text(schema: Any, most: int) -> str | None:
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is not valid text"
    text = json.dumps(schema)
    return too_long(text, most) if len(text) > most else None


def too_long(text: str, most: int = MAX_CHARS) -> str:
    """Returns an error for a text over the limit, in words that follow its name."""
    return f"has {len(text)} characters; the limit is {most}"
