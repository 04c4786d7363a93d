"""Tells the text, the reasoning and the tool calls of an answer apart while it is written."""

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers.utils import chat_parsing
from transformers.utils.chat_parsing import response_templates

from stoker.chat.answers.answer_events import CallArguments, CallBegun, Event, Text, TokenLogprob
from stoker.chat.answers.call_formats import (
    Call,
    Format,
    MalformedCallError,
    Template,
    arguments_text,
    format_of,
    response_template,
)

log = logging.getLogger(__name__)

# The library gives its dictionaries no types.
ResponseParser: Any = chat_parsing.ResponseParser
load_response_template: Any = response_templates.load_response_template  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

_REASONING_FIELDS = frozenset({"reasoning", "reasoning_content", "thinking"})
_CALLS = "tool_calls"
_MARK, _END_MARK = "<think>", "</think>"


class Dialect:
    """How a model writes answers, read once from its tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        chat_template: Any = getattr(tokenizer, "chat_template", None) or ""
        if isinstance(chat_template, dict):
            named = cast("Mapping[str, str]", chat_template)
            chat_template = named.get("tool_use") or next(iter(named.values()), "")
        self.format: Format | None = format_of(chat_template)
        own: Any = getattr(tokenizer, "response_template", None)
        self._end_of_reasoning: int | None = tokenizer.backend_tokenizer.token_to_id(_END_MARK)
        self._reasons = _END_MARK in chat_template or self._end_of_reasoning is not None
        template: Template = own or response_template(None)
        self._own = own is not None and self.format is None
        if self.format:
            template = self.format.template
        self._with_calls = load_response_template(dict(template))
        self._without_calls = load_response_template(dict(response_template(None)))

    def end_of_reasoning(self, prompt: str) -> int | None:
        """The token that ends the reasoning which a prompt has begun, if it has."""
        return self._end_of_reasoning if _begins_reasoning(prompt) else None

    @property
    def calls(self) -> bool:
        """Whether the model is known to write tool calls."""
        return self.format is not None or self._own

    def reader(
        self, prompt: str, *, tools: Sequence[Mapping[str, Any]], either: bool = False
    ) -> "Reader | None":
        """What reads one answer; None: it is all text.

        Args:
            prompt: its end may have begun the reasoning already.
            tools: functions that may be called, as the client gave them.
            either: the answer is nothing but calls, or it is all text.
        """
        if not tools and not self._reasons:
            return None
        spec = self._with_calls if tools else self._without_calls
        # The template may have begun the reasoning.
        prefix = _MARK if _begins_reasoning(prompt) else ""
        parser = ResponseParser(spec, prefix, tools=[dict(one) for one in tools] or None)
        names = [str(one["function"]["name"]) for one in tools] if either and self.format else []
        reader = Reader(parser, self.format if tools else None, names)
        reader.reasoning = bool(prefix)
        return reader


def _begins_reasoning(prompt: str) -> bool:
    return prompt.rstrip().endswith(_MARK)


class Reader:
    """Reads one answer. Pieces go in, events come out."""

    def __init__(self, parser: Any, form: Format | None, either: Sequence[str] = ()) -> None:
        """
        Args:
            either: names of functions. The answer is nothing but calls of these, or it is all text,
                in which what looks like a call is none. Empty: there may be both.
        """
        self._parser = parser
        self._format = form
        self._either = either
        self._undecided = bool(either)
        self._body = ""
        """Of the call that is being written, as far as it has come."""
        self._streamed: _Arguments | None = None
        self._logprobs: list[TokenLogprob] = []
        self._plain = False
        """Whether the rest is taken as text."""
        self.calls = 0
        """How many have begun."""
        self.reasoning = False
        """Whether the answer is at its reasoning."""
        self.calling = False
        """Whether it is at a call."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer has come to the middle of a call's arguments."""
        return (
            self._streamed is not None
            and self._streamed.name is not None
            and not (self._streamed.is_done)
        )

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self._logprobs += logprobs
        if self._plain:
            return [Text(text, logprobs=self._taken_logprobs())]
        try:
            if self._undecided:
                return self._decided(text)
            return self._events(self._parser.feed(text))
        except ValueError:
            # A call in a format of the tokenizer's own that is none; what follows is text.
            self._plain = True
            return [Text(self._body + text, logprobs=self._taken_logprobs())]

    def _decided(self, text: str) -> list[Event]:
        """Reads to where it shows what the answer is: in text, nothing is a mark of calls."""
        events: list[Event] = []
        for place, character in enumerate(text):
            found = self._events(self._parser.feed(character))
            events += found
            if self._plain:
                # It only began like a call; some of it may wait to become a mark.
                _, held = self._parser.finalize()
                events += [Text(one["text"]) for one in held if one["type"] == "region_chunk"]
            elif any(_is_said(one) for one in found):
                _, held = self._parser.finalize()
                events += self._events(held)
                self._plain = True
            # A call that is only begun may still turn out to be text, with all that follows.
            begun = self._streamed is not None and self._streamed.name is None
            if self._plain or (self.calling and not begun):
                self._undecided = False
                rest = text[place + 1 :]
                return _joined(events + (self.add(rest) if rest else []))
        return _joined(events)

    def finish(self) -> list[Event]:
        if self._plain:
            return []
        try:
            _, found = self._parser.finalize()
        except ValueError:
            # A call in the model's own format that ends too early: what came of it is text.
            return [Text(self._body)] if self._body else []
        return self._events(found)

    def _events(self, found: Sequence[Mapping[str, Any]]) -> list[Event]:
        events: list[Event] = []
        for one in found:
            if one["field"] == _CALLS:
                events += self._call(one)
                continue
            self.reasoning = one["field"] in _REASONING_FIELDS and one["type"] != "region_close"
            if one["type"] == "region_chunk" and (self.reasoning or one["field"] == "content"):
                events.append(Text(one["text"], self.reasoning, self._taken_logprobs()))
        return events

    def _taken_logprobs(self) -> Sequence[TokenLogprob]:
        taken, self._logprobs = self._logprobs, []
        return taken

    def _call(self, one: Mapping[str, Any]) -> list[Event]:
        match one["type"]:
            case "region_open":
                self._body = ""
                self.calling = True
                key = self._format.arguments_key if self._format else None
                self._streamed = _Arguments(key, self._either) if key else None
                return []
            case "region_chunk":
                self._body += one["text"]
                return self._stream(one["text"])
            case _:
                return self._close(one["value"])

    def _stream(self, text: str) -> list[Event]:
        if self._streamed is None:
            return []
        begins = self._streamed.name is None
        piece = self._streamed.add(text)
        if self._streamed.failed and self._undecided:
            # It only began like a call. Behind one, it is told as text once it has ended.
            self._plain, self.calling, self._streamed = True, False, None
            return [Text(self._body, logprobs=self._taken_logprobs())]
        events: list[Event] = []
        if begins and self._streamed.name is not None:
            events.append(self._begun(self._streamed.name))
        if piece:
            events.append(CallArguments(self.calls - 1, piece))
        return events

    def _close(self, value: Any) -> list[Event]:
        body, self._body = self._body, ""
        self.calling = False
        if self._streamed and self._streamed.name is not None:
            return []
        try:
            found = self._format.read(body) if self._format else _own_calls(value)
            calls = [(call.name, arguments_text(call.arguments)) for call in found]
            if self._either and any(name not in self._either for name, _ in calls):
                raise MalformedCallError
        except MalformedCallError:
            # Nothing that was written is kept from the client.
            return [Text(body)]
        events: list[Event] = []
        for name, arguments in calls:
            events.append(self._begun(name))
            events.append(CallArguments(self.calls - 1, arguments))
        return events

    def _begun(self, name: str) -> Event:
        self.calls += 1
        return CallBegun(self.calls - 1, f"call_{secrets.token_hex(12)}", name)


