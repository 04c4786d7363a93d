"""Responses have the fields of the Open Responses specification (https://www.openresponses.org).

The requests are those of its compliance suite: a text, a stream, a system message, tools, an image
and several turns. The suite's schemas forbid a missing field and a null where its type names none.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any

import httpx
import pytest

from stoker.demo.setup import MODELS
from tests.openai.test_responses import PATH
from tests.support.deploying import deploy
from tests.support.server import Server

CHAT, VISION = "tiny-chat", "tiny-vision"
TEXT, NUMBER = (str,), (int, float)
FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "status", "model", "truncation", "service_tier"), TEXT),
    **dict.fromkeys(("created_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("completed_at", "max_output_tokens", "max_tool_calls"), (int, NoneType)),
    **dict.fromkeys(("incomplete_details", "error", "reasoning", "usage"), (dict, NoneType)),
    **dict.fromkeys(("previous_response_id", "instructions", "user"), (str, NoneType)),
    **dict.fromkeys(("safety_identifier", "prompt_cache_key"), (str, NoneType)),
    **dict.fromkeys(("output", "tools"), (list,)),
    **dict.fromkeys(("text", "metadata"), (dict,)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), NUMBER),
    "tool_choice": (str, dict),
}
ITEMS = {
    "message": {"id", "status", "role", "content"},
    "function_call": {"id", "call_id", "name", "arguments", "status"},
}
PARTS = {"type", "text", "annotations", "logprobs"}
EVENTS = {
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_text.delta": {*("item_id", "output_index", "content_index"), "delta"},
    "response.output_text.done": {*("item_id", "output_index", "content_index"), "text"},
    "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "response.function_call_arguments.done": {"item_id", "output_index", "arguments"},
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED_WEATHER = "What is the weather in Paris?"


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def image() -> list[dict[str, str]]:
    content = base64.b64encode((MODELS.parent / "media" / "scene.png").read_bytes()).decode()
    return [
        {"type": "input_text", "text": "What is in the picture?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{content}"},
    ]


CASES: Mapping[str, dict[str, Any]] = {
    "text": {"input": [turn("user", "What is the capital of France?")]},
    "system message": {"input": [turn("system", "Answer briefly."), turn("user", "Hello.")]},
    "tools": {"input": [turn("user", ASKED_WEATHER)], "tools": [WEATHER]},
    "image": {"model": VISION, "input": [turn("user", image())]},
    "several turns": {
        "input": [
            turn("user", "My name is Alice."),
            turn("assistant", "Hello Alice!"),
            turn("user", "What is the capital of France?"),
        ]
    },
}


def check(response: Mapping[str, Any]) -> None:
    """Checks a complete response."""
    assert response["object"] == "response"
    wrong = {
        name: response.get(name, "missing")
        for name, types in FIELDS.items()
        if name not in response or type(response[name]) not in types
    }
    assert wrong == {}
    assert response["status"] == "completed" and response["output"]
    for item in response["output"]:
        assert ITEMS[item["type"]] <= set(item)
        for part in item.get("content", ()):
            assert part["type"] == "output_text" and set(part) >= PARTS
    details = response["usage"]["input_tokens_details"], response["usage"]["output_tokens_details"]
    assert [type(details[0]["cached_tokens"]), type(details[1]["reasoning_tokens"])] == [int, int]


@pytest.fixture(scope="module")
def asked(server: Server) -> Iterator[Callable[..., httpx.Response]]:
    server.wait_ready()
    with server.account("open-responses") as account:
        for name in (CHAT, VISION):
            deploy(account, MODELS / name, name, readiness="hot")

        def ask(case: str, **fields: Any) -> httpx.Response:
            body = {"model": CHAT, **CASES[case], **fields}
            return account.post(PATH, json=body, headers={"prefer": "wait=120"}).raise_for_status()

        yield ask


@pytest.mark.parametrize("case", CASES)
def test_whole(asked: Callable[..., httpx.Response], case: str) -> None:
    response = asked(case).json()
    check(response)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == (["function_call"] if case == "tools" else ["message"])
    if case == "tools":
        assert json.loads(response["output"][0]["arguments"]) == {"city": "Paris"}


@pytest.mark.parametrize("case", CASES)
def test_streamed(asked: Callable[..., httpx.Response], case: str) -> None:
    lines = asked(case, stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        if event["type"] in EVENTS:
            assert EVENTS[event["type"]] <= set(event)
    last = events[-1]
    assert last["type"] == "response.completed"
    check(last["response"])
    kinds = {event["type"] for event in events}
    written = "function_call_arguments" if case == "tools" else "output_text"
    assert {f"response.{written}.delta", f"response.{written}.done"} <= kinds
