"""Awkward values on a real server: a client receives the text that a model writes.

The model writes under a constraint.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.awkward import STRINGS, VALUES
from tests.support.deploying import deploy
from tests.support.examples import examples
from tests.support.scripted import Script
from tests.support.server import Server

MOST_BYTES = 1200
"""Maximum bytes in the texts of one model. Its layers are as wide as its texts are long."""
SHARE = max(1, 8 // examples(1))
"""Number of values per tested value, by default."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA: Any = {"type": "object", "properties": {"v": {"type": "array"}}, "required": ["v"]}
FORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "r", "schema": SCHEMA, "strict": True},
        }
    },
    "guided_json": {"guided_json": SCHEMA},
    "tools": {"tools": [TOOL], "tool_choice": "required"},
}


def chunks() -> list[str]:
    """Returns JSON objects with lists of values. Each is short enough for one model."""
    lists: list[list[str]] = [[]]
    for value in [text for text in [*STRINGS, *VALUES][::SHARE] if len(text.encode()) < 500]:
        if sum(len(text.encode()) for text in lists[-1]) + len(value.encode()) > MOST_BYTES // 2:
            lists.append([])
        lists[-1].append(value)
    return [f'{{"v": [{", ".join(values)}]}}' for values in lists]


CHUNKS = chunks()


@pytest.fixture(scope="module")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("awkward") as client:
        yield client


@pytest.fixture(scope="module", params=range(len(CHUNKS)))
def model(
    request: pytest.FixtureRequest, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, str, str]:
    """Returns a model's id, the JSON that it writes, and two messages.

    The messages make it write the JSON alone and in a tool call.
    """
    text, name = CHUNKS[request.param], f"awkward-{request.param}"
    template = (
        "{%- if tools -%}{%- endif -%}{%- for message in messages -%}"
        "{%- for call in message.tool_calls or [] -%}"
        f'{OPEN}\n{{{{ {{"name": call.function.name, "arguments": call.function.arguments}}'
        f" | tojson }}}}\n{CLOSE}"
        "{%- else -%}{%- if message.content | int > 0 -%}"
        "{%- for _ in range(message.content | int) -%}<s>{%- endfor -%}"
        "{%- else -%}{{ message.content }}{%- endif -%}"
        "{%- endfor -%}{%- endfor -%}{{ tools | tojson if tools and not messages else '' }}"
    )
    script = Script(added=[OPEN, CLOSE], template=template)
    plain = script.add(text)
    called = script.add(f'{OPEN}\n{{"name": "f", "arguments": {text}}}\n{CLOSE}')
    deploy(client, script.save(tmp_path_factory.mktemp("awkward") / name), name)
    return name, text, plain, called


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_answered(
    model: tuple[str, str, str, str], client: httpx.Client, form: str
) -> None:
    name, text, plain, called = model
    say = called if form == "tools" else plain
    body = {"model": name, "temperature": 0, "messages": [{"role": "user", "content": say}]}
    answer = client.post("/v1/chat/completions", json={**body, **FORMS[form]})
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    if form == "tools":
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == json.loads(text)
    else:
        assert message["content"] == text
