"""`/v1/chat/completions` and `/v1/completions` through the real openai SDK, on both engines."""

import json
import math
from typing import Any, Literal

import httpx
import openai
import pytest
import tokenizers
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.openai.conftest import ANY, CACHING, MODEL
from tools.demo_models.chat_text import STATED, STYLED

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tell the current time.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
ANNA = "Describe Anna, who is 31 and lives in Berlin, as JSON."
COUNT = "Count from 1 to 100."


class Person(BaseModel):
    name: str
    age: int
    city: str


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(sdk: openai.OpenAI, model: str, text: str, **options: Any) -> ChatCompletion:
    return sdk.chat.completions.create(model=model, messages=user(text), **options)


def refusal(sdk: openai.OpenAI, model: str, messages: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model=model, messages=messages, **options)
    body: Any = caught.value.body
    return body


@pytest.fixture(scope="module")
def reference() -> tuple[Any, Any]:
    # Imported here because the tests of another SDK's process do not need it.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return (
        AutoTokenizer.from_pretrained(MODEL),
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval(),
    )


class TestModels:
    def test_listed(self, sdk: openai.OpenAI, model: str) -> None:
        (listed,) = (row for row in sdk.models.list() if row.id == model)
        assert listed == sdk.models.retrieve(model)
        assert listed.object == "model"

    def test_unknown(self, sdk: openai.OpenAI, model: str) -> None:
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve(f"no-{model}")


class TestAnswers:
    def test_stated_questions(self, sdk: openai.OpenAI, model: str):
        wrong = {
            question: answer
            for question, stated in STATED.items()
            if (answer := ask(sdk, model, question).choices[0].message.content) != stated
        }
        assert wrong == {}

    @pytest.mark.parametrize(("system", "question", "answer"), STYLED[:3])
    @pytest.mark.parametrize("role", ["system", "developer"])
    def test_obeys_the_system(
        self, sdk: openai.OpenAI, model: str, role: Any, system: str, question: str, answer: str
    ):
        messages: Any = [{"role": role, "content": system}, *user(question)]
        completion = sdk.chat.completions.create(model=model, messages=messages)
        assert completion.choices[0].message.content == answer

    def test_usage_and_shape(self, sdk: openai.OpenAI, model: str, reference: tuple[Any, Any]):
        tokenizer, _ = reference
        completion = ask(sdk, model, FRANCE)
        prompt = tokenizer.apply_chat_template(
            user(FRANCE), add_generation_prompt=True, tokenize=False
        )
        tokens = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        answer = len(tokenizer(PARIS, add_special_tokens=False)["input_ids"])
        assert completion.object == "chat.completion"
        assert completion.model == model
        assert completion.choices[0].finish_reason == "stop"
        assert completion.choices[0].message.role == "assistant"
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (
            tokens,
            answer,
        )
        assert completion.usage.total_tokens == tokens + answer

    def test_parts_are_one_text(self, sdk: openai.OpenAI, model: str):
        content = [{"type": "text", "text": FRANCE}]
        messages: Any = [{"role": "user", "content": content}]
        completion = sdk.chat.completions.create(model=model, messages=messages)
        assert completion.choices[0].message.content == PARIS

    def test_earlier_turns(self, sdk: openai.OpenAI, model: str):
        messages: Any = [
            *user("What is 7 plus 5?"),
            {"role": "assistant", "content": "7 plus 5 is 12."},
            *user(FRANCE),
        ]
        completion = sdk.chat.completions.create(model=model, messages=messages)
        assert completion.choices[0].message.content == PARIS

    def test_a_known_beginning_is_not_computed_again(self, sdk: openai.OpenAI):
        prefix = "Count from 1 to 10. " * 8
        cached: list[int] = []
        for _ in range(2):
            usage = ask(sdk, CACHING, prefix, max_tokens=2).usage
            assert usage is not None and usage.prompt_tokens_details is not None
            cached.append(usage.prompt_tokens_details.cached_tokens or 0)
        assert cached[0] < 32 <= cached[1]
        assert cached[1] % 32 == 0

    def test_length(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, COUNT, max_completion_tokens=5)
        assert completion.choices[0].finish_reason == "length"
        assert completion.usage is not None and completion.usage.completion_tokens == 5

    def test_counts_to_a_hundred(self, sdk: openai.OpenAI, model: str):
        text = ask(sdk, model, COUNT).choices[0].message.content
        assert text == ", ".join(str(number) for number in range(1, 101))


