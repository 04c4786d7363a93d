"""Answers in the notations of real models, parsed whole and in pieces."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.models.chat.answers.answer_events import Event, Text, TokenLogprob
from stoker.models.chat.answers.call_formats.values import property_schemas, types
from stoker.models.chat.answers.dialect import AnyReader, Dialect
from stoker.models.chat.forms.argument_schemas import of_objects
from tests.llm.support import CHATML, TEMPLATES, THINKING, Joined, joined, tokenizer

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("get_weather", "get_time")
]

_dialects: dict[str, Dialect] = {}


def dialect(template: str) -> Dialect:
    if template not in _dialects:
        _dialects[template] = Dialect(tokenizer(template))
    return _dialects[template]


def reader(form: str, prompt: str = "", tools: Sequence[dict[str, Any]] = TOOLS) -> AnyReader:
    answer_reader = dialect(TEMPLATES.get(form, form)).reader(prompt, tools=tools)
    assert answer_reader is not None
    return answer_reader


def pieces(text: str, seed: int) -> list[str]:
    """Splits a text. Seed 0: whole. Seed 1: by characters. Other seeds: at random."""
    if seed == 0:
        return [text]
    if seed == 1:
        return list(text)
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randint(1, 9))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def read(form: str, text: str, seed: int = 0, prompt: str = "") -> Joined:
    answer_reader = reader(form, prompt)
    events: list[Event] = []
    for piece in pieces(text, seed):
        events += answer_reader.add(piece)
    answer = joined([*events, *answer_reader.finish()])
    assert answer_reader.calls == len(answer.calls)
    return answer


def call(name: str, **arguments: Any) -> tuple[str, Any]:
    return name, arguments


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


Case = tuple[str, str, list[tuple[str, Any]], str]
"""The format, the model's output, the calls in it, and the text outside the calls."""

NASTY = r'{"city": "a \"quoted\" }{][ \\", "x": {"y": [{"z": "}}"}, "é\n😀"]}, "n": -1.5e3}'
NASTY_VALUE = json.loads(NASTY)
PARIS = call("get_weather", city="Paris")
LONDON = call("get_time", city="London")

