"""Notations of a call's arguments. Each reader emits the arguments as JSON while they arrive."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from stoker.models.chat.answers.call_formats.calls import (
    MalformedCallError,
    arguments_text,
    encodable,
)
from stoker.models.chat.answers.call_formats.source import CutError, Emit, Source, Steps
from stoker.models.chat.answers.call_formats.values import (
    TEXT_ONLY,
    property_schemas,
    python_value,
    typed,
    types,
)

MOST_NAME = 256
DEEPEST = 48
ANY: frozenset[str] = types({}, {})
SCALAR = re.compile(r"[^,\]}]*")


class Sink(Protocol):
    """Receives the calls that a reader reads."""

    calls: int
    """The number of calls that have begun."""

    def check(self, quoted: str) -> None:
        """Raises `MalformedCallError` if no function's name begins with this text in JSON's
        quotes.
        """
        ...

    def begin(self, name: str) -> None:
        """Begins a call. Raises `MalformedCallError` for a name that cannot be called."""
        ...

    def complete(self) -> None:
        """Ends the arguments."""
        ...

    def write(self, text: str) -> None:
        """Adds to the JSON of the arguments."""
        ...

    def parameters(self, name: str) -> Any:
        """Returns the schema of a function's arguments."""
        ...


class Arguments(Protocol):
    """A notation of arguments."""

    @property
    def opens(self) -> Sequence[str]:
        """Texts with which arguments may begin. Empty: they may begin with any text."""
        ...

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        """Begins the call and writes its arguments.

        Args:
            after: literals that may follow the arguments.

        Raises `MalformedCallError`.
        """
        ...


def begin(sink: Sink, name: str) -> None:
    """Begins a call with a name that was read. Raises `MalformedCallError` if the name is
    invalid.
    """
    if not name or len(name) > MOST_NAME or any(map(str.isspace, name)) or not encodable(name):
        raise MalformedCallError
    sink.begin(name)


@dataclass(frozen=True)
class JsonArguments:
    """A JSON object."""

    opens: Sequence[str] = ("{",)

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        yield from source.skip_space()
        if (yield from source.need()) != "{":
            raise MalformedCallError
        begin(sink, name)

        def emit(text: str) -> None:
            sink.write(text)
            source.commit()

        yield from source.json_text(emit)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """A pair of marks around each argument. Texts between them have no quotes."""

    before: str
    """The literal before a name."""
    between: str
    """The literal between the name and the value. In it, `§type` stands for the value's type, and
    `§string` for a flag that is true for texts.
    """
    after: str
    """The literal after the value."""
    newline: bool = False
    """True if the value stands on separate lines."""
    python: bool = False
    """True if lists and objects are Python literals."""
    cdata: bool = False
    """True if a text may be a CDATA section."""

    @property
    def opens(self) -> Sequence[str]:
        return (self.before,)

    @property
    def is_typed(self) -> bool:
        return "§" in self.between

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        parameters = sink.parameters(name)
        schemas = property_schemas(parameters)
        begin(sink, name)
        sink.write("{")
        count = 0
        while (yield from self._next(source, after)):
            key = (yield from source.until([self.between.split()[0]], MOST_NAME)).strip()
            value_type = yield from self._type(source)
            sink.write(f"{', ' if count else ''}{json.dumps(key, ensure_ascii=False)}: ")
            allowed = types(schemas[key], parameters) if key in schemas else ANY
            if value_type is not None:
                allowed = frozenset({"string"}) if value_type == "string" else ANY - {"string"}
            yield from self._value(source, sink, allowed, after)
            count += 1
        sink.write("}")

    def _next(self, source: Source, after: Sequence[str]) -> Steps[bool]:
        """Goes to the next argument. Returns False if none follows."""
        yield from source.skip_space()
        ends = [*after, self.before]
        yield from source.until(ends)
        following = yield from source.starts(ends)
        if following != self.before:
            return False
        source.at += len(self.before)
        return True

    def _type(self, source: Source) -> Steps[str | None]:
        """Reads the literal between a name and its value. Returns the type that it names."""
        first, mark, rest = self.between.partition("§")
        for place, word in enumerate(first.split()):
            if place:
                yield from source.skip_space()
            if not (yield from source.starts([word])):
                raise MalformedCallError
            source.at += len(word)
        if not mark:
            return None
        kind = "string" if rest.startswith("string") else "type"
        last = rest.removeprefix(kind)
        type_text = yield from source.until([last], MOST_NAME)
        source.at += len(last)
        if kind == "string":
            return "string" if type_text == "true" else "other"
        return type_text

    def _value(
        self, source: Source, sink: Sink, allowed: frozenset[str], after: Sequence[str]
    ) -> Steps[None]:
        """Reads a value including its final mark, and writes it as JSON."""
        if self.newline and (yield from source.starts(["\n"])):
            source.at += 1
        if self.cdata and (yield from self._cdata(source, sink)):
            return
        if allowed == TEXT_ONLY:
            sink.write('"')
            yield from self._text(source, after, lambda text: sink.write(inner(text)))
            sink.write('"')
            return
        parts: list[str] = []
        yield from self._text(source, after, parts.append)
        sink.write(arguments_text(typed("".join(parts), allowed, python=self.python)))

    def _cdata(self, source: Source, sink: Sink) -> Steps[bool]:
        if not (yield from source.starts(["<![CDATA["])):
            return False
        source.at += len("<![CDATA[")
        sink.write(arguments_text((yield from source.until(["]]>"]))))
        source.at += len("]]>")
        yield from source.literal(self.after)
        return True

    def _text(self, source: Source, after: Sequence[str], emit: Emit) -> Steps[None]:
        """Emits the text before the mark that ends the value, and moves past the mark.

        The mark ends it only if another argument, or the end of the call, follows it.
        """
        end = f"\n{self.after}" if self.newline else self.after
        follows = [self.before.split()[0], *after]
        while True:
            place = source.text.find(self.after, source.at)
            if place < 0:
                safe = max(source.at, len(source.text) - len(end))
                emit(source.text[source.at : safe])
                source.at = safe
                source.commit()
                if not (yield from source.more()):
                    emit(source.text[source.at :])
                    source.at = len(source.text)
                    raise CutError
                continue
            line = self.newline and place > source.at and source.text[place - 1] == "\n"
            emit(source.text[source.at : place - 1 if line else place])
            source.at = place + len(self.after)
            begun = source.place
            yield from source.skip_space()
            if (yield from source.starts(follows)) or source.at >= len(source.text):
                source.back(begun)
                return
            source.back(begun)
            emit(f"\n{self.after}" if line else self.after)


