"""Tools and reasoning of `/v1/responses` as coding agents send them, through the openai SDK."""

import gzip
import json
import re
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
import zstandard
from openai.types.responses import Response

from stoker.inference.openai.item_messages import SUMMARIZE, SUMMARY
from stoker.inference.openai.items import ReasoningItem
from stoker.inference.openai.lark_expressions import LarkError, expression_of
from stoker.inference.openai.seals import AccountSeals
from stoker.models.chat.answers.custom_input import CustomInput
from stoker.store.secret import ServerSecret
from tests.openai.conftest import RANDOM as MODEL
from tests.openai.support import events
from tests.openai.test_responses import CITY, PATH, QUESTION, THOUGHT, TOOL, ask, chat, kinds
from tests.support.server import Server

PATCH = """
start: begin hunk+ end
begin: "*** Begin Patch" LF
hunk: "*** Add File: " NAME LF line+
line: "+" ("ha" | "\\"hé\\"") LF -> line
end: "*** End Patch" LF?
NAME: /a{2}\\.txt/
%import common.LF
"""
PATCHED = r'\*\*\* Begin Patch\n(\*\*\* Add File: aa\.txt\n(\+(ha|"hé")\n)+)+\*\*\* End Patch\n?'
LARK_TOOL: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}
REGEX_TOOL: dict[str, Any] = {
    "type": "custom",
    "name": "run",
    "format": {"type": "grammar", "syntax": "regex", "definition": 'ls "-l"\\n?'},
}
TEXT_TOOL = {"type": "custom", "name": "note", "format": {"type": "text"}}
NAMESPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [TOOL, {**REGEX_TOOL, "name": "command"}],
}
EVERY_CUSTOM_EVENT = [
    "response.output_item.added",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done",
]
EVERY_SUMMARY_EVENT = [
    "response.output_item.added",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
    "response.output_item.done",
]
SEALED = {"include": ["reasoning.encrypted_content"]}

pytestmark = pytest.mark.usefixtures("random_model")


def lark(definition: str) -> dict[str, Any]:
    return {**LARK_TOOL, "format": {**LARK_TOOL["format"], "definition": definition}}


REFUSED_TOOLS: list[Any] = [
    ([{**LARK_TOOL, "format": {"type": "grammar"}}], "tools[0].format.syntax", ""),
    ([{**LARK_TOOL, "format": {"type": "xml"}}], "tools[0].format", "grammar"),
    (
        [TEXT_TOOL, {**REGEX_TOOL, "format": {**REGEX_TOOL["format"], "definition": "(a"}}],
        "tools[1].format.definition",
        "",
    ),
    (
        [
            {
                **LARK_TOOL,
                "format": {**LARK_TOOL["format"], "definition": 'start: "a" start?'},
            }
        ],
        "tools[0].format.definition",
        "recursive",
    ),
    ([TEXT_TOOL, TEXT_TOOL], "tools[1].name", "another tool"),
    ([{**NAMESPACE, "tools": []}], "tools[0].tools", ""),
    ([{**NAMESPACE, "tools": [{"type": "mcp"}]}], "tools[0].tools[0].type", "your own"),
    ([{**NAMESPACE, "name": "n" * 60}], "tools[0].tools[0].name", "too long"),
    ([{**TOOL, "name": f"t{number}"} for number in range(1000)], "tools", "128"),
    (
        [
            {
                **NAMESPACE,
                "name": f"n{number}",
                "tools": [{**TOOL, "name": f"t{place}"} for place in range(100)],
            }
            for number in range(2)
        ],
        "tools",
        "200 tools; the limit is 128",
    ),
]


def choice(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "name": name, **more}


def streamed(account: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 300, **fields, "stream": True}
    response = account.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return events(response.content)


