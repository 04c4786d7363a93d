"""Tools with a form: an answer has calls or the form. Real SDKs, on both engines."""

import json
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.openai.conftest import ANY
from tests.openai.test_chat import ANNA, FRANCE, TIME, WEATHER, Person, ask, refusal, user

LISBON = "What is the weather in Lisbon?"
FORM: Any = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True},
}
ANY_OBJECT: Any = {"type": "json_object"}
PERSON = {"name": "Anna", "age": 31, "city": "Berlin"}
REPORT = '{"temperature": 18, "conditions": "sunny"}'
FLAT: Any = {"type": "function", **WEATHER["function"], "strict": True}
TEXT: Any = {"format": {"type": "json_schema", **FORM["json_schema"]}}
CITY = '{"city": "Lisbon"}'


class Report(BaseModel):
    conditions: Literal["sunny", "rainy"]


def strict(tool: Any) -> Any:
    """Returns a strict tool, as the SDK's helpers require."""
    return {**tool, "function": {**tool["function"], "strict": True}}


class TestForms:
    @pytest.mark.parametrize("form", [FORM, ANY_OBJECT], ids=["schema", "object"])
    def test_a_call(self, sdk: openai.OpenAI, model: str, form: Any) -> None:
        completion = ask(sdk, model, LISBON, tools=[WEATHER, TIME], response_format=form)
        (call,) = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("get_weather", CITY)
        assert completion.choices[0].message.content is None
        assert completion.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize("form", [FORM, ANY_OBJECT], ids=["schema", "object"])
    def test_or_the_form(self, sdk: openai.OpenAI, model: str, form: Any) -> None:
        completion = ask(sdk, model, ANNA, tools=[WEATHER], response_format=form)
        assert json.loads(completion.choices[0].message.content or "") == PERSON
        assert not completion.choices[0].message.tool_calls
        assert completion.choices[0].finish_reason == "stop"

    def test_against_the_models_will(self, sdk: openai.OpenAI, model: str) -> None:
        """The answer has the form or a call, although the model would answer in words."""
        completion = ask(sdk, model, FRANCE, tools=[strict(WEATHER)], response_format=FORM)
        message = completion.choices[0].message
        if message.tool_calls:
            assert message.content is None
        else:
            Person.model_validate_json(message.content or "")

    def test_the_model_reads_of_the_tools(self, sdk: openai.OpenAI, model: str) -> None:
        counts: list[int] = []
        for more in ({}, {"response_format": FORM}, {"response_format": FORM, "tools": []}):
            completion = ask(sdk, model, LISBON, **{"tools": [WEATHER], **more}, max_tokens=1)
            assert completion.usage is not None
            counts.append(completion.usage.prompt_tokens)
        assert counts[0] == counts[1] > counts[2]

    def test_parsed(self, sdk: openai.OpenAI, model: str) -> None:
        """The whole conversation is parsed: the call, its output, and the answer in the form."""
        messages: Any = user(LISBON)
        tools = [strict(WEATHER)]
        first = sdk.chat.completions.parse(
            model=model, messages=messages, tools=tools, response_format=Report
        )
        (call,) = first.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == {"city": "Lisbon"}
        messages += [
            first.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "tool", "tool_call_id": call.id, "content": REPORT},
        ]
        second = sdk.chat.completions.parse(
            model=model, messages=messages, tools=tools, response_format=Report
        )
        message = second.choices[0].message
        assert message.parsed == Report(conditions="sunny")

    @pytest.mark.parametrize("question", [LISBON, ANNA])
    def test_streamed(self, sdk: openai.OpenAI, model: str, question: str) -> None:
        with sdk.chat.completions.stream(
            model=model,
            messages=user(question),
            tools=[strict(WEATHER)],
            response_format=Person,
        ) as stream:
            events = list(stream)
            final = stream.get_final_completion().choices[0].message
        calls = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        deltas = [event.delta for event in events if event.type == "content.delta" and event.delta]
        if question == LISBON:
            (call,) = final.tool_calls or []
            assert call.function.parsed_arguments == {"city": "Lisbon"}
            assert len(calls) > 1 and not deltas
        else:
            assert final.parsed == Person(**PERSON)  # pyright: ignore[reportArgumentType]
            assert len(deltas) > 5 and not calls
            assert "".join(deltas) == final.content

    @pytest.mark.parametrize("choice", ["required", {"function": {"name": "get_weather"}}])
    @pytest.mark.parametrize(
        "form",
        [
            {"response_format": FORM},
            {"response_format": ANY_OBJECT},
            {"structured_outputs": {"choice": ["yes", "no"]}},
        ],
        ids=["schema", "object", "choice"],
    )
    def test_calls_that_are_required_come_first(
        self, sdk: openai.OpenAI, choice: Any, form: Any
    ) -> None:
        choice = choice if isinstance(choice, str) else {"type": "function", **choice}
        completion = ask(sdk, ANY, LISBON, tools=[WEATHER], tool_choice=choice, extra_body=form)
        assert completion.choices[0].finish_reason == "tool_calls"
        (call,) = (completion.choices[0].message.tool_calls or [])[:1]
        assert call.type == "function" and call.function.arguments == CITY

    def test_none_leaves_the_form(self, sdk: openai.OpenAI, model: str) -> None:
        completion = ask(
            sdk, model, ANNA, tools=[WEATHER], tool_choice="none", response_format=FORM
        )
        assert json.loads(completion.choices[0].message.content or "") == PERSON

    @pytest.mark.parametrize(
        ("form", "answer"),
        [({"choice": ["certainly"]}, "certainly"), ({"regex": "[a-c]{2}-1"}, None)],
        ids=["choice", "regex"],
    )
    def test_other_forms(self, sdk: openai.OpenAI, model: str, form: Any, answer: Any) -> None:
        body = {"structured_outputs": form}
        called = ask(sdk, model, LISBON, tools=[WEATHER], extra_body=body)
        assert called.choices[0].message.tool_calls
        text = ask(sdk, model, FRANCE, tools=[WEATHER], extra_body=body).choices[0].message
        if not text.tool_calls:
            assert text.content == answer or (answer is None and text.content[2:] == "-1")  # pyright: ignore[reportOptionalSubscript]