CASES: dict[str, Case] = {
    "hermes": ("hermes", hermes("get_weather", '{"city": "Paris"}'), [PARIS], ""),
    "hermes, empty": ("hermes", hermes("get_time", "{}"), [call("get_time")], ""),
    "hermes, nasty": ("hermes", hermes("get_time", NASTY), [("get_time", NASTY_VALUE)], ""),
    "hermes, unicode": (
        "hermes",
        hermes("get_weather", '{"city": "東京 😀 Zürich"}'),
        [call("get_weather", city="東京 😀 Zürich")],
        "",
    ),
    "hermes, two": (
        "hermes",
        hermes("get_weather", '{"city": "Paris"}')
        + "\n"
        + hermes("get_time", '{"city": "London"}'),
        [PARIS, LONDON],
        "",
    ),
    "hermes, text before": (
        "hermes",
        "I will look.\n" + hermes("get_weather", '{"city": "Paris"}'),
        [PARIS],
        "I will look.\n",
    ),
    "hermes, text around": (
        "hermes",
        "Before.\n" + hermes("get_weather", '{"city": "Paris"}') + "\nAfter <b> all.",
        [PARIS],
        "Before.\nAfter <b> all.",
    ),
    "hermes, dense": (
        "hermes",
        '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>',
        [PARIS],
        "",
    ),
    "hermes, spread": (
        "hermes",
        '<tool_call>\n{\n  "name" : "get_weather" ,\n  "arguments" : {\n "city": "Paris"\n}\n}\n'
        "</tool_call>",
        [PARIS],
        "",
    ),
    "hermes, arguments first": (
        "hermes",
        '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "get_weather"}\n</tool_call>',
        [PARIS],
        "",
    ),
    "hermes, arguments as text": (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}\n'
        "</tool_call>",
        [PARIS],
        "",
    ),
    "hermes, no arguments": (
        "hermes",
        '<tool_call>\n{"name": "get_time"}\n</tool_call>',
        [call("get_time")],
        "",
    ),
    "hermes, null arguments": (
        "hermes",
        hermes("get_time", "null"),
        [call("get_time")],
        "",
    ),
    "hermes, the mark within a string": (
        "hermes",
        hermes("get_weather", '{"city": "<tool_call>"}'),
        [call("get_weather", city="<tool_call>")],
        "",
    ),
    "hermes, more after the arguments": (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "}"}\n'
        "</tool_call>",
        [PARIS],
        "",
    ),
    "llama": (
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [PARIS],
        "",
    ),
    "llama, after its tag": (
        "llama3",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [PARIS],
        "",
    ),
    "llama, spread": (
        "llama3",
        '\n{\n "name": "get_weather",\n "parameters": {\n"city": "Paris"}\n}',
        [PARIS],
        "",
    ),
    "llama, nasty": (
        "llama3",
        f'{{"name": "get_time", "parameters": {NASTY}}}',
        [("get_time", NASTY_VALUE)],
        "",
    ),
    "llama, empty": ("llama3", '{"name": "get_time", "parameters": {}}', [call("get_time")], ""),
    "llama, text": ("llama3", "It is 21 degrees in {Paris}.", [], "It is 21 degrees in {Paris}."),
    "mistral": (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        [PARIS],
        "",
    ),
    "mistral, dense": (
        "mistral",
        '[TOOL_CALLS][{"name":"get_weather","arguments":{"city":"Paris"}}]',
        [PARIS],
        "",
    ),
    "mistral, two": (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {"city": "London"}}]',
        [PARIS, LONDON],
        "",
    ),
    "mistral, text before": (
        "mistral",
        'Let me see.[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]',
        [call("get_time")],
        "Let me see.",
    ),
    "mistral, nasty": (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_time", "arguments": {NASTY}}}]',
        [("get_time", NASTY_VALUE)],
        "",
    ),
    "pythonic": ("pythonic", '[get_weather(city="Paris")]', [PARIS], ""),
    "pythonic, two": (
        "pythonic",
        "[get_weather(city='Paris'), get_time(city=\"London\")]",
        [PARIS, LONDON],
        "",
    ),
    "pythonic, empty": ("pythonic", "[get_time()]", [call("get_time")], ""),
    "pythonic, values": (
        "pythonic",
        "[get_time(a=-1, b=2.5, c=True, d=None, e=[1, 'x'], f={'k': {'l': []}}, g=\"]) é😀\")]",
        [call("get_time", a=-1, b=2.5, c=True, d=None, e=[1, "x"], f={"k": {"l": []}}, g="]) é😀")],
        "",
    ),
    "pythonic, JSON's constants": (
        "pythonic",
        "[get_time(a=true, b=false, c=null)]",
        [call("get_time", a=True, b=False, c=None)],
        "",
    ),
    "pythonic, JSON's constants within": (
        "pythonic",
        '[get_time(a=[true, null], b={"c": false})]',
        [call("get_time", a=[True, None], b={"c": False})],
        "",
    ),
    "pythonic, a pair of surrogates as JSON writes them": (
        "pythonic",
        '[get_weather(city="\\ud83d\\ude00")]',
        [call("get_weather", city="😀")],
        "",
    ),
    "pythonic, text": ("pythonic", "[1] says so, and f(x).", [], "[1] says so, and f(x)."),
}


class TestCalls:
    @pytest.mark.parametrize("name", CASES)
    def test_as_they_are_written(self, name: str) -> None:
        form, text, calls, beside = CASES[name]
        answer = read(form, text)
        assert [
            (tool_call.name, json.loads(tool_call.arguments)) for tool_call in answer.calls
        ] == calls
        assert (answer.text, answer.reasoning) == (beside, "")
        for tool_call in answer.calls:
            assert tool_call.id.startswith("call_")
            assert len(tool_call.id) > 20
            tool_call.arguments.encode()

    @pytest.mark.parametrize("name", CASES)
    def test_in_any_pieces(self, name: str) -> None:
        form, text, _, _ = CASES[name]
        whole = read(form, text)
        for seed in range(1, 20):
            assert read(form, text, seed).plain == whole.plain, pieces(text, seed)

    def test_arguments_are_streamed(self) -> None:
        """Arguments are streamed while the model writes them, without changes."""
        answer_reader = reader("hermes")
        assert answer_reader.add('<tool_call>\n{"name": "get_weather", "argum') == []
        begun = answer_reader.add('ents": {"city": "Pa')
        assert joined(begun).plain == ("", "", [("get_weather", '{"city": "Pa')])
        more = answer_reader.add('ris, \\"here\\""')
        assert [getattr(event, "text", "") for event in more] == ['ris, \\"here\\""']
        last = [*answer_reader.add("}}\n</tool_call>"), *answer_reader.finish()]
        assert [getattr(event, "text", "") for event in last] == ["}"]

    def test_ids_differ(self) -> None:
        first, second = read(*CASES["hermes, two"][:2]).calls
        assert first.id != second.id
        assert read(*CASES["hermes"][:2]).calls[0].id != read(*CASES["hermes"][:2]).calls[0].id