def refused(account: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = account.post(PATH, json={"model": MODEL, "input": QUESTION, **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]


class TestCustomTools:
    def test_regex(self, sdk: openai.OpenAI) -> None:
        answer = sdk.responses.create(
            model=MODEL,
            input=QUESTION,
            tools=[REGEX_TOOL],  # type: ignore[list-item]
            tool_choice=choice("run"),  # type: ignore[arg-type]
            max_output_tokens=100,
        )
        (call,) = answer.output
        assert call.type == "custom_tool_call"
        assert (call.name, call.input.rstrip("\n")) == ("run", 'ls "-l"')
        assert call.call_id.startswith("call_") and call.id and call.id.startswith("ctc_")
        assert answer.status == "completed"

    def test_lark(self, account: httpx.Client) -> None:
        fields = {"tools": [LARK_TOOL], "tool_choice": choice("apply_patch")}
        answer = ask(account, **fields, max_output_tokens=400, temperature=1.0, seed=3)
        (call,) = answer["output"]
        assert answer["status"] == "completed"
        assert re.fullmatch(PATCHED, call["input"]), call["input"]
        Response.model_validate(answer, strict=True)
        assert answer["tools"] == [LARK_TOOL]
        assert answer["tool_choice"] == choice("apply_patch")

    def test_text(self, account: httpx.Client) -> None:
        answer = ask(account, tools=[TEXT_TOOL], tool_choice="required", max_output_tokens=100)
        call = answer["output"][0]
        assert (call["type"], call["name"]) == ("custom_tool_call", "note")

    def test_stream(self, account: httpx.Client) -> None:
        received = streamed(account, tools=[REGEX_TOOL], tool_choice=choice("run"))
        head = ["response.created", "response.in_progress"]
        assert kinds(received) == [*head, *EVERY_CUSTOM_EVENT, "response.completed"]
        deltas = [event["delta"] for event in received if event["type"].endswith("input.delta")]
        (item,) = received[-1]["response"]["output"]
        assert len(deltas) > 1 and "".join(deltas) == item["input"]
        assert item["input"].rstrip("\n") == 'ls "-l"'

    def test_sent_back(self, sdk: openai.OpenAI) -> None:
        """A call and its output mean the same as those of a function with one parameter."""
        called = [
            {"type": "custom_tool_call", "id": "ctc_1", "status": "completed"}
            | {"call_id": "c", "name": "note", "input": 'a "b"\n'},
            {"type": "custom_tool_call_output", "id": "o", "call_id": "c", "output": "done"},
        ]
        answer = sdk.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": QUESTION}, *called],  # type: ignore[list-item]
            max_output_tokens=20,
        )
        function = {"name": "note", "arguments": json.dumps({"input": 'a "b"\n'})}
        expected = sdk.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "user", "content": QUESTION},
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],  # type: ignore[list-item]
                },
                {"role": "tool", "tool_call_id": "c", "content": "done"},
            ],
            max_tokens=20,
        )
        assert answer.output_text == expected.choices[0].message.content
        assert answer.usage and expected.usage
        assert answer.usage.input_tokens == expected.usage.prompt_tokens

    @pytest.mark.parametrize(
        ("tools", "param", "words"),
        REFUSED_TOOLS,
        ids=str,
    )
    def test_refused(self, account: httpx.Client, tools: list[Any], param: str, words: str) -> None:
        error = refused(account, tools=tools, tool_choice="required")
        assert error["param"] == param, error
        assert words in error["message"]


class TestNamespaces:
    def test_call(self, account: httpx.Client) -> None:
        chosen = {"type": "function", "name": "get_weather", "namespace": "agents"}
        answer = ask(account, tools=[NAMESPACE], tool_choice=chosen, max_output_tokens=100)
        (call,) = answer["output"]
        assert (call["namespace"], call["name"]) == ("agents", "get_weather")
        assert json.loads(call["arguments"]) == CITY
        assert answer["tools"][0]["tools"][0] == TOOL

    def test_custom_call(self, account: httpx.Client) -> None:
        chosen = choice("command", namespace="agents")
        answer = ask(account, tools=[TOOL, NAMESPACE], tool_choice=chosen, max_output_tokens=100)
        (call,) = answer["output"]
        assert (call["namespace"], call["name"]) == ("agents", "command")
        assert call["input"].rstrip("\n") == 'ls "-l"'

    def test_sent_back(self, account: httpx.Client) -> None:
        call = {"type": "function_call", "call_id": "c", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "1"}
        apart = [{**call, "namespace": "agents", "name": "wait"}, output]
        joined = [{**call, "name": "agents__wait"}, output]
        texts = [ask(account, input=given)["output"][0]["content"] for given in (apart, joined)]
        assert texts[0] == texts[1]


