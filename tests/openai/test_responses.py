"""`/v1/responses` through the real openai SDK, against transformers and chat completions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import httpx2
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from stoker.inference.openai.response_object import ResponseObject
from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Event,
    Finished,
    Text,
    Usage,
)
from stoker.models.chat.answers.response_writer import ResponseWriter
from stoker.wire.generation_request import Generation, Sampling
from tests.openai.conftest import RANDOM as MODEL
from tests.openai.support import events, generated

PATH = "/v1/responses"
QUESTION = "what is the weather in Paris?"
TOKENS = 24
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Berlin"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Today's weather.",
    "parameters": WEATHER,
    "strict": True,
}
OTHER_TOOL = {"type": "function", "name": "get_time", "parameters": None, "strict": None}
ALLOWED = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "get_weather"}],
}
CITY = {"city": "Berlin"}
ARGUMENTS = json.dumps(CITY)
THOUGHT = {"structured_outputs": {"regex": "<think>\nlet me see\n</think>\n\nParis\\."}}
EVERY_TEXT_EVENT = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
EVERY_REASONING_EVENT = [one.replace("output_text", "reasoning_text") for one in EVERY_TEXT_EVENT]
EVERY_CALL_EVENT = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


class City(BaseModel):
    name: Literal["Rome"]
    large: Literal[True]


pytestmark = pytest.mark.usefixtures("random_model")


def ask(account: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": TOKENS, **fields}
    response = account.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chat(sdk: openai.OpenAI, messages: Sequence[Any], **fields: Any) -> Any:
    answer = sdk.chat.completions.create(
        model=MODEL, messages=list(messages), max_tokens=TOKENS, **fields
    )
    return answer.choices[0].message


def kinds(found: Sequence[Any]) -> list[str]:
    """Returns the events' types. Equal consecutive types count once."""
    types = [entry["type"] if isinstance(entry, dict) else entry.type for entry in found]
    return [entry for at, entry in enumerate(types) if at == 0 or entry != types[at - 1]]


