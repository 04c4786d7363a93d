import json
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from stoker.models.chat.answers.answer_events import Event
from stoker.models.chat.answers.call_formats import FORMATS, Format
from stoker.models.chat.answers.dialect import Dialect
from stoker.models.chat.forms.grammar import Grammars, compiled
from stoker.models.llm.draws import Draws
from stoker.models.llm.errors import DrawError
from stoker.models.llm.matcher import Matcher
from stoker.models.llm.sampling import draw
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Guide, Sampling, Tools
from tests.chat.schemas import fits
from tests.chat.test_formats import pieces
from tests.llm.support import TEMPLATES, VOCABULARY, joined, tokenizer

FIELD = "structured_outputs"
SECONDS = 5
"""Maximum processor time of a refusal, in seconds."""


class Speaker:
    """A random model that follows forms."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self.grammars = Grammars(tokenizer, VOCABULARY, [self.end])
        # Tokens that end a value are made more likely. Otherwise strings and lists would rarely
        # end.
        self._bonus = torch.zeros(VOCABULARY)
        for token in range(len(tokenizer)):
            text: str = tokenizer.decode([token])
            if text[:1] in ('"', "}", "]") or token == self.end:
                self._bonus[token] = 4.0

    def matcher(self, kind: Any, value: Any = None) -> Matcher:
        guide = Guide(kind=kind, field=FIELD, value=value)
        return self.grammars.matcher(compiled(guide, FIELD), FIELD)

    def says(self, matcher: Matcher, seed: int, most: int = 300) -> tuple[str, str]:
        """Draws an answer as the scheduler does. Returns it with the reason for its end."""
        random = torch.Generator().manual_seed(seed)
        draws = Draws(
            Sampling(temperature=1.0, seed=seed), [], frozenset([self.end]), VOCABULARY, matcher
        )
        tokens: list[int] = []
        try:
            while len(tokens) < most:
                logits = torch.randn(VOCABULARY, generator=random) * 2 + self._bonus
                (drawn,) = draw(logits[None], [draws])
                if isinstance(drawn, DrawError):
                    return self.tokenizer.decode(tokens), "error"
                if drawn[0] == self.end:
                    return self.tokenizer.decode(tokens), "stop"
                tokens.append(drawn[0])
                if matcher.consume(drawn[0]):
                    return self.tokenizer.decode(tokens), "stop"
        except DrawError:
            return self.tokenizer.decode(tokens), "error"
        return self.tokenizer.decode(tokens), "length"

    def accepts(self, matcher: Matcher, text: str) -> tuple[str, bool]:
        """Returns the accepted beginning of a text, and True if the answer may end there."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        accepted: list[int] = []
        for token in [*tokens, self.end]:
            row = torch.zeros(VOCABULARY)
            matcher.mask(row)
            if not torch.isfinite(row[token]):
                break
            accepted.append(token)
            if token != self.end and matcher.consume(token):
                return self.tokenizer.decode(accepted), True
        ends = accepted[-1:] == [self.end]
        return self.tokenizer.decode(accepted[:-1] if ends else accepted), ends


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker(tokenizer())


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "user", None, 3]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "role", "tags"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": PERSON,
    "optional": {**PERSON, "required": ["age"]},
    "nested": {
        "type": "object",
        "properties": {
            "inner": {"type": "object", "properties": {"p": PERSON}, "required": ["p"]},
            "kind": {"const": "a«b»\n"},
        },
        "required": ["inner", "kind"],
        "additionalProperties": False,
    },
    "choice": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -1, "maximum": 1}]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "recursive": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}
                },
                "required": ["children"],
                "additionalProperties": False,
            }
        },
    },
}


