"""`/v1/messages` through the real anthropic SDK, against chat completions."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message

import stoker.demo
from stoker.inference.anthropic.message_object import MessageObject
from tests.openai.conftest import ANY, RANDOM
from tests.openai.test_chat import ANNA, FRANCE, PARIS, Person, user
from tests.support.deploying import deploy
from tests.support.server import Server

PATH = "/v1/messages"
DEMO = Path(stoker.demo.__file__).parent
LISBON = "What is the weather in Lisbon?"
WEATHER: Any = {
    "name": "get_weather",
    "description": "Look up the current weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
OPENAI_WEATHER: Any = {
    "type": "function",
    "function": {
        "name": WEATHER["name"],
        "description": WEATHER["description"],
        "parameters": WEATHER["input_schema"],
    },
}
TOKENS = 24
CALL: Any = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Rome"}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "a", "content": "sun"}


pytestmark = pytest.mark.usefixtures("random_model")


@pytest.fixture(scope="module")
def client(base_url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base_url, api_key=key, max_retries=0)


def create(client: anthropic.Anthropic, model: str, text: str, **options: Any) -> Message:
    options.setdefault("max_tokens", 64)
    untyped: Any = client.messages.create
    return untyped(model=model, messages=user(text), **options)


def refusal(account: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": ANY, "max_tokens": 8, "messages": user("hi"), **fields}
    response = account.post(PATH, json=body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["request_id"] == response.headers["request-id"]
    return error["error"]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


class TestAnswers:
    def test_text(self, client: anthropic.Anthropic, model: str) -> None:
        message = create(client, model, FRANCE)
        assert text_of(message) == PARIS
        assert (message.role, message.model) == ("assistant", model)
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.id.startswith("msg_")

    def test_has_the_shape_of_the_sdk_and_of_the_documentation(self, account: httpx.Client) -> None:
        forced = {"tools": [WEATHER], "tool_choice": {"type": "any"}}
        for fields in ({}, forced, {"max_tokens": 2}):
            body = {"model": ANY, "max_tokens": 64, "messages": user(LISBON), **fields}
            answer = account.post(PATH, json=body).json()
            Message.model_validate(answer, strict=True)
            documented = MessageObject.model_validate(answer)
            assert documented.model_dump(exclude_unset=True) == answer

    def test_stream(self, client: anthropic.Anthropic, model: str) -> None:
        whole = create(client, model, FRANCE)
        with client.messages.stream(model=model, max_tokens=64, messages=user(FRANCE)) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        assert "".join(pieces) == PARIS
        assert len(pieces) > 3
        assert [block.type for block in final.content] == ["text"]
        assert text_of(final) == PARIS
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens

    def test_events(self, account: httpx.Client) -> None:
        body = {"model": ANY, "max_tokens": 64, "messages": user(FRANCE), "stream": True}
        content = account.post(PATH, json=body).text
        blocks = [block for block in content.split("\n\n") if block.startswith("event: ")]
        names = [block.split("\n")[0].removeprefix("event: ") for block in blocks]
        data = [json.loads(block.split("\ndata: ")[1]) for block in blocks]
        assert [event["type"] for event in data] == names
        assert [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]] == [
            *("message_start", "ping", "content_block_start", "content_block_delta"),
            *("content_block_stop", "message_delta", "message_stop"),
        ]
        usage = data[0]["message"]["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
        assert usage["output_tokens"] == 0

    def test_stop_sequence(self, client: anthropic.Anthropic, model: str) -> None:
        message = create(client, model, FRANCE, stop_sequences=["never", " is"])
        assert text_of(message) == "The capital of France"
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " is")

    def test_limits(self, client: anthropic.Anthropic) -> None:
        short = create(client, RANDOM, FRANCE, max_tokens=3)
        assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)
        empty, many = self.size(client, ""), self.size(client, "a " * 100)
        text = "a " * ((1016 - empty) * 100 // (many - empty))
        full = create(client, RANDOM, text, max_tokens=5000)
        usage = full.usage
        tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens
        assert (full.stop_reason, tokens) == ("model_context_window_exceeded", 1024)

    def size(self, client: anthropic.Anthropic, text: str) -> int:
        messages = user(f"x{text}")
        return client.messages.count_tokens(model=RANDOM, messages=messages).input_tokens

    def test_tokens_are_counted(self, client: anthropic.Anthropic) -> None:
        options: Any = {"system": "be kind", "tools": [WEATHER]}
        count = client.messages.count_tokens(model=RANDOM, messages=user(LISBON), **options)
        message = create(client, RANDOM, LISBON, **options, max_tokens=1)
        usage = message.usage
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)

    def test_json(self, client: anthropic.Anthropic, model: str) -> None:
        parsed = client.messages.parse(
            model=model, max_tokens=64, messages=user(ANNA), output_format=Person
        )
        assert parsed.parsed_output == Person(name="Anna", age=31, city="Berlin")

    def test_prefill(self, client: anthropic.Anthropic, model: str) -> None:
        messages: Any = [*user(FRANCE), {"role": "assistant", "content": "The capital of France"}]
        message = client.messages.create(model=model, max_tokens=64, messages=messages)
        assert text_of(message) == " is Paris."

    def test_reasoning_is_shown_only_on_request(self, client: anthropic.Anthropic) -> None:
        messages: Any = [*user(FRANCE), {"role": "assistant", "content": "<think>"}]

        def blocks(**fields: Any) -> list[Any]:
            create: Any = client.messages.create
            message = create(model=RANDOM, max_tokens=TOKENS, messages=messages, **fields)
            return message.content

        (shown,) = blocks(thinking={"type": "adaptive"})
        assert shown.type == "thinking" and shown.thinking and shown.signature
        (omitted,) = blocks(thinking={"type": "adaptive", "display": "omitted"})
        assert (omitted.type, omitted.thinking) == ("thinking", "") and omitted.signature
        assert blocks() == blocks(thinking={"type": "disabled"}) == []


class TestTools:
    def test_a_conversation(self, client: anthropic.Anthropic, model: str) -> None:
        first = create(client, model, LISBON, tools=[WEATHER])
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("get_weather", {"city": "Lisbon"})
        report = '{"temperature": 18, "conditions": "sunny"}'
        result = {"type": "tool_result", "tool_use_id": call.id, "content": report}
        second = client.messages.create(
            model=model,
            max_tokens=64,
            tools=[WEATHER],
            messages=[
                *user(LISBON),
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},  # pyright: ignore[reportArgumentType]
            ],
        )
        assert text_of(second) == "It is 18 degrees and sunny in Lisbon."
        assert second.stop_reason == "end_turn"

    def test_stream(self, client: anthropic.Anthropic, model: str) -> None:
        with client.messages.stream(
            model=model, max_tokens=64, messages=user(LISBON), tools=[WEATHER]
        ) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        assert json.loads("".join(pieces)) == {"city": "Lisbon"}
        assert final.stop_reason == "tool_use"
        assert [block.input for block in final.content if block.type == "tool_use"] == [
            {"city": "Lisbon"}
        ]

    def test_choice(self, client: anthropic.Anthropic, model: str) -> None:
        other: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
        tools: Any = [WEATHER, other]
        named = {"type": "tool", "name": "get_time"}
        message = create(client, model, FRANCE, tools=tools, tool_choice=named)
        assert [block.name for block in message.content if block.type == "tool_use"] == ["get_time"]
        none = create(client, model, LISBON, tools=tools, tool_choice={"type": "none"})
        assert "tool_use" not in [block.type for block in none.content]

    def test_a_call_that_is_cut_off(self, client: anthropic.Anthropic, model: str) -> None:
        whole = create(client, model, LISBON, tools=[WEATHER], tool_choice={"type": "any"})
        size = whole.usage.output_tokens - 4
        cut = create(
            client, model, LISBON, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=size
        )
        assert cut.stop_reason == "max_tokens"


class TestConversations:
    @pytest.mark.parametrize(
        ("fields", "messages"),
        [
            (
                {"system": [{"type": "text", "text": "be kind"}]},
                [{"role": "system", "content": "be kind"}, *user("cats")],
            ),
            (
                {"messages": [*user("hello"), *user("cats")]},
                [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "hello"},
                            {"type": "text", "text": "cats"},
                        ],
                    }
                ],
            ),
            (
                {
                    "messages": [
                        *user("hello"),
                        {
                            "role": "assistant",
                            "content": [
                                {"type": "thinking", "thinking": "hm", "signature": "x"},
                                {"type": "redacted_thinking", "data": "x"},
                                {"type": "text", "text": "world"},
                            ],
                        },
                        {
                            "role": "user",
                            "content": [
                                {
                                    "type": "document",
                                    "title": "Pets",
                                    "source": {
                                        "type": "text",
                                        "media_type": "text/plain",
                                        "data": "dogs",
                                    },
                                }
                            ],
                        },
                    ]
                },
                [
                    *user("hello"),
                    {"role": "assistant", "content": "world", "reasoning_content": "hm"},
                    *user("Pets\n\ndogs"),
                ],
            ),
            (
                {
                    "tools": [WEATHER],
                    "tool_choice": {"type": "none"},
                    "messages": [
                        *user("hello"),
                        {
                            "role": "assistant",
                            "content": [
                                {"type": "text", "text": "wait"},
                                CALL,
                                {**CALL, "id": "b"},
                            ],
                        },
                        {
                            "role": "user",
                            "content": [
                                {**RESULT, "tool_use_id": "b", "is_error": True},
                                {**RESULT, "content": [{"type": "text", "text": "sun"}]},
                                {"type": "text", "text": "cats"},
                            ],
                        },
                    ],
                },
                [
                    *user("hello"),
                    {
                        "role": "assistant",
                        "content": "wait",
                        "tool_calls": [
                            {
                                "id": name,
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
                            }
                            for name in "ab"
                        ],
                    },
                    {"role": "tool", "tool_call_id": "b", "content": "Error: sun"},
                    {"role": "tool", "tool_call_id": "a", "content": "sun"},
                    *user("cats"),
                ],
            ),
        ],
        ids=["system", "joined", "thinking and document", "tools"],
    )
    def test_mean_what_the_messages_of_chats_mean(
        self,
        account: httpx.Client,
        sdk: openai.OpenAI,
        random_model: str,
        fields: Any,
        messages: Any,
    ) -> None:
        body = {"messages": user("cats"), "model": random_model, "max_tokens": TOKENS, **fields}
        answer = account.post(PATH, json=body).json()
        expected = sdk.chat.completions.create(
            model=random_model, messages=messages, max_tokens=TOKENS
        )
        (block,) = answer["content"]
        assert block["text"] == expected.choices[0].message.content
        assert expected.usage is not None
        usage = answer["usage"]
        tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert tokens == expected.usage.prompt_tokens


OTHER: Any = {"name": "search_tools", "input_schema": {"type": "object", "properties": {}}}
LATER: Any = {**WEATHER, "defer_loading": True}
SEARCH: Any = {"type": "tool_use", "id": "s", "name": "search_tools", "input": {}}
AVAILABLE = "The tool get_weather is available now."
REFERENCE = {"type": "tool_reference", "tool_name": "get_weather"}


def searched(content: Any) -> list[Any]:
    """Returns a conversation with a search for tools and its result."""
    result = {"type": "tool_result", "tool_use_id": "s", "content": content}
    return [
        *user("x"),
        {"role": "assistant", "content": [SEARCH]},
        {"role": "user", "content": [result]},
    ]


def change(kind: str) -> Any:
    tool = {"type": "tool_reference", "name": "get_weather"}
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


class TestDeferredTools:
    @pytest.fixture
    def count(self, account: httpx.Client, random_model: str) -> Any:
        def tokens(messages: Any, *tools: Any, **fields: Any) -> int:
            body = {"model": random_model, "messages": messages, "tools": [*tools], **fields}
            answer = account.post(f"{PATH}/count_tokens", json=body).raise_for_status()
            return answer.json()["input_tokens"]

        return tokens

    def test_are_hidden(self, count: Any) -> None:
        assert count(user("x"), OTHER, LATER) == count(user("x"), OTHER)
        assert count(user("x"), OTHER, LATER) < count(user("x"), OTHER, WEATHER)
        assert count(user("x"), LATER) == count(user("x"))

    def test_are_shown_after_a_reference(self, count: Any) -> None:
        shown = count(searched([REFERENCE]), OTHER, LATER)
        assert shown == count(searched(AVAILABLE), OTHER, WEATHER)
        unknown = [{**REFERENCE, "tool_name": "f"}]
        text = "The tool f is available now."
        assert count(searched(unknown), OTHER, LATER) == count(searched(text), OTHER)

    def test_are_shown_and_hidden_by_the_system(self, count: Any) -> None:
        added = [*user("x"), change("tool_addition")]
        text = [*user("x"), {"role": "system", "content": AVAILABLE}]
        assert count(added, OTHER, LATER) == count(text, OTHER, WEATHER)
        removed = [*user("x"), change("tool_removal")]
        gone = "The tool get_weather is no longer available."
        text = [*user("x"), {"role": "system", "content": gone}]
        assert count(removed, OTHER, WEATHER) == count(text, OTHER)

    def test_may_be_forced(self, count: Any) -> None:
        choice = {"tool_choice": {"type": "tool", "name": "get_weather"}}
        assert count(user("x"), OTHER, LATER, **choice) == count(
            user("x"), OTHER, WEATHER, **choice
        )

    def test_are_called_once_they_are_shown(self, client: anthropic.Anthropic) -> None:
        hidden = create(client, ANY, LISBON, tools=[LATER])
        assert [block.type for block in hidden.content] == ["text"]
        untyped: Any = client.messages.create
        shown = untyped(
            model=ANY,
            max_tokens=64,
            messages=[change("tool_addition"), *user(LISBON)],
            tools=[LATER],
        )
        (call,) = shown.content
        assert (call.name, call.input) == ("get_weather", {"city": "Lisbon"})

    def test_accounting_text_of_the_system_is_left_out(self, count: Any) -> None:
        billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"}
        system = [billing, {"type": "text", "text": "cats"}]
        assert count(user("x"), OTHER, system=system) == count(user("x"), OTHER, system="cats")
        assert count(user("x"), OTHER, system=[billing]) == count(user("x"), OTHER)

    def test_results_of_searches_are_text(self, count: Any) -> None:
        found = {
            "type": "search_result",
            "source": "a.md",
            "title": "Cats",
            "content": [{"type": "text", "text": "purr"}],
        }
        assert count(searched([found]), OTHER) == count(searched("Cats\na.md\n\npurr"), OTHER)


@pytest.fixture(scope="module")
def vision(server: Server) -> Iterator[anthropic.Anthropic]:
    server.wait_ready()
    with server.account("messages") as account:
        deploy(account, DEMO / "models" / "tiny-vision", "seeing", readiness="hot")
        key = str(account.headers["authorization"]).removeprefix("Bearer ")
        yield anthropic.Anthropic(base_url=server.base_url, auth_token=key, max_retries=0)


class TestImages:
    def test_colour(self, vision: anthropic.Anthropic) -> None:
        data = base64.b64encode((DEMO / "media" / "scene.png").read_bytes()).decode()
        source: Any = {"type": "base64", "media_type": "image/png", "data": data}
        question = {"type": "text", "text": "What colour is the square?"}
        content: Any = [{"type": "image", "source": source}, question]
        message = vision.messages.create(
            model="seeing", max_tokens=16, messages=[{"role": "user", "content": content}]
        )
        assert text_of(message) == "blue"


BAD: list[tuple[Any, str | None, str]] = [
    ({"max_tokens": None}, "max_tokens", "integer"),
    ({"max_token": 3}, "max_token", "did you mean 'max_tokens'?"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "send the tools"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "your own"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "required"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "another tool"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "needs 'tools'"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty"),
    (
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        "messages[0].content[0].type",
        "'video' is not supported",
    ),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, None, "answers no tool call"),
    (
        {"messages": [{"role": "assistant", "content": [CALL]}, *user("x")]},
        "messages[1]",
        "'a' has no result",
    ),
    (
        {"messages": [*user("x"), {"role": "assistant", "content": [CALL]}]},
        "messages",
        "'a' has no result",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                }
            ]
        },
        "messages[0].content[0].source.type",
        "Send the content itself",
    ),
]


class TestErrors:
    def test_of_the_sdk(self, client: anthropic.Anthropic, base_url: str) -> None:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            create(client, "nowhere", "hi")
        assert unknown.value.type == "not_found_error"
        stranger = anthropic.Anthropic(base_url=base_url, api_key="sk-x", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as denied:
            create(stranger, ANY, "hi")
        assert denied.value.type == "authentication_error"
        with pytest.raises(anthropic.BadRequestError) as long:
            create(client, RANDOM, "cats " * 2000)
        assert "1024" in str(long.value)

    def test_without_a_key(self, base_url: str) -> None:
        response = httpx.post(f"{base_url}{PATH}", json={})
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"

    def test_of_other_paths(self, account: httpx.Client) -> None:
        """A header decides between both formats for paths that both APIs have."""
        headers = {"anthropic-version": "2023-06-01"}
        theirs = account.get("/v1/models/nowhere", headers=headers).json()
        assert theirs["error"]["type"] == "not_found_error"
        assert account.get("/v1/models/nowhere").json()["error"]["type"] == "ModelNotFoundError"
        assert account.get(PATH).json()["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize(("fields", "param", "message"), BAD, ids=str)
    def test_of_fields(
        self, account: httpx.Client, fields: dict[str, Any], param: str | None, message: str
    ) -> None:
        error = refusal(account, **fields)
        assert message in error["message"]
        if param:
            assert error["param"] == param


class TestModels:
    def test_list(self, client: anthropic.Anthropic, account: httpx.Client) -> None:
        ids = [row["id"] for row in account.get("/v1/models").json()["data"]]
        assert [model.id for model in client.models.list(limit=1)] == ids
        before = client.models.list(before_id=ids[-1], limit=1)
        assert [model.id for model in before.data] == [ids[-2]]
        assert before.has_more == (len(ids) > 2)
        with pytest.raises(anthropic.BadRequestError):
            client.models.list(after_id="nowhere")

    def test_one(self, client: anthropic.Anthropic, model: str) -> None:
        found = client.models.retrieve(model)
        assert (found.id, found.type, found.display_name) == (model, "model", model)


def test_limits_of_keys(server: Server) -> None:
    with server.account("limited messages") as account:
        deploy(account, DEMO / "models" / "tiny-chat", "limited", readiness="warm")
        made = account.post(
            "/v1/api-keys", json={"scope": "account", "requests_per_minute": 1}
        ).raise_for_status()
        headers = {"x-api-key": made.json()["key"]}
        body = {"model": "limited", "max_tokens": 2, "messages": user("hi")}
        # The limit applies before the body is read.
        with httpx.Client(base_url=str(account.base_url), headers=headers, timeout=60) as few:
            first, second = few.post(PATH, json=body), few.post(PATH, json=body)
    assert first.status_code == 200, first.text
    assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert first.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    assert second.status_code == 429
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert int(second.headers["retry-after"]) > 0