class TestHostedTools:
    def test_are_left_out_and_named(self, account: httpx.Client) -> None:
        tools = [
            {"type": "web_search", "external_web_access": True},
            TOOL,
            {"type": "mcp", "server_label": "a", "server_url": "https://example.org"},
            {"type": "web_search"},
        ]
        body = {"model": MODEL, "input": QUESTION, "tools": tools, "max_output_tokens": 5}
        for stream in (False, True):
            response = account.post(PATH, json={**body, "stream": stream})
            assert response.status_code == 200, response.text
            assert response.headers["x-stoker-dropped"] == "web_search, mcp"
        plain = ask(account, tools=[TOOL], max_output_tokens=5)
        answer = account.post(PATH, json=body).json()
        assert answer["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
        assert answer["tools"] == [TOOL]

    def test_no_header_without_them(self, account: httpx.Client) -> None:
        body = {"model": MODEL, "input": QUESTION, "tools": [TOOL], "max_output_tokens": 1}
        assert "x-stoker-dropped" not in account.post(PATH, json=body).headers

    @pytest.mark.parametrize(
        ("chosen", "param"),
        [
            ({"type": "web_search"}, "tool_choice.type"),
            ({"type": "mcp", "server_label": "a"}, "tool_choice.type"),
            ("required", "tool_choice"),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
                "tool_choice.tools[0].type",
            ),
        ],
        ids=str,
    )
    def test_cannot_be_chosen(self, account: httpx.Client, chosen: Any, param: str) -> None:
        error = refused(account, tools=[{"type": "web_search"}], tool_choice=chosen)
        assert error["param"] == param


