"""Separates the text, the reasoning and the tool calls of an answer while it is written."""

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.models.chat.answers.answer_events import (
    CallArguments,
    CallBegun,
    Event,
    Text,
    TokenLogprob,
)
from stoker.models.chat.answers.call_formats.arguments import JsonArguments
from stoker.models.chat.answers.call_formats.calls import MalformedCallError
from stoker.models.chat.answers.call_formats.format import Format
from stoker.models.chat.answers.call_formats.framing import Framing
from stoker.models.chat.answers.call_formats.source import CutError, Source, Steps

_MOST_HEADER = 300
"""Maximum length of a message's header in characters."""
_NO_MARKS: Mapping[str, str] = {}
_SHORT_ID = 9
"""Length of identifiers in characters for chat templates that accept no others, such as
Mistral's.
"""


@dataclass(frozen=True, kw_only=True)
class Tongue:
    """Properties of a model that a reader needs."""

    framing: Framing
    form: Format | None = None
    """Format of calls. None if the model writes none."""
    short_ids: bool = False
    """True if calls are identified by nine letters and digits."""


class Reader:
    """Reads one answer: consumes pieces of text, returns events."""

    def __init__(
        self,
        tongue: Tongue,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        either: bool = False,
        ends: Sequence[str] = (),
        header: bool = False,
        called: str = "",
    ) -> None:
        """
        Args:
            either: if True, the answer consists either only of calls of these tools or only of
                text. In text, nothing counts as a call. Without tools, the answer is text after
                optional reasoning.
            ends: marks that end the reasoning that the prompt has begun. Empty if it has begun
                none.
            header: True if the prompt ends within a message's header.
            called: mark of calls at the end of the prompt. Empty if it ends with none.
        """
        self._framing, self._form, self._short = tongue.framing, tongue.form, tongue.short_ids
        functions = [item["function"] for item in tools]
        self._tools = {str(item["name"]): item.get("parameters") for item in functions}
        self._either = either and (not tools or tongue.form is not None)
        self._source = Source()
        self._events: list[Event] = []
        self._logprobs: list[TokenLogprob] = []
        self._said = False
        """True if the answer has text other than white space."""
        self._has_reasoned = bool(ends)
        self._ends = list(ends)
        self._in_header, self._begun_mark = header, called
        self._marks = self._known_marks()
        self._run = self._answer()
        self._over = False
        self.calls = 0
        """Number of calls that have begun."""
        self.reasoning = bool(ends)
        """True while the answer is in its reasoning."""
        self.calling = False
        """True while the answer is in a call."""
        self.is_cut = False
        """True if the arguments of the last call are incomplete."""

    def add(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self._logprobs += logprobs
        self._source.feed(text)
        return self._go_on()

    def finish(self) -> list[Event]:
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> list[Event]:
        if not self._over:
            self._over = next(self._run, self) is self
        events, self._events = self._events, []
        return events

    # --- the sink of calls ---

    def check(self, quoted: str) -> None:
        if self._either and not any(json.dumps(name).startswith(quoted) for name in self._tools):
            raise MalformedCallError

    def begin(self, name: str) -> None:
        if self._either and name not in self._tools:
            raise MalformedCallError
        self.calls += 1
        self.is_cut = True
        self._events.append(CallBegun(self.calls - 1, _identifier(self._short), name))

    def complete(self) -> None:
        self.is_cut = False

    def write(self, text: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, CallArguments) and last.index == self.calls - 1:
            self._events[-1] = CallArguments(last.index, last.text + text)
        elif text:
            self._events.append(CallArguments(self.calls - 1, text))

    def parameters(self, name: str) -> Any:
        return self._tools.get(name)

    # --- the answer ---

    def _known_marks(self) -> Mapping[str, str]:
        """Returns the kind of part that each mark begins."""
        framing = self._framing
        marks = dict.fromkeys(framing.dropped, "dropped") | dict.fromkeys(framing.begins, "thought")
        if framing.headers:
            marks |= dict.fromkeys(framing.headers.ends, "dropped")
            marks |= dict.fromkeys(framing.headers.opens, "header")
        if self._form:
            marks |= dict.fromkeys(self._form.openings, "calls")
        return marks

    def _answer(self) -> Steps[None]:
        if self._ends:
            yield from self._reasoned(self._ends)
        if self._in_header:
            yield from self._rest_of_header()
        if not (yield from self._beginning()) and self._begun_mark and self._tools:
            yield from self._called(self._begun_mark)
        while True:
            if self._form and self._form.at_start and not self._said:
                yield from self._unmarked()
            mark = yield from self._to_mark(self._marks)
            if mark is None:
                return
            match self._marks[mark]:
                case "thought":
                    yield from self._reasoned([dict(self._framing.reasoning)[mark]])
                case "header":
                    yield from self._header()
                case "calls":
                    yield from self._called(mark)
                case _:
                    pass
            if self._either and self._said:
                yield from self._to_mark(_NO_MARKS)
                return

    def _beginning(self) -> Steps[bool]:
        """Skips marks of text at the beginning of the answer. Returns True if it skipped any."""
        source, begun = self._source, self._source.place
        mark = yield from self._starts(self._framing.at_start)
        if not mark and not self._ends:
            # The answer may end reasoning that was not begun.
            yield from source.skip_space()
            mark = yield from self._starts([after for _, after in self._framing.reasoning])
        if not mark:
            source.back(begun)
            return False
        source.at += len(mark)
        return True

    def _starts(self, literals: Sequence[str]) -> Steps[str | None]:
        return (yield from self._source.starts(literals))

    def _to_mark(self, marks: Mapping[str, str]) -> Steps[str | None]:
        """Emits the text before the next mark, and moves past the mark. Returns None at the end.

        With `either`, the first text ends the search, because everything after it is text.
        """
        source, pattern = self._source, _pattern(marks)
        while True:
            if self._either and self._said and marks:
                marks, pattern = _NO_MARKS, None
            match = pattern.search(source.text, source.at) if pattern else None
            if match and self._either and source.text[source.at : match.start()].strip():
                match = None
                marks, pattern = _NO_MARKS, None
            if match and not _may_grow(match, marks, source):
                self._say(source.text[source.at : match.start()])
                source.at = match.end()
                source.commit()
                return match[0]
            safe_end = source.at + _plain(source.text[source.at :], marks)
            if match:
                safe_end = min(safe_end, match.start())
            self._say(source.text[source.at : safe_end])
            source.at = safe_end
            source.commit()
            if self._either and self._said and marks:
                continue
            if not (yield from source.more()):
                if match:
                    source.at = match.end()
                    return match[0]
                self._say(source.text[source.at :])
                source.at = len(source.text)
                return None

    def _say(self, text: str) -> None:
        if self._either and self._has_reasoned and not self._said and not self.reasoning:
            # The blank lines between the reasoning and a form belong to neither.
            text = text.lstrip()
        if not text:
            return
        self._said = self._said or (not self.reasoning and not text.isspace())
        last = self._events[-1] if self._events else None
        logprobs, self._logprobs = self._logprobs, []
        if isinstance(last, Text) and last.reasoning == self.reasoning:
            text, logprobs = last.text + text, [*last.logprobs, *logprobs]
            self._events.pop()
        self._events.append(Text(text, self.reasoning, logprobs))

    def _reasoned(self, ends: Sequence[str]) -> Steps[None]:
        self.reasoning = self._has_reasoned = True
        either, self._either = self._either, False
        yield from self._to_mark(dict.fromkeys(ends, "end"))
        self.reasoning, self._either = False, either

    def _called(self, mark: str) -> Steps[None]:
        """Reads the calls after a mark. Emits anything else as text."""
        form = self._form
        if form is None:
            return
        place, begun = self._source.place, self.calls
        self.calling = True
        try:
            yield from form.read(self._source, self, mark)
        except MalformedCallError:
            if self.calls == begun:
                self._source.back(place)
                self.calling = False
                if self._either:
                    self._said = True
                    return
            if self.calls > begun and self._ends_within(form):
                self._source.at = len(self._source.text)
            elif form.closing:
                # The client receives everything that the model wrote.
                yield from self._to_mark({form.closing: "closing"})
        self.calling = False

    def _ends_within(self, form: Format) -> bool:
        """Returns True if the answer has ended in the middle of arguments or of their mark.

        The remaining characters are then half an escape or half a mark, and not text.
        """
        rest = self._source.text[self._source.at :].strip()
        return self._source.ended and (self.is_cut or (form.closing or "").startswith(rest))

    def _unmarked(self) -> Steps[None]:
        """Reads calls that begin without a mark, if they come next."""
        form, begun, place = self._form, self.calls, self._source.place
        if form is None:
            return
        try:
            self.calling = True
            yield from form.read(self._source, self, "")
        except MalformedCallError:
            if self.calls == begun:
                self._source.back(place)
                yield from self._first_text()
        self.calling = False

    def _first_text(self) -> Steps[None]:
        """Emits white space, and checks if a mark or text follows it."""
        self.calling = False
        source = self._source
        begun = source.place
        yield from source.skip_space()
        mark = yield from source.starts(list(self._marks))
        source.back(begun)
        if not mark and source.text[source.at :].strip():
            end = source.at + len(source.text[source.at :]) - len(source.text[source.at :].lstrip())
            self._say(source.text[source.at : end + 1])
            source.at = end + 1

    # --- messages with headers ---

    def _rest_of_header(self) -> Steps[None]:
        """Reads the rest of a header that the prompt has begun, if the answer continues it."""
        headers = self._framing.headers
        if headers is None:
            return
        begun = self._source.place
        yield from self._source.skip_space()
        goes_on = yield from self._starts(["to=", *headers.opens, headers.close])
        self._source.back(begun)
        if goes_on:
            yield from self._header()

    def _header(self) -> Steps[None]:
        """Reads a message's header, and the message itself unless it is text."""
        headers, source = self._framing.headers, self._source
        if headers is None:
            return
        place = source.place
        try:
            header = yield from source.until([headers.close], _MOST_HEADER)
        except CutError:
            return
        except MalformedCallError:
            source.back(place)
            return
        source.at += len(headers.close)
        pattern = self._form.in_header if self._form else ""
        if pattern and (match := re.search(pattern, header)):
            yield from self._header_call(match[1])
        elif any(word in header for word in headers.reasons):
            yield from self._reasoned(headers.ends)

    def _header_call(self, name: str) -> Steps[None]:
        place, begun = self._source.place, self.calls
        self.calling = True
        try:
            yield from JsonArguments().read(self._source, self, name, [])
            self.complete()
        except MalformedCallError:
            if self.calls == begun:
                self._source.back(place)
        self.calling = False


def _pattern(marks: Mapping[str, str]) -> re.Pattern[str] | None:
    longest_first = sorted(marks, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if marks else None


def _may_grow(match: re.Match[str], marks: Mapping[str, str], source: Source) -> bool:
    """Returns True if more text could extend a mark at the end of the text to a longer mark."""
    tail = source.text[match.start() :]
    return not source.ended and any(
        len(mark) > len(tail) and mark.startswith(tail) for mark in marks
    )


def _plain(text: str, marks: Mapping[str, str]) -> int:
    """Returns how many characters at the beginning of a text cannot belong to a mark."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return len(text) - size
    return len(text)


def _identifier(short: bool) -> str:
    if short:
        alphabet = string.ascii_letters + string.digits
        return "".join(secrets.choice(alphabet) for _ in range(_SHORT_ID))
    return f"call_{secrets.token_hex(12)}"