class TestForms:
    @pytest.mark.parametrize("name", SCHEMAS)
    def test_json_schema(self, name: str, speaker: Speaker) -> None:
        """Every answer of a random model parses and fits the schema."""
        answers: set[str] = set()
        for seed in range(4):
            text, reason = speaker.says(speaker.matcher("json_schema", SCHEMAS[name]), seed)
            assert reason == "stop"
            assert fits(json.loads(text), SCHEMAS[name]), text
            answers.add(text)
        assert len(answers) > 1

    def test_json_object(self, speaker: Speaker) -> None:
        ended = 0
        for seed in range(12):
            text, reason = speaker.says(speaker.matcher("json_object"), seed)
            if reason == "stop":
                assert isinstance(json.loads(text), dict)
                ended += 1
        assert ended >= 4

    def test_choice(self, speaker: Speaker) -> None:
        choices = ["yes", "no", "né 😀 日本", 'a "quote" \\ and\nline', "<|im_end|>", "yes, but"]
        for choice in choices:
            assert speaker.accepts(speaker.matcher("choice", choices), choice)[0] in (
                choice,
                # As a special token it would end the answer, so it has to be written as text.
                "",
            )
        answers = {speaker.says(speaker.matcher("choice", choices), seed) for seed in range(40)}
        assert {reason for _, reason in answers} == {"stop"}
        assert {text for text, _ in answers} <= set(choices)
        assert len(answers) > 3

    def test_regex(self, speaker: Speaker) -> None:
        form = r"([0-9]{1,3}\.){3}[0-9]{1,3}|[a-f]+ß?"
        for seed in range(12):
            text, reason = speaker.says(speaker.matcher("regex", form), seed)
            assert reason in ("stop", "length")
            assert reason == "length" or re.fullmatch(form, text)

    def test_grammar(self, speaker: Speaker) -> None:
        form = 'start: "x" number ("+" number)*\nnumber: /[0-9]{1,2}/'
        for seed in range(6):
            text, reason = speaker.says(speaker.matcher("grammar", form), seed)
            assert reason == "stop"
            assert re.fullmatch(r"x\d{1,2}(\+\d{1,2})*", text)

    def test_nothing_but_the_form(self, speaker: Speaker) -> None:
        matcher = speaker.matcher("regex", "[0-9]{3}")
        row = torch.zeros(VOCABULARY)
        matcher.mask(row)
        open_to: Any = torch.isfinite(row).nonzero().flatten()
        allowed = {speaker.tokenizer.decode([token]) for token in open_to.tolist()}
        assert "1" in allowed
        assert all(re.fullmatch("[0-9]{1,3}", candidate) for candidate in allowed)

    def test_tokens_that_the_tokenizer_does_not_have_are_ruled_out(self, speaker: Speaker) -> None:
        row = torch.zeros(VOCABULARY + 50)
        speaker.matcher("regex", "(.|\n)*").mask(row)
        assert len(speaker.tokenizer) < VOCABULARY
        assert not torch.isfinite(row[len(speaker.tokenizer) :]).any()

    def test_two_answers_in_one_form_go_their_own_ways(self, speaker: Speaker) -> None:
        first, second = (speaker.matcher("choice", ["ab", "cd"]) for _ in range(2))
        assert speaker.accepts(first, "ab") == ("ab", True)
        assert speaker.accepts(second, "cd") == ("cd", True)


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _strings(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(count)}}


def _doubling(depth: int) -> dict[str, Any]:
    """Returns a schema in which each level refers to the one below four times."""

    def level(at: int) -> dict[str, Any]:
        if at == 0:
            return {"type": "string"}
        below = {"$ref": f"#/$defs/d{at - 1}"}
        both = [below, {"type": "object", "properties": {"x": below}}]
        return {"allOf": [{"anyOf": both}, {"anyOf": both[::-1]}]}

    return {
        "$ref": f"#/$defs/d{depth}",
        "$defs": {f"d{at}": level(at) for at in range(depth + 1)},
    }


REFUSED: dict[str, tuple[str, Any]] = {
    "deep": ("json_schema", _deep(40)),
    "deeper than a client's JSON can be": ("json_schema", _deep(5000)),
    "5,000 properties": ("json_schema", _strings(5000)),
    "2,100 properties": ("json_schema", _strings(2100)),
    "a long description": ("json_schema", {"type": "string", "description": "x" * 70_000}),
    "exponential": ("json_schema", _doubling(20)),
    "unsupported": ("json_schema", {"not": {"type": "string"}}),
    "unsupported within": (
        "json_schema",
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
    ),
    "external": ("json_schema", {"$ref": "https://example.com/schema.json"}),
    "a file": ("json_schema", {"$ref": "file:///etc/passwd"}),
    "dangling": ("json_schema", {"$ref": "#/$defs/nowhere"}),
    "itself": ("json_schema", {"$ref": "#"}),
    "no type": ("json_schema", {"type": "nonsense"}),
    "type of a number": ("json_schema", {"type": 5}),
    "properties of a list": ("json_schema", {"type": "object", "properties": []}),
    "bad pattern": ("json_schema", {"type": "string", "pattern": "("}),
    "bad regex": ("regex", "(ab"),
    "look-ahead": ("regex", "(?=a)b"),
    "back-reference": ("regex", r"(a)\1"),
    "no text": ("regex", r"[^\x00-\U0010ffff]"),
    "a long regex": ("regex", "a" * 70_000),
    "bad Lark": ("grammar", "start: ("),
    "unknown rule": ("grammar", "start: nowhere"),
    "neither Lark nor GBNF": ("grammar", "{nonsense}"),
    "Lark without a start": ("grammar", 'foo: "a"'),
    "a long grammar": ("grammar", 'start: "a"' + "\n" * 70_000),
}


