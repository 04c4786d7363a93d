"""A tool call, and the errors of reading and writing calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class MalformedCallError(Exception):
    """The model's text is not a call."""


class UnwritableCallError(Exception):
    """This family of models cannot write such a call; the message says why."""

    field = ""
    """The request's field of the function's schema, once it is known."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A whole call of a tool."""

    name: str
    arguments: Mapping[str, Any]


def arguments_text(arguments: Any) -> str:
    """Returns a value as JSON. Raises `MalformedCallError` if JSON has no such value."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair is no character: its escape is valid JSON.
        return text if encodable(text) else json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedCallError from error


def encodable(text: str) -> bool:
    """Returns whether the text is valid Unicode, without half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
