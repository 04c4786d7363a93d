"""The server accepts its own answers when a client sends them back. Each test covers one function.

`test_replays.py` does the same with whole answers of a real server.
"""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai import item_messages, items, messages
from stoker.inference.openai.call_arguments import MAX_DEPTH, arguments_of

INPUT: TypeAdapter[Any] = TypeAdapter(items.Input)
MESSAGES: TypeAdapter[Any] = TypeAdapter(list[messages.Message])
ARGUMENTS = {
    "": {},
    " \n": {},
    '{"city": "A"}': {"city": "A"},
    # Cut off at any position.
    "{": {},
    '{"ci': {},
    '{"city"': {},
    '{"city": ': {},
    '{"city": "A': {"city": "A"},
    '{"city": "A\\': {"city": "A"},
    '{"city": "A\\u00e': {"city": "A"},
    '{"city": "A\\ud83d': {"city": "A\ufffd"},
    '{"city": "A\\ud83d\\ude': {"city": "A\ufffd"},
    '{"city": "A", "days": [1, {"x": tr': {"city": "A", "days": [1, {}]},
    '{"days": -': {},
    '{"days": 1.': {},
    # Half of a surrogate pair.
    '{"x": "\\ud83d"}': {"x": "\ufffd"},
    '{"\\ude00": 1}': {"\ufffd": 1},
    '{"x": "\\ude00\\ud83d"}': {"x": "\ufffd\ufffd"},
    '{"x": "\\ud83d\\ude00"}': {"x": "😀"},
    '{"x": "\\\\ud83d"}': {"x": "\\ud83d"},
    # Numbers beyond the range of a double or of 64 bits.
    '{"x": 1e400}': {"x": 1.7976931348623157e308},
    '{"x": -1e400}': {"x": -1.7976931348623157e308},
    '{"x": -0}': {"x": 0},
    '{"x": 9223372036854775807}': {"x": 9223372036854775807},
    '{"x": 9223372036854775808}': {"x": 9.223372036854775808e18},
    '{"x": NaN, "y": -Infinity}': {"x": None, "y": -1.7976931348623157e308},
    '{"x": "\t\x00"}': {"x": "\t\x00"},
    '{"": {"": ""}}': {"": {"": ""}},
    '{"a": 1, "a": 2}': {"a": 2},
    # Invalid JSON: the text itself is used.
    "{city: Paris}": "{city: Paris}",
    "{'city': 'Paris'}": "{'city': 'Paris'}",
    '{"a": 1} {"b": 2}': '{"a": 1} {"b": 2}',
    '{"a": "\\x"}': '{"a": "\\x"}',
}


