"""Transcripts that are streamed: a part for every window, as soon as nothing can change it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stoker.models.stages.base import Sample
from stoker.models.stages.recognition import transcripts
from stoker.models.stages.recognition.transcripts import Logprob, Transcript


class Joined(NamedTuple):
    """More of a text."""

    text: str
    logprobs: Sequence[Logprob] = ()


class Joining(Protocol):
    """Makes one text of windows that overlap."""

    tokens: int
    """Written so far."""

    def partial(self, output: Mapping[str, Any]) -> Joined:
        """Returns what is settled by an output of the next sample that is not its last."""
        ...

    def add(self, output: Mapping[str, Any]) -> Joined:
        """Returns what is settled by the last output of the next sample."""
        ...

    def end(self) -> Joined:
        """What is left."""
        ...


class TranscriptWriter:
    """Writes OpenAI's events of a transcript (see `StreamWriter`)."""

    def __init__(self, joining: Joining, *, logprobs: bool) -> None:
        self._joining = joining
        self._text = ""
        self._logprobs: list[Logprob] | None = [] if logprobs else None
        self._seconds = 0.0
        self._added = 0
        """Samples whose last output was added."""

    def begin(self, samples: Sequence[Sample]) -> bytes:
        self._seconds = samples[0].extras["sound_s"]
        return b""

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        # What a later sample hears waits for those before it.
        return self._delta(self._joining.partial(output)) if position == self._added else b""

    def add(self, output: Mapping[str, Any]) -> bytes:
        self._added += 1
        return self._delta(self._joining.add(output))

    def end(self) -> bytes:
        rest = self._delta(self._joining.end())
        transcript = Transcript(
            text=self._text,
            language="",
            duration=self._seconds,
            sound_s=self._seconds,
            output_tokens=self._joining.tokens,
        )
        if self._logprobs is not None:
            transcript["logprobs"] = self._logprobs
        return rest + transcripts.done(transcript)

    def _delta(self, joined: Joined) -> bytes:
        text, logprobs = joined.text, None
        if not self._text:
            text = text.lstrip()
        self._text += text
        if self._logprobs is not None:
            logprobs = list(joined.logprobs)
            self._logprobs += logprobs
        return transcripts.delta(text, logprobs) if text else b""


class JoinedAtEnd:
    """Of models whose windows are only joined all at once."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._outputs: list[Mapping[str, Any]] = []
        self.tokens = 0

    def partial(self, output: Mapping[str, Any]) -> Joined:
        return Joined("")

    def add(self, output: Mapping[str, Any]) -> Joined:
        self._outputs.append(output)
        return Joined("")

    def end(self) -> Joined:
        transcript: Transcript = self._read(self._outputs)
        self.tokens = transcript["output_tokens"]
        return Joined(transcript["text"])