def inner(text: str) -> str:
    """A JSON string's text without its quotes."""
    return json.dumps(text, ensure_ascii=not encodable(text))[1:-1]


@dataclass(frozen=True)
class KeywordArguments:
    """Python's keyword arguments with literals as values."""

    opens: Sequence[str] = ()

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        text = yield from _balanced(source)
        try:
            node = ast.parse(f"f({text})", mode="eval").body
            if not isinstance(node, ast.Call) or node.args:
                raise MalformedCallError
            arguments: dict[str, Any] = {}
            for keyword in node.keywords:
                if keyword.arg is None:
                    raise MalformedCallError
                arguments[keyword.arg] = python_value(keyword.value)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise MalformedCallError from error
        written = arguments_text(arguments)
        begin(sink, name)
        sink.write(written)


def _balanced(source: Source) -> Steps[str]:
    """Returns Python's text up to its closing bracket, which stays unread."""
    parts: list[str] = []
    depth = 0
    while True:
        character = yield from source.need()
        if character in "'\"":
            parts.append((yield from _python_string(source, character)))
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                return "".join(parts)
            depth -= 1
        parts.append(character)
        source.at += 1


def _python_string(source: Source, quote: str) -> Steps[str]:
    parts = [quote]
    source.at += 1
    while True:
        character = yield from source.need()
        source.at += 1
        if character == "\\":
            parts.append(character + (yield from source.need()))
            source.at += 1
            continue
        # Chat templates do not escape line ends.
        parts.append({"\n": "\\n", "\r": "\\r"}.get(character, character))
        if character == quote:
            return "".join(parts)


@dataclass(frozen=True)
class NestedArguments:
    """XML elements named like the arguments and their members. Lists have `item` elements."""

    mark: str
    """The text before each tag."""
    item: str = "item"

    @property
    def opens(self) -> Sequence[str]:
        return (f"{self.mark}<",)

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        text = yield from source.until([end for end in after if len(end) > 1])
        parameters = sink.parameters(name)
        pieces = re.split(f"{re.escape(self.mark)}<(/?)([^>]*)>", text)
        value, rest = self._element(pieces, 0, {"type": "object", **_object(parameters)}, None, 0)
        if rest != len(pieces) or not isinstance(value, dict):
            raise MalformedCallError
        written = arguments_text(value)
        begin(sink, name)
        sink.write(written)

    def _element(
        self, pieces: Sequence[str], at: int, schema: Any, tag: str | None, depth: int
    ) -> tuple[Any, int]:
        """Returns an element's value, and the position after its end.

        Args:
            pieces: texts, each followed by a slash or nothing, and by a tag's name.
        """
        if depth > DEEPEST:
            raise MalformedCallError
        text, at, members = pieces[at], at + 1, list[tuple[str, Any]]()
        inner = property_schemas(schema)
        items: Any = _object(schema).get("items", {})
        while at < len(pieces):
            closes, name = pieces[at], pieces[at + 1]
            if closes:
                if name != tag:
                    raise MalformedCallError
                return self._built(text, members, schema), at + 2
            below = items if name == self.item and "items" in _object(schema) else inner.get(name)
            value, at = self._element(pieces, at + 2, below, name, depth + 1)
            members.append((name, value))
            at += 1
        if tag is not None:
            raise MalformedCallError
        return dict(members), at

    def _built(self, text: str, members: Sequence[tuple[str, Any]], schema: Any) -> Any:
        allowed = types(schema, schema)
        if not members:
            blank = not text.strip()
            if blank and "string" not in allowed:
                return [] if "array" in allowed else {} if "object" in allowed else None
            return typed(text, allowed, python=False)
        if all(name == self.item for name, _ in members) and "array" in allowed:
            return [value for _, value in members]
        return dict(members)


def _object(schema: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
