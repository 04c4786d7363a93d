"""The grammar of calls in a model's own format, in llguidance's Lark.

Texts in rules stand between `«` and `»`; special tokens in them are named by their numbers later.
A text without quotes ends at its mark, so a text and what may follow its mark are one lexeme.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stoker.chat.answers.call_formats.arguments import (
    GemmaArguments,
    JsonArguments,
    KeywordArguments,
    NestedArguments,
    Parameters,
)
from stoker.chat.answers.call_formats.calls import UnwritableCallError
from stoker.chat.answers.call_formats.format import Format, behind
from stoker.chat.answers.call_formats.values import property_schemas, types

Rule = Callable[[Any, bool], str]
"""Returns the Lark expression of a JSON schema, which may be strict."""

SHARED = r"""
TEXT: /(.|\n)+/
SPACE: /[ \n]{1,12}/
LINE: "\n"
KEY: /[^<>"=\s]{1,64}/
IDENTIFIER: /[A-Za-z0-9_.:\-]{1,64}/
QUOTED: /'([^'\\]|\\.)*'/
NUMBER: /-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?/
WORD: "true" | "false" | "null" | "True" | "False" | "None"
pylist: "[" (py ("," SPACE? py)*)? "]"
pydict: "{" (py ":" SPACE? py ("," SPACE? py ":" SPACE? py)*)? "}"
py: QUOTED | pystring | NUMBER | WORD | pylist | pydict
pystring: %json {"type": "string", "x-guidance": {"json_allow_general_unicode_escapes": true}}
"""
_TEXT_ONLY = frozenset({"string"})
_TEXTS = ("pattern", "format")
"""Keywords of texts that only a text between quotes can be held to."""
_MOST_LENGTH = 1000


@dataclass
class Lark:
    """Rules that are collected for one format's calls."""

    form: Format
    json: Rule
    special: Callable[[str], bool]
    """Whether a text begins with a special token."""
    lines: list[str] = field(default_factory=list[str])
    known: dict[str, str] = field(default_factory=dict[str, str])
    strict: bool = False
    """Whether the present function's schema is strict."""

    def rule(self, schema: Any) -> str:
        """Returns the rule of a JSON value that fits a schema: the same one for the same schema."""
        return self.named(self.json(schema, self.strict), "j")

    def named(self, expression: str, prefix: str = "r") -> str:
        """Returns the name of a rule with this expression."""
        if expression not in self.known:
            self.known[expression] = name = f"{prefix}{len(self.known)}"
            self.lines.append(f"{name}: {expression}")
        return self.known[expression]

    def lazy(self, expression: str) -> str:
        """Returns the name of a lexeme that ends as soon as it can."""
        key = f"[lazy] {expression}"
        if key not in self.known:
            self.known[key] = name = f"lazy{len(self.known)}"
            self.lines.append(f"{name}[lazy]: {expression}")
        return self.known[key]

    def call(self, name: str, schema: Mapping[str, Any], *, strict: bool, opened: str) -> str:
        """Returns the expression of one call. Raises `UnwritableCallError`.

        Args:
            opened: the mark that begins calls, if it was written.
        """
        self.strict = strict
        elements = list(self.form.elements)
        if opened and not elements[0].startswith("§"):
            elements[0] = behind(elements[0], opened)
        parts: list[str] = []
        for place, element in enumerate(elements):
            match element:
                case "§name":
                    parts.append(_quoted(name))
                case "§id":
                    parts.append("IDENTIFIER")
                case "§object":
                    parts.append(self._object(name, schema))
                case "§args":
                    after = elements[place + 1 :]
                    parts.append(self._arguments(schema, after, strict=strict))
                    if isinstance(self.form.arguments, Parameters | NestedArguments):
                        # They end behind the first word of what follows them.
                        parts.append(spelt(_first_word(after)[1]))
                        break
                case _:
                    parts.append(spelt(element))
        return " ".join(part for part in parts if part) or '""'

    def _nested(self, arguments: NestedArguments, word: str) -> str:
        """Returns elements of any kind, to the word behind them."""
        if not self.special(arguments.mark):
            return self.lazy(f"TEXT? {_literal(word)}")
        end = word.removeprefix(arguments.mark)
        closing = re.escape(end).replace("/", r"\/")
        inner = self.named(rf"/(.|\n)+/ & ~/{closing}(.|\n)*/", "INNER")
        return f"({_quoted(arguments.mark)} {inner})* {_quoted(word)}"

    def split(self, mark: str) -> tuple[str, str]:
        """Returns what a mark has before its first special token, and the rest."""
        place = next((at for at in range(len(mark)) if self.special(mark[at:])), len(mark))
        return mark[:place], mark[place:]

    def other(self, names: Sequence[str]) -> str:
        """Returns the regular expression of texts that do not begin as calls do."""
        if self._is_object:
            key = json.dumps(self.form.keys[0])
            return _not_beginning([f"{{{key}", f"{{ {key}"])
        return _not_beginning([f"[{name}(" for name in names])

    @property
    def _is_object(self) -> bool:
        return self.form.layout == "§object"

    def headed(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Returns the first call of an answer, whose name ends the lexeme that it begins with."""
        self.strict = strict
        if self._is_object:
            key, arguments = self.form.keys
            quoted = re.escape(json.dumps(name))
            head = self.lazy(rf'/[ \n]*\{{ ?"{key}" ?: ?{quoted}/')
            return f"{head} {spelt(f', {_literal(arguments)}: ')} {self.rule(schema)} SPACE? «}}»"
        head = self.lazy(rf"/[ \n]*\[{re.escape(name)}\(/")
        return f"{head} {self._arguments(schema, [], strict=strict)} «)»"

    def whole(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Returns a call as one JSON value: only of such is it known whether it is a call."""
        self.strict = strict
        key, arguments = self.form.keys
        value = {
            "type": "object",
            "properties": {key: {"const": name}, arguments: moved(schema, arguments)},
            "required": [key, arguments],
            "additionalProperties": False,
        }
        return self.rule(value)

    def _object(self, name: str, schema: Mapping[str, Any]) -> str:
        key, arguments = self.form.keys
        before, after = self.form.members
        head = f'"{key}": {json.dumps(name)}, "{arguments}": '
        optional = [f"({spelt(one)})?" if one else "" for one in (before, after)]
        parts = [_quoted("{"), "SPACE?", optional[0], spelt(head)]
        parts += [self.rule(schema), optional[1], "SPACE?", _quoted("}")]
        return " ".join(part for part in parts if part)

    def _arguments(self, schema: Mapping[str, Any], after: Sequence[str], *, strict: bool) -> str:
        arguments = self.form.arguments
        match arguments:
            case JsonArguments():
                return self.rule(schema)
            case Parameters():
                return _Elements(self, arguments, schema, after, strict=strict).expression()
            case KeywordArguments():
                return _keywords(self, schema, strict=strict)
            case GemmaArguments():
                return _gemma(self, arguments, schema, strict=strict)
            case NestedArguments():
                if strict:
                    raise UnwritableCallError("this model's notation of arguments has no types")
                return self._nested(arguments, _first_word(after)[0])
            case _:
                raise UnwritableCallError("this model's notation of arguments is not enforced")


def spelt(literal: str) -> str:
    """Returns a literal's expression: its white space is optional. `§id` is an identifier."""
    parts: list[str] = []
    for piece in re.split(r"(\s+|§id)", literal):
        if piece == "§id":
            parts.append("IDENTIFIER")
        elif piece.isspace():
            parts.append("SPACE?")
        elif piece:
            parts.append(_quoted(piece))
    return " ".join(parts)


_NO_SCHEMAS = frozenset({"const", "enum", "default", "examples"})


def moved(schema: Any, name: str) -> Any:
    """Returns a schema whose references to itself hold where it is a property of another."""
    if isinstance(schema, list):
        return [moved(one, name) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = f"#/properties/{name}{value[1:]}"
        else:
            found[key] = value if key in _NO_SCHEMAS else moved(value, name)
    return found


def _not_beginning(literals: Sequence[str]) -> str:
    """Returns the regular expression of texts without some beginnings, white space aside.

    A complement would do, but llguidance finds out too late that nothing can match any more.
    """
    root = _branches(literals).removesuffix("?").replace("[^", r"[^ \n", 1)
    return rf"[ \n]+|[ \n]*{root}".replace("/", r"\/")


def _branches(literals: Sequence[str]) -> str:
    first = sorted({literal[0] for literal in literals if literal})
    options = [rf"[^{''.join(map(_escaped, first))}](.|\n)*"]
    for one in first:
        rest = [literal[1:] for literal in literals if literal.startswith(one)]
        if all(rest):
            options.append(f"{_escaped(one)}{_branches(rest)}")
    return f"({'|'.join(options)})?"


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")


def _quoted(text: str) -> str:
    return f"«{text}»"


def _first_word(after: Sequence[str]) -> tuple[str, str]:
    """Returns the first word of what follows, and the rest of it."""
    text = "".join(after).lstrip()
    word = text.split()[0] if text else ""
    # The layout's last literal is all there is behind the arguments.
    return word, text.removeprefix(word)


def fields(
    schema: Mapping[str, Any], *, strict: bool
) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """Returns the properties of arguments, those that are required, and whether others may be.

    Raises `UnwritableCallError` for a strict schema that is more than a list of properties.
    """
    combined = [key for key in ("anyOf", "oneOf", "allOf", "$ref") if key in schema]
    if strict and combined:
        raise UnwritableCallError(f"this model's notation has no '{combined[0]}' of all arguments")
    properties: dict[str, Any] = dict(property_schemas(schema))
    given: Any = schema.get("required")
    required = [str(one) for one in cast("list[Any]", given)] if isinstance(given, list) else []
    for name in required:
        properties.setdefault(name, {})
    open_ended = schema.get("additionalProperties", True) is not False
    return properties, frozenset(required), open_ended and not strict


class _Elements:
    """Arguments between marks, in the schema's order, to the first word behind them."""

    def __init__(
        self,
        lark: Lark,
        way: Parameters,
        schema: Mapping[str, Any],
        after: Sequence[str],
        *,
        strict: bool,
    ) -> None:
        self.lark, self.way, self.schema, self.strict = lark, way, schema, strict
        self.end, _ = _first_word(after)
        self.fields, self.required, self.others = fields(schema, strict=strict)
        self.names = list(self.fields)
        self._rules: dict[int, str | None] = {}

    def expression(self) -> str:
        return f"SPACE? ({' | '.join(self._follows(0))})"

    def _follows(self, place: int) -> Sequence[str]:
        """Returns what may stand behind an argument: a further argument, or the end."""
        found = [f"{spelt(self.way.before)} {further}"] if (further := self._from(place)) else []
        return [*found, *([_quoted(self.end)] if self._may_end(place) else [])]

    def _behind(self, place: int) -> str:
        """Returns the rule of what may stand behind an argument."""
        return self.lark.named(" | ".join(self._follows(place)), "b")

    def _may_end(self, place: int) -> bool:
        return not self.required.intersection(self.names[place:])

    def _from(self, place: int) -> str | None:
        """Returns the rule of the arguments from a place on, behind the mark of the first."""
        if place not in self._rules:
            options: list[str] = []
            if place < len(self.names):
                name = self.names[place]
                options.append(f"{_quoted(name)} {self._value(name, place + 1)}")
                if name not in self.required and (further := self._from(place + 1)):
                    options.append(further)
            elif self.others:
                # Others may follow one another for ever.
                self._rules[place] = name = f"others{len(self.lark.lines)}"
                self.lark.lines.append(f"{name}: KEY {self._any(place)}")
                return name
            self._rules[place] = self.lark.named(" | ".join(options), "p") if options else None
        return self._rules[place]

    def _value(self, name: str, place: int) -> str:
        schema = self.fields[name]
        kinds = types(schema, self.schema)
        choices = _choices(schema)
        if choices is not None:
            line = "LINE? " if self.way.newline else ""
            after = self._behind(place)
            closed = f"{line}({_either(choices)}) {line}{spelt(self.way.after)} SPACE? ({after})"
            return f"{self._between('string')} {closed}"
        if kinds == _TEXT_ONLY:
            return f"{self._between('string')} {self._text(schema, place)}"
        if "string" in kinds:
            # A text, or anything that is written like one.
            if not self.way.is_typed:
                return f"{self._between('string')} {self._text({}, place)}"
            values = self._closed(self.lark.rule(self._shared(schema)), place)
            text = f"{self._between('string')} {self._text({}, place)}"
            return f"({text} | {self._between('other')} {values})"
        if self.way.python and not self.strict and kinds & {"array", "object"}:
            return f"{self._between('other')} {self._text({}, place)}"
        value = self.lark.rule(self._shared(schema))
        if not self.way.is_typed and kinds & {"boolean", "null"}:
            value = f"({value} | {' | '.join(_spellings(kinds))})"
        return f"{self._between('other')} {self._closed(value, place)}"

    def _shared(self, schema: Any) -> Any:
        return _with(schema, self.schema)

    def _any(self, place: int) -> str:
        if not self.way.is_typed:
            return f"{self._between('string')} {self._text({}, place)}"
        text = f"{self._between('string')} {self._text({}, place)}"
        other = f"{self._between('other')} {self._closed(self.lark.rule(True), place)}"
        return f"({text} | {other})"

    def _between(self, kind: str) -> str:
        first, mark, rest = self.way.between.partition("§")
        if not mark:
            return self.lark.named(spelt(first), "k")
        if rest.startswith("string"):
            told = _quoted("true" if kind == "string" else "false")
            between = f"{spelt(first)} {told} {spelt(rest.removeprefix('string'))}"
            return self.lark.named(between, "k")
        kinds = ["string"] if kind == "string" else _TYPES
        told = "|".join(_quoted(one) for one in kinds)
        return self.lark.named(f"{spelt(first)} ({told}) {spelt(rest.removeprefix('type'))}", "k")

    def _closed(self, value: str, place: int) -> str:
        after = self._behind(place)
        return f"SPACE? ({value}) SPACE? {spelt(self.way.after)} SPACE? ({after})"

    def _text(self, schema: Any, place: int) -> str:
        """Returns a text, its mark, and what may follow."""
        body = self._body(schema)
        mark, before = self.way.after, self.way.before
        if self.lark.special(mark):
            after = self._behind(place)
            return f"{body if body != 'TEXT?' else 'free'} {spelt(mark)} SPACE? ({after})"
        further = self._from(place)
        options: list[str] = []
        if further and not self.lark.special(before):
            options.append(f"{self._lexeme(body, before)} {further}")
        if self._may_end(place) and not self.lark.special(self.end):
            options.append(self._lexeme(body, self.end))
        if not options:
            after = self._behind(place)
            options.append(f"{self.lark.lazy(f'{body} {_literal(mark)}')} SPACE? ({after})")
        # Other special tokens may stand in a text that has no limit.
        return f"{'free ' if body == 'TEXT?' else ''}({' | '.join(options)})"

    def _lexeme(self, body: str, word: str) -> str:
        return self.lark.lazy(f"{body} {_literal(self.way.after)} SPACE? {_literal(word)}")

    def _body(self, schema: Any) -> str:
        """Returns a text's expression. Raises `UnwritableCallError` for an unwritable limit."""
        own = _object(schema)
        if self.strict and (wanted := [key for key in _TEXTS if key in own]):
            raise UnwritableCallError(
                f"this model writes texts without quotes, which cannot be held to a '{wanted[0]}'"
            )
        least, most = own.get("minLength", 0), own.get("maxLength")
        if not isinstance(most, int) or not isinstance(least, int) or most > _MOST_LENGTH:
            return "TEXT?"
        line = r"\n?" if self.way.newline else ""
        return f"/{line}(.|\\n){{{least},{most}}}{line}/"


_TYPES = ["number", "integer", "boolean", "object", "array", "null"]


def _literal(text: str) -> str:
    return json.dumps(text)


def _spellings(kinds: frozenset[str]) -> list[str]:
    words = ["True", "False"] if "boolean" in kinds else []
    return [_literal(one) for one in [*words, *(["None"] if "null" in kinds else [])]]


def _object(schema: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def _choices(schema: Any) -> Sequence[Any] | None:
    """Returns the texts that a schema names, if it allows no other values."""
    own = _object(schema)
    found: Any = own.get("enum", [own["const"]] if "const" in own else None)
    if not isinstance(found, list) or not all(
        isinstance(one, str) for one in cast("list[Any]", found)
    ):
        return None
    return cast("list[Any]", found)


def _either(choices: Sequence[Any]) -> str:
    return " | ".join(_literal(one) if one else '""' for one in choices)


def _with(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a property's schema with the definitions that it may refer to."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**cast("dict[str, Any]", schema), **shared} if isinstance(schema, dict) else schema


def _sequence(
    lark: Lark, members: Sequence[tuple[str, bool]], others: str | None, separator: str
) -> str:
    """Returns members in order, separated, of which some may be left out.

    Args:
        members: each one's expression, and whether it is required.
        others: of further members; None: there are none.
    """

    def rest(place: int, *, is_first: bool) -> str | None:
        """The members from a place on; None: there are none left."""
        gap = "" if is_first else f"{separator} "
        if place == len(members):
            if others is None:
                return None
            return lark.named(f"({gap}{others} ({separator} {others})*)?", "m")
        body, required = members[place]
        after = [rest(place + 1, is_first=False), rest(place + 1, is_first=is_first)]
        here = f"{gap}{body} {after[0] or ''}"
        if required:
            return lark.named(here, "m")
        return lark.named(f"({here}) | ({after[1] or _EMPTY})", "m")

    return rest(0, is_first=True) or ""


_EMPTY = '""'


def _keywords(lark: Lark, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Returns Python's keyword arguments, in the schema's order."""
    properties, required, others = fields(schema, strict=strict)
    if unwritable := [name for name in required if not name.isidentifier()]:
        raise UnwritableCallError(f"this model cannot write the name '{unwritable[0]}'")
    members: list[tuple[str, bool]] = []
    for name, given in properties.items():
        if not name.isidentifier():
            continue
        kinds = types(given, schema)
        value = lark.rule(_with(given, schema))
        if kinds & {"boolean", "null"}:
            value = f"({value} | {' | '.join(_spellings(kinds))})"
        if not strict and _choices(given) is None:
            value = f"({value} | QUOTED)" if kinds == _TEXT_ONLY else value
            value = "py" if kinds & {"array", "object"} else value
        members.append((f"{_quoted(name + '=')} {value}", name in required))
    return _sequence(
        lark, members, "/[A-Za-z_][A-Za-z0-9_]*/ «=» py" if others else None, "«,» SPACE?"
    )


def _gemma(lark: Lark, way: GemmaArguments, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Returns an object without quotes around its names, in the schema's order."""
    properties, required, others = fields(schema, strict=strict)
    text = f"{_quoted(way.quote)} free {_quoted(way.quote)}"
    if not lark.special(way.quote):
        text = f"{_quoted(way.quote)} free {lark.lazy(f'TEXT? {_literal(way.quote)}')}"
    string = lark.named(text, "gtext")
    anything = "gany"
    if anything not in lark.known:
        lark.known[anything] = anything
        lark.lines += [
            f"gany: {string} | NUMBER | WORD | glist | gdict",
            "glist: «[» (gany («,» SPACE? gany)*)? «]»",
            "gdict: «{» (gkey «:» gany («,» SPACE? gkey «:» gany)*)? «}»",
            f'gkey: /[^<>"{{}}\\[\\],:\\s]{{1,64}}/ | {string}',
        ]
    members: list[tuple[str, bool]] = []
    # Its chat template sorts the names, and so does the model.
    for name, given in sorted(properties.items()):
        kinds = types(given, schema)
        choices = _choices(given)
        if choices is not None:
            value = f"{_quoted(way.quote)} ({_either(choices)}) {_quoted(way.quote)}"
        elif kinds == _TEXT_ONLY:
            own = _object(given)
            if strict and (wanted := [key for key in _TEXTS if key in own]):
                raise UnwritableCallError(
                    f"this model writes texts without quotes, which cannot be held to a "
                    f"'{wanted[0]}'"
                )
            value = string
        elif kinds & {"string", "array", "object"}:
            if strict:
                raise UnwritableCallError(
                    "this model's notation of lists and objects cannot be held to a schema"
                )
            value = anything
        else:
            value = (
                f"({lark.rule(_with(given, schema))} | {' | '.join(_spellings(kinds) or [_EMPTY])})"
            )
            value = value if _spellings(kinds) else lark.rule(_with(given, schema))
        members.append((f"{_quoted(name + ':')} {value}", name in required))
    inner = _sequence(lark, members, "gkey «:» gany" if others else None, "«,» SPACE?")
    return f"«{{» {inner} «}}»"