MALFORMED: dict[str, tuple[str, str, str]] = {
    "no JSON": ("hermes", "<tool_call>\nget_weather(Paris)\n</tool_call>", "get_weather(Paris)"),
    "no name": (
        "hermes",
        '<tool_call>\n{"arguments": {"city": "Paris"}}\n</tool_call>',
        '{"arguments": {"city": "Paris"}}',
    ),
    "broken JSON": (
        "hermes",
        '<tool_call>\n{"name": "get_weather" "arguments"}\n</tool_call>',
        '{"name": "get_weather" "arguments"}',
    ),
    "arguments of a list": (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": [1]}\n</tool_call>',
        '{"name": "get_weather", "arguments": [1]}',
    ),
    "a number": ("hermes", "<tool_call>7</tool_call>", "7"),
    "deep": ("hermes", f"<tool_call>{'[' * 50_000}</tool_call>", "[" * 50_000),
    "a long number": ("hermes", f"<tool_call>{'9' * 5000}</tool_call>", "9" * 5000),
    "mistral": ("mistral", "[TOOL_CALLS] nothing", "nothing"),
    "llama, text after": (
        "llama3",
        '{"name": "get_time", "other": {}} and so on',
        '{"name": "get_time", "other": {}} and so on',
    ),
    "llama, a name that is no string": (
        "llama3",
        '{"name": "\\get_time", "parameters": {}}',
        '{"name": "\\get_time", "parameters": {}}',
    ),
    "hermes, a name that is no string": (
        "hermes",
        '<tool_call>{"name": "\\get_time", "arguments": {}}</tool_call>',
        '{"name": "\\get_time", "arguments": {}}',
    ),
    "llama, a name that is half a character": (
        "llama3",
        '{"name": "\\ud83d", "parameters": {}}',
        '{"name": "\\ud83d", "parameters": {}}',
    ),
    "mistral, a name that is half a character": (
        "mistral",
        '[TOOL_CALLS] [{"name": "\\ud83d", "arguments": {}}]',
        '[{"name": "\\ud83d", "arguments": {}}]',
    ),
    "python's set": ("pythonic", "[get_time(a={1, 2})]", "[get_time(a={1, 2})]"),
    "python's bytes": ("pythonic", "[get_time(a=b'x')]", "[get_time(a=b'x')]"),
    "python's complex": ("pythonic", "[get_time(a=1+2j)]", "[get_time(a=1+2j)]"),
    "python's tuple as key": ("pythonic", "[get_time(a={(1, 2): 3})]", "[get_time(a={(1, 2): 3})]"),
    "python's code": (
        "pythonic",
        "[get_time(a=__import__('os').system('x'))]",
        "[get_time(a=__import__('os').system('x'))]",
    ),
    "python's stars": (
        "pythonic",
        "[get_weather(**{'city': 'Paris'})]",
        "[get_weather(**{'city': 'Paris'})]",
    ),
    "python's places": ("pythonic", "[get_weather('Paris')]", "[get_weather('Paris')]"),
    "python, cut": ("pythonic", '[get_weather(city="Par', '[get_weather(city="Par'),
}


