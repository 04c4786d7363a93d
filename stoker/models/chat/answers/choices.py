"""State of a request and its answers while they are written: consumes tokens, emits events of a
convention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.base.fairness import Tier
from stoker.models.chat.answers.answer_events import (
    AnswerWriter,
    Event,
    Finished,
    Text,
    TokenLogprob,
    Usage,
)
from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from stoker.models.chat.answers.dialect import AnyReader
from stoker.models.chat.answers.echo import Echo
from stoker.models.llm.interface import Finish, Logprob, Output
from stoker.wire.generation_request import Generation
from stoker.wire.phases import Phases

if TYPE_CHECKING:
    from stoker.models.adapters.applying import LoadedAdapter

BytesOf = Callable[[int], bytes | None]
"""Returns the bytes of a token. None if they depend on the surrounding tokens."""


@dataclass(eq=False)
class Choice:
    """Answer of a request."""

    request: "TextRequest"
    index: int
    sequence: int
    """Its number in the language model."""
    text: Detokenizer
    stops: Stops
    reader: AnyReader | None
    bytes_of: BytesOf
    echo: Echo | None = None
    """Prompt, until it has been repeated."""
    ended: bool = False
    stopped: bool = False
    """True if a stop string ended its text. The model does not know stop strings."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add(self, output: Output) -> list[Event]:
        """Adds a step's output to the answer and returns the resulting events."""
        events: list[Event] = []
        if self.echo:
            self.echo.logprobs += [self._logprob(token_logprob) for token_logprob in output.prompt]
            if self.echo.complete or output.finish:
                events.append(self.echo.event())
                self.echo = None
        usage = self.request.usage
        usage.completion += len(output.tokens)
        usage.cached += output.cached
        if self.reader and self.reader.reasoning:
            usage.reasoning += len(output.tokens)
        self.logprobs += [self._logprob(token_logprob) for token_logprob in output.logprobs]
        text = self.text.add(output.tokens)
        if output.finish:
            text += self.text.finish()
        text, self.stopped = self.stops.add(text)
        if output.finish and not self.stopped:
            text += self.stops.finish()
        events += self._read(text)
        if output.end and self.request.generation.api == "completions" and not self.stopped:
            # OpenAI's text completions reported it, and evaluations expect a row for each drawn
            # token.
            self.logprobs.append(self._logprob(output.end))
        if output.finish or self.stopped:
            events += self._finished("stop" if self.stopped else output.finish or "stop")
        return events

    @property
    def calls(self) -> bool:
        """True if the answer is in a call or contains one."""
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
        # An interrupted call must not be executed, regardless of how the answer ended.
        cut = self.reader is not None and self.reader.is_cut
        called = self.reader is not None and self.reader.calls and not cut
        self.ended = True
        self.request.missing -= 1
        reported = "tool_calls" if called and reason == "stop" else reason
        return [*events, Finished(reported, self.stops.matched, is_cut=cut)]

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
    """Request for text. The threads of its `LanguageWorker` share it."""

    id: int
    """Number of the request in the gateway."""
    generation: Generation
    writer: AnswerWriter
    key: str = ""
    """See `Work`."""
    tier: Tier = Tier.DEFAULT
    adapter: "LoadedAdapter | None" = None
    """Adapter of the request. Known after the prompt is prepared."""
    choices: list[Choice] = field(default_factory=list[Choice])
    missing: int = 0
    """Number of choices that have not ended."""
    usage: Usage = field(default_factory=Usage)
    streaming: bool = False
    """True if a part of the stream was sent."""
    has_output: bool = False
    """True if the model has produced output."""
    done: bool = False
    """True if it was answered or cancelled."""
    phases: Phases = field(default_factory=lambda: Phases("prepare"))

    @property
    def counts(self) -> dict[str, int]:
        """See `RequestResult.counts`."""
        if self.generation.only_counts:
            # These tokens were only counted, and the model did not read them.
            return {}
        return {"input_tokens": self.usage.prompt, "output_tokens": self.usage.completion}
