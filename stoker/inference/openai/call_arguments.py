"""Arguments of earlier tool calls, in the form that chat templates accept.

Templates format arguments themselves, so they need an object and not its JSON. A model may have
been interrupted in the middle of that JSON, and clients send the server's answers back. Truncated
JSON is therefore completed, and text that is not JSON is kept as text.
"""

import json
import re
import sys
from typing import Any, cast

from pydantic_core import from_json

from stoker.base.errors import InvalidRequestError

MAX_DEPTH = 64
"""Maximum nesting of objects and lists. Templates cannot render much deeper values."""
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def arguments_of(text: str, where: str) -> dict[str, Any] | str:
    """Returns the object of a call's arguments.

    Truncated JSON is completed. Text that begins like an object but cannot be read is returned
    unchanged, because a model wrote it. Raises `InvalidRequestError` for any other text.

    Args:
        where: the request's field, for errors.
    """
    stripped = text.strip()
    if not stripped:
        return {}
    # Half of a surrogate pair is not a character and cannot be encoded.
    stripped = _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], stripped)
    if not stripped.startswith("{"):
        raise InvalidRequestError(f"'{where}' does not contain a JSON object.", param=where)
    value = _parsed(stripped)
    return stripped if value is None or _is_deep(value) else value


def _parsed(text: str) -> dict[str, Any] | None:
    """Returns the object, completed if it was truncated, or None if the text is not JSON."""
    try:
        return _loaded(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return None
    except (ValueError, RecursionError):
        return None
    try:
        begun: Any = from_json(text, allow_partial="trailing-strings")
        return _loaded(json.dumps(begun))
    except (ValueError, RecursionError):
        return None


def _loaded(text: str) -> dict[str, Any]:
    # Control characters within strings are not valid JSON, but models write them.
    value: Any = json.loads(
        text, strict=False, parse_int=_whole, parse_float=_number, parse_constant=_constant
    )
    if not isinstance(value, dict):
        raise ValueError("no object")
    return cast("dict[str, Any]", value)


def _whole(text: str) -> int | float:
    """Returns an integer. Integers beyond 64 bits become floats, as in most JSON readers."""
    if len(text) < 20:
        number = int(text)
        if number.bit_length() < 64:
            return number
    return _number(text)


def _number(text: str) -> float:
    """Returns the nearest finite number. Templates would write infinity as invalid JSON."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _constant(text: str) -> float | None:
    return None if text == "NaN" else _number(text)


def _is_deep(value: Any) -> bool:
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, dict):
            members = list(cast("dict[str, Any]", part).values())
        elif isinstance(part, list):
            members = cast("list[Any]", part)
        else:
            continue
        if depth > MAX_DEPTH:
            return True
        waiting += [(member, depth + 1) for member in members]
    return False
