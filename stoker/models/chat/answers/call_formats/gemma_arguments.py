"""Reads the arguments of tool calls in Gemma's own notation."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.models.chat.answers.call_formats.arguments import (
    ANY,
    DEEPEST,
    MOST_NAME,
    SCALAR,
    Sink,
    begin,
    inner,
)
from stoker.models.chat.answers.call_formats.calls import (
    MalformedCallError,
    arguments_text,
)
from stoker.models.chat.answers.call_formats.source import CutError, Emit, Source, Steps
from stoker.models.chat.answers.call_formats.values import (
    CONSTANTS,
    typed,
)


@dataclass(frozen=True)
class GemmaArguments:
    """An object with unquoted names, and with texts between quote tokens."""

    quote: str = '<|"|>'
    opens: Sequence[str] = ("{",)

    def read(self, source: Source, sink: Sink, name: str, after: Sequence[str]) -> Steps[None]:
        yield from source.skip_space()
        if (yield from source.need()) != "{":
            raise MalformedCallError
        begin(sink, name)
        yield from self._value(source, sink.write, 0)

    def _value(self, source: Source, emit: Emit, depth: int) -> Steps[None]:
        if depth > DEEPEST:
            raise MalformedCallError
        yield from source.skip_space()
        if (yield from source.starts([self.quote])):
            yield from self._string(source, emit)
            return
        character = yield from source.need()
        if character not in "{[":
            yield from self._scalar(source, emit)
            return
        close = "}" if character == "{" else "]"
        source.at += 1
        emit(character)
        count = 0
        while True:
            yield from source.skip_space()
            character = yield from source.need()
            if character == close:
                source.at += 1
                emit(close)
                return
            if character == ",":
                source.at += 1
                continue
            if count:
                emit(", ")
            count += 1
            if close == "}":
                yield from self._key(source, emit)
            yield from self._value(source, emit, depth + 1)

    def _key(self, source: Source, emit: Emit) -> Steps[None]:
        if (yield from source.starts([self.quote])):
            yield from self._string(source, emit)
            yield from source.skip_space()
            yield from source.until([":"], MOST_NAME)
        else:
            key = (yield from source.until([":"], MOST_NAME)).strip()
            emit(json.dumps(key, ensure_ascii=False))
        source.at += 1
        emit(": ")

    def _string(self, source: Source, emit: Emit) -> Steps[None]:
        source.at += len(self.quote)
        emit('"')
        while (place := source.text.find(self.quote, source.at)) < 0:
            safe = max(source.at, len(source.text) - len(self.quote) + 1)
            emit(inner(source.text[source.at : safe]))
            source.at = safe
            if not (yield from source.more()):
                emit(inner(source.text[source.at :]))
                source.at = len(source.text)
                raise CutError
        emit(inner(source.text[source.at : place]))
        source.at = place + len(self.quote)
        emit('"')

    def _scalar(self, source: Source, emit: Emit) -> Steps[None]:
        begun = source.at
        while True:
            match = SCALAR.match(source.text, begun)
            source.at = match.end() if match else begun
            if source.at < len(source.text) or not (yield from source.more()):
                break
        text = source.text[begun : source.at].strip()
        if source.at == begun and source.at >= len(source.text):
            raise CutError
        emit(
            arguments_text(CONSTANTS[text] if text in CONSTANTS else typed(text, ANY, python=False))
        )
