"""Fields of vLLM's, SGLang's and llama.cpp's clients that OpenAI does not have are honoured."""

import json
import re
from typing import Any

import httpx
import pytest
import transformers

from tests.openai.conftest import MODEL

QUESTION = {"role": "user", "content": "What is the capital of France?"}
ANSWER = "The capital of France is Paris."
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
OF_SCHEMA = ('{"a": 1}', '{"a": 2}')


def post(account: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    return account.post(f"/v1/{path}", json={"temperature": 0, **body})


def chat(account: httpx.Client, model: str, **more: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [QUESTION], "max_tokens": 24, **more}
    answer = post(account, "chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(account: httpx.Client, model: str, **more: Any) -> str:
    return str(chat(account, model, **more)["choices"][0]["message"]["content"])


def refused(account: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, str]:
    answer = post(account, path, body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
    ({"guided_grammar": 'root ::= "a" [b-c]? "d"'}, "a[bc]?d"),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, "|".join(OF_SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, "|".join(OF_SCHEMA)),
    ({"json_schema": SCHEMA}, "|".join(OF_SCHEMA)),
    ({"grammar": 'root ::= "no" | "never"'}, "no|never"),
    ({"regex": "x{4}"}, "x{4}"),
    ({"ebnf": 'root ::= "z"'}, "z"),
    ({"structured_outputs": {"json_object": True}}, r"\{.*"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "|".join(OF_SCHEMA)),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "|".join(OF_SCHEMA)),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "|".join(OF_SCHEMA)),
    ({"response_format": {"type": "regex", "value": "[0-9]{2}"}}, "[0-9]{2}"),
]


class TestForms:
    @pytest.mark.parametrize(
        ("field", "wanted"), FORMS, ids=[json.dumps(field)[:48] for field, _ in FORMS]
    )
    def test_are_enforced(
        self, field: dict[str, Any], wanted: str, account: httpx.Client, model: str
    ) -> None:
        pattern = wanted.replace("{", r"\{").replace("}", r"\}") if '"a"' in wanted else wanted
        assert re.fullmatch(pattern, said(account, model, **field), re.DOTALL)
        body = {"model": model, "prompt": "Once", "max_tokens": 24, **field}
        answer = post(account, "completions", body).json()
        assert re.fullmatch(pattern, answer["choices"][0]["text"], re.DOTALL), answer
        if "response_format" not in field:
            body = {"model": model, "input": "Once", "max_output_tokens": 24, **field}
            answer = post(account, "responses", body).json()
            assert re.fullmatch(pattern, answer["output"][0]["content"][0]["text"], re.DOTALL)

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
            ({"response_format": {"type": "json_object"}, "grammar": "start: /a/"}, "grammar"),
            ({"json_schema": SCHEMA, "bad_words": ["x"]}, "bad_words"),
            ({"guided_json": "{"}, "guided_json"),
            ({"guided_json": [1]}, "guided_json"),
            ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
            (
                {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
                "structured_outputs.whitespace_pattern",
            ),
        ],
    )
    def test_that_are_refused(
        self, given: dict[str, Any], param: str, account: httpx.Client, model: str
    ) -> None:
        body = {"model": model, "messages": [QUESTION], **given}
        assert refused(account, "chat/completions", body)["param"] == param

    def test_nothing_given_is_no_form(self, account: httpx.Client, model: str) -> None:
        assert said(account, model, grammar="", guided_json=None, bad_words=[]) == ANSWER

    def test_no_further_members(self, account: httpx.Client, model: str) -> None:
        """Schemas accept no further members, as with vLLM's `disable_additional_properties`."""
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        outputs = {"json": schema, "disable_additional_properties": True}
        answer = json.loads(said(account, model, structured_outputs=outputs))
        assert list(answer) == ["a"]


class TestTokens:
    def test_bad_words_never_come_in_any_tokens(self, account: httpx.Client, model: str) -> None:
        assert said(account, model) == ANSWER
        for words in (["Paris"], ["is Pa"], ["a"], ["The", "the", "."]):
            text = said(account, model, bad_words=words)
            assert text
            assert not [word for word in words if word in text]

    def test_bad_words_beside_tools(self, account: httpx.Client, model: str) -> None:
        tools = [{"type": "function", "function": {"name": "f"}}]
        body = {"model": model, "messages": [QUESTION], "tools": tools, "bad_words": ["x"]}
        assert refused(account, "chat/completions", body)["param"] == "bad_words"

    def test_allowed_ones_only(self, account: httpx.Client, model: str) -> None:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODEL)
        allowed = tokenizer(" cat dog", add_special_tokens=False)["input_ids"]
        answer = chat(account, model, allowed_token_ids=allowed, max_tokens=12)["choices"][0]
        made = tokenizer(answer["message"]["content"], add_special_tokens=False)["input_ids"]
        assert set("".join(tokenizer.convert_ids_to_tokens(made))) <= set(
            "".join(tokenizer.convert_ids_to_tokens(allowed))
        )
        assert answer["finish_reason"] == "length"
        sampled = chat(
            account, model, allowed_token_ids=[allowed[0]], max_tokens=5, temperature=1, seed=3
        )
        piece = tokenizer.decode([allowed[0]])
        assert sampled["choices"][0]["message"]["content"].strip() == (piece * 5).strip()

    def test_unknown_ones(self, account: httpx.Client, model: str) -> None:
        body = {"model": model, "messages": [QUESTION], "allowed_token_ids": [1, 10**6]}
        error = refused(account, "chat/completions", body)
        assert error["param"] == "allowed_token_ids"
        assert "1000000" in error["message"]

    @pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
    def test_the_stop_string_stays(self, name: str, account: httpx.Client, model: str) -> None:
        assert said(account, model, stop=["France"]) == "The capital of "
        assert said(account, model, stop=["France"], **{name: True}) == "The capital of France"

    def test_special_tokens_stay(self, account: httpx.Client, model: str) -> None:
        """The model ignores its end and writes the tokens of the next turn."""
        fields = {"ignore_eos": True, "max_tokens": 30}
        plain = said(account, model, **fields)
        whole = said(account, model, skip_special_tokens=False, **fields)
        assert "<|" in whole
        assert "<|" not in plain


