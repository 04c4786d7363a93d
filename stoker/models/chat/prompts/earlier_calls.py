"""Prepares tool calls of earlier answers for a chat template."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

Messages = Sequence[Mapping[str, Any]]

_NINE = ("length != 9", "length == 9")
"""Expressions by which Mistral's templates require IDs of nine letters or digits."""


def named(messages: Messages, template: str) -> Messages:
    """Returns the messages with call IDs that the template accepts.

    IDs come from the server or the client. Mistral's templates reject IDs of any other form, so
    these are replaced by their hash.
    """
    if not any(mark in template for mark in _NINE):
        return messages
    return [_named(message) for message in messages]


def _named(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _short(message["tool_call_id"])}
    if calls := _calls(message):
        return {**message, "tool_calls": [{**call, "id": _short(call["id"])} for call in calls]}
    return message


def _short(identifier: str) -> str:
    if len(identifier) == 9 and identifier.isascii() and identifier.isalnum():
        return identifier
    return hashlib.sha256(identifier.encode()).hexdigest()[:9]


def readable(messages: Messages) -> Messages | None:
    """Returns the messages with empty objects in place of invalid arguments. None if all arguments
    are objects.

    Most templates write such arguments as the model wrote them. Others accept only objects.
    """
    if all(isinstance(_arguments(call), dict) for each in messages for call in _calls(each)):
        return None
    return [
        {**message, "tool_calls": [_emptied(call) for call in calls]}
        if (calls := _calls(message))
        else message
        for message in messages
    ]


def _emptied(call: dict[str, Any]) -> dict[str, Any]:
    if isinstance(_arguments(call), dict):
        return call
    return {**call, "function": {**call["function"], "arguments": {}}}


def _arguments(call: Mapping[str, Any]) -> Any:
    return call["function"]["arguments"]


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", message.get("tool_calls") or [])