class TestReasoning:
    @pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
    def test_summary(self, account: httpx.Client, summary: str) -> None:
        fields = {**THOUGHT, "reasoning": {"summary": summary}, "max_output_tokens": 100}
        answer = ask(account, **fields)
        reasoning, message = answer["output"]
        assert reasoning["summary"] == [{"type": "summary_text", "text": "let me see"}]
        assert reasoning["content"] == []
        assert message["content"][0]["text"].strip() == "Paris."
        assert answer["reasoning"]["summary"] == summary
        Response.model_validate(answer, strict=True)

    def test_summary_events(self, account: httpx.Client) -> None:
        received = streamed(account, **THOUGHT, reasoning={"summary": "auto"})
        assert kinds(received)[2 : 2 + len(EVERY_SUMMARY_EVENT)] == EVERY_SUMMARY_EVENT
        deltas = [event for event in received if event["type"].endswith("summary_text.delta")]
        assert "".join(event["delta"] for event in deltas) == "let me see"
        assert {event["summary_index"] for event in deltas} == {0}

    def test_sealed(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        """Sealed reasoning without readable text means what the readable text means."""
        fields = {**THOUGHT, **SEALED, "max_output_tokens": 100}
        reasoning, message = ask(account, **fields)["output"]
        sealed = reasoning["encrypted_content"]
        assert "let me see" not in sealed
        item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
        given: Any = [
            {"role": "user", "content": QUESTION},
            item,
            message,
            {"role": "user", "content": "and Rome?"},
        ]
        answer = ask(account, input=given)
        text = message["content"][0]["text"]
        expected = chat(
            sdk,
            [
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": text, "reasoning_content": "let me see"},
                {"role": "user", "content": "and Rome?"},
            ],
        )
        assert answer["output"][0]["content"][0]["text"] == expected.content
        counted = sdk.responses.input_tokens.count(model=MODEL, input=given)
        assert counted.input_tokens == answer["usage"]["input_tokens"]

    def test_sealed_in_a_stream(self, account: httpx.Client) -> None:
        received = streamed(account, **THOUGHT, **SEALED)
        done = [event["item"] for event in received if event["type"] == "response.output_item.done"]
        assert done[0]["encrypted_content"].startswith("stoker1.resp_")

    def test_not_sealed_unless_included(self, account: httpx.Client) -> None:
        reasoning, _ = ask(account, **THOUGHT, max_output_tokens=100)["output"]
        assert "encrypted_content" not in reasoning

    def test_a_foreign_one(self, account: httpx.Client) -> None:
        reasoning, _ = ask(account, **THOUGHT, **SEALED, max_output_tokens=100)["output"]
        sealed: str = reasoning["encrypted_content"]
        middle = len(sealed) // 2 + 20
        other = "A" if sealed[middle] != "A" else "B"
        damaged = sealed[:middle] + other + sealed[middle + 1 :]
        for text in (damaged, sealed[:-4], "gAAAAABm", "stoker1.resp_1.AAAA", "stoker1.x.!"):
            item = {"type": "reasoning", "encrypted_content": text}
            error = refused(account, input=[item, {"role": "user", "content": "hi"}])
            assert error["param"] == "input[0].encrypted_content"
            assert "Leave the item out" in error["message"]
            readable = {**item, "summary": [{"type": "summary_text", "text": "hm"}]}
            plain = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
            inputs = [[each, {"role": "assistant", "content": "a"}] for each in (readable, plain)]
            texts = [ask(account, input=given)["output"][0] for given in inputs]
            assert texts[0]["content"] == texts[1]["content"]

    def test_another_account_cannot_read_it(self, account: httpx.Client, server: Server) -> None:
        reasoning, _ = ask(account, **THOUGHT, **SEALED, max_output_tokens=100)["output"]
        secret = ServerSecret(server.data_dir)
        item = ReasoningItem.model_validate(reasoning)
        assert (
            AccountSeals(secret, "acct_other").open(item.encrypted_content or "", "reasoning")
            is None
        )


class TestCompaction:
    turns: Sequence[Any] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "world"},
        {"role": "user", "content": QUESTION},
    ]

    @pytest.fixture
    def compacted(self, account: httpx.Client) -> dict[str, Any]:
        given = [*self.turns, {"type": "compaction_trigger"}]
        return ask(account, input=given, tools=[TOOL], store=False, max_output_tokens=12)

    def test_one_item(self, compacted: dict[str, Any]) -> None:
        (item,) = compacted["output"]
        assert item["type"] == "compaction" and item["id"].startswith("cmp_")
        assert item["encrypted_content"].startswith("stoker1.resp_")
        assert compacted["object"] == "response"
        assert compacted["usage"]["output_tokens"] == 12
        Response.model_validate(compacted, strict=True)

    def test_means_the_models_summary(
        self, account: httpx.Client, sdk: openai.OpenAI, compacted: dict[str, Any]
    ) -> None:
        asked = [*self.turns, {"role": "user", "content": SUMMARIZE}]
        summary = sdk.chat.completions.create(
            model=MODEL,
            messages=asked,  # type: ignore[arg-type]
            max_tokens=12,
        )
        text = (summary.choices[0].message.content or "").strip()
        last = {"role": "user", "content": "and Rome?"}
        answer = ask(account, input=[*compacted["output"], last])
        expected = ask(account, input=[{"role": "user", "content": SUMMARY + text}, last])
        assert answer["output"][0]["content"] == expected["output"][0]["content"]
        assert answer["usage"]["input_tokens"] == expected["usage"]["input_tokens"]

    def test_stream(self, account: httpx.Client) -> None:
        given = [*self.turns, {"type": "compaction_trigger"}]
        received = streamed(account, input=given, max_output_tokens=12)
        types = [event["type"] for event in received]
        assert types[2:4] == ["response.output_item.added", "response.output_item.done"]
        assert received[3]["item"]["type"] == "compaction"
        assert len(types) == 5

    def test_endpoint(self, sdk: openai.OpenAI, account: httpx.Client) -> None:
        compacted = sdk.responses.compact(model=MODEL, input=list(self.turns))
        assert compacted.object == "response.compaction"
        (item,) = compacted.output
        assert item.type == "compaction"
        given: Any = [item.model_dump(), {"role": "user", "content": "and Rome?"}]
        assert ask(account, input=given, max_output_tokens=5)["output"]

    def test_a_conversation_that_does_not_fit(self, account: httpx.Client) -> None:
        long = [{"role": "user", "content": f"{n} " + "word " * 60} for n in range(60)]
        answer = ask(account, input=[*long, {"type": "compaction_trigger"}], max_output_tokens=12)
        assert answer["output"][0]["type"] == "compaction"
        assert answer["usage"]["input_tokens"] < 1024

    def test_refused(self, account: httpx.Client, compacted: dict[str, Any]) -> None:
        last = {"role": "user", "content": "hi"}
        error = refused(account, input=[{"type": "compaction_trigger"}, last])
        assert error["param"] == "input[1]" and "must be the last" in error["message"]
        sealed = compacted["output"][0]["encrypted_content"]
        wrong = [{"type": "compaction", "encrypted_content": sealed[:-6]}, last]
        error = refused(account, input=wrong)
        assert error["param"] == "input[0].encrypted_content"
        assert "Send the conversation itself" in error["message"]
        # Sealed text of one kind is not text of another.
        assert refused(account, input=[{"type": "reasoning", "encrypted_content": sealed}, last])


