"""The arguments of earlier tool calls, as chat templates take them.

Templates write arguments themselves: they take an object and not its JSON. A model may have been
interrupted in the middle of that JSON, and clients send back what the server answered. So JSON that
was cut off is completed, and text that is no JSON is kept as text.
"""

import json
import re
import sys
from typing import Any, cast

from pydantic_core import from_json

from stoker.base.errors import InvalidRequestError

MAX_DEPTH = 64
"""Objects and lists within each other. Templates cannot render much deeper values."""
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def arguments_of(text: str, where: str) -> dict[str, Any] | str:
    """Returns the object that a call's arguments are.

    JSON that was cut off is completed. Text that begins like an object and cannot be read is
    returned as it is: a model wrote it so. Raises `InvalidRequestError` for any other text.

    Args:
        where: the request's field, for errors.
    """
    given = text.strip()
    if not given:
        return {}
    # Half of a surrogate pair is no character and has no bytes.
    given = _ESCAPE.sub(lambda escape: r"\ufffd" if escape["half"] else escape[0], given)
    if not given.startswith("{"):
        raise InvalidRequestError(f"'{where}' is not the JSON of an object.", param=where)
    value = _parsed(given)
    return given if value is None or _is_deep(value) else value


def _parsed(text: str) -> dict[str, Any] | None:
    """Returns the object, completed if it was cut off; None if the text is no JSON."""
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
    # Control characters within strings are no JSON, but models write them.
    value: Any = json.loads(
        text, strict=False, parse_int=_whole, parse_float=_number, parse_constant=_constant
    )
    if not isinstance(value, dict):
        raise ValueError("no object")
    return cast("dict[str, Any]", value)


def _whole(text: str) -> int | float:
    """Returns a whole number; one beyond 64 bits is a float, as most JSON readers have it."""
    if len(text) < 20:
        number = int(text)
        if number.bit_length() < 64:
            return number
    return _number(text)


def _number(text: str) -> float:
    """Returns the nearest finite number: templates would write infinity as no JSON."""
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
