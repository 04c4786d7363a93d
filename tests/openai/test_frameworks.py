"""Agent frameworks without changes: LangChain's and pydantic-ai's OpenAI clients."""

import asyncio
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from pydantic_ai import Agent, ModelRequest, NativeOutput, ToolCallPart, ToolDefinition
from pydantic_ai.direct import model_request
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.openai.conftest import MODEL
from tests.openai.test_chat import ANNA, FRANCE, PARIS, Person
from tests.openai.test_tools_and_forms import REPORT, Report
from tests.support.deploying import deploy
from tools.demo_models.chat_text import STATED

LISBON = "What is the weather in Lisbon?"


class TestLangChain:
    @pytest.fixture
    def chat(self, base_url: str, key: str, model: str) -> ChatOpenAI:
        return ChatOpenAI(
            base_url=f"{base_url}/v1", api_key=SecretStr(key), model=model, temperature=0
        )

    def test_answers(self, chat: ChatOpenAI) -> None:
        message = chat.invoke(FRANCE)
        assert message.content == PARIS
        assert message.usage_metadata
        assert message.usage_metadata["output_tokens"] > 0

    def test_streams(self, chat: ChatOpenAI) -> None:
        parts = list(chat.stream(FRANCE, stream_usage=True))
        assert "".join(str(part.content) for part in parts) == PARIS
        assert len(parts) > 3
        assert any(part.usage_metadata for part in parts)

    async def test_answers_many_at_once(self, chat: ChatOpenAI) -> None:
        messages = await asyncio.gather(*(chat.ainvoke(question) for question in STATED))
        assert {message.content for message in messages} >= {PARIS}
        assert [message.content for message in messages] == list(STATED.values())

    def test_calls_a_tool_and_uses_what_it_gives(self, chat: ChatOpenAI) -> None:
        @tool
        def get_weather(city: str) -> str:
            """Look up the current weather in a city."""
            return REPORT

        bound = chat.bind_tools([get_weather])
        messages: list[Any] = [HumanMessage(LISBON)]
        answer = bound.invoke(messages)
        assert isinstance(answer, AIMessage)
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Lisbon"})
        result = ToolMessage(REPORT, tool_call_id=str(call["id"]))
        assert "18" in str(bound.invoke([*messages, answer, result]).content)

    def test_streams_a_call(self, chat: ChatOpenAI) -> None:
        @tool
        def get_weather(city: str) -> str:
            """Look up the current weather in a city."""
            return city

        whole: Any = None
        for part in chat.bind_tools([get_weather]).stream(LISBON):
            whole = part if whole is None else whole + part
        assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
            ("get_weather", {"city": "Lisbon"})
        ]

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured_output(self, chat: ChatOpenAI, method: Any) -> None:
        person = chat.with_structured_output(Person, method=method).invoke(ANNA)
        assert isinstance(person, Person)
        if method == "json_schema":
            assert person == Person(name="Anna", age=31, city="Berlin")

    @pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
    async def test_a_prompt_that_is_too_long(
        self, base_url: str, key: str, model: str, responses: bool
    ) -> None:
        """Too long prompts have their own error: agents then shorten their conversation."""
        chat = ChatOpenAI(
            base_url=f"{base_url}/v1",
            api_key=SecretStr(key),
            model=model,
            use_responses_api=responses,
        )
        with pytest.raises(ContextOverflowError):
            chat.invoke("hello " * 3000)
        with pytest.raises(ContextOverflowError):
            chat.bind(max_tokens=1024).invoke(FRANCE)
        with pytest.raises(ContextOverflowError):
            [part async for part in chat.astream("hello " * 3000)]

    def test_tools_and_a_form(self, chat: ChatOpenAI) -> None:
        @tool
        def get_weather(city: str) -> str:
            """Look up the current weather in a city."""
            return REPORT

        bound = chat.bind_tools([get_weather], response_format=Person, strict=True)
        called = bound.invoke(LISBON)
        assert isinstance(called, AIMessage)
        assert [(call["name"], call["args"]) for call in called.tool_calls] == [
            ("get_weather", {"city": "Lisbon"})
        ]
        answered = bound.invoke(ANNA)
        assert answered.additional_kwargs["parsed"] == Person(name="Anna", age=31, city="Berlin")

    def test_embeddings(self, base_url: str, key: str, account: Any) -> None:
        deploy(account, MODEL.parent / "tiny-encoder", "encoder")
        embeddings = OpenAIEmbeddings(
            base_url=f"{base_url}/v1",
            api_key=SecretStr(key),
            model="encoder",
            # Otherwise the client would count tokens as OpenAI's models do.
            check_embedding_ctx_length=False,
        )
        with pytest.raises(openai.BadRequestError, match="maximum context length is") as caught:
            embeddings.embed_query("bread " * 3000)
        assert caught.value.code == "context_length_exceeded"
        bread, loaf, car = embeddings.embed_documents(
            ["How do I bake bread?", "What is a good way to bake bread?", "My car does not start."]
        )
        assert dot(bread, loaf) > dot(bread, car)


