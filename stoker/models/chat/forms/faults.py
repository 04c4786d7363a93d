"""Explains why a form of answers cannot be enforced: the location of the fault, and a valid
alternative.

llguidance names neither the part of a schema at fault nor the request's field. This module searches
for that part. It is the deepest one that llguidance rejects with the same message.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import llguidance

from stoker.models.stages.base import InputError

_SEARCH_S = 0.3
"""Maximum duration of the search for the part at fault, in seconds. A large schema takes a
twentieth of a second to compile.
"""
_MOST_CHARS = 500
_SHOWN_CHARS = 60

_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = (
    *("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
_TYPES = "'string', 'number', 'integer', 'boolean', 'array', 'object' or 'null'"
_FORMATS = "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid and uri"
_OTHER_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("date", "time", "date-time", "duration", "email", "uri", "uuid"), ""),
    "datetime": "date-time",
    "timestamp": "date-time",
    "url": "uri",
}
"""Maps a type of other languages to the format of JSON Schema's strings. Empty means that the
format has the same name.
"""
_SAME_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "text", "char", "enum"), "string"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("int", "long", "short"), "integer"),
    "bool": "boolean",
    **dict.fromkeys(("list", "tuple", "set"), "array"),
    **dict.fromkeys(("dict", "map", "struct", "json"), "object"),
    **dict.fromkeys(("none", "nil", "undefined"), "null"),
}
"""Maps a type of other languages to JSON Schema's name of it."""


@dataclass(frozen=True)
class RequestedForm:
    """Schema, expression or grammar that a request specifies."""

    kind: Literal["json_schema", "regex", "grammar"]
    value: Any
    field: str
    """The request's field of the schema, expression or grammar."""
    lenient: bool = False
    """True if keywords that llguidance does not know are ignored."""
    tool: str = ""
    """Tool with arguments that must match the schema."""

    def fault(self, *, of_parts: bool = False) -> InputError | None:
        """Returns an error that names the location of the fault, or None if it is unknown.

        Args:
            of_parts: if True, also searches for a part that is rejected alone within an accepted
                schema, such as an optional property that no value fits. `JsonRules` compiles parts
                alone.
        """
        place, description = self.field, ""
        if self.kind == "json_schema":
            schema = cast("dict[str, Any]", self.value)
            path, description = _fault_of_schema(schema, self.lenient, of_parts)
            place += path
        elif self.kind == "regex":
            message = _refused(llguidance.LLMatcher.grammar_from_regex(self.value))
            description = message and of_regex(message)
        else:
            description = of_grammar(self.value)
        if not description:
            return None
        of_tool = f" of the tool '{self.tool}'" if self.tool else ""
        message = f"'{place}'{of_tool} cannot be enforced: {description}."
        return InputError(message, field=self.field, of_item=False)


def of_grammar(text: str) -> str:
    """Returns the fault of a grammar in Lark's or GBNF's notation. Empty if it is valid."""
    try:
        message = _refused(llguidance.grammar_from("grammar", text))
    except ValueError as error:
        # The GBNF cannot be converted. llguidance names the line, and marks the position with `^`.
        return short(str(error).removeprefix("Failed to convert the grammar from GBNF to Lark: "))
    if "regex parse error:" in message:
        return of_regex(message)
    where, description = _told(message)
    return f"{_LARK_WORDS.get(description, description)}{where}"


_LARK_WORDS: Mapping[str, str] = {
    "lexer error": "expected a name, text or expression of the notation",
}


def of_regex(message: str) -> str:
    """Returns the error message of a regular expression in one line, with the position."""
    lines = message.partition("regex parse error:\n")[2].splitlines()
    description = next((line.partition("error: ")[2] for line in lines if "error: " in line), "")
    if len(lines) < 3 or not description:
        return short(message)
    pattern, marks = lines[0], lines[1]
    begin, end = len(marks) - len(marks.lstrip()), len(marks.rstrip())
    description += _WAYS.get(description.partition(",")[0], "")
    if set(marks.strip()) != {"^"}:
        # Expressions of several lines are shown differently.
        return short(description)
    shown = short(pattern[begin:end], _SHOWN_CHARS)
    return f"at character {begin - 3} of the regular expression ('{shown}'): {description}"


