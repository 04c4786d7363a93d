"""Strict schemas, compared with jsonschema and as llguidance enforces them."""

import copy
import itertools
import json
import random
from typing import Any

import jsonschema
import pytest

from stoker.inference.openai.chat import ChatRequest
from stoker.inference.openai.responses import ResponseRequest
from stoker.models.chat.forms.grammar import checked
from stoker.models.chat.forms.strict import closed
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Guide
from stoker.wire.schema_limits import MAX_NODES, excess
from tests.chat.test_grammar import EMPTY, FIELD, Speaker, caller, compiled, function, tools
from tests.llm.support import tokenizer

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"under": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["under"],
}
CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "plain": (A, [{"a": 1}], [{"a": 1, "x": 2}]),
    "within": (
        {
            "type": "object",
            "properties": {"list": {"type": "array", "items": A}, "one": B},
            "required": ["list", "one"],
        },
        [{"list": [{"a": 1}], "one": {"b": True}}],
        [
            {"list": [{"a": 1, "x": 2}], "one": {"b": True}},
            {"list": [], "one": {"b": True, "x": 2}},
            {"list": [], "one": {"b": True}, "x": 2},
        ],
    ),
    "only the members": ({"type": "object", "properties": {}}, [{}], [{"x": 1}]),
    "a dictionary": ({"type": "object"}, [{}, {"x": 1}], []),
    "a dictionary of patterns": (
        {"type": "object", "patternProperties": {"^x": A}},
        [{}, {"x": {"a": 1}}],
        [{"x": {"a": 1, "y": 2}}],
    ),
    "patterns": (
        {**A, "patternProperties": {"^x_": {"type": "integer"}}},
        [{"a": 1}, {"a": 1, "x_1": 2}],
        [{"a": 1, "y": 2}],
    ),
    "open on purpose": ({**A, "additionalProperties": True}, [{"a": 1, "x": 2}], []),
    "a schema of others": (
        {**A, "additionalProperties": B},
        [{"a": 1, "x": {"b": True}}],
        [{"a": 1, "x": 2}, {"a": 1, "x": {"b": True, "y": 1}}],
    ),
    "closed already": ({**A, "additionalProperties": False}, [{"a": 1}], [{"a": 1, "x": 2}]),
    "unevaluated": ({**A, "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "x": 2}]),
    "one of several": (
        {"anyOf": [A, B, {"type": "null"}]},
        [{"a": 1}, {"b": True}, None],
        [{"a": 1, "b": True}, {"a": 1, "x": 2}],
    ),
    "references": (
        {
            "type": "object",
            "properties": {"one": {"$ref": "#/$defs/A", "description": "it"}},
            "required": ["one"],
            "$defs": {"A": A},
        },
        [{"one": {"a": 1}}],
        [{"one": {"a": 1, "x": 2}}, {"one": {"a": 1}, "x": 2}],
    ),
    "recursive": (
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
        [{"under": [{"under": []}]}],
        [{"under": [{"under": [], "x": 1}]}],
    ),
    "recursive, wrapped": (
        {
            "$ref": "#/$defs/A",
            "$defs": {
                "A": {
                    "type": "object",
                    "properties": {"next": {"allOf": [{"$ref": "#/$defs/A"}], "default": None}},
                }
            },
        },
        [{}, {"next": {"next": {}}}],
        [{"next": {"x": 1}}],
    ),
    "both": ({"allOf": [A, B]}, [{"a": 1, "b": True}], [{"a": 1, "b": True, "x": 2}]),
    "both, referred to": (
        {
            "type": "object",
            "properties": {
                "both": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
                "one": {"$ref": "#/$defs/A"},
            },
            "required": ["both", "one"],
            "$defs": {"A": A, "B": B},
        },
        [{"both": {"a": 1, "b": True}, "one": {"a": 1}}],
        [
            {"both": {"a": 1, "b": True, "x": 1}, "one": {"a": 1}},
            {"both": {"a": 1, "b": True}, "one": {"a": 1, "b": True}},
        ],
    ),
    "one alone, wrapped": (
        {"allOf": [{"$ref": "#/$defs/A"}], "default": None, "$defs": {"A": A}},
        [{"a": 1}],
        [{"a": 1, "x": 2}],
    ),
    "all of which one is free": (
        {"allOf": [A, {"type": "object", "additionalProperties": {"type": "integer"}}]},
        [{"a": 1, "x": 2}],
        [],
    ),
    "members beside a reference": (
        {
            "$ref": "#/$defs/A",
            "properties": {"c": {"type": "null"}},
            "required": ["c"],
            "$defs": {"A": A},
        },
        [{"a": 1, "c": None}],
        [{"a": 1, "c": None, "x": 2}],
    ),
    "members beside alternatives": (
        {**A, "anyOf": [B, {"properties": {"c": {"type": "null"}}, "required": ["c"]}]},
        [{"a": 1, "b": True}, {"a": 1, "c": None}],
        [{"a": 1, "b": True, "x": 2}, {"a": 1, "b": True, "c": None}],
    ),
    "alternatives that only require": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": True}, {"a": 1, "b": True}],
        [{"a": 1, "x": 2}],
    ),
    "a name that looks like a keyword": (
        {
            "type": "object",
            "properties": {"properties": A, "$ref": {"type": "integer"}},
            "required": ["properties", "$ref"],
        },
        [{"properties": {"a": 1}, "$ref": 3}],
        [{"properties": {"a": 1, "x": 1}, "$ref": 3}],
    ),
    "a pointer to a place": (
        {
            "type": "object",
            "properties": {"a/b": A, "two": {"allOf": [{"$ref": "#/properties/a~1b"}, B]}},
            "required": ["a/b", "two"],
        },
        [{"a/b": {"a": 1}, "two": {"a": 2, "b": True}}],
        [
            {"a/b": {"a": 1, "b": True}, "two": {"a": 2, "b": True}},
            {"a/b": {"a": 1}, "two": {"a": 2, "b": True, "x": 1}},
        ],
    ),
}


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker(tokenizer())