@pytest.mark.case(18)
class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_names_the_field_within_seconds(self, name: str, speaker: Speaker) -> None:
        kind, value = REFUSED[name]
        started = time.process_time()
        with pytest.raises(InputError) as refusal:
            speaker.matcher(kind, value)
        assert time.process_time() - started < SECONDS
        assert refusal.value.field == FIELD
        assert FIELD in refusal.value.message
        assert not refusal.value.of_item
        assert len(refusal.value.message) < 500

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("regex", "((a{1000}){1000}){1000}"),
            ("regex", "(.*a.{20}b){5}"),
            ("regex", ".*a.{1000}"),
            ("json_schema", {"type": "integer", "multipleOf": 1000003, "minimum": 0}),
        ],
    )
    def test_what_explodes_is_refused_or_ends_as_an_error(
        self, kind: str, value: Any, speaker: Speaker
    ) -> None:
        """No answer claims a form that it does not have."""
        started = time.process_time()
        try:
            matcher = speaker.matcher(kind, value)
        except InputError as refusal:
            assert refusal.field == FIELD
        else:
            text, reason = speaker.says(matcher, 1, most=20)
            if reason == "stop":
                assert kind == "json_schema"
                assert int(text) % 1000003 == 0
            else:
                assert reason in ("error", "length")
        assert time.process_time() - started < SECONDS

    def test_an_error_while_it_is_followed_is_no_end(self, speaker: Speaker) -> None:
        """The lexer fails on the first token, and the form does not count as complete."""
        try:
            matcher = speaker.matcher("regex", "(a{1000}){1000}")
        except InputError:
            return
        (token,) = speaker.tokenizer("a", add_special_tokens=False)["input_ids"]
        try:
            ended = matcher.consume(token)
        except DrawError:
            return
        assert not ended
        with pytest.raises(DrawError):
            matcher.mask(torch.zeros(VOCABULARY))


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "exact": {"type": "boolean"},
        "near": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["city", "days", "unit", "exact", "near"],
    "additionalProperties": False,
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "inner": {
            "type": "object",
            "properties": {"nothing": {"type": "null"}},
            "required": ["nothing"],
            "additionalProperties": False,
        },
    },
    "required": ["flags", "inner"],
    "additionalProperties": False,
}
UNIT: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["km", "mile"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
REFERRING: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"$ref": "#/$defs/unit"}},
    "required": ["unit"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["km", "mile"]}},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def function(name: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name, "strict": True}
    if parameters is not None:
        body["parameters"] = parameters
    return {"type": "function", "function": body}


def tools(*functions: dict[str, Any], choice: Any = "required", **more: Any) -> Tools:
    return Tools(functions=list(functions), choice=choice, **more)