class TestPrompts:
    def test_the_last_message_is_continued(self, account: httpx.Client, model: str) -> None:
        """The answer equals the completion of the prompt that transformers renders."""
        messages = [QUESTION, {"role": "assistant", "content": "The capital"}]
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODEL)
        prompt = tokenizer.apply_chat_template(
            messages, continue_final_message=True, return_dict=True
        )["input_ids"]
        body = {"model": model, "prompt": prompt, "max_tokens": 24}
        expected = post(account, "completions", body).json()
        answer = chat(account, model, messages=messages, continue_final_message=True)
        assert answer["choices"][0]["message"]["content"] == expected["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert answer["choices"][0]["message"]["content"] == ANSWER.removeprefix("The capital")

    def test_a_prompt_without_the_answers_beginning(
        self, account: httpx.Client, model: str
    ) -> None:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODEL)
        prompt = tokenizer.apply_chat_template([QUESTION], return_dict=True)["input_ids"]
        answer = chat(account, model, add_generation_prompt=False)
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert len(prompt) < chat(account, model)["usage"]["prompt_tokens"]

    def test_both_at_once(self, account: httpx.Client, model: str) -> None:
        fields = {"continue_final_message": True, "add_generation_prompt": True}
        body = {"model": model, "messages": [QUESTION], **fields}
        error = refused(account, "chat/completions", body)
        assert error["param"] == "add_generation_prompt"

    def test_are_cut(self, account: httpx.Client, model: str) -> None:
        answer = chat(account, model, truncate_prompt_tokens=3, max_tokens=4)
        assert answer["usage"]["prompt_tokens"] == 3
        tokens = list(range(40, 60))
        for side, expected in (("left", tokens[-5:]), ("right", tokens[:5])):
            cut = {"truncate_prompt_tokens": 5, "truncation_side": side}
            body = {"model": model, "max_tokens": 8}
            texts = [
                post(account, "completions", body | more).json()["choices"][0]["text"]
                for more in ({"prompt": tokens, **cut}, {"prompt": expected})
            ]
            assert texts[0] == texts[1]

    def test_too_long_ones_are_cut_to_what_there_is_room_for(
        self, account: httpx.Client, model: str
    ) -> None:
        long = [7] * 20_000
        body = {"model": model, "prompt": long, "max_tokens": 5, "truncate_prompt_tokens": -1}
        usage = post(account, "completions", body).json()["usage"]
        assert usage["prompt_tokens"] + 5 in (2048, 1024, 512, 256)

    def test_variables_of_the_chat_template(self, account: httpx.Client, random_model: str) -> None:
        """The model's template reads `reasoning_effort`. Both fields have the same effect."""

        def counted(**more: Any) -> int:
            body = {"model": random_model, "input": "Hello", **more}
            answer = post(account, "responses/input_tokens", body)
            return int(answer.json()["input_tokens"])

        expected = chat(account, random_model, reasoning_effort="high", max_tokens=1)
        variables = {"reasoning_effort": "high"}
        answer = chat(account, random_model, chat_template_kwargs=variables, max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert counted(chat_template_kwargs=variables) == counted(reasoning={"effort": "high"})
        assert counted(chat_template_kwargs=variables) > counted()

    @pytest.mark.parametrize(
        "name", ["messages", "tools", "bos_token", "add_generation_prompt", "self", "a-b", "_x"]
    )
    def test_variables_that_may_not_be_set(
        self, name: str, account: httpx.Client, random_model: str
    ) -> None:
        body = {"model": random_model, "messages": [QUESTION], "chat_template_kwargs": {name: "x"}}
        error = refused(account, "chat/completions", body)
        assert error["param"].startswith("chat_template_kwargs")

    def test_variables_that_are_too_large(self, account: httpx.Client, random_model: str) -> None:
        for value in ("x" * 70_000, ["x" * 100] * 700):
            body = {"model": random_model, "messages": [QUESTION]}
            body["chat_template_kwargs"] = {"reasoning_effort": value}
            assert refused(account, "chat/completions", body)["param"] == "chat_template_kwargs"
