"""A request and its answers while they are written: tokens come, events in a convention go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.models.chat.answers.answer_events import (
    Event,
    Finished,
    Text,
    TokenLogprob,
    Usage,
    Writer,
)
from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from stoker.models.chat.answers.dialect import AnyReader
from stoker.models.chat.answers.echo import Echo
from stoker.models.llm.interface import Finish, Logprob, Output
from stoker.wire.generation_request import Generation
from stoker.wire.phases import Phases

if TYPE_CHECKING:
    from stoker.models.adapters.applying import Adapter

BytesOf = Callable[[int], bytes | None]
"""A token's; None: they depend on the tokens around it."""


@dataclass(eq=False)
class Choice:
    """One of a request's answers."""

    request: "TextRequest"
    index: int
    sequence: int
    """Its number with the language model."""
    text: Detokenizer
    stops: Stops
    reader: AnyReader | None
    bytes_of: BytesOf
    echo: Echo | None = None
    """The prompt, while it is still to be repeated."""
    ended: bool = False
    stopped: bool = False
    """Whether its text has ended by a stop string, of which the model knows nothing."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add(self, output: Output) -> list[Event]:
        """What a step's output adds to the answer."""
        events: list[Event] = []
        if self.echo:
            self.echo.logprobs += [self._logprob(one) for one in output.prompt]
            if self.echo.complete or output.finish:
                events.append(self.echo.event())
                self.echo = None
        usage = self.request.usage
        usage.completion += len(output.tokens)
        usage.cached += output.cached
        if self.reader and self.reader.reasoning:
            usage.reasoning += len(output.tokens)
        self.logprobs += [self._logprob(one) for one in output.logprobs]
        text = self.text.add(output.tokens)
        if output.finish:
            text += self.text.finish()
        text, self.stopped = self.stops.add(text)
        if output.finish and not self.stopped:
            text += self.stops.finish()
        events += self._read(text)
        if output.end and self.request.generation.api == "completions" and not self.stopped:
            # As OpenAI told of it in these: evaluations count on a row for each token drawn.
            self.logprobs.append(self._logprob(output.end))
        if output.finish or self.stopped:
            events += self._finished("stop" if self.stopped else output.finish or "stop")
        return events

    @property
    def calls(self) -> bool:
        """Whether it is at a call, or has called."""
        return self.reader is not None and (self.reader.calling or self.reader.calls > 0)

    def _read(self, text: str) -> list[Event]:
        if not text:
            return []
        logprobs, self.logprobs = self.logprobs, []
        if self.reader is None:
            return [Text(text, logprobs=logprobs)]
        return self.reader.add(text, logprobs)

    def _finished(self, reason: Finish) -> list[Event]:
        events: list[Event] = []
        if self.reader:
            events += self.reader.finish()
        if self.logprobs:
            events.append(Text("", logprobs=self.logprobs))
        # A call that was interrupted is not to be made, however the answer ended.
        cut = self.reader is not None and self.reader.is_cut
        called = self.reader is not None and self.reader.calls and not cut
        self.ended = True
        self.request.missing -= 1
        return [*events, Finished("tool_calls" if called and reason == "stop" else reason, cut)]

    def _logprob(self, one: Logprob) -> TokenLogprob:
        top = [self._token(token, value) for token, value in one.top]
        return self._token(one.token, one.value, top)

    def _token(self, token: int, value: float, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
        content = self.bytes_of(token)
        if content is None:
            return TokenLogprob(self.text.name(token), None, value, top)
        return TokenLogprob(content.decode("utf-8", "replace"), content, value, top)


@dataclass(eq=False)
class TextRequest:
    """A request for text; the threads of its `LanguageWorker` share it."""

    id: int
    """The gateway's number of it."""
    generation: Generation
    writer: Writer
    key: str = ""
    """As of `Work`."""
    adapter: "Adapter | None" = None
    """What is added to the model for it; known once the prompt is prepared."""
    choices: list[Choice] = field(default_factory=list[Choice])
    missing: int = 0
    """Choices that have not ended."""
    usage: Usage = field(default_factory=Usage)
    streaming: bool = False
    """Whether a part of the stream was sent."""
    has_output: bool = False
    """Whether the model has given something."""
    done: bool = False
    """Whether it was answered or cancelled."""
    phases: Phases = field(default_factory=lambda: Phases("prepare"))

    @property
    def counts(self) -> dict[str, int]:
        """As `Result.counts`."""
        if self.generation.api == "input_tokens":
            # They were counted, not read.
            return {}
        return {"input_tokens": self.usage.prompt, "output_tokens": self.usage.completion}