_WAYS: Mapping[str, str] = {
    "look-around": "; describe the allowed text instead of the excluded text",
    "backreferences are not supported": "; write the text out",
}
"""Maps an error of a regular expression to an alternative that works."""


def short(text: str, most: int = _MOST_CHARS) -> str:
    """Returns a library's message in one line, cut to the maximum length of an error."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _told(message: str) -> tuple[str, str]:
    """Returns the location and the message of a grammar's error."""
    first, _, context = message.partition("\n")
    summary = re.sub(r"^(at )?\d+\(\d+\): ", "", first)
    lines = context.splitlines()
    mark = next((line for line in lines if line.strip() == "^"), None)
    if mark is None or lines.index(mark) == 0:
        return "", short(summary)
    number, _, code = lines[lines.index(mark) - 1].partition(" | ")
    if any(name not in code for name in re.findall(r'"(.+)"', summary)):
        # The fault lies further down in the rule that begins here.
        return "", short(summary)
    column = max(0, mark.index("^") - len(number) - 3)
    return f", in '{short(code, _SHOWN_CHARS)}' at character {column + 1}", short(summary)


# --- schemas ---


def _fault_of_schema(schema: dict[str, Any], lenient: bool, of_parts: bool) -> tuple[str, str]:
    """Returns the path to the fault in a schema and its description. Both may be empty."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    ends = time.monotonic() + _SEARCH_S

    def refusal(part: Any) -> str:
        if isinstance(part, bool):
            return ""
        if not isinstance(part, dict):
            return "schema must be an object or boolean"
        complete = {**definitions, **cast("dict[str, Any]", part)}
        if lenient:
            complete["x-guidance"] = {"lenient": True}
        return _refused(llguidance.LLMatcher.grammar_from_json_schema(complete))

    above, part, reason = "", schema, refusal(schema)
    if not reason and of_parts:
        above, part, reason = _first_refused(schema, refusal, ends)
    if not reason:
        return "", ""
    path, part = _deepest(part, lambda part: refusal(part) == reason, ends)
    path = above + path
    while (name := _unsatisfied(reason, part)) is not None:
        below = part["properties"][name]
        if not (why := refusal(below)):
            break
        reason, path = why, f"{path}.properties{_member(name)}"
        step, part = _deepest(below, lambda part, why=why: refusal(part) == why, ends)
        path += step
    keyword, description = _said_of_schema(reason)
    at = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    if keyword == "pattern" and keyword not in at:
        keyword = "patternProperties"
    if at.get("enum") == []:
        keyword, description = "enum", "the list has no value"
    path += _member(keyword) if keyword in at else ""
    return path, description


def _first_refused(
    schema: dict[str, Any], refusal: Callable[[Any], str], ends: float
) -> tuple[str, Any, str]:
    """Returns the path of the first part that is rejected alone, the part, and the reason."""
    waiting: list[tuple[str, Any]] = [("", schema)]
    while waiting and time.monotonic() < ends:
        path, part = waiting.pop()
        if reason := refusal(part):
            return path, part, reason
        if isinstance(part, dict):
            below = [(path + step, value) for step, value in _parts(cast("dict[str, Any]", part))]
            waiting += reversed(below)
    return "", schema, ""


def _unsatisfied(said: str, part: Any) -> str | None:
    """Returns a required member for which a schema allows no value."""
    match = re.fullmatch(r"Unsatisfiable schema: required property '(.*)' is unsatisfiable", said)
    known = cast("dict[str, Any]", part).get("properties") if isinstance(part, dict) else None
    return match[1] if match and isinstance(known, dict) and match[1] in known else None


def _deepest(part: Any, fails: Callable[[Any], bool], ends: float) -> tuple[str, Any]:
    path = ""
    while isinstance(part, dict):
        for step, below in _parts(cast("dict[str, Any]", part)):
            if time.monotonic() > ends:
                return path, cast("Any", part)
            if fails(below):
                path, part = path + step, below
                break
        else:
            return path, cast("Any", part)
    return path, part


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the direct subschemas of a schema with their paths."""
    for name in _MAPS:
        if isinstance(members := schema.get(name), dict):
            for key, value in cast("dict[str, Any]", members).items():
                yield f".{name}{_member(key)}", value
    for name in _LISTS:
        if isinstance(members := schema.get(name), list):
            for index, value in enumerate(cast("list[Any]", members)):
                yield f".{name}[{index}]", value
    for name in _SINGLE:
        if name in schema and not isinstance(schema[name], list):
            yield f".{name}", schema[name]