class TestAnswer:
    def test_text(self, sdk: openai.OpenAI, random_folder: Path) -> None:
        answer = sdk.responses.create(model=MODEL, input=QUESTION, max_output_tokens=TOKENS)
        text, size = generated(random_folder, [{"role": "user", "content": QUESTION}], TOKENS)
        assert answer.output_text == text
        assert answer.id.startswith("resp_")
        (message,) = answer.output
        assert message.type == "message" and message.role == "assistant"
        assert message.id.startswith("msg_")
        assert message.content[0].type == "output_text"
        assert message.content[0].annotations == []
        assert answer.usage is not None
        assert answer.usage.input_tokens == size
        assert answer.usage.output_tokens == TOKENS
        assert answer.usage.total_tokens == size + TOKENS
        assert answer.usage.output_tokens_details.reasoning_tokens == 0

    def test_cut_off_at_the_limit(self, account: httpx.Client) -> None:
        answer = ask(account, max_output_tokens=3)
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["completed_at"] is None
        assert answer["output"][0]["status"] == "incomplete"
        assert answer["usage"]["output_tokens"] == 3

    def test_ended_by_the_model(self, account: httpx.Client) -> None:
        answer = ask(account, structured_outputs={"choice": ["Berlin"]})
        assert answer["status"] == "completed"
        assert answer["incomplete_details"] is None
        assert answer["completed_at"] >= answer["created_at"]
        assert answer["output"][0]["content"][0]["text"] == "Berlin"
        assert answer["output"][0]["status"] == "completed"

    def test_has_the_shape_that_the_sdk_and_the_documentation_name(
        self, account: httpx.Client
    ) -> None:
        for fields in ({}, THOUGHT, {"tools": [TOOL], "tool_choice": "required"}):
            answer = ask(account, **fields)
            Response.model_validate(answer, strict=True)
            documented = ResponseObject.model_validate(answer)
            assert documented.model_dump(exclude_unset=True) == answer

    def test_repeats_the_settings(self, account: httpx.Client) -> None:
        settings = {
            "instructions": "be brief",
            "temperature": 0.0,
            "top_p": 0.5,
            "metadata": {"run": "7"},
            "user": "u-1",
            "tools": [TOOL, OTHER_TOOL],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "parallel_tool_calls": False,
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "truncation": "disabled",
            "max_output_tokens": 60,
        }
        answer = ask(account, **settings, store=False, background=False, include=[])
        tools = [TOOL, {**OTHER_TOOL, "description": None, "strict": False}]
        assert {name: answer[name] for name in settings} == {**settings, "tools": tools}
        assert answer["store"] is answer["background"] is False
        assert answer["text"] == {"format": {"type": "text"}}
        assert answer["model"] == MODEL

    def test_defaults(self, account: httpx.Client) -> None:
        answer = ask(account)
        assert answer["tools"] == []
        assert answer["tool_choice"] == "auto"
        assert answer["parallel_tool_calls"] is True
        assert answer["metadata"] == {}
        assert answer["temperature"] == 0.0  # generation_config.json has "do_sample": false.
        assert (answer["top_p"], answer["presence_penalty"], answer["frequency_penalty"]) == (
            1,
            0,
            0,
        )
        assert answer["reasoning"] == {"effort": None, "summary": None}

    def test_logprobs(self, sdk: openai.OpenAI, account: httpx.Client) -> None:
        fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        answer = ask(account, **fields, max_output_tokens=5)
        (part,) = answer["output"][0]["content"]
        expected = sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=5,
            logprobs=True,
            top_logprobs=2,
        )
        assert expected.choices[0].logprobs and expected.choices[0].logprobs.content
        expected_logprobs = [entry.model_dump() for entry in expected.choices[0].logprobs.content]
        assert len(part["logprobs"]) == 5
        for entry, other in zip(part["logprobs"], expected_logprobs, strict=True):
            assert entry["token"] == other["token"]
            assert entry["bytes"] == other["bytes"]
            assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
            assert [top["token"] for top in entry["top_logprobs"]] == [
                top["token"] for top in other["top_logprobs"]
            ]

    def test_unknown_fields_are_ignored(self, account: httpx.Client) -> None:
        assert ask(account, of_tomorrow={"a": 1})["status"] == "incomplete"

    def test_extra_sampling_fields(self, account: httpx.Client) -> None:
        drawn = [ask(account, temperature=1.5, seed=seed, top_k=50) for seed in (1, 1, 2)]
        texts = [response["output"][0]["content"][0]["text"] for response in drawn]
        assert texts[0] == texts[1] != texts[2]

    def test_another_pipeline_is_told_so(self, sdk: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            sdk.responses.create(model="nowhere", input="hi")


class TestInput:
    @pytest.mark.parametrize(
        ("fields", "messages"),
        [
            (
                {"instructions": "be kind"},
                [{"role": "system", "content": "be kind"}, {"role": "user", "content": QUESTION}],
            ),
            (
                {
                    "instructions": "be kind",
                    "input": [
                        {"role": "developer", "content": "be brief"},
                        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                    ],
                },
                [
                    {"role": "system", "content": "be kind\n\nbe brief"},
                    {"role": "user", "content": "hello"},
                ],
            ),
            (
                {
                    "input": [
                        {"role": "user", "content": "hello"},
                        {
                            "type": "message",
                            "id": "msg_1",
                            "status": "completed",
                            "role": "assistant",
                            "content": [
                                {"type": "output_text", "text": "world", "annotations": []},
                                {"type": "refusal", "refusal": "no"},
                            ],
                        },
                        {"type": "message", "role": "user", "content": "cats"},
                    ]
                },
                [
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": "world\nno"},
                    {"role": "user", "content": "cats"},
                ],
            ),
            (
                {
                    "input": [
                        {"role": "user", "content": "hello"},
                        {
                            "type": "reasoning",
                            "id": "rs_1",
                            "summary": [],
                            "content": [{"type": "reasoning_text", "text": "hm"}],
                        },
                        {"role": "assistant", "content": "world"},
                        {"role": "user", "content": "dogs"},
                    ]
                },
                [
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": "world", "reasoning_content": "hm"},
                    {"role": "user", "content": "dogs"},
                ],
            ),
            (
                {
                    "tools": [TOOL],
                    "tool_choice": "none",
                    "input": [
                        {"role": "user", "content": "hello"},
                        {"role": "assistant", "content": "wait"},
                        *(
                            {
                                "type": "function_call",
                                "id": f"fc_{name}",
                                "call_id": name,
                                "name": "get_weather",
                                "arguments": ARGUMENTS,
                            }
                            for name in "ab"
                        ),
                        {"type": "function_call_output", "call_id": "b", "output": "rain"},
                        {
                            "type": "function_call_output",
                            "call_id": "a",
                            "output": [{"type": "input_text", "text": "sun"}],
                        },
                    ],
                },
                [
                    {"role": "user", "content": "hello"},
                    {
                        "role": "assistant",
                        "content": "wait",
                        "tool_calls": [
                            {
                                "id": name,
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": ARGUMENTS},
                            }
                            for name in "ab"
                        ],
                    },
                    {"role": "tool", "tool_call_id": "b", "content": "rain"},
                    {"role": "tool", "tool_call_id": "a", "content": "sun"},
                ],
            ),
        ],
        ids=["instructions", "system", "assistant", "reasoning", "calls"],
    )
    def test_means_what_the_messages_mean(
        self, account: httpx.Client, sdk: openai.OpenAI, fields: dict[str, Any], messages: Any
    ) -> None:
        answer = ask(account, **fields)
        expected = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=TOKENS)
        assert answer["output"][0]["content"][0]["text"] == expected.choices[0].message.content
        assert expected.usage
        assert answer["usage"]["input_tokens"] == expected.usage.prompt_tokens

    def test_effort_reaches_the_template(self, account: httpx.Client) -> None:
        plain, low = ask(account), ask(account, reasoning={"effort": "low"})
        assert low["usage"]["input_tokens"] > plain["usage"]["input_tokens"]
        assert low["reasoning"]["effort"] == "low"


