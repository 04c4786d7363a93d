"""Events of a response in the background that depend only on the response, so that a client can
continue after any of them.
"""

from collections.abc import Iterator
from typing import Any

from stoker.wire import sse

_TEXTS = {
    "output_text": ("response.content_part", "response.output_text"),
    "reasoning_text": ("response.content_part", "response.reasoning_text"),
    "summary_text": ("response.reasoning_summary_part", "response.reasoning_summary_text"),
}
_ARGUMENTS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
BEGINNING = ("response.created", "response.queued")
IN_PROGRESS = len(BEGINNING)
"""Sequence number of the event that the work has begun."""
FIRST_OUTPUT = IN_PROGRESS + 1
"""Sequence number of the first event that depends on the answer."""
Event = tuple[str, dict[str, Any]]
"""Type and fields of an event, without its sequence number."""


def beginning(response: dict[str, Any]) -> Iterator[Event]:
    """Yields the events of a response before the work begins."""
    waiting: dict[str, Any] = {
        **response,
        "status": "queued",
        "output": [],
        "usage": None,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
    }
    for kind in BEGINNING:
        yield kind, {"response": waiting}


def in_progress(response: dict[str, Any]) -> Event:
    """Returns the event that the work has begun."""
    _, event = next(beginning(response))
    return "response.in_progress", {"response": {**event["response"], "status": "in_progress"}}


def output(response: dict[str, Any]) -> Iterator[Event]:
    """Yields the events of an answer of which no events were stored, except the last one."""
    for index, item in enumerate(response["output"]):
        yield from _item(index, item)


def last(response: dict[str, Any]) -> Event:
    return f"response.{response['status']}", {"response": response}


def encoded(number: int, kind: str, fields: dict[str, Any]) -> bytes:
    return sse.event({"type": kind, "sequence_number": number, **fields}, kind)


def _item(index: int, item: dict[str, Any]) -> Iterator[Event]:
    place = {"item_id": item["id"], "output_index": index}
    empty = {**item} | ({"status": "in_progress"} if "status" in item else {})
    for name in ("content", "summary"):
        if name in item:
            empty[name] = []
    if item["type"] in _ARGUMENTS:
        empty[_ARGUMENTS[item["type"]][0]] = ""
    yield "response.output_item.added", {"output_index": index, "item": empty}
    if item["type"] in _ARGUMENTS:
        name, events = _ARGUMENTS[item["type"]]
        yield f"{events}.delta", {**place, "delta": item[name]}
        named = {"name": item["name"]} if name == "arguments" else {}
        yield f"{events}.done", {**place, **named, name: item[name]}
    for list_name, number in (("summary", "summary_index"), ("content", "content_index")):
        for at, part in enumerate(item.get(list_name) or []):
            yield from _part({**place, number: at}, part)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part(place: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
    part_events, text_events = _TEXTS[part["type"]]
    further = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    yield f"{part_events}.added", {**place, "part": {**part, "text": ""}}
    yield f"{text_events}.delta", {**place, "delta": part["text"], **further}
    yield f"{text_events}.done", {**place, "text": part["text"], **further}
    yield f"{part_events}.done", {**place, "part": part}