class TestArguments:
    @pytest.mark.parametrize("text", ARGUMENTS)
    def test_are_an_object_or_a_text(self, text: str) -> None:
        parsed = arguments_of(text, "x")
        assert parsed == ARGUMENTS[text]
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()

    @pytest.mark.parametrize("digits", [20, 400, 6000])
    def test_of_many_digits(self, digits: int) -> None:
        parsed = arguments_of(f'{{"x": {"9" * digits}}}', "x")
        assert isinstance(parsed, dict)
        assert parsed["x"] == min(float("9" * digits), 1.7976931348623157e308)

    @pytest.mark.parametrize("opening", ['{"a":', '{"a":[', '{"a":[['])
    def test_that_are_deep_stay_text(self, opening: str) -> None:
        for times in (MAX_DEPTH + 1, 100_000):
            assert arguments_of(opening * times, "x") == opening * times

    @pytest.mark.parametrize("text", ["[1]", "5", "null", "Paris", '"{}"', "\ufeff{}"])
    def test_that_no_model_has_written(self, text: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            arguments_of(text, "messages[0].x")
        assert caught.value.param == "messages[0].x"


def call(number: int, arguments: str = "{}", name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": arguments}


def output(number: int, text: Any = "21") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def said(*texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "m", "role": "assistant", "content": content}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


class TestItems:
    @pytest.mark.parametrize(
        ("given", "roles", "content"),
        [
            ([call(1), said("b"), output(1)], ["assistant", "tool"], "b"),
            ([said("a"), call(1), output(1)], ["assistant", "tool"], "a"),
            (
                [said("a"), call(1), said("b"), output(1)],
                ["assistant", "tool"],
                [part("a"), part("b")],
            ),
            (
                [call(1), said("and"), call(2), output(1), output(2)],
                ["assistant", "tool", "tool"],
                "and",
            ),
            (
                [call(1), call(2), said("b"), output(2), output(1)],
                ["assistant", "tool", "tool"],
                "b",
            ),
            ([thought("t"), call(1), said("b"), output(1)], ["assistant", "tool"], "b"),
            ([call(1), thought("t"), said("b"), output(1)], ["assistant", "tool"], "b"),
            (
                [call(1), output(1), call(2), said("b"), output(2)],
                ["assistant", "tool", "assistant", "tool"],
                "",
            ),
            # An answer that was interrupted before its first part.
            ([said(), call(1), output(1)], ["assistant", "tool"], ""),
            ([said()], ["assistant"], ""),
            ([call(1, name="a b\n"), output(1, [])], ["assistant", "tool"], ""),
            ([call(1, name=""), output(1)], ["assistant", "tool"], ""),
        ],
    )
    def test_of_one_answer(self, given: list[Any], roles: list[str], content: Any) -> None:
        user = {"role": "user", "content": "x"}
        rendered = item_messages.for_template(INPUT.validate_python([user, *given, user]), None)
        assert [entry["role"] for entry in rendered] == ["user", *roles, "user"]
        assert rendered[1]["content"] == content
        calls = [entry for entry in given if entry["type"] == "function_call"]
        rendered_calls = [entry for message in rendered for entry in message.get("tool_calls", ())]
        assert [entry["id"] for entry in rendered_calls] == [entry["call_id"] for entry in calls]

    def test_system_messages_with_parts(self) -> None:
        """The first system messages become one message, in any form."""
        parts = [{"type": "input_text", "text": text} for text in "ab"]
        system_items = [
            {"role": "system", "content": parts},
            {"role": "developer", "content": parts},
        ]
        user = {"role": "user", "content": "x"}
        system, _ = item_messages.for_template(INPUT.validate_python([*system_items, user]), None)
        assert system == {"role": "system", "content": "a\nb\n\na\nb"}


class TestMessages:
    def test_that_were_interrupted(self) -> None:
        """Reasoning alone is accepted, and a call with an unknown name and half its arguments."""
        function = {"name": "no tool\u2028", "arguments": '{"a": "b'}
        history = [
            {"role": "assistant", "content": None, "reasoning_content": "I"},
            {
                "role": "assistant",
                "content": [part("a"), part("b")],
                "tool_calls": [{"id": "x" * 128, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "x" * 128, "content": [part("c"), part("d")]},
        ]
        first, second, third = messages.for_template(MESSAGES.validate_python(history))
        assert (first["content"], first["reasoning_content"]) == ("", "I")
        assert second["content"] == [part("a"), part("b")]
        assert second["tool_calls"][0]["function"]["arguments"] == {"a": "b"}
        assert third["content"] == [part("c"), part("d")]

    def test_ids_counted_from_zero_in_each_answer(self) -> None:
        """Some servers number ids this way."""
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "call_0", "type": "function", "function": function}
        turn = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": "1"},
        ]
        assert len(messages.for_template(MESSAGES.validate_python([*turn, *turn]))) == 4
        item = {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "call_0", "output": "1"}
        history = INPUT.validate_python([item, output, item, output])
        assert [message["role"] for message in item_messages.for_template(history, None)] == [
            "assistant",
            "tool",
            "assistant",
            "tool",
        ]
        twice = [{"role": "assistant", "content": None, "tool_calls": [call, call]}]
        with pytest.raises(InvalidRequestError, match="two tool calls with the same id"):
            messages.for_template(MESSAGES.validate_python(twice))

    def test_many_calls(self) -> None:
        calls = [
            {"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for at in range(300)
        ]
        outputs = [
            {"role": "tool", "tool_call_id": tool_call["id"], "content": ""} for tool_call in calls
        ]
        history = [{"role": "assistant", "tool_calls": calls}, *outputs]
        assert len(messages.for_template(MESSAGES.validate_python(history))) == 301