class TestTools:
    """The tests of `TestForms` for `/v1/responses`."""

    def test_a_call(self, sdk: openai.OpenAI, model: str) -> None:
        answer = sdk.responses.create(model=model, input=LISBON, tools=[FLAT], text=TEXT)
        (call,) = answer.output
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("get_weather", CITY)

    def test_or_the_form(self, sdk: openai.OpenAI, model: str) -> None:
        answer = sdk.responses.parse(model=model, input=ANNA, tools=[FLAT], text_format=Person)
        assert answer.output_parsed == Person(**PERSON)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
    def test_calls_that_are_required_come_first(
        self, sdk: openai.OpenAI, model: str, choice: Any
    ) -> None:
        answer = sdk.responses.create(
            model=model, input=LISBON, tools=[FLAT], text=TEXT, tool_choice=choice
        )
        assert {item.type for item in answer.output} == {"function_call"}
        assert answer.text and answer.text.format and answer.text.format.type == "json_schema"

    @pytest.mark.parametrize("question", [LISBON, ANNA])
    def test_streamed(self, sdk: openai.OpenAI, model: str, question: str) -> None:
        with sdk.responses.stream(
            model=model, input=question, tools=[FLAT], text_format=Person
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        called = "response.function_call_arguments.delta" in kinds
        has_text = "response.output_text.delta" in kinds
        assert (called, has_text) == (question == LISBON, question == ANNA)
        if has_text:
            assert final.output_parsed == Person(**PERSON)  # pyright: ignore[reportArgumentType]


BAD: Any = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}, "required": ["a"]}
"""Schema with keywords that cannot be enforced."""


class TestRefused:
    def test_the_form_is_at_fault(self, sdk: openai.OpenAI) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "bad", "schema": BAD}}
        error = refusal(sdk, ANY, user(LISBON), tools=[WEATHER], response_format=form)
        assert error["param"] == "response_format.json_schema.schema"

    def test_the_tools_are(self, sdk: openai.OpenAI) -> None:
        function = {"name": "bad", "parameters": BAD, "strict": True}
        tools = [WEATHER, {"type": "function", "function": function}]
        error = refusal(sdk, ANY, user(LISBON), tools=tools, response_format=FORM)
        assert error["param"] == "tools[1].function.parameters"
        assert "tool 'bad'" in error["message"]

    def test_of_responses(self, account: httpx.Client) -> None:
        body = {"model": ANY, "input": LISBON, "tools": [FLAT]}
        form = {"type": "json_schema", "name": "bad", "schema": BAD}
        response = account.post("/v1/responses", json={**body, "text": {"format": form}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "text.format.schema"

    def test_no_tools_to_require(self, sdk: openai.OpenAI) -> None:
        error = refusal(sdk, ANY, user(LISBON), tools=[], tool_choice="required")
        assert error["param"] == "tool_choice"
