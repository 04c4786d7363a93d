"""Streamed transcripts: each window's part is sent as soon as it is final."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stoker.models.stages.base import Sample
from stoker.models.stages.recognition import transcripts
from stoker.models.stages.recognition.transcripts import Logprob, Transcript


class Joined(NamedTuple):
    """Next part of a text."""

    text: str
    logprobs: Sequence[Logprob] = ()


class Joining(Protocol):
    """Joins the texts of windows, which may overlap."""

    tokens: int
    """Number of tokens written so far."""

    def partial(self, output: Mapping[str, Any]) -> Joined:
        """Returns the text that is final after an intermediate output of the next sample."""
        ...

    def add(self, output: Mapping[str, Any]) -> Joined:
        """Returns the text that is final after the last output of the next sample."""
        ...

    def end(self) -> Joined:
        """Returns the remaining text."""
        ...


class TranscriptWriter:
    """Writes a transcript as OpenAI's events (see `StreamWriter`)."""

    def __init__(self, joining: Joining, *, logprobs: bool) -> None:
        self._joining = joining
        self._text = ""
        self._logprobs: list[Logprob] | None = [] if logprobs else None
        self._seconds = 0.0
        self._added = 0
        """Number of samples with a last output that was added."""

    def begin(self, samples: Sequence[Sample]) -> bytes:
        self._seconds = samples[0].extras["sound_s"]
        return b""

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        # Text of a later sample waits for the samples before it.
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
    """Joins the windows of models that can only join all of them at the end."""

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