# The marks of calls are tokens in some models only. Qwen's are tokens (as text), Hermes' are
# special tokens, others' are plain text.
WAYS = {
    "plain": {"special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "added": ()},
    "added": {
        "special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "added": ("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
    },
    "special": {
        "special": ("<|im_end|>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
        "added": (),
    },
}


class Caller(Speaker):
    """A random model that calls tools."""

    def __init__(self, form: str, way: str) -> None:
        super().__init__(tokenizer(TEMPLATES[form], **WAYS[way]))
        self.dialect = Dialect(self.tokenizer)
        assert self.dialect.format is not None
        self.form: Format = self.dialect.format
        assert self.form.name == form

    def calling(self, offered: Tools) -> Matcher:
        return self.grammars.matcher(self.grammars.calls(self.form, offered), "tools")

    def either(self, offered: Tools, guide: Guide, *, reasoned: bool = False) -> Matcher:
        form = compiled(guide, FIELD)
        grammar = self.grammars.calls_or(self.form, offered, form, reasoned=reasoned)
        return self.grammars.matcher(grammar, FIELD)

    def calls(
        self, text: str, offered: Tools, *, either: bool = False, seed: int | None = None
    ) -> tuple[str, list[tuple[str, Any]]]:
        """Returns the text outside the calls, and the calls' names and arguments.

        Args:
            seed: seed of the pieces in which the text is read. None reads it at once.
        """
        reader = self.dialect.reader("", tools=offered.functions, either=either)
        assert reader is not None
        events: list[Event] = []
        for piece in [text] if seed is None else pieces(text, seed):
            events += reader.add(piece)
        answer = joined([*events, *reader.finish()])
        return answer.text, [
            (tool_call.name, json.loads(tool_call.arguments)) for tool_call in answer.calls
        ]


_callers: dict[tuple[str, str], Caller] = {}


def caller(form: str, way: str = "added") -> Caller:
    if (form, way) not in _callers:
        _callers[form, way] = Caller(form, way)
    return _callers[form, way]


NAMES = list(TEMPLATES)


class TestForcedCalls:
    @pytest.mark.parametrize(
        "parameters",
        [WEATHER, NESTED, REFERRING, EMPTY, None],
        ids=["flat", "nested", "referring", "empty", "none"],
    )
    @pytest.mark.parametrize("form", NAMES)
    def test_parse_back(self, form: str, parameters: dict[str, Any] | None) -> None:
        offered = tools(function("get_it", parameters), parallel=False)
        model = caller(form)
        for seed in range(4):
            text, reason = model.says(model.calling(offered), seed)
            assert reason == "stop", text
            rest, calls = model.calls(text, offered)
            assert rest.strip() == ""
            assert [name for name, _ in calls] == ["get_it"], text
            assert fits(calls[0][1], parameters or EMPTY), text

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("form", ["hermes", "mistral"])
    def test_whether_the_marks_are_tokens_or_not(self, form: str, way: str) -> None:
        offered = tools(function("a", UNIT), function("b", EMPTY), parallel=False)
        model = caller(form, way)
        names: set[str] = set()
        for seed in range(6):
            text, reason = model.says(model.calling(offered), seed)
            assert reason == "stop", text
            _, calls = model.calls(text, offered)
            ((name, arguments),) = calls
            assert fits(arguments, {"a": UNIT, "b": EMPTY}[name])
            names.add(name)
        assert names == {"a", "b"}

    @pytest.mark.parametrize("form", NAMES)
    def test_the_one_that_is_named(self, form: str) -> None:
        functions = [function("first", EMPTY), function("second", UNIT)]
        offered = tools(*functions, name="second", parallel=False)
        model = caller(form)
        for seed in range(3):
            text, _ = model.says(model.calling(offered), seed)
            ((name, arguments),) = model.calls(text, offered)[1]
            assert name == "second"
            assert fits(arguments, UNIT)

    @pytest.mark.parametrize("form", NAMES)
    def test_nothing_else_can_be_said(self, form: str) -> None:
        offered = tools(function("get_it", EMPTY))
        model = caller(form)
        accepted, ended = model.accepts(model.calling(offered), "Hello, I will look it up.")
        assert (accepted, ended) == ("", False)

    def test_several(self) -> None:
        call_text = '<tool_call>\n{"name": "get_it", "arguments": {}}\n</tool_call>'
        offered = tools(function("get_it", EMPTY))
        model = caller("hermes")
        accepted, ended = model.accepts(model.calling(offered), f"{call_text}\n{call_text}")
        assert (accepted, ended) == (f"{call_text}\n{call_text}", True)
        assert model.calls(accepted, offered)[1] == [("get_it", {})] * 2

    @pytest.mark.parametrize("form", NAMES)
    def test_no_more_than_one_without_parallel_calls(self, form: str) -> None:
        offered = tools(function("get_it", EMPTY), parallel=False)
        model = caller(form)
        for seed in range(3):
            text, reason = model.says(model.calling(offered), seed)
            assert reason == "stop"
            assert model.calls(text, offered)[1] == [("get_it", {})]
            accepted, ended = model.accepts(model.calling(offered), f"{text}\n{text}")
            assert accepted.rstrip() == text.rstrip()
            assert ended

    def test_a_bad_schema_names_its_place(self) -> None:
        offered = tools(function("good", EMPTY), function("bad", _deep(40)))
        with pytest.raises(InputError) as refusal:
            caller("hermes").calling(offered)
        assert refusal.value.field == "tools[1].function.parameters"

    def test_what_cannot_be_enforced_is_refused_where_it_is_strict(self) -> None:
        unknown = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
        with pytest.raises(InputError) as refusal:
            caller("hermes").calling(tools(function("bad", unknown)))
        assert refusal.value.field == "tools"

    def test_and_left_out_where_it_is_not(self) -> None:
        lenient = function(
            "get_it",
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "not": {"const": 1}}},
                "required": ["a"],
                "additionalProperties": False,
            },
        )
        del lenient["function"]["strict"]
        text = '<tool_call>\n{"name": "get_it", "arguments": {"a": 7}}\n</tool_call>'
        model = caller("hermes")
        assert model.accepts(model.calling(tools(lenient)), text) == (text, True)

    @pytest.mark.parametrize("form", NAMES)
    def test_a_property_may_be_true(self, form: str) -> None:
        """The JSON schema `true` accepts any value of a property."""
        schema = {"type": "object", "properties": {"any": True}, "required": ["any"]}
        model = caller(form)
        matcher = model.calling(tools(function("get_it", schema), parallel=False))
        assert not model.accepts(matcher, "Hello")[1]