class TestForms:
    def test_parse(self, sdk: openai.OpenAI) -> None:
        answer = sdk.responses.parse(model=MODEL, input=QUESTION, text_format=City)
        assert answer.output_parsed == City(name="Rome", large=True)
        assert answer.text and answer.text.format and answer.text.format.type == "json_schema"
        assert answer.text.format.name == "City"

    def test_json_object(self, sdk: openai.OpenAI) -> None:
        answer = sdk.responses.create(
            model=MODEL,
            input=QUESTION,
            text={"format": {"type": "json_object"}},
            max_output_tokens=TOKENS,
        )
        assert answer.output_text.startswith("{")

    def test_leaves_room_for_calls(self, account: httpx.Client) -> None:
        """A call and a text share only the form of arguments and text."""
        form = {"type": "json_schema", "name": "city", "schema": WEATHER, "strict": True}
        answer = ask(account, tools=[TOOL], text={"format": form}, max_output_tokens=100)
        for item in answer["output"]:
            text = item.get("arguments") or item["content"][0]["text"]
            assert item["status"] == "incomplete" or json.loads(text) == CITY
        assert answer["text"]["format"] == {**form, "description": None}

    def test_alone_without_them(self, account: httpx.Client) -> None:
        form = {"type": "json_schema", "name": "city", "schema": WEATHER, "strict": True}
        answer = ask(account, tools=[TOOL], tool_choice="none", text={"format": form})
        assert answer["output"][0]["content"][0]["text"] == ARGUMENTS


class TestReasoning:
    def test_is_an_item_of_its_own(self, account: httpx.Client) -> None:
        answer = ask(account, **THOUGHT, max_output_tokens=100)
        reasoning, message = answer["output"]
        assert reasoning["type"] == "reasoning"
        assert reasoning["summary"] == []
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "let me see"}]
        assert message["content"][0]["text"].strip() == "Paris."
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0

    def test_cut_off(self, account: httpx.Client) -> None:
        answer = ask(account, **THOUGHT, max_output_tokens=9)
        (reasoning,) = answer["output"]
        assert answer["status"] == reasoning["status"] == "incomplete"
        assert "let me see".startswith(reasoning["content"][0]["text"])

    def test_may_be_sent_back(self, sdk: openai.OpenAI) -> None:
        first = sdk.responses.create(
            model=MODEL, input=QUESTION, max_output_tokens=100, extra_body=THOUGHT
        )
        conversation: Any = [{"role": "user", "content": QUESTION}, *first.output]
        conversation.append({"role": "user", "content": "and Rome?"})
        second = sdk.responses.create(model=MODEL, input=conversation, max_output_tokens=TOKENS)
        message = {"role": "assistant", "content": first.output_text}
        expected = chat(
            sdk,
            [
                {"role": "user", "content": QUESTION},
                message | {"reasoning_content": "let me see"},
                {"role": "user", "content": "and Rome?"},
            ],
        )
        assert second.output_text == expected.content


