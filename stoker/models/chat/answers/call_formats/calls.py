"""A tool call, and the errors of reading and writing calls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class MalformedCallError(Exception):
    """The model's text is not a call."""


class UnwritableCallError(Exception):
    """The model's notation cannot write such a call. The message gives the reason."""

    field = ""
    """The request's field of the function's schema. Empty until it is known."""


@dataclass(frozen=True, kw_only=True)
class ParsedCall:
    """A complete tool call."""

    name: str
    arguments: Mapping[str, Any]


def arguments_text(arguments: Any) -> str:
    """Returns a value as JSON. Raises `MalformedCallError` if JSON has no such value."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Only an escape can write half of a surrogate pair.
        return text if encodable(text) else json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedCallError from error


def encodable(text: str) -> bool:
    """Returns True if the text is valid Unicode, without half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
