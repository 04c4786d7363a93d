"""JSON schemas as rules of a Lark grammar, with strings in all of their spellings.

A schema that this module does not support is passed to llguidance's own compiler (`%json`). That
compiler rejects unknown keywords and drops none. It allows fewer spellings of strings. This affects
patterns, formats, merged schemas (`allOf`) and objects with bounds or patterns of names.

Values are written as llguidance writes them: on one line, first the members that a schema names in
its order, then other members.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

import llguidance

from stoker.models.chat.forms import json_text
from stoker.models.chat.forms.schema_references import references_in

Schema = Mapping[str, Any]

# Similar to the output of `json.dumps`. With optional white space, a model could repeat it
# endlessly.
OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "json_allow_general_unicode_escapes": True,
}
_NOTES = frozenset(
    ("$schema", "$comment", "$defs", "definitions", "title", "description", "default")
) | {"examples", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"}
"""Keywords that do not restrict a value."""
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_OBJECTS = ("patternProperties", "minProperties", "maxProperties")
_OF_TYPES: Mapping[str, Sequence[str]] = {
    "null": (),
    "boolean": (),
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties", *_OF_OBJECTS),
}
_KEYWORDS = frozenset(keyword for keywords in _OF_TYPES.values() for keyword in keywords)
_ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")
_MOST_TIMES = 1 << 16
"""Maximum length that is compiled here. llguidance compiles larger ones."""
_MOST_LEFT = 8
"""Maximum number of parts that llguidance compiles alone. With more, it compiles the whole
schema.
"""


class NotUnderstoodError(Exception):
    """The schema must be compiled by llguidance."""


class JsonRules:
    """Collects the rules and terminals of one grammar."""

    def __init__(self, comma: str = ", ", colon: str = ": ") -> None:
        """
        Args:
            comma, colon: regular expressions of the separator between items, and of the one after
                names.
        """
        self.options = {**OPTIONS, "item_separator": comma, "key_separator": colon}
        self.comma, self.colon = f"/{comma}/", f"/{colon}/"
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._any = ""

    @property
    def lines(self) -> list[str]:
        return [f"{name}: {body}" for name, body in self._bodies.items()]

    def value(self, schema: Schema | bool, *, lenient: bool) -> str:
        """Returns the expression of values of a schema.

        Args:
            schema: true stands for any value.
            lenient: if True, ignores keywords that llguidance's compiler does not know, instead of
                rejecting them.
        """
        try:
            return _Compiler(self, schema, lenient=lenient).value(schema)
        except NotUnderstoodError:
            return self.left(schema, lenient=lenient)

    def terminal(self, body: str) -> str:
        """Returns the name of a terminal. Equal terminals share a name."""
        return self._named(body, "T")

    def regex(self, expression: str) -> str:
        """Returns the name of a terminal of a regular expression of `json_text`."""
        return self.terminal(f"/{expression}/")

    def string(self, text: str) -> str:
        """Returns the expression of one string."""
        if json_text.is_plain(text):
            return json.dumps(json.dumps(text))
        return self.regex(json_text.string(text))

    def rule(self, body: str) -> str:
        """Returns the name of a rule. Equal rules share a name."""
        return self._named(body, "r")

    def any(self) -> str:
        """Returns the name of the rule of any JSON value."""
        if not self._any:
            self._any = self.reserved()
            text, number = self.regex(json_text.strings()), self.regex(json_text.NUMBER)
            literal = self.regex("true|false|null")
            items = f'"[" ({self._any} ({self.comma} {self._any})*)? "]"'
            member = f"{text} {self.colon} {self._any}"
            members = f'"{{" ({member} ({self.comma} {member})*)? "}}"'
            self.define(self._any, " | ".join((text, number, literal, items, members)))
        return self._any

    def reserved(self) -> str:
        """Returns the name of a rule that gets its body from `define`."""
        name = f"r_{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def left(self, schema: Schema | bool, *, lenient: bool) -> str:
        """Returns an expression of values of a schema that llguidance compiles."""
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        return f"%json {json.dumps({**schema, 'x-guidance': {**self.options, 'lenient': lenient}})}"

    def _named(self, body: str, prefix: str) -> str:
        if body not in self._names:
            self._names[body] = f"{prefix}_{len(self._bodies)}"
            self._bodies[self._names[body]] = body
        return self._names[body]


class _Compiler:
    def __init__(self, rules: JsonRules, root: Schema | bool, *, lenient: bool) -> None:
        self._rules = rules
        self._root = root
        self._lenient = lenient
        self._references: dict[str, str] = {}
        self._begun: list[str] = []
        """References that are being compiled without any text between them."""
        self._left = 0

    def value(self, schema: Any) -> str:
        """Raises `NotUnderstoodError` if llguidance must compile the whole schema."""
        try:
            return self._understood(schema)
        except NotUnderstoodError:
            return self._left_part(schema)

    def _understood(self, schema: Any) -> str:  # noqa: PLR0911
        if schema is True:
            return self._rules.any()
        if not isinstance(schema, dict):
            raise NotUnderstoodError
        keywords = {
            name: value
            for name, value in cast("dict[str, Any]", schema).items()
            if name not in _NOTES
        }
        match list(keywords):
            case []:
                return self._rules.any()
            case ["$ref"]:
                return self._reference(keywords["$ref"])
            case ["allOf"]:
                return self._all(keywords["allOf"])
            case ["anyOf"]:
                return self._either(keywords["anyOf"])
            case ["oneOf"] if self._lenient or self._is_accepted(schema):
                # llguidance has checked that no value matches two of them.
                return self._either(keywords["oneOf"])
            case _:
                return self._typed(keywords)

    def _typed(self, asked: dict[str, Any]) -> str:
        declared: Any = asked.pop("type", _ALL_TYPES)
        types = cast("Sequence[Any]", [declared] if isinstance(declared, str) else declared)
        if not isinstance(types, (list, tuple)) or not types:
            raise NotUnderstoodError
        if not all(isinstance(name, str) and name in _OF_TYPES for name in types):
            raise NotUnderstoodError
        if list(asked) in (["const"], ["enum"]):
            values = asked["enum"] if "enum" in asked else [asked["const"]]
            return self._one_of(values, types)
        if not _KEYWORDS.issuperset(asked):
            raise NotUnderstoodError
        if not asked and types is _ALL_TYPES:
            return self._rules.any()
        expressions = [self._of_type(name, asked) for name in dict.fromkeys(types)]
        return f"({' | '.join(expressions)})" if len(expressions) > 1 else expressions[0]

    def _of_type(self, name: str, asked: Schema) -> str:  # noqa: PLR0911
        keywords = {key: asked[key] for key in _OF_TYPES[name] if key in asked}
        match name:
            case "null":
                return '"null"'
            case "boolean":
                return self._rules.regex("true|false")
            case "number" | "integer" if not keywords:
                expression = json_text.NUMBER if name == "number" else json_text.INTEGER
                return self._rules.regex(expression)
            case "string" if not {"pattern", "format"} & keywords.keys():
                return self._rules.regex(json_text.strings(*_bounds(keywords, "Length")))
            case "array":
                return self._within(lambda: self._array(keywords))
            case "object":
                return self._within(lambda: self._object(keywords))
            case _:
                return self._left_part({"type": name, **keywords})

    def _within(self, compile_value: Callable[[], str]) -> str:
        """Compiles a value between brackets."""
        begun, self._begun = self._begun, []
        try:
            return compile_value()
        finally:
            self._begun = begun

    # --- values ---

    def _one_of(self, values: Any, types: Sequence[str]) -> str:
        if not isinstance(values, list) or not values:
            raise NotUnderstoodError
        fitting = [value for value in cast("list[Any]", values) if _is_of(value, types)]
        if not fitting or any(isinstance(value, float) for value in fitting):
            raise NotUnderstoodError
        ways = [json_text.literal(value) for value in fitting]
        return self._rules.regex("|".join(ways))

    def _array(self, own: Schema) -> str:
        items: Any = own.get("items", True)
        heads: Any = own.get("prefixItems", [])
        if "additionalItems" in own or isinstance(items, list) or not isinstance(heads, list):
            raise NotUnderstoodError
        least, most = _bounds(own, "Items")
        first = [self.value(head) for head in cast("list[Any]", heads)[:most]]
        written, count = "", len(first)
        if items is not False and (most is None or most > count):
            written = self._repeated(self.value(items), count, least, most)
        elif least > count:
            raise NotUnderstoodError
        for place, head in reversed(list(enumerate(first))):
            comma = f"{self._rules.comma} " if place else ""
            expression = f"{comma}{head} {written}"
            # Each item has a separate rule, because Lark limits the depth of brackets.
            written = self._rules.rule(expression if place < least else f"({expression})?")
        return self._rules.rule(f'"[" {written} "]"')

    def _repeated(self, item: str, before: int, least: int, most: int | None) -> str:
        """Returns the expression of a list's items after the items with their own schemas."""
        least = max(least - before, 0)
        most = None if most is None else most - before
        if before:
            return _times(f"({self._rules.comma} {item})", least, most)
        more = _times(
            f"({self._rules.comma} {item})", max(least - 1, 0), None if most is None else most - 1
        )
        written = f"{item} {more}"
        return written if least else f"({written})?"

    def _object(self, own: Schema) -> str:
        properties: Any = own.get("properties", {})
        required: Any = own.get("required", [])
        additional: Any = own.get("additionalProperties", True)
        if any(keyword in own for keyword in _OF_OBJECTS):
            raise NotUnderstoodError
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise NotUnderstoodError
        schemas = dict(cast("dict[str, Any]", properties))
        for name in cast("list[Any]", required):
            if not isinstance(name, str):
                raise NotUnderstoodError
            schemas.setdefault(name, additional)
        if any(schema is False for schema in schemas.values()):
            raise NotUnderstoodError
        members = [
            (
                f"{self._rules.string(name)} {self._rules.colon} {self.value(schema)}",
                name in required,
            )
            for name, schema in schemas.items()
        ]
        if additional is not False:
            name = self._other_name(schemas)
            other = self._rules.rule(f"{name} {self._rules.colon} {self.value(additional)}")
            members.append((f"{other} ({self._rules.comma} {other})*", False))
        return self._rules.rule(f'"{{" {self._members(members)} "}}"')

    def _other_name(self, named: Mapping[str, Any]) -> str:
        text = self._rules.regex(json_text.strings())
        if not named:
            return text
        known_names = [f"/{json_text.string(name)}/" for name in named]
        return self._rules.terminal(f"{text} & ~({' | '.join(known_names)})")

    def _members(self, members: Sequence[tuple[str, bool]]) -> str:
        """Returns the expression of an object's members in order. Some are optional."""
        following = ""
        ways: list[str] = []
        for member, is_required in reversed(members):
            if is_required:
                ways = []
            ways.append(f"{member} {following}")
            is_optional = "" if is_required else "?"
            following = self._rules.rule(f"({self._rules.comma} {member}){is_optional} {following}")
        if not members:
            return ""
        written = " | ".join(reversed(ways))
        return f"({written})" if any(required for _, required in members) else f"({written})?"

    def _all(self, schemas: Any) -> str:
        if not isinstance(schemas, list) or len(cast("list[Any]", schemas)) != 1:
            raise NotUnderstoodError
        return self.value(schemas[0])

    def _either(self, schemas: Any) -> str:
        if not isinstance(schemas, list) or not schemas:
            raise NotUnderstoodError
        expressions = [self.value(schema) for schema in cast("list[Any]", schemas)]
        return f"({' | '.join(expressions)})"

    def _reference(self, reference: Any) -> str:
        if not isinstance(reference, str) or reference in self._begun:
            raise NotUnderstoodError
        if reference not in self._references:
            target = self._target(reference)
            name = self._references[reference] = self._rules.reserved()
            self._begun.append(reference)
            try:
                self._rules.define(name, self.value(target))
            finally:
                self._begun.remove(reference)
        return self._references[reference]

    def _target(self, reference: str) -> Any:
        if reference != "#" and not reference.startswith("#/"):
            raise NotUnderstoodError
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or name not in target:
                raise NotUnderstoodError
            target = cast("Schema", target)[name]
        return target

    # --- llguidance ---

    def _left_part(self, schema: Any) -> str:
        if not isinstance(schema, (dict, bool)):
            raise NotUnderstoodError
        return self._rules.left(self._complete(schema), lenient=self._lenient)

    def _complete(self, schema: Any) -> Any:
        """Returns a part of the schema with all definitions."""
        references = list(references_in(schema))
        if schema is self._root or not references or not isinstance(self._root, dict):
            return schema
        self._left += 1
        if self._left > _MOST_LEFT or not all(
            reference.startswith(("#/$defs/", "#/definitions/")) for reference in references
        ):
            raise NotUnderstoodError
        names = ("$defs", "definitions")
        return {**schema, **{name: self._root[name] for name in names if name in self._root}}

    def _is_accepted(self, schema: Any) -> bool:
        options: Any = self._rules.options
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            self._complete(schema), overrides=options
        )
        return not llguidance.LLMatcher.validate_grammar(grammar)


def _bounds(own: Schema, of: str) -> tuple[int, int | None]:
    least, most = own.get(f"min{of}", 0), own.get(f"max{of}")
    for bound in (least, 0 if most is None else most):
        if not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound <= _MOST_TIMES:
            raise NotUnderstoodError
    if most is not None and least > most:
        raise NotUnderstoodError
    return least, most


def _times(expression: str, least: int, most: int | None) -> str:
    if most is None:
        return f"{expression}*" if least == 0 else f"{expression}{{{least},}}"
    return f"{expression}{{{least},{most}}}" if most else ""


def _is_of(value: Any, types: Sequence[str]) -> bool:
    if value is None:
        return "null" in types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int):
        return "integer" in types or "number" in types
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)] in types