class TestInputTokens:
    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"instructions": "be brief"},
            {"tools": [TOOL]},
            {"tools": [TOOL], "tool_choice": "none"},
            {"tools": [TOOL], "tool_choice": "required"},
            {"text": {"format": {"type": "json_schema", "name": "c", "schema": WEATHER}}},
            {"reasoning": {"effort": "low"}},
            {"input": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
        ],
        ids=str,
    )
    def test_are_those_of_the_response(self, sdk: openai.OpenAI, more: Any) -> None:
        fields = {"model": MODEL, "input": QUESTION, **more}
        counted = sdk.responses.input_tokens.count(**fields)
        assert counted.object == "response.input_tokens"
        answer = sdk.responses.create(**fields, max_output_tokens=100)
        assert answer.usage is not None
        assert counted.input_tokens == answer.usage.input_tokens

    def test_of_what_is_too_long(self, sdk: openai.OpenAI) -> None:
        counted = sdk.responses.input_tokens.count(model=MODEL, input="a " * 5000)
        assert counted.input_tokens > 5000

    def test_refuses_what_a_response_does(self, account: httpx.Client) -> None:
        for more, field in (
            ({"input": None}, "input"),
            ({"tools": [{"type": "of_tomorrow"}]}, "tools[0].type"),
        ):
            body = {"model": MODEL, "input": QUESTION, **more}
            response = account.post(f"{PATH}/input_tokens", json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == field

    def test_a_stream_is_none(self, account: httpx.Client) -> None:
        body = {"model": MODEL, "input": QUESTION, "stream": True}
        response = account.post(f"{PATH}/input_tokens", json=body)
        assert response.json()["object"] == "response.input_tokens"


class TestTruncation:
    turns: Sequence[Any] = [
        {"role": role, "content": f"{number} " + "word " * 30}
        for number in range(30)
        for role in ("user", "assistant")
    ]
    last: Any = {"role": "user", "content": QUESTION}

    def test_leaves_out_the_oldest(self, sdk: openai.OpenAI) -> None:
        """The remaining turns are answered as if they were the whole conversation."""
        fields: Any = {"model": MODEL, "instructions": "be brief"}
        turns: Any = [*self.turns, self.last]
        answer = sdk.responses.create(
            **fields, input=turns, truncation="auto", max_output_tokens=TOKENS
        )
        assert answer.truncation == "auto"
        assert answer.usage is not None
        counts = {
            removed: sdk.responses.input_tokens.count(**fields, input=turns[removed:]).input_tokens
            for removed in range(0, len(turns), 2)
        }
        fitting = min(removed for removed, tokens in counts.items() if tokens + TOKENS <= 1024)
        assert fitting > 0
        assert answer.usage.input_tokens == counts[fitting]
        alone = sdk.responses.create(**fields, input=turns[fitting:], max_output_tokens=TOKENS)
        assert answer.output_text == alone.output_text

    def test_is_counted_too(self, sdk: openai.OpenAI) -> None:
        turns: Any = [*self.turns, self.last]
        counted = sdk.responses.input_tokens.count(model=MODEL, input=turns, truncation="auto")
        assert 1024 * 3 // 4 < counted.input_tokens <= 1024 * 7 // 8
        answer = sdk.responses.create(
            model=MODEL, input=turns, truncation="auto", extra_body={"stop": [" ", "e"]}
        )
        assert answer.usage is not None
        assert answer.usage.input_tokens == counted.input_tokens

    def test_changes_nothing_that_fits(self, sdk: openai.OpenAI) -> None:
        turns: Any = [*self.turns[:10], self.last]
        counts = {
            sdk.responses.input_tokens.count(model=MODEL, input=turns, truncation=way).input_tokens
            for way in ("auto", "disabled")
        }
        assert len(counts) == 1

    @pytest.mark.parametrize("way", ["disabled", None])
    def test_disabled(self, sdk: openai.OpenAI, way: Any) -> None:
        turns: Any = [*self.turns, self.last]
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(model=MODEL, input=turns, truncation=way)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        start = "This model's maximum context length is 1024 tokens."
        assert caught.value.body["message"].startswith(start)  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]

    def test_the_last_message_alone_is_too_long(self, sdk: openai.OpenAI) -> None:
        turns: Any = [*self.turns, {"role": "user", "content": "a " * 3000}]
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(model=MODEL, input=turns, truncation="auto")
        assert caught.value.code == "context_length_exceeded"

    def test_the_answer_alone_is(self, sdk: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(
                model=MODEL, input=QUESTION, truncation="auto", max_output_tokens=1024
            )
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "max_output_tokens"


class TestTaken:
    def test_a_limit_of_calls_that_there_are_not(self, sdk: openai.OpenAI) -> None:
        answer = sdk.responses.create(
            model=MODEL,
            input=QUESTION,
            tools=[TOOL, {**TOOL, "name": "again"}],
            tool_choice="required",
            max_tool_calls=1,
            max_output_tokens=200,
        )
        assert answer.max_tool_calls == 1
        assert {item.type for item in answer.output} == {"function_call"}

    def test_the_usual_verbosity(self, account: httpx.Client) -> None:
        answer = ask(account, text={"verbosity": "medium"}, max_output_tokens=TOKENS)
        assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


class TestTools:
    @pytest.mark.parametrize(
        ("choice", "tools"),
        [
            ("required", [TOOL]),
            ({"type": "function", "name": "get_weather"}, [OTHER_TOOL, TOOL]),
            (ALLOWED, [OTHER_TOOL, TOOL]),
        ],
        ids=["required", "named", "allowed"],
    )
    def test_call(self, sdk: openai.OpenAI, choice: Any, tools: Any) -> None:
        answer = sdk.responses.create(
            model=MODEL, input=QUESTION, tools=tools, tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = answer.output
        assert call.type == "function_call"
        assert call.status == answer.status == "completed"
        assert (call.name, json.loads(call.arguments)) == ("get_weather", CITY)
        assert call.id and call.id.startswith("fc_")
        assert call.call_id.startswith("call_")
        assert answer.output_text == ""

    def test_only_those_allowed(self, account: httpx.Client) -> None:
        """The model reads only the allowed tools. The answer repeats the request's tools."""
        both = {"tools": [OTHER_TOOL, TOOL], "tool_choice": ALLOWED}
        answer = ask(account, **both, max_output_tokens=200)
        alone = ask(account, tools=[TOOL], tool_choice="required", max_output_tokens=200)
        assert answer["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
        assert answer["tool_choice"] == ALLOWED
        assert [entry["name"] for entry in answer["tools"]] == ["get_time", "get_weather"]
        assert {entry["name"] for entry in answer["output"]} == {"get_weather"}
        both["tool_choice"] = {**ALLOWED, "mode": "auto"}
        counted = account.post(
            f"{PATH}/input_tokens", json={"model": MODEL, "input": QUESTION, **both}
        )
        assert counted.json()["input_tokens"] == alone["usage"]["input_tokens"]

    def test_loop(self, sdk: openai.OpenAI) -> None:
        tools: Any = [TOOL]
        conversation: Any = [{"role": "user", "content": QUESTION}]
        called = sdk.responses.create(
            model=MODEL,
            input=conversation,
            tools=tools,
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (call,) = called.output
        assert call.type == "function_call"
        conversation += called.output
        conversation.append(
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        )
        answer = sdk.responses.create(
            model=MODEL,
            input=conversation,
            tools=tools,
            tool_choice="none",
            max_output_tokens=TOKENS,
        )
        function = {"name": "get_weather", "arguments": ARGUMENTS}
        expected = chat(
            sdk,
            [
                {"role": "user", "content": QUESTION},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "rain"},
            ],
            tools=[{"type": "function", "function": {**TOOL, "type": None}}],
            tool_choice="none",
        )
        assert answer.output_text == expected.content

    def test_parsed_arguments(self, sdk: openai.OpenAI) -> None:
        tools: Any = [openai.pydantic_function_tool(City)]
        answer = sdk.responses.parse(
            model=MODEL,
            input=QUESTION,
            tools=[{"type": "function", **tools[0]["function"]}],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        (call,) = answer.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"name": "Rome", "large": True}

    def test_several(self, account: httpx.Client) -> None:
        answer = ask(account, tools=[TOOL], tool_choice="required", max_output_tokens=200)
        calls = answer["output"]
        assert {call["type"] for call in calls} == {"function_call"}
        whole = [json.loads(call["arguments"]) for call in calls if call["status"] == "completed"]
        assert whole and all(arguments == CITY for arguments in whole)
        assert len({call["call_id"] for call in calls}) == len({call["id"] for call in calls})


class TestStream:
    def read(self, account: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
        body = {"model": MODEL, "input": QUESTION, "max_output_tokens": TOKENS, **fields}
        response = account.post(PATH, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events(response.content)

    @pytest.mark.parametrize(
        ("fields", "between", "last"),
        [
            ({}, EVERY_TEXT_EVENT, "incomplete"),
            ({"structured_outputs": {"choice": ["Rome"]}}, EVERY_TEXT_EVENT, "completed"),
            (
                {**THOUGHT, "max_output_tokens": 100},
                [*EVERY_REASONING_EVENT, *EVERY_TEXT_EVENT],
                "completed",
            ),
            (
                {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
                | {"max_output_tokens": 100},
                EVERY_CALL_EVENT,
                "completed",
            ),
        ],
        ids=["text", "short", "reasoning", "call"],
    )
    def test_order(
        self, account: httpx.Client, fields: dict[str, Any], between: list[str], last: str
    ) -> None:
        received = self.read(account, **fields)
        head = ["response.created", "response.in_progress"]
        assert kinds(received) == [*head, *between, f"response.{last}"]
        first, final = received[0]["response"], received[-1]["response"]
        assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
        assert first["id"] == final["id"]
        whole = ask(account, **fields)
        assert final.keys() == whole.keys()
        assert contents(final) == contents(whole)
        assert final["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        done = [event["item"] for event in received if event["type"] == "response.output_item.done"]
        assert done == final["output"]

    def test_pieces_make_the_whole(self, account: httpx.Client) -> None:
        fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        received = self.read(account, **fields)
        deltas = [event for event in received if event["type"] == "response.output_text.delta"]
        assert len(deltas) > 3
        (part,) = received[-1]["response"]["output"][0]["content"]
        assert "".join(event["delta"] for event in deltas) == part["text"]
        assert [token for event in deltas for token in event["logprobs"]] == part["logprobs"]
        (done,) = [event for event in received if event["type"] == "response.output_text.done"]
        assert (done["text"], done["logprobs"]) == (part["text"], part["logprobs"])
        assert len(part["logprobs"]) == TOKENS

    def test_through_the_sdk(self, sdk: openai.OpenAI) -> None:
        stream = sdk.responses.create(
            model=MODEL, input=QUESTION, max_output_tokens=TOKENS, stream=True
        )
        text = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        whole = sdk.responses.create(model=MODEL, input=QUESTION, max_output_tokens=TOKENS)
        assert text == whole.output_text

    def test_parsed(self, sdk: openai.OpenAI) -> None:
        with sdk.responses.stream(model=MODEL, input=QUESTION, text_format=City) as stream:
            snapshots = [
                event.snapshot for event in stream if event.type == "response.output_text.delta"
            ]
            final = stream.get_final_response()
        assert final.output_parsed == City(name="Rome", large=True)
        assert snapshots[-1] == final.output_text
        assert final.usage and final.usage.output_tokens > 0

    def test_tool_call(self, sdk: openai.OpenAI) -> None:
        tools: Any = [TOOL]
        with sdk.responses.stream(
            model=MODEL,
            input=QUESTION,
            tools=tools,
            tool_choice="required",
            parallel_tool_calls=False,
        ) as stream:
            received = list(stream)
            (call,) = stream.get_final_response().output
        deltas = [
            event for event in received if event.type == "response.function_call_arguments.delta"
        ]
        assert len(deltas) > 1
        assert json.loads(deltas[-1].snapshot) == CITY
        assert call.type == "function_call"
        assert (call.name, call.parsed_arguments) == ("get_weather", {"city": "Berlin"})

    def test_a_wrong_request_has_a_status(self, sdk: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4096, stream=True)
        assert caught.value.param == "max_output_tokens"


def contents(response: dict[str, Any]) -> list[Any]:
    """Returns the output of a response without the ids."""
    return [
        (item["type"], item["status"], item.get("content"), item.get("name"), item.get("arguments"))
        for item in response["output"]
    ]


def user(*parts: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(parts)}]}


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"input": None}, "input"),
            ({"input": ""}, "input"),
            ({"input": []}, "input"),
            ({"input": 5}, "input"),
            ({"input": "a" * 5000}, "input"),
            ({"input": [5]}, "input[0]"),
            ({"input": [{"role": "bot", "content": "a"}]}, "input[0].role"),
            ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
            ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
            ({"input": [{"role": "user"}]}, "input[0].content"),
            (user({"type": "input_text", "text": 5}), "input[0].content[0].text"),
            (user({"type": "input_image", "image_url": "x"}), "input[0].content[0]"),
            (user({"type": "input_image", "file_id": "x"}), "input[0].content[0].image_url"),
            (
                user({"type": "input_image", "image_url": "x", "file_id": "y"}),
                "input[0].content[0].file_id",
            ),
            (
                {
                    "input": [
                        CALL,
                        {**OUTPUT, "output": [{"type": "input_image", "image_url": "x"}]},
                    ]
                },
                "input[1].output[0]",
            ),
            (user({"type": "input_file", "file_id": "x"}), "input[0].content[0].type"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
            ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
            ({"input": [{**CALL, "arguments": "[1]"}, OUTPUT]}, "input[0].arguments"),
            ({"input": [{**CALL, "namespace": 5}, OUTPUT]}, "input[0].namespace"),
            ({"input": [CALL]}, "input"),
            ({"input": [CALL, CALL, OUTPUT]}, "input[1].call_id"),
            ({"input": [CALL, {"role": "user", "content": "a"}, OUTPUT]}, "input[1]"),
            ({"input": [OUTPUT]}, "input[0].call_id"),
            ({"input": [CALL, OUTPUT, OUTPUT]}, "input[2].call_id"),
            (
                {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
                "input[0].encrypted_content",
            ),
            ({"conversation": "conv_1"}, "conversation"),
            ({"prompt": {"id": "pmpt_1"}}, "prompt"),
            ({"background": True, "store": False}, "background"),
            ({"truncation": "some"}, "truncation"),
            ({"context_management": [{"type": "compaction"}]}, "context_management"),
            ({"max_tool_calls": 0}, "max_tool_calls"),
            ({"moderation": {"model": "m"}}, "moderation"),
            ({"service_tier": "scale"}, "service_tier"),
            ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
            ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
            ({"include": ["file_search_call.results"]}, "include[0]"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"top_logprobs": 21}, "top_logprobs"),
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"max_tokens": 5}, "max_tokens"),
            ({"n": 2}, "n"),
            ({"temperature": 2.5}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"metadata": {"a": 1}}, "metadata.a"),
            ({"text": {"verbosity": "low"}}, "text.verbosity"),
            ({"text": {"verbosity": "much"}}, "text.verbosity"),
            ({"text": {"format": {"type": "xml"}}}, "text.format"),
            (
                {"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
                "text.format.name",
            ),
            (
                {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 5}}}},
                "text.format.schema",
            ),
            ({"reasoning": {"effort": "lots"}}, "reasoning.effort"),
            ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
            ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
            ({"tools": [{"type": "of_tomorrow"}]}, "tools[0].type"),
            ({"tools": [{"type": "custom", "name": "a b"}]}, "tools[0].name"),
            ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
            ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading"),
            ({"tools": [{**FUNCTION, "async": True}]}, "tools[0].async"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [FUNCTION], "tool_choice": "maybe"}, "tool_choice"),
            ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
            (
                {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
                "tool_choice.name",
            ),
            ({"tools": [FUNCTION], "tool_choice": ALLOWED}, "tool_choice.tools[0].name"),
            (
                {"tools": [FUNCTION], "tool_choice": {**ALLOWED, "mode": "none"}},
                "tool_choice.mode",
            ),
            (
                {"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": []}},
                "tool_choice.tools",
            ),
            (
                {"text": {"format": {"type": "json_object"}}, **THOUGHT},
                "structured_outputs",
            ),
        ],
        ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else value,
    )
    def test_by_name(self, account: httpx.Client, fields: dict[str, Any], param: str) -> None:
        response = account.post(PATH, json={"model": MODEL, "input": QUESTION, **fields})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["type"]) == (param, "InvalidRequestError")
        assert error["message"]

    def test_says_what_would_be_right(self, sdk: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="send the whole conversation as 'input'"):
            sdk.responses.create(model=MODEL, input="hi", conversation="conv_1")

    def test_input_is_required(self, account: httpx.Client) -> None:
        response = account.post(PATH, json={"model": MODEL})
        assert response.json()["error"]["message"] == "'input' is required."