def _member(name: str) -> str:
    plain = re.fullmatch(r"[\w$-]{1,64}", name)
    return f".{name}" if plain else f"[{json.dumps(short(name, _SHOWN_CHARS))}]"


def _said_of_schema(said: str) -> tuple[str, str]:
    """Returns the keyword at fault, or an empty text, and a description of the fault."""
    if "regex parse error:" in said:
        return "pattern", of_regex(said)
    for pattern, keyword, words in _SCHEMA_WORDS:
        if match := re.fullmatch(pattern, said, re.DOTALL):
            groups = [short(group, _SHOWN_CHARS) for group in match.groups()]
            said = words.format(*groups) if isinstance(words, str) else words(match[1])
            return keyword or groups[0], said
    return "", short(said)


def _wrong_type(name: str) -> str:
    plain = name.lower()
    way = f"use {_TYPES}"
    if plain in _OTHER_TYPES:
        way = f"use 'string' with the 'format' '{_OTHER_TYPES[plain] or plain}'"
    elif plain in _SAME_TYPES:
        way = f"use '{_SAME_TYPES[plain]}'"
    elif plain == "any":
        way = "leave 'type' out"
    return f"'{short(name, _SHOWN_CHARS)}' is not a type of JSON Schema; {way}"


def _unknown_keywords(listed: str) -> str:
    names = [f"'{name}'" for name in re.findall(r'"([^"]+)"', listed)]
    are = "is" if len(names) == 1 else "are"
    return (
        f"{short(', '.join(names))} {are} not supported; leave it out, and check the "
        "answer yourself"
    )


_SCHEMA_WORDS: tuple[tuple[str, str, str | Callable[[str], str]], ...] = (
    (r"Invalid type: (.*)", "type", _wrong_type),
    (r"type must be .*", "type", f"'type' must be {_TYPES}, or a list of such"),
    (
        r"Unknown format: (.*)",
        "format",
        f"the format '{{}}' is unknown; use one of {_FORMATS}, or leave it out",
    ),
    (r"Unimplemented keys: (\[.*)", "-", _unknown_keywords),
    (
        r"oneOf constraints are not supported.*",
        "oneOf",
        "a value may fit several of the schemas in 'oneOf'; use 'anyOf'",
    ),
    (r"Unsatisfiable schema: (.*)", "-", "no value fits the schema: {}"),
    (r"Pointer '(.*)' does not exist", "$ref", "the schema has nothing at '#{}'"),
    (
        r"Resource '(.*?)' is not present.*",
        "$ref",
        "'{}' is not fetched; put it into '$defs', and refer to it there",
    ),
    (r"Expected f64 for '(.*?)', got (.*)", "", "'{}' must be a number, not {}"),
    (
        r"Expected positive integer for '(.*?)', got (.*)",
        "",
        "'{}' must be a whole number of at least 0, not {}",
    ),
    (r"Expected array for '(.*?)', got (.*)", "", "'{}' must be a list, not {}"),
    (r"Expected string for '(.*?)', got (.*)", "", "'{}' must be a text, not {}"),
    (r"invalid multiple of", "multipleOf", "'multipleOf' must be a number above 0"),
    (r"schema must be an object or boolean", "-", "a schema must be an object, true or false"),
)
"""Maps llguidance's message to the keyword at fault (the first group if empty) and to Stoker's
message.
"""


def _refused(grammar: str) -> str:
    """Returns llguidance's error for a grammar. Empty: the grammar is valid."""
    error = llguidance.LLMatcher.validate_grammar(grammar)
    return re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", error or "")