@pytest.mark.parametrize("path", ["", "/input_tokens", "/compact"])
@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_compressed_bodies(account: httpx.Client, path: str, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zstandard.ZstdCompressor().compress
    body = json.dumps({"model": MODEL, "input": QUESTION, "max_output_tokens": 5}).encode()
    json_type = {"content-type": "application/json"}
    headers = {"content-encoding": encoding, **json_type}
    plain = account.post(
        f"{PATH}{path}", content=body, headers={"content-type": headers["content-type"]}
    )
    answer = account.post(f"{PATH}{path}", content=pack(body), headers=headers)
    assert (plain.status_code, answer.status_code) == (200, 200), answer.text
    assert answer.json().keys() == plain.json().keys()
    bomb = pack(b'{"input": "' + b" " * (64 << 20))
    assert account.post(f"{PATH}{path}", content=bomb, headers=headers).status_code == 413


class TestLark:
    @pytest.mark.parametrize(
        ("grammar", "text"),
        [
            ('start: "a" | "b"', "b"),
            ('start: A B?\nA: /x+/i\nB.2: "0".."9" ~ 2..3', "XX123"),
            ('?start: ["["] (WORD | INT)* // words\n%import common (WORD, INT)', "[ab12"),
            ('start: "é\\n"i\n  | "c" -> other', "É\n"),
        ],
    )
    def test_matches(self, grammar: str, text: str) -> None:
        expression = re.sub(
            r"\\x\{([0-9a-f]+)\}",
            lambda match: re.escape(chr(int(match[1], 16))),
            expression_of(grammar),
        )
        assert re.fullmatch(expression, text)
        assert not re.fullmatch(expression, text + "!")

    @pytest.mark.parametrize(
        "grammar",
        [
            "",
            'start: "a" start?',
            "start: other",
            'start: ("a"',
            'start: "a"\nstart: "b"',
            "start: A\n%ignore A\nA: /a/",
            "%import python.NAME\nstart: NAME",
            "start: " + "(" * 100,
            "\n".join(f"r{n}: r{n + 1} r{n + 1} r{n + 1}" for n in range(25))
            + '\nr25: "a"\nstart: r0',
            "start: %json {}",
            "start: @other",
            "start: <|end|>",
        ],
    )
    def test_refused(self, grammar: str) -> None:
        with pytest.raises(LarkError):
            expression_of(grammar)


@pytest.mark.parametrize(
    "text", ["", "plain", 'quo"te', "back\\slash\\n", "line\n\ttab", "é€😀 \\ud83d", "\\" * 5 + '"']
)
@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_input_in_pieces(text: str, ascii: bool, size: int) -> None:  # noqa: A002
    arguments = json.dumps({"input": text}, ensure_ascii=ascii)
    reader = CustomInput()
    pieces = [reader.add(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    assert "".join(pieces) == text == reader.text
    assert reader.finish() == ""


@pytest.mark.parametrize("arguments", ['{"other": 1}', "null", "ls -l"])
def test_input_of_another_form(arguments: str) -> None:
    reader = CustomInput()
    assert [reader.add(character) for character in arguments] == [""] * len(arguments)
    assert reader.finish() == arguments