class TestManyTools:
    """The maximum tools per request, in formats that name each argument in the grammar."""

    @pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "deepseek-v3.2", "gemma-4"])
    def test_are_compiled(self, name: str) -> None:
        kinds: list[Any] = [{"type": "string"}, {"type": "integer"}, {"type": "array"}]
        schema = {"type": "object", "properties": {f"p{at}": kinds[at % 3] for at in range(10)}}
        functions = [function(f"tool_{at}", schema) for at in range(128)]
        for entry in functions:
            del entry["function"]["strict"]
        form = next(entry for entry in FORMATS if entry.name == name)
        grammars = caller("hermes").grammars
        started = time.process_time()
        grammars.matcher(grammars.calls(form, tools(*functions, choice="auto")), "tools")
        assert time.process_time() - started < SECONDS


class TestFreeToCall:
    """`auto` admits text, or calls that fit."""

    ways = [("hermes", "plain"), ("hermes", "added"), ("hermes", "special")]
    ways += [("mistral", "plain"), ("mistral", "special"), ("llama3", "added")]
    ways += [("pythonic", "added")]
    call = {
        "hermes": '<tool_call>\n{"name": "get_it", "arguments": {"unit": "km"}}\n</tool_call>',
        "mistral": '[TOOL_CALLS] [{"name": "get_it", "arguments": {"unit": "km"}}]',
        "llama3": '{"name": "get_it", "parameters": {"unit": "km"}}',
        "pythonic": '[get_it(unit="km")]',
    }

    def auto(self, **more: Any) -> Tools:
        return tools(function("get_it", UNIT), choice="auto", **more)

    @pytest.mark.parametrize(("form", "way"), ways)
    @pytest.mark.parametrize(
        "text", ["Hello, wie geht's? 😀\n\nTwo < three, and {braces} too.", "x"]
    )
    def test_plain_text(self, text: str, form: str, way: str) -> None:
        model = caller(form, way)
        for parallel in (True, False):
            matcher = model.calling(self.auto(parallel=parallel))
            assert model.accepts(matcher, text) == (text, True)

    @pytest.mark.parametrize(("form", "way"), ways)
    def test_an_empty_answer(self, form: str, way: str) -> None:
        model = caller(form, way)
        assert model.accepts(model.calling(self.auto()), "") == ("", True)

    @pytest.mark.parametrize(("form", "way"), ways)
    def test_a_call(self, form: str, way: str) -> None:
        model = caller(form, way)
        accepted, ended = model.accepts(model.calling(self.auto(parallel=False)), self.call[form])
        assert (accepted, ended) == (self.call[form], True)
        assert model.calls(accepted, self.auto()) == ("", [("get_it", {"unit": "km"})])

    @pytest.mark.parametrize(("form", "way"), [one for one in ways if one[0] != "pythonic"])
    def test_a_call_of_what_there_is_not(self, form: str, way: str) -> None:
        model = caller(form, way)
        for wrong in (
            self.call[form].replace("get_it", "wrong"),
            self.call[form].replace("km", "inch"),
        ):
            accepted, ended = model.accepts(model.calling(self.auto()), wrong)
            assert len(accepted) < len(wrong)
            assert not ended

    @pytest.mark.parametrize("way", WAYS)
    def test_text_and_then_a_call(self, way: str) -> None:
        model = caller("hermes", way)
        text = f"Let me look.\n{self.call['hermes']}"
        accepted, ended = model.accepts(model.calling(self.auto()), text)
        assert (accepted, ended) == (text, True)
        assert model.calls(accepted, self.auto()) == (
            "Let me look.\n",
            [("get_it", {"unit": "km"})],
        )

    @pytest.mark.parametrize("way", WAYS)
    def test_several_calls(self, way: str) -> None:
        model = caller("hermes", way)
        text = f"{self.call['hermes']}\n{self.call['hermes']}"
        assert model.accepts(model.calling(self.auto()), text) == (text, True)

    @pytest.mark.parametrize("way", WAYS)
    def test_no_more_than_one_without_parallel_calls(self, way: str) -> None:
        model = caller("hermes", way)
        once = self.call["hermes"]
        accepted, ended = model.accepts(model.calling(self.auto(parallel=False)), f"{once}\n{once}")
        assert (accepted, ended) == (once, True)


