"""Windows of one stretch of a recording, which Whisper transcribes in sequence.

Radford et al., section 3.8: a window begins at the end of the last finished segment of the previous
window.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.models.stages.recognition.silences import MARGIN_S, Silences
from stoker.models.stages.recognition.transcripts import FRAMES_A_SECOND

if TYPE_CHECKING:
    import torch

_MOST_PER_WINDOW = 32
"""Maximum number of windows per window length of a stretch. After that, whole windows are
skipped.
"""
_JUMPED_S = 1.0
"""Minimum duration in seconds of a silence that a window skips at its start."""


class Heard(NamedTuple):
    """A segment of a window."""

    tokens: Sequence[int]
    """Tokens including timestamps."""
    times: Sequence[float]
    """Start time of each token in seconds from the recording's start. Empty if not requested."""
    before: float
    """Time of the token before the segment, in seconds."""
    logprobs: Sequence[float]
    start: float
    """Start in seconds from the recording's start."""
    end: float


@dataclass(frozen=True)
class Window:
    """Transcript of one window."""

    heard: Sequence[Heard]
    seek: int
    """Start of the window, in frames from the recording's start."""
    ahead: int
    """Number of frames that the finished segments span."""
    average: float
    silence: float
    temperature: float
    language: int
    tokens: int
    """Number of tokens written."""


@dataclass(frozen=True)
class Stretch:
    """Part of a recording and its transcript so far."""

    features: "torch.Tensor"
    """Tensor (mels, frames), padded to a window if it is shorter."""
    start_s: float
    """Start in seconds from the recording's start."""
    frames: int
    """Number of frames with sound, without padding."""
    size: int
    """Number of frames in a window."""
    first: int
    """Token of the first timestamp."""
    silences: Silences
    seek: int = 0
    windows: Sequence[Window] = ()

    @property
    def is_done(self) -> bool:
        return self.seek >= self.frames

    @property
    def _end_s(self) -> float:
        return self.start_s + self.frames / FRAMES_A_SECOND

    @property
    def left(self) -> int:
        """Number of frames with sound in the next window."""
        return min(self.size, self.frames - self.seek)

    def window(self) -> "dict[str, torch.Tensor]":
        """Returns the next window as the model's inputs."""
        import torch

        features = self.features[:, self.seek : self.seek + self.size]
        padded = torch.nn.functional.pad(features, (0, self.size - features.shape[1]))
        mask = torch.zeros(1, self.size, dtype=torch.int64)
        mask[:, : self.left] = 1
        return {"input_features": padded[None], "attention_mask": mask}

    def heard(self, output: Mapping[str, Any]) -> "Stretch":
        """Returns the stretch after the model's output for its next window."""
        from stoker.models.stages.recognition.decoder import segmented

        count = int(output["count"][0])
        tokens: list[int] = output["tokens"][0, :count].tolist()
        logprobs: list[float] = output["logprobs"][0, :count].tolist()
        seek_s = self.start_s + self.seek / FRAMES_A_SECOND
        is_timed = output["options"].words
        times: list[float] = output["times"][0, :count].tolist() if is_timed else []
        times = [seek_s + time for time in times]
        spans, ahead = segmented(tokens, self.first, self.left)
        if bool(output["is_silent"][0]):
            spans, ahead = [], self.left
        window = Window(
            heard=[
                Heard(
                    tokens[span.begin : span.end],
                    times[span.begin : span.end],
                    times[max(0, span.begin - 1)] if times else seek_s,
                    logprobs[span.begin : span.end],
                    min(seek_s + span.start_frame / FRAMES_A_SECOND, self._end_s),
                    min(seek_s + span.end_frame / FRAMES_A_SECOND, self._end_s),
                )
                for span in spans
            ],
            seek=round(seek_s * FRAMES_A_SECOND),
            ahead=ahead,
            average=float(output["average"][0]),
            silence=float(output["silence"][0]),
            temperature=float(output["temperature"][0]),
            language=int(output["language"][0]),
            tokens=count,
        )
        windows = [*self.windows, window]
        if len(windows) >= _MOST_PER_WINDOW * -(-self.frames // self.size):
            ahead = self.left
        return replace(self, seek=self._beyond_silence(self.seek + ahead), windows=windows)

    def _beyond_silence(self, seek: int) -> int:
        """Returns the frame to continue at. It skips long silences, because a model places the
        speech after them too early.
        """
        around = self.silences.around(self.start_s + seek / FRAMES_A_SECOND)
        if around is None:
            return seek
        if around[1] >= self.silences.seconds:
            return max(seek, self.frames)
        if around[1] - around[0] < _JUMPED_S:
            return seek
        return max(seek, round((around[1] - MARGIN_S - self.start_s) * FRAMES_A_SECOND))

    def each(self) -> Iterator[tuple[Window, Heard]]:
        """Returns all segments so far, in order, with their windows."""
        return ((window, heard) for window in self.windows for heard in window.heard)