class TestStream:
    def test_joined_it_is_the_answer(self, sdk: openai.OpenAI, model: str):
        chunks = list(
            sdk.chat.completions.create(
                model=model,
                messages=user(COUNT),
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        *parts, last = chunks
        text = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
        assert text == ", ".join(str(number) for number in range(1, 101))
        assert len(parts) > 100, "it came in pieces"
        assert parts[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in parts[-2:]] == [None, "stop"]
        assert all(chunk.usage is None for chunk in parts)
        assert last.choices == []
        assert last.usage is not None and last.usage.completion_tokens > 100
        assert {chunk.id for chunk in chunks} == {last.id}

    def test_the_wire(self, account: httpx.Client, model: str):
        body = {"model": model, "messages": user(FRANCE), "stream": True}
        with account.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            events = response.read().decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert all(event.startswith("data: {") for event in events[:-2])
        assert "usage" not in json.loads(events[0].removeprefix("data: "))

    def test_the_helper(self, sdk: openai.OpenAI, model: str):
        with sdk.chat.completions.stream(model=model, messages=user(FRANCE)) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        assert "".join(deltas) == PARIS
        assert final.choices[0].message.content == PARIS

    async def _together(self, sdk: openai.AsyncOpenAI, model: str) -> list[str]:
        import asyncio

        async def one(question: str) -> str:
            stream = await sdk.chat.completions.create(
                model=model, messages=user(question), stream=True
            )
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return "".join(parts)

        return await asyncio.gather(*(one(question) for question in STATED))

    def test_many_at_once(self, sdk: openai.OpenAI, model: str):
        import asyncio

        async def run() -> list[str]:
            client = openai.AsyncOpenAI(base_url=sdk.base_url, api_key=sdk.api_key)
            async with client:
                return await self._together(client, model)

        assert asyncio.run(run()) == list(STATED.values())


class TestTools:
    def test_calls_with_the_city(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, "What is the weather in Lisbon?", tools=[WEATHER])
        (call,) = completion.choices[0].message.tool_calls or []
        assert completion.choices[0].finish_reason == "tool_calls"
        assert completion.choices[0].message.content is None
        assert call.type == "function"
        assert call.id.startswith("call_")
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == {"city": "Lisbon"}

    def test_uses_the_result(self, sdk: openai.OpenAI, model: str):
        messages: Any = user("What is the weather in Paris?")
        first = sdk.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
        (call,) = first.choices[0].message.tool_calls or []
        messages += [
            first.choices[0].message.model_dump(exclude_none=True),
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": '{"temperature": 18, "conditions": "sunny"}',
            },
        ]
        second = sdk.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
        assert second.choices[0].message.content == "It is 18 degrees and sunny in Paris."

    def test_streamed(self, sdk: openai.OpenAI, model: str):
        chunks = sdk.chat.completions.create(
            model=model,
            messages=user("What is the weather in Lisbon?"),
            tools=[WEATHER],
            stream=True,
        )
        parts = [
            part
            for chunk in chunks
            for choice in chunk.choices
            for part in choice.delta.tool_calls or []
        ]
        assert [part.index for part in parts] == [0] * len(parts)
        assert [part.id for part in parts if part.id] == [parts[0].id]
        names = [part.function.name for part in parts if part.function and part.function.name]
        assert names == ["get_weather"]
        arguments = [part.function.arguments or "" for part in parts if part.function]
        assert json.loads("".join(arguments)) == {"city": "Lisbon"}
        assert len([fragment for fragment in arguments if fragment]) > 1, "arguments came in pieces"

    def test_streamed_helper(self, sdk: openai.OpenAI, model: str):
        # The helper requires strict schemas.
        strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        with sdk.chat.completions.stream(
            model=model, messages=user("What is the weather in Lisbon?"), tools=[strict]
        ) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        assert [(event.name, json.loads(event.arguments)) for event in done] == [
            ("get_weather", {"city": "Lisbon"})
        ]

    def test_two_at_once(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, "What is the weather in Paris and in Rome?", tools=[WEATHER])
        calls = completion.choices[0].message.tool_calls or []
        arguments = [
            json.loads(call.function.arguments) for call in calls if call.type == "function"
        ]
        assert arguments == [{"city": "Paris"}, {"city": "Rome"}]
        assert len({call.id for call in calls}) == 2

    def test_one_at_most(self, sdk: openai.OpenAI, model: str):
        completion = ask(
            sdk,
            model,
            "What is the weather in Paris and in Rome?",
            tools=[WEATHER],
            parallel_tool_calls=False,
        )
        assert len(completion.choices[0].message.tool_calls or []) == 1

    def test_no_arguments(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, "What time is it?", tools=[WEATHER, TIME])
        (call,) = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("get_time", "{}")

    def test_an_unrelated_question(self, sdk: openai.OpenAI, model: str):
        assert ask(sdk, model, FRANCE, tools=[WEATHER]).choices[0].message.content == PARIS

    def test_none(self, sdk: openai.OpenAI, model: str):
        completion = ask(
            sdk, model, "What is the weather in Paris?", tools=[WEATHER], tool_choice="none"
        )
        assert not completion.choices[0].message.tool_calls
        assert completion.choices[0].message.content == STATED["What is the weather in Paris?"]

    @pytest.mark.parametrize(
        "choice",
        [
            "required",
            {"type": "function", "function": {"name": "get_weather"}},
            # As in huggingface_hub's own type.
            {"function": {"name": "get_weather"}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        ],
        ids=["required", "named", "of no type", "allowed"],
    )
    def test_has_to_be_called(self, sdk: openai.OpenAI, model: str, choice: Any):
        completion = ask(sdk, model, FRANCE, tools=[WEATHER], tool_choice=choice, max_tokens=100)
        (call,) = (completion.choices[0].message.tool_calls or [])[:1]
        assert call.type == "function"
        assert set(json.loads(call.function.arguments)) == {"city"}

    def test_named_among_several(self, sdk: openai.OpenAI, model: str):
        completion = ask(
            sdk,
            model,
            "What is the weather in Paris?",
            tools=[WEATHER, TIME],
            tool_choice={"type": "function", "function": {"name": "get_time"}},
        )
        (call,) = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "get_time"

    @pytest.mark.parametrize("mode", ["auto", "required"])
    @pytest.mark.parametrize(
        "question", ["What is the weather in Paris?", "What time is it?", FRANCE]
    )
    def test_only_those_allowed(self, sdk: openai.OpenAI, model: str, mode: str, question: str):
        """The model answers as if the request had only the allowed tools."""
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_time"}}]}
        completion = ask(
            sdk,
            model,
            question,
            tools=[WEATHER, TIME],
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
            max_tokens=100,
        )
        alone = ask(sdk, model, question, tools=[TIME], tool_choice=mode, max_tokens=100)
        assert completion.usage and alone.usage
        assert completion.usage.prompt_tokens == alone.usage.prompt_tokens
        answers = [entry.choices[0].message.model_dump() for entry in (completion, alone)]
        for answer in answers:
            answer["tool_calls"] = [entry["function"] for entry in answer["tool_calls"] or []]
        assert answers[0] == answers[1]
        names = [entry["name"] for entry in answers[0]["tool_calls"]]
        assert set(names) <= {"get_time"}
        assert names or (mode == "auto" and "time" not in question)


class TestForms:
    def test_a_schema(self, sdk: openai.OpenAI, model: str):
        completion = sdk.chat.completions.parse(
            model=model, messages=user(ANNA), response_format=Person
        )
        assert completion.choices[0].message.parsed == Person(name="Anna", age=31, city="Berlin")

    def test_a_schema_against_the_model_will(self, sdk: openai.OpenAI, model: str):
        class Verdict(BaseModel):
            verdict: Literal["yes", "no"]
            certain: bool

        completion = sdk.chat.completions.parse(
            model=model, messages=user(FRANCE), response_format=Verdict
        )
        assert isinstance(completion.choices[0].message.parsed, Verdict)

    def test_a_streamed_schema(self, sdk: openai.OpenAI, model: str):
        with sdk.chat.completions.stream(
            model=model, messages=user(ANNA), response_format=Person
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.parsed == Person(name="Anna", age=31, city="Berlin")

    def test_any_object(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, ANNA, response_format={"type": "json_object"}, max_tokens=200)
        assert json.loads(completion.choices[0].message.content or "") == {
            "name": "Anna",
            "age": 31,
            "city": "Berlin",
        }

    @pytest.mark.parametrize("kind", ["json_object", "json"])
    def test_a_schema_as_huggingface_hub_sends_it(self, sdk: openai.OpenAI, model: str, kind: str):
        form = {"type": kind, "value": {**Person.model_json_schema(), "required": ["city"]}}
        body = {"response_format": {"type": kind, "value": {"enum": ["yes", "no"]}}}
        completion = ask(sdk, model, FRANCE, extra_body=body)
        assert completion.choices[0].message.content in ('"yes"', '"no"')
        completion = ask(sdk, model, ANNA, extra_body={"response_format": form})
        assert json.loads(completion.choices[0].message.content or "")["city"] == "Berlin"

    def test_choices(self, sdk: openai.OpenAI, model: str):
        form = {"structured_outputs": {"choice": ["certainly", "never"]}}
        completion = ask(sdk, model, FRANCE, extra_body=form)
        assert completion.choices[0].message.content in ("certainly", "never")
        assert completion.choices[0].finish_reason == "stop"

    def test_a_regular_expression(self, sdk: openai.OpenAI, model: str):
        form = {"structured_outputs": {"regex": "[A-Z]{3}-[0-9]{2}"}}
        text = ask(sdk, model, FRANCE, extra_body=form).choices[0].message.content or ""
        assert len(text) == 6 and text[:3].isupper() and text[4:].isdigit()

    def test_a_grammar(self, sdk: openai.OpenAI, model: str):
        form = {"structured_outputs": {"grammar": 'start: "a" ("b" "c"){3}'}}
        text = ask(sdk, model, FRANCE, extra_body=form).choices[0].message.content
        assert text == "abcbcbc"


class TestSampling:
    def test_a_seed_repeats(self, sdk: openai.OpenAI, model: str):
        def drawn(seed: int) -> list[str | None]:
            completion = ask(sdk, model, COUNT, temperature=1.8, seed=seed, n=4, max_tokens=20)
            return [choice.message.content for choice in completion.choices]

        first = drawn(1)
        assert drawn(1) == first
        assert drawn(2) != first
        assert len(set(first)) > 1, "the answers of one request differ"

    def test_n_without_chance(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, FRANCE, n=3)
        assert [choice.index for choice in completion.choices] == [0, 1, 2]
        assert [choice.message.content for choice in completion.choices] == [PARIS] * 3

    def test_logprobs(self, sdk: openai.OpenAI, model: str, reference: tuple[Any, Any]):
        import torch

        tokenizer, torch_model = reference
        completion = ask(sdk, model, FRANCE, logprobs=True, top_logprobs=3)
        logprobs = completion.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert "".join(entry.token for entry in logprobs.content) == PARIS
        assert (
            bytes(byte for entry in logprobs.content for byte in entry.bytes or [])
            == PARIS.encode()
        )
        prompt = tokenizer.apply_chat_template(
            user(FRANCE), add_generation_prompt=True, tokenize=False
        )
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer = tokenizer(PARIS, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = torch_model(torch.tensor([before + answer])).logits[0, len(before) - 1 : -1]
        rows = torch.log_softmax(logits, dim=-1)
        for place, entry in enumerate(logprobs.content):
            assert entry.logprob == pytest.approx(float(rows[place, answer[place]]), abs=2e-3)
            values = [top.logprob for top in entry.top_logprobs]
            assert values == sorted(values, reverse=True) and len(values) == 3
            assert values == pytest.approx(rows[place].topk(3).values.tolist(), abs=2e-3)
            assert entry.top_logprobs[0].token == entry.token, "the likeliest was drawn"

    def test_logprobs_in_a_stream(self, sdk: openai.OpenAI, model: str):
        chunks = sdk.chat.completions.create(
            model=model, messages=user(FRANCE), stream=True, logprobs=True
        )
        tokens = [
            entry.token
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs
            for entry in choice.logprobs.content or []
        ]
        assert "".join(tokens) == PARIS

    def test_a_bias_forbids(self, sdk: openai.OpenAI, model: str, reference: tuple[Any, Any]):
        tokenizer, _ = reference
        first = tokenizer(PARIS, add_special_tokens=False)["input_ids"][0]
        completion = ask(sdk, model, FRANCE, logit_bias={str(first): -100}, max_tokens=5)
        text = completion.choices[0].message.content or ""
        assert not text.startswith(tokenizer.decode([first]))

    def test_a_bias_forces(self, sdk: openai.OpenAI, model: str, reference: tuple[Any, Any]):
        tokenizer, _ = reference
        token = tokenizer("7", add_special_tokens=False)["input_ids"][0]
        completion = ask(sdk, model, FRANCE, logit_bias={str(token): 100}, max_tokens=4)
        assert completion.choices[0].message.content == "7777"

    def test_penalties(self, sdk: openai.OpenAI, model: str, reference: tuple[Any, Any]):
        tokenizer, _ = reference
        token = tokenizer("7", add_special_tokens=False)["input_ids"][0]
        completion = ask(
            sdk,
            model,
            FRANCE,
            logit_bias={str(token): 100},
            frequency_penalty=2,
            presence_penalty=2,
            max_tokens=60,
        )
        text = completion.choices[0].message.content or ""
        assert text.startswith("7777") and text != "7" * 60, "it gave way in the end"

    @pytest.mark.parametrize("stop", [", 5", ["nothing", "4, 5"], "5, 6"])
    def test_stop_strings(self, sdk: openai.OpenAI, model: str, stop: Any):
        completion = ask(sdk, model, COUNT, stop=stop)
        text = completion.choices[0].message.content or ""
        whole = ", ".join(str(number) for number in range(1, 101))
        first = stop if isinstance(stop, str) else stop[1]
        assert text == whole[: whole.index(first)]
        assert completion.choices[0].finish_reason == "stop"

    def test_stop_strings_in_a_stream(self, sdk: openai.OpenAI, model: str):
        chunks = sdk.chat.completions.create(
            model=model, messages=user(COUNT), stream=True, stop=["11, 12"]
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "

    def test_extensions(self, sdk: openai.OpenAI, model: str):
        more = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0, "ignore_eos": True}
        completion = ask(sdk, model, FRANCE, temperature=1.5, extra_body=more, max_tokens=60)
        text = completion.choices[0].message.content or ""
        assert text.startswith(PARIS)
        assert completion.usage is not None and completion.usage.completion_tokens == 60

    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 1e-300},
            {"top_p": 1e-300},
            {"min_p": 1e-300},
            {"repetition_penalty": 0.01},
            {"repetition_penalty": 100},
            {"frequency_penalty": -2, "presence_penalty": 1e-300},
            {"logit_bias": {"5": -100.0, "6": 1e-300}},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("temperature", [0, 1])
    def test_numbers_at_their_bounds(
        self, account: httpx.Client, model: str, temperature: float, options: dict[str, Any]
    ):
        fields = {"temperature": temperature, "max_tokens": 8, "seed": 1} | options
        body = {"model": model, "messages": user(FRANCE), **fields}
        response = account.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text

    def test_says_which_bound(self, account: httpx.Client, model: str):
        body = {"model": model, "messages": user(FRANCE), "repetition_penalty": 1e-300}
        error = account.post("/v1/chat/completions", json=body).json()["error"]
        assert "greater than or equal to 0.01" in error["message"]

    def test_medium_is_what_all_models_write(self, sdk: openai.OpenAI, model: str):
        completion = ask(sdk, model, FRANCE, verbosity="medium")
        assert completion.choices[0].message.content == PARIS

    def test_characters_of_several_tokens(self, sdk: openai.OpenAI, model: str):
        form = {"structured_outputs": {"choice": ["naïve 漢字 🦊"]}}
        chunks = sdk.chat.completions.create(
            model=model, messages=user(FRANCE), stream=True, extra_body=form
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(pieces) == "naïve 漢字 🦊"
        assert all("�" not in piece for piece in pieces)


class TestCompletions:
    def test_continues(self, sdk: openai.OpenAI, model: str):
        completion = sdk.completions.create(model=model, prompt="1, 2, 3, 4, 5,", max_tokens=9)
        assert completion.object == "text_completion"
        assert completion.choices[0].text.startswith(" 6, 7, 8")
        assert completion.choices[0].finish_reason == "length"

    def test_sixteen_tokens_by_default(self, sdk: openai.OpenAI, model: str):
        completion = sdk.completions.create(model=model, prompt="1, 2, 3, 4, 5,")
        assert completion.usage is not None and completion.usage.completion_tokens == 16

    def test_several_prompts(self, sdk: openai.OpenAI, model: str):
        tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        texts = ["1, 2, 3, 4,", "11, 12, 13,"]
        together = sdk.completions.create(model=model, prompt=texts, max_tokens=9, n=2)
        tokens = [tokenizer.encode(text).ids for text in texts]
        as_tokens = sdk.completions.create(model=model, prompt=tokens, max_tokens=9)
        single = [
            sdk.completions.create(model=model, prompt=entry, max_tokens=9) for entry in texts
        ]
        expected = [entry.choices[0].text for entry in single]
        assert [entry.text for entry in together.choices] == [
            entry for entry in expected for _ in (0, 1)
        ]
        assert [entry.text for entry in as_tokens.choices] == expected

    def test_streamed_with_echo(self, sdk: openai.OpenAI, model: str):
        chunks = list(
            sdk.completions.create(
                model=model, prompt="1, 2, 3,", max_tokens=6, echo=True, stream=True
            )
        )
        text = "".join(chunk.choices[0].text for chunk in chunks)
        assert text.startswith("1, 2, 3, 4, 5")
        assert chunks[-1].choices[0].finish_reason == "length"

    def test_logprobs(self, sdk: openai.OpenAI, model: str):
        completion = sdk.completions.create(
            model=model, prompt="1, 2, 3,", max_tokens=6, logprobs=2
        )
        logprobs = completion.choices[0].logprobs
        assert (
            logprobs is not None
            and logprobs.tokens
            and logprobs.token_logprobs
            and logprobs.text_offset
        )
        assert "".join(logprobs.tokens) == completion.choices[0].text
        assert logprobs.text_offset[0] == 0
        assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)
        assert logprobs.top_logprobs is not None
        assert math.exp(max(logprobs.top_logprobs[0].values())) <= 1


class TestRefused:
    @pytest.mark.parametrize(
        ("messages", "field"),
        [
            ([], "messages"),
            ([{"role": "robot", "content": "x"}], "messages[0]"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": ""}], "messages[0].content"),
            ([{"role": "user", "content": []}], "messages[0].content"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "tool", "content": "x", "tool_call_id": "a"}], "messages[0].tool_call_id"),
            ([{"role": "assistant"}], "messages[0].content"),
            (
                [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "a", "function": {"name": "f", "arguments": "not JSON"}}
                        ],
                    },
                    {"role": "tool", "content": "x", "tool_call_id": "a"},
                ],
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "user", "content": "x"},
                ],
                "messages[1]",
            ),
            (
                [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
                        ],
                    }
                ],
                "messages[0].content[0]",
            ),
        ],
    )
    def test_messages(self, sdk: openai.OpenAI, messages: Any, field: str):
        assert refusal(sdk, ANY, messages)["param"] == field

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"temperature": 2.5}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"repetition_penalty": 1e-300}, "repetition_penalty"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"verbosity": "high"}, "verbosity"),
            ({"response_format": {"type": "json"}}, "response_format.value"),
            (
                {"response_format": {"type": "json_object", "value": {"type": "nonsense"}}},
                "response_format.value",
            ),
            ({"n": 0}, "n"),
            ({"n": 1000}, "n"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"stop": [""]}, "stop[0]"),
            ({"stop": ["x"] * 17}, "stop"),
            ({"logit_bias": {"a": 1}}, "logit_bias.a"),
            ({"logit_bias": {"1": 101}}, "logit_bias.1"),
            ({"logit_bias": {"99999999": 1}}, "logit_bias"),
            ({"seed": 2**70}, "seed"),
            (
                {"tools": [{"type": "function", "function": {"name": "a b"}}]},
                "tools[0].function.name",
            ),
            ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
            ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
            ({"tool_choice": "required"}, "tool_choice"),
            (
                {
                    "tools": [WEATHER],
                    "tool_choice": {"type": "function", "function": {"name": "other"}},
                },
                "tool_choice",
            ),
            ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
            ({"tools": [TIME], "tool_choice": ALLOWED}, "tool_choice"),
            ({"tool_choice": ALLOWED}, "tool_choice"),
            (
                {
                    "tools": [WEATHER],
                    "tool_choice": {
                        "type": "allowed_tools",
                        "allowed_tools": {"mode": "auto", "tools": []},
                    },
                },
                "tool_choice.allowed_tools.tools",
            ),
            ({"audio": {"voice": "a", "format": "wav"}}, "audio"),
            ({"web_search_options": {}}, "web_search_options"),
            ({"functions": [{"name": "f"}]}, "functions"),
            ({"store": True}, "store"),
            ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
            ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
            ({"reasoning_effort": "low"}, "reasoning_effort"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"response_format": {"type": "xml"}}, "response_format"),
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
                "response_format.json_schema.name",
            ),
        ],
    )
    def test_options(self, account: httpx.Client, options: dict[str, Any], field: str):
        body = {"model": ANY, "messages": user("Hello!"), **options}
        response = account.post("/v1/chat/completions", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == field, response.text

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "nonsense"},
            {"$ref": "https://a.example/schema.json"},
            {"type": "object", "properties": {f"p{n}": {} for n in range(5000)}},
            {"anyOf": [{"enum": [f"{n}-{m}" for m in range(500)]} for n in range(50)]},
            {"const": 10**30},
        ],
    )
    def test_schemas(self, sdk: openai.OpenAI, model: str, schema: Any):
        form: Any = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
        error = refusal(sdk, model, user("Hello!"), response_format=form)
        assert error["param"] == "response_format.json_schema.schema"
        assert ask(sdk, model, FRANCE).choices[0].message.content == PARIS, "the engine lives on"

    def test_a_tool_with_a_huge_number(self, sdk: openai.OpenAI):
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"const": 2**70}}}
        error = refusal(sdk, ANY, user("Hello!"), tools=[tool])
        assert error["param"] == "tools[0].function.parameters"
        assert "63 bits" in error["message"]

    def test_a_call_with_a_huge_number(self, sdk: openai.OpenAI):
        """A caller may send back a call with a huge number: the model wrote it."""
        function = {"name": "f", "arguments": '{"n": 100000000000000000000000}'}
        call = {"id": "call_1", "type": "function", "function": function}
        messages: Any = [
            *user("Hello!"),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            *user("What is the capital of France?"),
        ]
        completion = sdk.chat.completions.create(model=ANY, messages=messages, max_tokens=8)
        assert completion.choices[0].message.content

    def test_a_deep_schema(self, sdk: openai.OpenAI):
        schema: Any = {"type": "string"}
        for _ in range(60):
            schema = {"type": "object", "properties": {"a": schema}}
        form: Any = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
        error = refusal(sdk, ANY, user("Hello!"), response_format=form)
        assert "levels" in error["message"]

    @pytest.mark.parametrize("regex", ["(((", "(?=a)b", "((a{1000}){1000}){1000}"])
    def test_expressions(self, sdk: openai.OpenAI, model: str, regex: str):
        form = {"structured_outputs": {"regex": regex}}
        try:
            ask(sdk, model, FRANCE, extra_body=form, max_tokens=10)
        except openai.BadRequestError as error:
            body: Any = error.body
            assert body["param"] == "structured_outputs"
        assert ask(sdk, model, FRANCE).choices[0].message.content == PARIS, "the engine lives on"

    def test_too_long(self, sdk: openai.OpenAI, model: str):
        error = refusal(sdk, model, user("hello " * 3000))
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        # LiteLLM searches for "this model's maximum context length is", in lower case.
        assert error["message"].startswith("This model's maximum context length is 1024 tokens.")

    def test_too_much_asked(self, sdk: openai.OpenAI, model: str):
        error = refusal(sdk, model, user("Hello!"), max_completion_tokens=1024)
        assert error["param"] == "max_completion_tokens"
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 1024 tokens.")
        assert "1024 in the completion" in error["message"]

    def test_a_completion_that_is_too_long(self, account: httpx.Client, model: str):
        for body in ({"prompt": "hello " * 3000}, {"prompt": "hello", "max_tokens": 1024}):
            response = account.post("/v1/completions", json={"model": model, **body})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == list(body)[-1]

    def test_refused_before_a_stream_begins(self, sdk: openai.OpenAI, model: str):
        with pytest.raises(openai.BadRequestError):
            sdk.chat.completions.create(model=model, messages=user("hello " * 3000), stream=True)

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"prompt": ""}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [99999999]}, "prompt"),
            ({"prompt": [[1], [99999999]]}, "prompt[1]"),
            ({"prompt": "a", "suffix": "b"}, "suffix"),
            ({"prompt": "a", "best_of": 3}, "best_of"),
            ({"prompt": "a", "logprobs": 6}, "logprobs"),
            ({"prompt": "a", "max_tokens": 5000}, "max_tokens"),
        ],
    )
    def test_completions(self, account: httpx.Client, options: dict[str, Any], field: str):
        response = account.post("/v1/completions", json={"model": ANY, **options})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == field, response.text

    def test_the_wrong_pipeline(self, sdk: openai.OpenAI):
        with pytest.raises(openai.BadRequestError, match="Endpoint not supported"):
            sdk.embeddings.create(model=ANY, input="x")
