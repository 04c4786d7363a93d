"""Errors of forms name the faulty part and suggest a correction."""

import time
from typing import Any, Literal

import pytest

from stoker.models.chat.forms.faults import RequestedForm

Kind = Literal["json_schema", "regex", "grammar"]


def fault(kind: Kind, value: Any, of_parts: bool = False, **more: Any) -> tuple[str, str]:
    error = RequestedForm(kind, value, "F", **more).fault(of_parts=of_parts)
    assert error is not None
    assert not error.of_item
    assert "\n" not in error.message
    assert error.field == "F"
    return error.message.split("'")[1], error.message


def within(part: Any) -> dict[str, Any]:
    """Returns a schema that is valid except for one deeply nested part."""
    other = {"type": "object", "properties": {"p": {"type": "string", "pattern": "^a+$"}}}
    properties = {"ok": other, "at fault": part}
    entry = {"type": "object", "properties": properties, "required": ["at fault"]}
    entries = {"type": "array", "items": entry, "minItems": 1}
    return {"type": "object", "properties": {"a": other, "list": entries}, "required": ["list"]}


INNER = '.properties.list.items.properties["at fault"]'


class TestSchemas:
    @pytest.mark.parametrize(
        ("part", "path", "words"),
        [
            ({"type": "datetime"}, ".type", "'string' with the 'format' 'date-time'"),
            ({"type": "uuid"}, ".type", "'string' with the 'format' 'uuid'"),
            ({"type": "str"}, ".type", "use 'string'"),
            ({"type": "Float"}, ".type", "use 'number'"),
            ({"type": "any"}, ".type", "leave 'type' out"),
            ({"type": ["string", "zebra"]}, ".type", "'object' or 'null'"),
            ({"type": 5}, ".type", "'object' or 'null'"),
            ({"pattern": "^(?!x)[a-z]{3}$"}, ".pattern", "character 2 of the regular expression"),
            ({"pattern": "(a)\\1"}, ".pattern", "backreferences are not supported"),
            ({"patternProperties": {"(a": {}}}, ".patternProperties", "unclosed group"),
            ({"format": "zebra"}, ".format", "date-time"),
            ({"uniqueItems": True}, "", "'uniqueItems' is not supported; leave it out"),
            ({"not": {"type": "null"}}, "", "'not'"),
            ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, ".oneOf", "use 'anyOf'"),
            ({"$ref": "#/$defs/zebra"}, ".$ref", "nothing at '#/$defs/zebra'"),
            ({"$ref": "https://example.com/x"}, ".$ref", "put it into '$defs'"),
            ({"minimum": "3"}, ".minimum", "must be a number"),
            ({"maxLength": -1}, ".maxLength", "must be a whole number of at least 0"),
            ({"required": "a"}, ".required", "must be a list"),
            ({"multipleOf": 0}, ".multipleOf", "a number above 0"),
            (7, "", "an object, true or false"),
        ],
    )
    def test_name_the_part_and_what_is_right(self, part: Any, path: str, words: str) -> None:
        field, message = fault("json_schema", within(part))
        assert field == f"F{INNER}{path}"
        assert message.startswith(f"'{field}' cannot be enforced: ")
        assert words in message

    @pytest.mark.parametrize(
        ("part", "path", "words"),
        [
            ({"enum": []}, ".enum", "no value"),
            (
                {"type": "string", "minLength": 5, "maxLength": 2},
                "",
                "(5) is greater than maxLength (2)",
            ),
            ({"allOf": [{"type": "null"}, {"type": "array"}]}, "", "no value fits the schema"),
        ],
    )
    def test_name_what_no_value_fits(self, part: Any, path: str, words: str) -> None:
        inner = {"type": "object", "properties": {"x": part, "y": {}}, "required": ["x"]}
        outer = {"type": "object", "properties": {"x": inner}, "required": ["x"]}
        field, message = fault("json_schema", outer)
        assert field == f"F.properties.x.properties.x{path}"
        assert words in message

    @pytest.mark.parametrize(
        ("part", "path", "words"),
        [
            ({"enum": []}, ".enum", "no value"),
            ({"anyOf": []}, "", "no value fits the schema: anyOf is empty"),
            ({"type": "integer", "minimum": 5, "maximum": 1}, "", "minimum (5) is greater than"),
            ({"items": {"enum": []}, "type": "array", "minItems": 1}, "", "no value fits"),
        ],
    )
    def test_name_what_no_value_fits_though_it_is_optional(
        self, part: Any, path: str, words: str
    ) -> None:
        optional = {"properties": {"x": {"type": "string"}, "y": part}}
        schema = {"type": "object", "properties": {"in": optional}, "$defs": {"x": {}}}
        assert RequestedForm("json_schema", schema, "F", lenient=True).fault() is None
        field, message = fault("json_schema", schema, lenient=True, of_parts=True)
        assert field == f"F.properties.in.properties.y{path}"
        assert words in message

    def test_in_a_definition(self) -> None:
        schema = {
            "$defs": {"good": {"type": "string"}, "bad": {"items": {"type": "double"}}},
            "anyOf": [{"$ref": "#/$defs/good"}, {"$ref": "#/$defs/bad"}],
        }
        assert fault("json_schema", schema)[0] == "F.$defs.bad.items.type"

    def test_name_the_tool(self) -> None:
        field, message = fault(
            "json_schema", within({"type": "bool"}), tool="look_up", lenient=True
        )
        assert message.startswith(f"'{field}' of the tool 'look_up' cannot be enforced: 'bool' ")

    def test_only_of_what_is_enforced(self) -> None:
        """Only the understood parts of a tool's schema are enforced, unless it is strict."""
        schema = within({"uniqueItems": True})
        assert RequestedForm("json_schema", schema, "F", lenient=True).fault() is None
        assert RequestedForm("json_schema", within({"type": "string"}), "F").fault() is None

    def test_take_little_time(self) -> None:
        many = {f"p{i}": within({"type": "string"}) for i in range(80)}
        schema = {"type": "object", "properties": many | {"q": within({"type": "zebra"})}}
        before = time.process_time()
        field, message = fault("json_schema", schema)
        assert time.process_time() - before < 2
        assert field.startswith("F")
        assert "'zebra' is not a type" in message


class TestExpressions:
    @pytest.mark.parametrize(
        ("expression", "words"),
        [
            ("a(b", "at character 2 of the regular expression ('('): unclosed group."),
            ("x[z-a]", "at character 3 of the regular expression ('z-a'): invalid character class"),
            (
                "x" * 500 + "(?=y)",
                "at character 501 of the regular expression ('(?='): look-around",
            ),
            ("\\d{2", "('{2'): unclosed counted repetition"),
            ("\\p{Zebra}", "Unicode property not found"),
        ],
    )
    def test_say_where(self, expression: str, words: str) -> None:
        field, message = fault("regex", expression)
        assert field == "F"
        assert words in message


class TestGrammars:
    @pytest.mark.parametrize(
        ("grammar", "words"),
        [
            ("start: foo", "unknown name: \"foo\", in 'start: foo' at character 8."),
            ('start: "a"\n  | zebra+', 'unknown name: "zebra".'),
            ('start: "a', "in 'start: \"a' at character 10"),
            ("start: /a(/", "at character 2 of the regular expression ('('): unclosed group."),
            ('root ::= "a" [b', "Unexpected end of input at line 1"),
            ('root ::= "a" x', "Rule 'x' not found"),
        ],
    )
    def test_say_where(self, grammar: str, words: str) -> None:
        assert words in fault("grammar", grammar)[1]