def writer(*, stream: bool = True) -> ResponseWriter:
    answer = {"id": "resp_1", "created": 1, "model": "m"}
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return ResponseWriter(
        Generation(
            api="responses",
            prompts=[""],
            sampling=Sampling(),
            stream=stream,
            answer=answer | {"settings": settings},
        ),
        Sampling(),
    )


def written(*given: Event) -> tuple[dict[str, Any], bytes]:
    """Returns a whole response, and the stream of the same events."""
    whole, streamed = writer(stream=False), writer()
    content = streamed.begin(Usage())
    for event in given:
        assert whole.add(0, [event]) == b""
        content += streamed.add(0, [event])
    return json.loads(whole.end(Usage())), content + streamed.end(Usage())


class TestWriter:
    def output(self, *given: Event) -> list[Any]:
        """Returns the output, and checks that it is equal whole and streamed."""
        whole, content = written(*given)
        final = events(content)[-1]["response"]
        assert contents(final) == contents(whole)
        return [
            (item["type"], item.get("arguments") or "".join(p["text"] for p in item["content"]))
            for item in whole["output"]
        ]

    def test_text_and_calls(self) -> None:
        output = self.output(
            Text("I ask.\n"),
            CallBegun(0, "call_a", "f"),
            CallArguments(0, '{"a"'),
            CallArguments(0, ": 1}"),
            Text("\n"),
            CallBegun(1, "call_b", "g"),
            CallArguments(1, "{}"),
            Finished("tool_calls"),
        )
        assert output == [
            ("message", "I ask.\n"),
            ("function_call", '{"a": 1}'),
            ("function_call", "{}"),
        ]

    def test_white_space_before_a_call_is_no_message(self) -> None:
        output = self.output(
            Text(" "),
            Text("\n"),
            CallBegun(0, "call_a", "f"),
            CallArguments(0, "{}"),
            Finished("tool_calls"),
        )
        assert output == [("function_call", "{}")]

    def test_white_space_before_text_belongs_to_it(self) -> None:
        output = self.output(Text(" "), Text("\n"), Text("a "), Text("b"), Finished("stop"))
        assert output == [("message", " \na b")]

    def test_reasoning_is_stripped(self) -> None:
        output = self.output(
            Text("\n", reasoning=True),
            Text("\nI think ", reasoning=True),
            Text("so\n", reasoning=True),
            Text("\n", reasoning=True),
            Text("\n\n"),
            Text("Yes"),
            Finished("stop"),
        )
        assert output == [("reasoning", "I think so"), ("message", "\n\nYes")]

    def test_nothing_is_an_empty_message(self) -> None:
        assert self.output(Finished("stop")) == [("message", "")]

    def test_nothing_but_white_space(self) -> None:
        assert self.output(Text("\n"), Finished("stop")) == [("message", "\n")]

    def test_a_call_that_is_cut_off(self) -> None:
        whole, _ = written(CallBegun(0, "call_a", "f"), CallArguments(0, '{"a'), Finished("length"))
        assert whole["status"] == whole["output"][0]["status"] == "incomplete"
        assert whole["output"][0]["arguments"] == '{"a'


