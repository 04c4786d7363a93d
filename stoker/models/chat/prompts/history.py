"""Adapts messages with tool calls to the requirements of a model's chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.models.chat.answers.probing import Habits
from stoker.wire.generation_request import text_part

Message = Mapping[str, Any]


def fitted(messages: Sequence[Message], habits: Habits) -> list[Message]:
    """Returns the messages in the form that the chat template accepts.

    Args:
        messages: each call's output follows the message of the call.
    """
    adapted = list(messages)
    if habits.single_calls:
        adapted = _split(adapted)
    if habits.text_arguments:
        adapted = [_changed(message) for message in adapted]
    return adapted


def has_later_system(messages: Sequence[Message]) -> bool:
    """Returns True if a message after the first one is of the system."""
    return any(message["role"] == "system" for message in messages[1:])


def without_later_system(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages for a template that shows a system message at the beginning only.

    Joins the first system messages. Later ones become messages of the user, joined with those next
    to them.
    """
    adapted: list[Message] = []
    joins = False
    for message in messages:
        last = adapted[-1]["role"] if adapted else None
        is_later = message["role"] == "system" and last not in (None, "system")
        role = "user" if is_later else message["role"]
        if role == last and (joins or is_later or last == "system"):
            both = [*_parts(adapted[-1]), *_parts(message)]
            adapted[-1] = {**adapted[-1], "content": both}
        else:
            adapted.append({**message, "role": role})
            joins = False
        joins = joins or is_later
    return adapted


def with_later_images(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the images of tools' outputs in the user's message after them.

    A text before them names the call.
    """
    adapted: list[Message] = []
    names: dict[str, str] = {}
    moved: list[Any] = []
    for message in messages:
        if moved and message["role"] == "user":
            adapted.append({**message, "content": [*moved, *_parts(message)]})
            moved = []
            continue
        if moved and message["role"] != "tool":
            adapted.append({"role": "user", "content": moved})
            moved = []
        calls: list[Message] = message.get("tool_calls") or []
        names |= {call["id"]: call["function"]["name"] for call in calls}
        if not has_image(message):
            adapted.append(message)
        else:
            call_id = message["tool_call_id"]
            of = f" of '{names[call_id]}'" if call_id in names else ""
            images = [part for part in message["content"] if "image" in part]
            moved += [text_part(f"Output of the call '{call_id}'{of}:"), *images]
            texts = [part for part in message["content"] if "image" not in part]
            adapted.append({**message, "content": texts or _SEE_NEXT})
    return [*adapted, {"role": "user", "content": moved}] if moved else adapted


def has_image(message: Message) -> bool:
    """Returns True if a tool's output contains an image."""
    content = message["content"]
    return (
        message["role"] == "tool"
        and not isinstance(content, str)
        and any("image" in part for part in content)
    )


_SEE_NEXT = "The output is an image. The next message of the user contains it."


def _parts(message: Message) -> list[Any]:
    content = message["content"]
    return [text_part(content)] if isinstance(content, str) else content


def _split(messages: Sequence[Message]) -> list[Message]:
    """Splits messages so that each call has its own message, followed by its output."""
    split: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message.get("role") == "tool" and waiting:
            called = next(
                (candidate for candidate in waiting if _answers(message, candidate)), waiting[0]
            )
            waiting.remove(called)
            split.append(called)
        split += [] if message.get("role") == "tool" else waiting
        waiting = waiting if message.get("role") == "tool" else []
        calls: list[Message] = message.get("tool_calls") or []
        if len(calls) < 2:
            split.append(message)
            continue
        alone = {name: value for name, value in message.items() if name == "role"}
        rest = [{**alone, "content": "", "tool_calls": [call]} for call in calls[1:]]
        waiting = [{**message, "tool_calls": calls[:1]}, *rest]
    return [*split, *waiting]


def _answers(output: Message, called: Message) -> bool:
    return called["tool_calls"][0].get("id") == output.get("tool_call_id")


def _changed(message: Message) -> Message:
    calls: list[Message] = message.get("tool_calls") or []
    return {**message, "tool_calls": [_call(call) for call in calls]} if calls else message


def _call(call: Message) -> Message:
    function: Message = call["function"]
    arguments: Any = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