def _is_said(event: Event) -> bool:
    return isinstance(event, Text) and not event.reasoning and bool(event.text.strip())


def _joined(events: Sequence[Event]) -> list[Event]:
    """Pieces of text that follow one another as one."""
    found: list[Event] = []
    for one in events:
        last = found[-1] if found else None
        if isinstance(one, Text) and isinstance(last, Text) and one.reasoning == last.reasoning:
            logprobs = [*last.logprobs, *one.logprobs]
            found[-1] = Text(last.text + one.text, one.reasoning, logprobs)
        else:
            found.append(one)
    return found


def _own_calls(value: Any) -> list[Call]:
    """Calls as a tokenizer's own response template gives them."""
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls: list[Call] = []
    for one in values:
        whole = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        body: dict[str, Any] = whole.get("function", whole)
        name: Any = body.get("name")
        arguments: Any = body.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MalformedCallError
        calls.append(Call(name=name, arguments=cast("dict[str, Any]", arguments)))
    return calls


_HEAD = r'\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"{key}"\s*:\s*(?=\{{)'
_NEVER = re.compile(r"(?!)")


class _Arguments:
    """Finds the arguments in `{"name": …, "arguments": {…}}` while it is written."""

    def __init__(self, key: str, names: Sequence[str] = ()) -> None:
        """
        Args:
            names: those that there are; empty: any.
        """
        self._head = re.compile(_HEAD.format(key=key))
        # As the form has it, to the last blank: see `Grammars.calls_or`.
        self._heads = [f'{{"name": {json.dumps(name)}, "{key}": ' for name in names]
        self._text = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self.is_done = False
        """Whether the arguments are complete."""
        self.name: str | None = None
        """Once it and the beginning of the arguments are there."""
        self.failed = False
        """Whether no call can become of it."""

    def add(self, text: str) -> str:
        """The next piece of the arguments."""
        if self.name is None:
            self._text += text
            found = self._head.match(self._text)
            if self._heads:
                size = len(self._text)
                self.failed = all(one[:size] != self._text[: len(one)] for one in self._heads)
            if not found or self.failed:
                return ""
            try:
                name = str(json.loads(found[1]))
                # Half of a surrogate pair is no name, either.
                name.encode()
            except ValueError:
                # No call: it is told as text once it has ended.
                self._head = _NEVER
                return ""
            self.name = name
            text = self._text[found.end() :]
        return "" if self.is_done else text[: self._taken(text)]

    def _taken(self, text: str) -> int:
        """How much of the text belongs to the arguments: they end with their outermost brace."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return place + 1
        return len(text)