ANNA = '{"name": "Anna", "age": 31}'
FORM_TEXTS = {
    "object": (Guide(kind="json_object", field=FIELD), ANNA),
    "schema": (
        Guide(
            kind="json_schema",
            field=FIELD,
            value={
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
                "required": ["name", "age"],
                "additionalProperties": False,
                "$defs": {"age": {"type": "integer"}},
            },
        ),
        ANNA,
    ),
    "list": (
        Guide(
            kind="json_schema",
            field=FIELD,
            value={"type": "array", "items": {"type": "string"}},
        ),
        '["<tool_call>", "[get_it(unit=1)]"]',
    ),
    "choice": (Guide(kind="choice", field=FIELD, value=["certainly", "never"]), "never"),
    "regex": (Guide(kind="regex", field=FIELD, value="[A-Z]{3}-[0-9]{2}"), "ABC-12"),
    "grammar": (Guide(kind="grammar", field=FIELD, value='start: "a" body\nbody: "b"+'), "abbb"),
    "gbnf": (Guide(kind="grammar", field=FIELD, value='root ::= "no" | "yes"'), "yes"),
}


class TestCallsOrForm:
    """`auto` with a form admits only calls that fit, or only the form."""

    ways = TestFreeToCall.ways
    call = TestFreeToCall.call

    def auto(self, **more: Any) -> Tools:
        return tools(function("get_it", REFERRING), choice="auto", **more)

    @pytest.mark.parametrize("kind", FORM_TEXTS)
    @pytest.mark.parametrize(("form", "way"), ways)
    def test_either_may_be_said(self, form: str, way: str, kind: str) -> None:
        model = caller(form, way)
        guide, text = FORM_TEXTS[kind]
        for parallel in (True, False):
            offered = self.auto(parallel=parallel)
            accepted = model.accepts(model.either(offered, guide), text)
            if "<tool_call>" in text and way != "plain":
                # Such a token does not count as text.
                assert accepted == ('["', False)
                continue
            assert accepted == (text, True)
            accepted = model.accepts(model.either(offered, guide), self.call[form])
            assert accepted == (self.call[form], True)

    @pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
    @pytest.mark.parametrize("kind", FORM_TEXTS)
    @pytest.mark.parametrize(("form", "way"), ways)
    def test_and_is_read_as_what_it_is(
        self, form: str, way: str, kind: str, seed: int | None
    ) -> None:
        model = caller(form, way)
        _, text = FORM_TEXTS[kind]
        for lines in ("", "\n\n"):
            read = model.calls(lines + text, self.auto(), either=True, seed=seed)
            assert (read[0].lstrip(), read[1]) == (text, [])
            read = model.calls(lines + self.call[form], self.auto(), either=True, seed=seed)
            assert read[0].strip() == ""
            assert read[1] == [("get_it", {"unit": "km"})]

    @pytest.mark.parametrize("kind", FORM_TEXTS)
    @pytest.mark.parametrize(("form", "way"), ways)
    def test_nothing_else_may_be_said(self, form: str, way: str, kind: str) -> None:
        model = caller(form, way)
        guide, text = FORM_TEXTS[kind]
        call = self.call[form]
        wrong = [
            "Hello, I will look it up.",
            f"Let me look. {call}",
            "\n" + text,
            f"{text}\n{call}",
            f"{call}\n{text}",
            call.replace("km", "inch"),
        ]
        if kind != "object":
            # For llama3, any object is such a form.
            wrong.append(call.replace("get_it", "other"))
        for candidate in wrong:
            accepted, ended = model.accepts(model.either(self.auto(), guide), candidate)
            whole = kind == "object" and form == "llama3"
            assert not (ended and accepted == candidate) or (whole and candidate == wrong[-1]), (
                candidate
            )

    @pytest.mark.parametrize(("form", "way"), ways)
    def test_drawn_it_is_one_of_both(self, form: str, way: str) -> None:
        model = caller(form, way)
        # If a call begins like any object, random draws hardly reach a call.
        guide, _ = FORM_TEXTS["list" if form == "llama3" else "schema"]
        offered = tools(function("a", UNIT), function("b", REFERRING), choice="auto")
        kinds: set[str] = set()
        for seed in range(12):
            matcher = model.either(offered, guide, reasoned=seed % 2 == 0)
            answer, reason = model.says(matcher, seed, 120)
            if reason != "stop":
                continue
            text, calls = model.calls(answer, offered, either=True, seed=seed)
            if calls:
                assert text.strip() == ""
                assert all(name in "ab" and fits(arguments, UNIT) for name, arguments in calls)
            else:
                assert fits(json.loads(text), guide.value)
            kinds.add("calls" if calls else "text")
        assert kinds == {"calls", "text"}

    @pytest.mark.parametrize("way", WAYS)
    def test_several_calls(self, way: str) -> None:
        model = caller("hermes", way)
        guide, _ = FORM_TEXTS["object"]
        text = f"{self.call['hermes']}\n{self.call['hermes']}"
        assert model.accepts(model.either(self.auto(), guide), text) == (text, True)
        read = model.calls(text, self.auto(), either=True, seed=1)
        assert read == ("", [("get_it", {"unit": "km"})] * 2)
        once = self.auto(parallel=False)
        assert model.accepts(model.either(once, guide), text) == (self.call["hermes"], True)

    @pytest.mark.parametrize(("form", "way"), ways)
    def test_empty_lines_behind_the_reasoning(self, form: str, way: str) -> None:
        model = caller(form, way)
        guide, text = FORM_TEXTS["schema"]
        for candidate in (f"\n\n{text}", f"\n{self.call[form]}", text, self.call[form]):
            matcher = model.either(self.auto(), guide, reasoned=True)
            assert model.accepts(matcher, candidate) == (candidate, True)
        matcher = model.either(self.auto(), guide, reasoned=True)
        assert not model.accepts(matcher, f"\n\n\n{text}")[1]

    @pytest.mark.parametrize("text", ['{"name": "get_it"}', '{"name": "get_it", "unit": "km"}'])
    def test_an_object_that_is_named_like_a_tool(self, text: str) -> None:
        """Without a mark of its format, a call is recognised by all of its members."""
        model = caller("llama3")
        guide, _ = FORM_TEXTS["object"]
        assert model.accepts(model.either(self.auto(), guide), text) == (text, True)
        for seed in range(4):
            assert model.calls(text, self.auto(), either=True, seed=seed) == (text, [])

    def test_text_is_told_as_it_comes(self) -> None:
        """Text is streamed as it arrives, although it begins like a call."""
        reader = caller("llama3").dialect.reader("", tools=self.auto().functions, either=True)
        assert reader is not None
        pieces = ['{"na', 'me": "', "An", 'na", ', '"age": ', "31}"]
        texts = [
            "".join(str(getattr(event, "text", "")) for event in reader.add(p)) for p in pieces
        ]
        assert texts == ["", "", '{"name": "An', 'na", ', '"age": ', "31}"]
