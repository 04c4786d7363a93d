"""Reads answers with the `response_template` that a tokenizer declares (transformers)."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformers.utils import chat_parsing
from transformers.utils.chat_parsing import response_templates

from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Event,
    Text,
    TokenLogprob,
)
from stoker.models.chat.answers.call_formats.calls import (
    MalformedCallError,
    ParsedCall,
    arguments_text,
)

# The library does not annotate the types of its dictionaries.
_ResponseParser: Any = chat_parsing.ResponseParser
_load: Any = response_templates.load_response_template  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

_REASONING_FIELDS = frozenset({"reasoning", "reasoning_content", "thinking"})
_CALLS = "tool_calls"


class Declared:
    """Response template of a tokenizer."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        """Raises `ValueError` if the template is invalid."""
        self._spec = _load(dict(template))

    def reader(self, prefix: str, tools: Sequence[Mapping[str, Any]]) -> "DeclaredReader":
        """Returns a reader of one answer.

        Args:
            prefix: the beginning of the answer in the prompt.
        """
        tool_list = [dict(tool) for tool in tools] or None
        reader = DeclaredReader(_ResponseParser(self._spec, prefix, tools=tool_list))
        reader.reasoning = bool(prefix)
        return reader


class DeclaredReader:
    """Reads one answer: consumes pieces of text, returns events."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._body = ""
        """Text of the current call so far."""
        self._logprobs: list[TokenLogprob] = []
        self._plain = False
        """True if the rest is treated as text."""
        self.calls = 0
        """Number of calls that have begun."""
        self.reasoning = False
        """True while the answer is in its reasoning."""
        self.calling = False
        """True while the answer is in a call."""
        self.is_cut = False
        """True if a call's arguments are incomplete. Always False, because only whole calls are
        reported.
        """

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self._logprobs += logprobs
        if self._plain:
            return [Text(text, logprobs=self._taken_logprobs())]
        try:
            return self._events(self._parser.feed(text))
        except ValueError:
            # Not a valid call. The rest is treated as text.
            self._plain = True
            return [Text(self._body + text, logprobs=self._taken_logprobs())]

    def finish(self) -> list[Event]:
        if self._plain:
            return []
        try:
            _, regions = self._parser.finalize()
        except ValueError:
            # The call ends too early, so its text is returned as text.
            return [Text(self._body)] if self._body else []
        return self._events(regions)

    def _events(self, regions: Sequence[Mapping[str, Any]]) -> list[Event]:
        events: list[Event] = []
        for region in regions:
            if region["field"] == _CALLS:
                events += self._call(region)
                continue
            closes = region["type"] == "region_close"
            self.reasoning = region["field"] in _REASONING_FIELDS and not closes
            is_text = self.reasoning or region["field"] == "content"
            if region["type"] == "region_chunk" and is_text:
                events.append(Text(region["text"], self.reasoning, self._taken_logprobs()))
        return events

    def _taken_logprobs(self) -> Sequence[TokenLogprob]:
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _call(self, region: Mapping[str, Any]) -> list[Event]:
        match region["type"]:
            case "region_open":
                self._body, self.calling = "", True
                return []
            case "region_chunk":
                self._body += region["text"]
                return []
            case _:
                return self._close(region["value"])

    def _close(self, value: Any) -> list[Event]:
        body, self._body, self.calling = self._body, "", False
        try:
            calls = [(call.name, arguments_text(call.arguments)) for call in _calls(value)]
        except MalformedCallError:
            # The client receives everything that the model wrote.
            return [Text(body)]
        events: list[Event] = []
        for name, arguments in calls:
            identifier = f"call_{secrets.token_hex(12)}"
            events.append(CallBegun(self.calls, identifier, name))
            events.append(CallArguments(self.calls, arguments))
            self.calls += 1
        return events


def _calls(value: Any) -> list[ParsedCall]:
    """Returns the calls in a response template's value."""
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls: list[ParsedCall] = []
    for item in values:
        whole = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        body: dict[str, Any] = whole.get("function", whole)
        name: Any = body.get("name")
        arguments: Any = body.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MalformedCallError
        calls.append(ParsedCall(name=name, arguments=cast("dict[str, Any]", arguments)))
    return calls