class TestPydanticAi:
    @pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
    def agent_model(self, request: Any, base_url: str, key: str, model: str) -> Any:
        provider = OpenAIProvider(base_url=f"{base_url}/v1", api_key=key)
        return request.param(model, provider=provider, settings={"temperature": 0})

    async def test_answers(self, agent_model: Any) -> None:
        result = await Agent(agent_model).run(FRANCE)
        assert result.output == PARIS
        assert result.usage.output_tokens > 0

    async def test_streams(self, agent_model: Any) -> None:
        async with Agent(agent_model).run_stream(FRANCE) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
        assert "".join(parts) == PARIS
        assert len(parts) > 3

    async def test_runs_a_tool(self, agent_model: Any) -> None:
        agent = Agent(agent_model)
        cities: list[str] = []

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Look up the current weather in a city."""
            cities.append(city)
            return REPORT

        result = await agent.run(LISBON)
        assert cities == ["Lisbon"]
        assert "18" in result.output

    async def test_a_tool_and_native_output(self, agent_model: Any) -> None:
        """The tool is called first. The answer to its output has the form."""
        agent = Agent(agent_model, output_type=NativeOutput(Report), retries=3)
        cities: list[str] = []

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Look up the current weather in a city."""
            cities.append(city)
            return REPORT

        result = await agent.run(LISBON)
        assert set(cities) == {"Lisbon"}
        assert result.output == Report(conditions="sunny")

    async def test_some_of_the_tools(self, agent_model: Any) -> None:
        """The client sends all tools, and the selected ones as `allowed_tools`."""
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        tools = [
            ToolDefinition(name=name, parameters_json_schema={**schema, "required": ["city"]})
            for name in ("get_weather", "find_hotel", "get_time")
        ]
        answer = await model_request(
            agent_model,
            [ModelRequest.user_text_prompt(LISBON)],
            model_settings={"tool_choice": ["find_hotel", "get_time"], "max_tokens": 200},
            model_request_parameters=ModelRequestParameters(function_tools=tools),
        )
        calls = [part.tool_name for part in answer.parts if isinstance(part, ToolCallPart)]
        assert calls
        assert set(calls) <= {"find_hotel", "get_time"}

    async def test_native_output(self, agent_model: Any) -> None:
        result = await Agent(agent_model, output_type=NativeOutput(Person)).run(ANNA)
        assert result.output == Person(name="Anna", age=31, city="Berlin")


class TestHuggingFace:
    @pytest.fixture
    def client(self, base_url: str, key: str) -> InferenceClient:
        return InferenceClient(base_url=f"{base_url}/v1", api_key=key)

    @pytest.mark.parametrize("kind", ["json_schema", "json"])
    def test_a_schema(self, client: InferenceClient, model: str, kind: str) -> None:
        """The client sends `json_schema` as `json_object` with a `value`, and `json` unchanged."""
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        form: Any = {"type": kind, "value": schema}
        if kind == "json_schema":
            form = {"type": kind, "json_schema": {"name": "it", "schema": schema}}
        schema["additionalProperties"] = False
        completion = client.chat_completion(
            [{"role": "user", "content": FRANCE}], model=model, response_format=form
        )
        assert completion.choices[0].message.content in ('{"ok": true}', '{"ok": false}')


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