def replayed(content: bytes) -> openai.OpenAI:
    """Returns a client of a server that answers with this content."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers=headers, content=content)
    )
    return openai.OpenAI(
        base_url="http://test/v1", api_key="x", http_client=httpx2.Client(transport=transport)
    )


@pytest.fixture(scope="module")
def content() -> bytes:
    """Returns the stream of a model that failed."""
    made = writer()
    content = made.begin(Usage()) + made.add(0, [Text("It rai")])
    return content + made.fail("inference_failed", "The model failed.")


class TestFailure:
    def test_events(self, content: bytes) -> None:
        *_, done, failed, error = events(content)
        assert (done["type"], done["item"]["status"]) == (
            "response.output_item.done",
            "incomplete",
        )
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {
            "code": "server_error",
            "message": "The model failed.",
        }
        assert failed["response"]["output"][0]["content"][0]["text"] == "It rai"
        assert (error["type"], error["code"]) == ("error", "inference_failed")
        assert error["error"]["message"] == "The model failed."

    def test_the_sdk_raises(self, content: bytes) -> None:
        with replayed(content).responses.stream(model="m", input="x") as stream:
            event_types: list[str] = []
            with pytest.raises(openai.APIError, match="The model failed"):
                event_types.extend(event.type for event in stream)
        with (
            pytest.raises(openai.APIError, match="The model failed"),
            replayed(content).responses.create(model="m", input="x", stream=True) as plain,
        ):
            for event in plain:
                event_types.append(event.type)
        assert event_types[-1] == "response.failed"
