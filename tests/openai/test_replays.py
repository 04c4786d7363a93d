"""The server accepts each of its answers as part of the next request.

A scripted model writes well-formed and malformed texts, reasoning and calls. The start and end of
an answer are random. `STOKER_TEST_EXAMPLES=80` tries 2,000 answers.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.llm.support import HERMES
from tests.support.deploying import deploy, wait_for
from tests.support.examples import examples
from tests.support.scripted import BEGIN, Script
from tests.support.server import Server

MODEL = "scripted-answers"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
FLAT: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
FUNCTION: Any = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
PLACE = (
    "{%- set last = (messages | selectattr('role', 'equalto', 'user') | list | last).content -%}"
    "{%- if last is string and last | int > 0 -%}{%- set unseen -%}"
)
"""Template code that selects a place in the script by the last user message.

The conversation is rendered but not shown.
"""


def call(arguments: str, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PLAIN, ESCAPED = '{"city": "A"}', r'{"city": "\u00e9\ud83d\ude00\/"}'
TAPE = (
    "<think>\nHot?\n</think>\n\nIt is\u2028hot\x85.",
    f"Look: {call(PLAIN)}\nand {call(ESCAPED)} so.",
    call('{"city": "B", "x": [1e400, -0, {"": null}]}'),
    f"<think>a</think>{call('{}')}",
    call('{"city": "\\ud83d"}'),
    call("{city: C}", "no tool"),
    '<tool_call>\n{"name": 5}\n</tool_call> <tool_call></tool_call></think>',
    "{" * 70,
)
STOPS = ("city", '"', "}", "{", "get", "\n", "A", "</tool_call>", "e9", "ud83d", "think", "a")


SHOWN = f"{{%- endset -%}}{{%- for _ in range(last | int) -%}}{BEGIN}{{%- endfor -%}}"
SCRIPT = Script(
    special=("<|im_start|>", "<|im_end|>"),
    added=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    template=f"{PLACE}{HERMES}{SHOWN}{{%- else -%}}{HERMES}{{%- endif -%}}",
)
BEGINS = [int(SCRIPT.add(text)) for text in TAPE]


@pytest.fixture(scope="module")
def model(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    server.wait_ready()
    folder = SCRIPT.save(tmp_path_factory.mktemp("scripted") / "model")
    with server.account("replays") as client:
        deployed = deploy(client, folder, MODEL, engine="torch", readiness="hot")
        wait_for(client, deployed["id"], "ready")
        yield client


@pytest.fixture(scope="module")
def sdk(model: httpx.Client, server: Server) -> openai.OpenAI:
    key = str(model.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


# An answer usually begins at the start of a text in the script.
PLACES = st.sampled_from(BEGINS) | st.integers(1, SCRIPT.length)
ANSWERS = {
    "place": PLACES,
    "most": st.sampled_from([1, 2, 40, 90]) | st.integers(1, 120),
    "stop": st.none() | st.sampled_from(STOPS),
    "choice": st.sampled_from(["auto", "required", "none"]),
    "streams": st.booleans(),
    "abandoned": st.sampled_from([None, None, 1, 5, 30]),
}


class TestChat:
    @settings(max_examples=examples(25))
    @given(**ANSWERS, form=st.booleans())
    def test_any_answer(
        self,
        sdk: openai.OpenAI,
        place: int,
        most: int,
        stop: str | None,
        choice: Any,
        streams: bool,
        abandoned: int | None,
        form: bool,
    ) -> None:
        messages: list[Any] = [{"role": "user", "content": str(place)}]
        fields: dict[str, Any] = {"model": MODEL, "tools": [TOOL], "tool_choice": choice}
        fields |= {"max_tokens": most, "temperature": 0}
        if stop:
            fields["stop"] = [stop]
        if form:
            fields["response_format"] = {"type": "json_object"}
        if streams:
            state = ChatCompletionStreamState()
            with sdk.chat.completions.create(messages=messages, stream=True, **fields) as stream:
                for number, chunk in enumerate(stream):
                    state.handle_chunk(chunk)
                    if number == abandoned:
                        break
            answer = state.current_completion_snapshot
        else:
            answer = sdk.chat.completions.create(messages=messages, **fields)
        message = answer.choices[0].message
        calls = message.tool_calls or []
        if answer.choices[0].finish_reason == "tool_calls":
            for tool_call in calls:
                assert tool_call.type == "function"
                assert isinstance(json.loads(tool_call.function.arguments), dict)
        messages.append(message.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": tool_call.id, "content": "21"} for tool_call in calls
        ]
        messages.append({"role": "user", "content": "1"})
        # The client raises for any status but 200.
        sdk.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=1)


class TestResponses:
    @settings(max_examples=examples(25))
    @given(**ANSWERS)
    def test_any_answer(
        self,
        sdk: openai.OpenAI,
        place: int,
        most: int,
        stop: str | None,
        choice: Any,
        streams: bool,
        abandoned: int | None,
    ) -> None:
        items: list[Any] = [{"role": "user", "content": str(place)}]
        fields: dict[str, Any] = {"model": MODEL, "tools": [FLAT], "tool_choice": choice}
        fields |= {"max_output_tokens": most, "temperature": 0}
        fields["extra_body"] = {"stop": [stop]} if stop else {}
        output: list[Any] = []
        if streams:
            with sdk.responses.create(input=items, stream=True, **fields) as stream:
                for number, event in enumerate(stream):
                    # As for a client that stops in the middle: it has each added item in its
                    # current state.
                    if event.type == "response.output_item.added":
                        output.append(event.item.model_dump())
                    elif event.type == "response.output_item.done":
                        output[event.output_index] = event.item.model_dump()
                    elif event.type == "response.function_call_arguments.delta":
                        output[event.output_index]["arguments"] += event.delta
                    if number == abandoned:
                        break
        else:
            output = [
                item.model_dump() for item in sdk.responses.create(input=items, **fields).output
            ]
        calls = [item for item in output if item["type"] == "function_call"]
        for item in calls:
            if item["status"] == "completed":
                assert isinstance(json.loads(item["arguments"]), dict)
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "21"}
            for item in calls
        ]
        again: list[Any] = [*items, *output, *outputs, {"role": "user", "content": "1"}]
        sdk.responses.create(model=MODEL, input=again, tools=[FLAT], max_output_tokens=1)
        counted = sdk.responses.input_tokens.count(model=MODEL, input=again, tools=[FLAT])
        assert counted.input_tokens == 1


class TestRuns:
    @settings(max_examples=examples(8))
    @given(
        place=PLACES,
        most=st.sampled_from([40, 90]) | st.integers(1, 120),
        stop=st.none() | st.sampled_from(STOPS),
        own=st.booleans(),
    )
    def test_any_step(
        self, model: httpx.Client, place: int, most: int, stop: str | None, own: bool
    ) -> None:
        """The second step receives the first one's answer, with outputs of all calls."""
        config = {"max_tokens": most, "temperature": 0} | ({"stop": [stop]} if stop else {})
        agent = {"name": "a", "model": MODEL, "max_steps": 2, "config": config}
        # The calls are for the owner to answer, or name a tool that does not exist.
        agent["tools"] = [TOOL if own else FUNCTION]
        created = model.post("/v1/agent", json=agent).raise_for_status().json()
        runs = f"/v1/agent/{created['id']}/runs"
        run = model.post(runs, json={"input": str(place)}).raise_for_status().json()
        path = f"{runs}/{run['id']}"
        deadline = time.monotonic() + 60
        while (current_run := model.get(path).json())["status"] not in ("completed", "failed"):
            assert time.monotonic() < deadline, current_run
            if current_run["status"] == "requires_action":
                waiting = current_run["required_action"]["tool_calls"]
                for tool_call in waiting:
                    json.loads(tool_call["function"]["arguments"])
                outputs = [
                    {"tool_call_id": tool_call["id"], "output": "21"} for tool_call in waiting
                ]
                model.post(f"{path}/tool-outputs", json={"tool_outputs": outputs})
            time.sleep(0.01)
        if current_run["status"] == "failed":
            assert current_run["error"]["code"] == "step_limit_exceeded", current_run
        model.delete(path).raise_for_status()
        model.delete(f"/v1/agent/{created['id']}").raise_for_status()