class TestMalformedCalls:
    @pytest.mark.parametrize("name", MALFORMED)
    def test_come_out_as_text(self, name: str) -> None:
        form, text, expected = MALFORMED[name]
        answer = read(form, text)
        assert answer.calls == []
        assert answer.text.count(expected) == 1

    @pytest.mark.parametrize("name", [name for name in MALFORMED if name != "deep"])
    def test_in_any_pieces(self, name: str) -> None:
        form, text, _ = MALFORMED[name]
        for seed in range(1, 12):
            assert read(form, text, seed).plain == read(form, text).plain

    def test_the_rest_is_read_on(self) -> None:
        text = "One. <tool_call>\nwrong\n</tool_call>" + hermes("get_time", "{}") + "Two."
        for seed in range(8):
            answer = read("hermes", text, seed)
            assert [tool_call.name for tool_call in answer.calls] == ["get_time"]
            assert "".join(answer.text.split()) in (
                "One.wrongTwo.",
                "One.<tool_call>wrong</tool_call>Two.",
            )

    @pytest.mark.parametrize("seed", range(5))
    def test_all_text_where_it_only_begins_like_a_call(self, seed: int) -> None:
        """Text that only begins like a call stays text, with the rest of its piece."""
        text = '<tool_call>{"name": "other"}</tool_call> and so on'
        answer_reader = dialect(TEMPLATES["hermes"]).reader("", tools=TOOLS, either=True)
        assert answer_reader is not None
        events = [event for piece in pieces(text, seed) for event in answer_reader.add(piece)]
        assert joined([*events, *answer_reader.finish()]).plain == (
            text.removeprefix("<tool_call>"),
            "",
            [],
        )

    @pytest.mark.parametrize("form", ["mistral", "llama3", "pythonic"])
    def test_half_a_pair_of_surrogates_can_be_written_down(self, form: str) -> None:
        """JSON may name half a surrogate pair. UTF-8 cannot encode it, and the answer is UTF-8."""
        text = {
            "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "\\ud83d"}}]',
            "llama3": '{"name": "get_weather", "parameters": {"city": "\\ud83d"}}',
            "pythonic": '[get_weather(city="\\ud83d")]',
        }[form]
        answer = read(form, text)
        for tool_call in answer.calls:
            tool_call.arguments.encode()
        answer.text.encode()

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
    def test_arguments_are_always_json(self, value: str) -> None:
        """Arguments are JSON for every parser, not only for Python's."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not a valid JSON")

        text = f'[TOOL_CALLS] [{{"name": "get_time", "arguments": {{"a": {value}}}}}]'
        for tool_call in read("mistral", text).calls:
            json.loads(tool_call.arguments, parse_constant=refuse)


class TestCutOff:
    """The token limit may end an answer at any position."""

    def test_within_the_arguments(self) -> None:
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
        for seed in range(8):
            expected = ("", "", [("get_weather", '{"city": "Par')])
            assert read("hermes", text, seed).plain == expected

    def test_after_the_arguments(self) -> None:
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}'
        for seed in range(8):
            expected = ("", "", [("get_weather", '{"city": "Paris"}')])
            assert read("hermes", text, seed).plain == expected

    def test_before_the_name(self) -> None:
        text = 'Well. <tool_call>\n{"name": "get_w'
        for seed in range(8):
            answer = read("hermes", text, seed)
            assert answer.calls == []
            assert answer.text.startswith("Well. ")
            assert answer.text.endswith('{"name": "get_w')

    @pytest.mark.parametrize("text", ["Well. <tool", "Well. <", "Well. </think", "Well. [TOOL_CA"])
    def test_within_a_mark(self, text: str) -> None:
        for seed in range(8):
            assert read("hermes", text, seed).text == text

    def test_of_a_list(self) -> None:
        text = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"ci'
        for seed in range(8):
            assert read("mistral", text, seed).plain == ("", "", [("get_weather", '{"ci')])


class TestReasoning:
    def reading(self, text: str, seed: int, prompt: str = "") -> tuple[str, str]:
        answer = read(THINKING, text, seed, prompt)
        assert answer.calls == []
        return answer.reasoning, answer.text

    @pytest.mark.parametrize("seed", range(12))
    def test_closed(self, seed: int) -> None:
        parts = self.reading("<think>\nHm, 1 < 2.\n</think>\n\nYes.", seed)
        assert parts == ("\nHm, 1 < 2.\n", "\n\nYes.")

    @pytest.mark.parametrize("seed", range(8))
    def test_never_closed(self, seed: int) -> None:
        assert self.reading("<think>Hm, and so on </thi", seed) == ("Hm, and so on </thi", "")

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("prompt", ["…<think>", "…<think>\n", "…\n<think>\n\n"])
    def test_begun_by_the_prompt(self, prompt: str, seed: int) -> None:
        parts = self.reading("Hm.</think>Yes.", seed, prompt)
        assert parts == ("Hm.", "Yes.")

    def test_ended_by_the_prompt(self) -> None:
        """Templates write an empty reasoning block if the request wants no reasoning."""
        parts = self.reading("Yes, and </think> stays.", 1, "<think>\n\n</think>\n\n")
        assert parts[0] == ""
        assert parts[1].startswith("Yes, and ")

    @pytest.mark.parametrize("seed", range(8))
    def test_none(self, seed: int) -> None:
        assert self.reading("Just < text.", seed) == ("", "Just < text.")

    def test_whether_it_is_at_it(self) -> None:
        answer_reader = reader(THINKING)
        states = [answer_reader.reasoning]
        for piece in ("<think>", "Hm", " hm", "</think>", "Yes"):
            answer_reader.add(piece)
            states.append(answer_reader.reasoning)
        assert states == [False, True, True, True, False, False]

    def test_it_is_at_it_from_the_start_where_the_prompt_began_it(self) -> None:
        answer_reader = reader(THINKING, "<think>\n")
        assert answer_reader.reasoning
        answer_reader.add("Hm</think>")
        answer_reader.add("Yes")
        assert not answer_reader.reasoning

    @pytest.mark.parametrize("seed", range(12))
    def test_before_a_call(self, seed: int) -> None:
        text = "<think>I need a tool.</think>\n" + hermes("get_weather", '{"city": "Paris"}')
        parts = read("hermes", text, seed).plain
        assert parts == ("\n", "I need a tool.", [("get_weather", '{"city": "Paris"}')])

    def test_a_call_within_it_is_no_call(self) -> None:
        text = f"<think>Perhaps {hermes('get_time', '{}')}?</think>No."
        for seed in range(8):
            reasoning = f"Perhaps {hermes('get_time', '{}')}?"
            assert read("hermes", text, seed).plain == ("No.", reasoning, [])

    def test_of_a_model_that_never_reasons_there_is_nothing_to_read(self) -> None:
        plain = Dialect(tokenizer(CHATML, added=()))
        assert plain.reader("", tools=[]) is None
        assert not plain.calls


class TestWithoutTools:
    def test_what_looks_like_a_call_is_text(self) -> None:
        text = "Write " + hermes("get_time", "{}") + " to call."
        for seed in range(8):
            answer_reader = reader("hermes", tools=[])
            events = [event for piece in pieces(text, seed) for event in answer_reader.add(piece)]
            assert joined([*events, *answer_reader.finish()]).plain == (text, "", [])


class TestLogprobs:
    def test_each_comes_once_with_the_text_of_its_time(self) -> None:
        answer_reader = reader("hermes")
        text = "Hello <b> there. <tool_"
        expected = [TokenLogprob(part, part.encode(), -1.0) for part in text]
        events: list[Event] = []
        for logprob in expected:
            events += answer_reader.add(logprob.text, [logprob])
        events += answer_reader.finish()
        assert joined(events).text == text
        streamed = [item for event in events if isinstance(event, Text) for item in event.logprobs]
        assert streamed == expected


class TestSchemasOfArguments:
    LEVELS = 3

    def schema(self, width: int) -> dict[str, Any]:
        """Returns a schema in which each level refers to the next one many times.

        It has `width ** LEVELS` paths to the last level.
        """
        levels: dict[str, Any] = {
            f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}] * width}
            for level in range(self.LEVELS)
        }
        last = {"type": "object", "properties": {"x": {"type": "string"}}}
        return {"$ref": "#/$defs/a0", "$defs": {**levels, f"a{self.LEVELS}": last}}

    def test_references_that_multiply_take_little_time(self) -> None:
        schema = self.schema(150)
        before = time.process_time()
        assert property_schemas(schema) == {"x": {"type": "string"}}
        assert types(schema, schema) == {"object"}
        assert of_objects(schema) == schema
        assert time.process_time() - before < 1

    def test_references_in_a_circle(self) -> None:
        inner = {"properties": {"x": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/a"}]}
        schema = {"$ref": "#/$defs/a", "$defs": {"a": inner}}
        assert set(property_schemas(schema)) == {"x"}
        assert types(schema, schema) == {"object"}


class TestOwnTemplate:
    """A tokenizer may bring a response template. It is used if the format is not known."""

    template = {
        "start_anchor_pattern": r"\A(?!)",
        "fields": {
            "content": {"content": "text"},
            "tool_calls": {
                "open": "<<",
                "close": ">>",
                "content": "json",
                "repeats": True,
            },
        },
    }

    def reading(self, text: str, seed: int) -> Joined:
        own_tokenizer = tokenizer(CHATML, added=())
        own_tokenizer.response_template = self.template
        spoken = Dialect(own_tokenizer)
        assert spoken.calls
        answer_reader = spoken.reader("", tools=TOOLS)
        assert answer_reader is not None
        events = [event for piece in pieces(text, seed) for event in answer_reader.add(piece)]
        return joined([*events, *answer_reader.finish()])

    @pytest.mark.parametrize("seed", range(5))
    def test_calls(self, seed: int) -> None:
        text = 'So: <<{"name": "get_time", "arguments": {"a": 1}}>>'
        assert self.reading(text, seed).plain == ("So: ", "", [("get_time", '{"a": 1}')])

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("text", ["So: <<wrong>> and on.", 'So: <<{"name": "get_t', "<<5>>"])
    def test_malformed_ones_are_text(self, text: str, seed: int) -> None:
        answer = self.reading(text, seed)
        assert answer.calls == []
        for word in text.replace("<<", " ").replace(">>", " ").split():
            assert word in answer.text


class TestCut:
    """An answer that ends within a call's arguments is cut. Such a call must not be executed."""

    @pytest.mark.parametrize(
        ("text", "cut"),
        [
            ("It rains.", False),
            ("<tool_call>\n", False),
            ('<tool_call>\n{"name": "get_weather", "arguments": ', False),
            ('<tool_call>\n{"name": "get_weather", "arguments": {', True),
            ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa', True),
            ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "}', True),
            (hermes("get_weather", "{}").removesuffix("</tool_call>"), False),
            (hermes("get_weather", "{}"), False),
            (hermes("get_weather", "{}") + " And?", False),
            (hermes("get_weather", "{}") + hermes("get_time", '{"city": "')[:-14], True),
        ],
    )
    def test_within_its_arguments(self, text: str, cut: bool) -> None:
        for seed in (0, 1):
            made = reader("hermes")
            for piece in pieces(text, seed):
                made.add(piece)
            made.finish()
            assert made.is_cut == cut

    def test_anywhere(self) -> None:
        """Half an escape and half a mark are not text: as text, the call would seem complete."""
        arguments = '{"city": "\\u00e9\\ud83d\\ude00 \\\\ \\/"}'
        text = hermes("get_weather", arguments)
        for end in range(1, len(text)):
            made = reader("hermes")
            answer = joined([*made.add(text[:end]), *made.finish()])
            if answer.calls:
                assert answer.text == ""
                assert arguments.startswith(answer.calls[0].arguments)
                assert made.is_cut == (answer.calls[0].arguments != arguments)


class TestChosenFormat:
    def test_of_several_templates_the_one_for_tools(self) -> None:
        both = tokenizer(None)
        both.chat_template = {"default": CHATML, "tool_use": TEMPLATES["hermes"]}
        chosen = Dialect(both).format
        assert chosen is not None
        assert chosen.name == "hermes"

    @pytest.mark.parametrize("name", TEMPLATES)
    def test_by_marks_where_nothing_is_rendered(self, name: str) -> None:
        made = dialect(TEMPLATES[name])
        assert made.format is not None
        assert made.format.name == name
        assert not made.is_proven
        takes_tools = "tools" in TEMPLATES[name]
        assert [notice.code for notice in made.notices] == ["tool_calls_not_tried"] * takes_tools
