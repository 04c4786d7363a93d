"""The scripted model itself, through each API, with streams and without."""

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.launch.support import call, deploy_script, step
from tests.support.server import Server

MODEL = "scripted"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STEPS = [
    step(r"weather in (\w+)", "Let me see.", call("get_weather", city="Rome")),
    step(r"(\d+) degrees", r"It is \1 degrees in Rome."),
]
QUESTION: Any = {"role": "user", "content": "What is the weather in Rome?"}
pytestmark = pytest.mark.one_machine


@pytest.fixture
def key(scripted_account: httpx.Client, artifact: str) -> str:
    deploy_script(scripted_account, artifact, MODEL, STEPS)
    return scripted_account.headers["authorization"].removeprefix("Bearer ")


def test_chat_completions(scripted_server: Server, key: str) -> None:
    client = openai.OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key=key)
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
    create: Any = client.chat.completions.create
    first = create(model=MODEL, messages=[QUESTION], tools=tools).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content.strip() == "Let me see."
    (made,) = first.message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments)) == (
        "get_weather",
        {"city": "Rome"},
    )
    result = {"role": "tool", "tool_call_id": made.id, "content": "21 degrees"}
    messages = [QUESTION, first.message.model_dump(exclude_none=True), result]
    last = create(model=MODEL, messages=messages, tools=tools).choices[0]
    assert last.message.content == "It is 21 degrees in Rome."


def test_messages_of_a_long_conversation(scripted_server: Server, key: str) -> None:
    client = anthropic.Anthropic(base_url=scripted_server.base_url, api_key=key)

    def create(**fields: Any) -> Any:
        with client.messages.stream(**fields) as stream:
            return stream.get_final_message()

    tools = [{"name": "get_weather", "input_schema": WEATHER}]
    system = "Be brief. " * 20_000
    options: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 32_000,
        "tools": tools,
        "system": system,
    }
    first = create(messages=[QUESTION], **options)
    assert first.stop_reason == "tool_use"
    assert first.usage.input_tokens > 50_000
    made = first.content[-1]
    assert (made.name, made.input) == ("get_weather", {"city": "Rome"})
    result = {"type": "tool_result", "tool_use_id": made.id, "content": "21 degrees"}
    turn = {"role": "assistant", "content": first.content}
    messages = [QUESTION, turn, {"role": "user", "content": [result]}]
    assert create(messages=messages, **options).content[0].text == "It is 21 degrees in Rome."


def test_a_result_that_does_not_fit(scripted_server: Server, key: str) -> None:
    client = openai.OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key=key)
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages)
    text = answer.choices[0].message.content
    assert text is not None
    assert text.startswith(r"No 'weather in (\w+)' in:")
    assert "Who are you?" in text