def valid(value: Any, schema: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


class TestClosed:
    @pytest.mark.parametrize("name", CASES)
    def test_values(self, name: str) -> None:
        schema, accepted, refused = CASES[name]
        before = json.dumps(schema)
        closed_schema = closed(schema)
        assert json.dumps(schema) == before, "the given schema is not changed"
        jsonschema.Draft202012Validator.check_schema(closed_schema)
        for value in accepted:
            assert valid(value, schema) and valid(value, closed_schema), value
        for value in refused:
            assert not valid(value, closed_schema), value

    @pytest.mark.parametrize("name", CASES)
    def test_again_it_is_the_same(self, name: str) -> None:
        schema, accepted, refused = CASES[name]
        twice = closed(closed(schema))
        assert [valid(value, twice) for value in (*accepted, *refused)] == [True] * len(
            accepted
        ) + [False] * len(refused)

    @pytest.mark.parametrize("name", CASES)
    def test_as_it_is_enforced(self, name: str, speaker: Speaker) -> None:
        schema, accepted, refused = CASES[name]
        guide = Guide(kind="json_schema", field=FIELD, value=schema, strict=True)
        grammar = compiled(guide, FIELD)
        for value in accepted:
            text = json.dumps(value)
            assert speaker.accepts(speaker.grammars.matcher(grammar, FIELD), text) == (text, True)
        for value in refused:
            text = json.dumps(value)
            admitted, _ = speaker.accepts(speaker.grammars.matcher(grammar, FIELD), text)
            assert admitted != text, text
        drawn = 0
        for seed in range(8):
            text, reason = speaker.says(speaker.grammars.matcher(grammar, FIELD), seed, 150)
            if reason == "stop":
                drawn += 1
                assert valid(json.loads(text), schema), text
        assert drawn or name == "recursive"

    @pytest.mark.parametrize("seed", range(40))
    def test_nothing_is_allowed_that_was_not(self, seed: int) -> None:
        """A closed schema allows no new value. Values with only known members stay allowed."""
        chance = random.Random(seed)
        # No definition refers to itself, directly or through the other.
        definitions = {"p": _any(chance, 2, "q"), "q": _any(chance, 2)}
        schema = {**_any(chance, 3, "pq"), "$defs": definitions}
        closed_schema = closed(schema)
        jsonschema.Draft202012Validator.check_schema(closed_schema)
        for _ in range(60):
            value = _value(chance, 3)
            if valid(value, closed_schema):
                assert valid(value, schema), (schema, value)
            elif valid(value, schema):
                assert _has_unknown(value, schema), (schema, value)

    @pytest.mark.parametrize("seed", range(20))
    def test_what_is_no_schema(self, seed: int) -> None:
        """Closing an invalid schema does not fail. The compiler reports the error."""
        chance = random.Random(seed)
        odd: list[Any] = [None, 5, "a", [], ["a"], [5], {}, {"a": 5}, True]
        for _ in range(50):
            schema = {**_any(chance, 3, "p"), "$defs": {"p": _any(chance, 1)}}
            for _ in range(2):
                place = schema
                while place and chance.random() < 0.5:
                    inner = place[chance.choice(sorted(place))]
                    if not isinstance(inner, dict):
                        break
                    place = inner
                name = chance.choice(["$ref", "$defs", "allOf", "anyOf", "properties", "items"])
                place[name] = copy.deepcopy(chance.choice(odd))
            closed(schema)

    def test_a_long_chain_of_references(self) -> None:
        names = [f"d{number}" for number in range(400)]
        links = {
            name: {"allOf": [{"$ref": f"#/$defs/{other}"}, True]}
            for name, other in itertools.pairwise(names)
        }
        schema = {"$ref": "#/$defs/d0", "$defs": {**links, names[-1]: A}}
        checked_schema = checked(schema, FIELD, strict=True)
        assert checked_schema["$defs"]["d0"]["additionalProperties"] is False
        assert checked_schema["$defs"]["d0"]["properties"] == {"a": True}

    @pytest.mark.parametrize("reference", ["#", "#/nowhere", "#/$defs/A/0", "x.json", "#anchor"])
    def test_references_to_nothing(self, reference: str) -> None:
        schema = {"allOf": [{"$ref": reference}, A], "$defs": {"A": A}}
        assert closed(schema)["allOf"]


class TestLimits:
    def test_a_schema_that_was_not_too_large_is_none(self) -> None:
        """A schema within the size limit stays accepted, although each object gains a keyword."""
        objects = {f"o{number}": A for number in range(MAX_NODES // 7)}
        schema = {"type": "object", "properties": objects}
        assert excess(schema) is None and excess(closed(schema)) is not None
        assert checked(schema, FIELD, strict=True)["additionalProperties"] is False

    def test_one_that_grows_without_measure_is(self) -> None:
        names = {f"n{number}": True for number in range(900)}
        several = [{"properties": {f"m{number}": True}} for number in range(300)]
        schema = {"type": "object", "properties": names, "anyOf": several}
        assert checked(schema, FIELD, strict=False) == schema
        with pytest.raises(
            InputError, match="once its objects allow no further members"
        ) as refusal:
            checked(schema, FIELD, strict=True)
        assert refusal.value.field == FIELD


class TestTools:
    call = '<tool_call>\n{"name": "get_it", "arguments": %s}\n</tool_call>'

    @pytest.mark.parametrize("strict", [True, False])
    def test_arguments(self, strict: bool) -> None:
        model = caller("hermes")
        called = function("get_it", A)
        called["function"]["strict"] = strict
        offered = tools(called, function("other", EMPTY))
        for arguments, is_accepted in (({"a": 1}, True), ({"a": 1, "x": 2}, not strict)):
            text = self.call % json.dumps(arguments)
            admitted, _ = model.accepts(model.calling(offered), text)
            assert (admitted == text) == is_accepted


class TestRequests:
    @pytest.mark.parametrize("strict", [True, False, None])
    def test_say_whether_they_are(self, strict: bool | None) -> None:
        form = {"name": "it", "schema": A, "strict": strict}
        chat = ChatRequest.model_validate(
            {
                "messages": [{"role": "user", "content": "a"}],
                "response_format": {"type": "json_schema", "json_schema": form},
            }
        )
        response = ResponseRequest.model_validate(
            {"input": "a", "text": {"format": {"type": "json_schema", **form}}}
        )
        for request in (chat, response):
            guide = request.generation({}).guide
            assert guide is not None and guide.strict == bool(strict)


_NAMES = "abc"


def _any(chance: random.Random, depth: int, known: str = "") -> dict[str, Any]:
    """Returns a random schema of objects, with the keywords that may describe one object together.

    Args:
        known: names of the definitions that the schema may refer to.
    """
    kinds = ["plain", "plain", "allOf", "anyOf", *(["ref"] if known else [])]
    kind = chance.choice(kinds) if depth else "leaf"
    if kind == "leaf":
        return {"type": chance.choice(["integer", "object"])}
    if kind == "ref":
        return {"$ref": f"#/$defs/{chance.choice(known)}"}
    schema: dict[str, Any] = {}
    if kind == "plain" or chance.random() < 0.4:
        names = chance.sample(_NAMES, chance.randint(0, 2))
        schema = {
            "type": "object",
            "properties": {name: _any(chance, depth - 1, known) for name in names},
        }
        if chance.random() < 0.1:
            schema["additionalProperties"] = chance.random() < 0.5
    if kind != "plain":
        schema[kind] = [_any(chance, depth - 1, known) for _ in range(chance.randint(1, 2))]
    return schema


def _value(chance: random.Random, depth: int) -> Any:
    if not depth or chance.random() < 0.3:
        return chance.choice([1, {}])
    names = chance.sample([*_NAMES, "x"], chance.randint(0, 2))
    return {name: _value(chance, depth - 1) for name in names}


def _has_unknown(value: Any, schema: dict[str, Any]) -> bool:
    """Returns True if the closed schema rejects a value only because of some of its members."""
    closed_schema = closed(schema)
    return any(valid(shortened, closed_schema) for shortened in _shortened(value))


def _shortened(value: Any) -> list[Any]:
    """Returns all variants of the value with members left out."""
    if not isinstance(value, dict):
        return [value]
    ways: list[dict[str, Any]] = [{}]
    for name, member in value.items():
        ways = [
            {**way, **more}
            for way in ways
            for more in ({}, *({name: short} for short in _shortened(member)))
        ]
    return ways
