"""The text around and between the names and arguments of a model family's calls."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stoker.models.chat.answers.call_formats.arguments import Arguments, JsonArguments, Sink, begin
from stoker.models.chat.answers.call_formats.calls import MalformedCallError, arguments_text
from stoker.models.chat.answers.call_formats.source import Source, Steps

_PLACES = re.compile("(§name|§args|§id|§object)")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*")
_MOST = 256
"""Maximum length of a name or identifier in characters."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """Notation of calls in one family of models.

    Literals may contain white space inside and around them, which is optional in an answer.
    """

    name: str
    layout: str
    """One call. Its places are `§name`, `§args`, `§id` (an identifier) and `§object` (a JSON object
    of name and arguments)."""
    section: tuple[str, str] = ("", "")
    """The texts before and after all calls of an answer."""
    again: bool = False
    """True if an answer may have several such sections."""
    separator: str = "\n"
    """The text between two calls."""
    arguments: Arguments = field(default_factory=JsonArguments)
    keys: tuple[str, str] = ("name", "arguments")
    """The member names of `§object`: the name's and the arguments'."""
    members: tuple[str, str] = ("", "")
    """Literals, with `§id`, that `§object` may have before and after these two members."""
    marks: Sequence[str] = ()
    """Literals that begin calls. Empty: the first line of the section or of the layout."""
    in_header: str = ""
    """If calls are messages: a regular expression of the name in a message's header."""
    at_start: bool = False
    """True if calls begin without a mark, at the start of the answer."""
    several: bool = True
    """True if an answer may hold more than one call."""
    in_template: str = ""
    """Selects the format by a regular expression if the chat template renders no calls.
    Empty: never."""
    enforced: bool = True
    """True if a grammar may enforce this format."""
    why_free: str = ""
    """The reason why a grammar may not enforce it."""

    @cached_property
    def elements(self) -> Sequence[str]:
        """The literals and places of the layout, in order."""
        return [element for element in _PLACES.split(self.layout) if element]

    @cached_property
    def openings(self) -> Sequence[str]:
        """The literals that begin calls."""
        if self.marks or self.at_start or self.in_header:
            return self.marks
        first = self.section[0] or self.elements[0]
        return [first.strip().partition("\n")[0]]

    @cached_property
    def closing(self) -> str | None:
        """The literal that ends the calls after a mark. None if ordinary text may contain it
        too.
        """
        last = self.section[1] or self.elements[-1]
        words = [] if last.startswith("§") else last.split()
        word = words[-1].lstrip("]") if words else ""
        return word if len(word) > 3 else None

    @property
    def literals(self) -> Sequence[str]:
        """All literals of the format. They may contain special tokens."""
        spelt = [str(value) for value in vars(self.arguments).values()]
        return [*self.section, self.layout, self.separator, *self.openings, *spelt]

    def after(self, place: int) -> Sequence[str]:
        """Returns the words that may follow an element of the layout.

        Usually these are first words of literals. Arguments may be followed by any word of the next
        literal, because some models leave out its first words.
        """
        for element in self.elements[place + 1 :]:
            if element == "§args":
                return [*self.arguments.opens, *self.after(self.elements.index(element))]
            if element.startswith("§"):
                return []
            if words := element.split():
                return words if self.elements[place] == "§args" else words[:1]
        ends = [self.separator, self.section[1], self.section[0] or self.elements[0]]
        return [words[0] for element in ends if (words := element.split())]

    def read(self, source: Source, sink: Sink, opening: str) -> Steps[None]:
        """Reads all calls after a mark.

        Args:
            opening: the mark, which was read. Empty: the calls begin without a mark.

        Raises:
            MalformedCallError: the next text is not a call. The sink has all calls before it.
        """
        before, after = self.section
        if before:
            yield from source.literal(behind(before, opening))
            opening = ""
        count = 0
        while True:
            place, begun = source.place, sink.calls
            try:
                yield from self._call(source, sink, opening)
            except MalformedCallError:
                if sink.calls == begun:
                    source.back(place)
                raise
            source.commit()
            opening, count = "", count + 1
            yield from source.skip_space()
            if not (yield from self._goes_on(source)):
                break
        if after:
            yield from source.literal(after)
        yield from source.skip_space()

    def _goes_on(self, source: Source) -> Steps[bool]:
        """Reads a separator between two calls. Returns False if no call follows."""
        separator = self.separator.strip()
        if separator:
            begun = source.place
            if not (yield from source.starts([separator])):
                return False
            source.at += len(separator)
            yield from source.skip_space()
            if self.at_start and not self.section[0] and not (yield from source.starts(["{"])):
                source.back(begun)
                return False
            return True
        if self.section[1]:
            return not (yield from source.starts([self.section[1].split()[0]]))
        if self.section[0]:
            return bool((yield from source.starts([self.elements[0].split()[0]])))
        return False

    def _call(self, source: Source, sink: Sink, opening: str) -> Steps[None]:
        name = ""
        for place, element in enumerate(self.elements):
            match element:
                case "§name":
                    name = yield from self._name(source, self.after(place))
                case "§id":
                    yield from source.until(self.after(place), _MOST)
                case "§args":
                    yield from self.arguments.read(source, sink, name, self.after(place))
                    sink.complete()
                case "§object":
                    yield from self._object(source, sink)
                case _:
                    yield from source.literal(behind(element, opening) if not place else element)

    def _name(self, source: Source, ends: Sequence[str]) -> Steps[str]:
        if ends != ["("]:
            return (yield from source.until(ends, _MOST)).strip()
        # A name before a bracket can be checked immediately.
        begun = source.at
        while True:
            match = _IDENTIFIER.match(source.text, begun)
            source.at = match.end() if match else begun
            if source.at < len(source.text) or not (yield from source.more()):
                return source.text[begun : source.at]

    def _object(self, source: Source, sink: Sink) -> Steps[None]:
        """Reads a JSON object with the name and the arguments as members, in any order."""
        yield from source.literal("{")
        name: str | None = None
        pending: str | None = None
        is_begun = False
        while (yield from source.need()) != "}":
            key = yield from source.json_string()
            yield from source.literal(":")
            if key == self.keys[0]:
                name = yield from source.json_string(sink.check)
            elif key in (self.keys[1], "arguments", "parameters"):
                if name is not None and not is_begun and (yield from source.need()) == "{":
                    is_begun = True
                    yield from self.arguments.read(source, sink, name, [])
                    sink.complete()
                else:
                    pending = yield from source.json_value()
            else:
                if self.at_start and name is None:
                    raise MalformedCallError
                yield from source.json_value()
            yield from source.skip_space()
            if (yield from source.need()) != ",":
                break
            source.at += 1
            yield from source.skip_space()
        yield from source.literal("}")
        if not is_begun:
            if name is None or (pending is None and self.at_start):
                raise MalformedCallError
            written = _whole(pending)
            begin(sink, name)
            sink.write(written)
            sink.complete()


def behind(literal: str, opening: str) -> str:
    """Removes a mark from the start of a literal and returns the rest."""
    for character in "".join(opening.split()):
        literal = literal.lstrip().removeprefix(character)
    return literal


def _whole(text: str | None) -> str:
    """Returns a call's arguments, read before its name or written as a JSON text."""
    value: Any = {}
    try:
        value = json.loads(text) if text is not None else {}
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise MalformedCallError from error
    if not isinstance(value, dict | None):
        raise MalformedCallError
    return arguments_text(value or {})
