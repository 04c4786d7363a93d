"""Common base of all models that transcribe: a recording is split at silences into stretches.

A recording that fits one window is not split. Stretches do not overlap, and no word is cut.

The gateway imports this module through the task file, so torch and transformers are imported inside
functions.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from stoker.media.timeline import Timeline
from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pipelines import AudioPipelineStages, Outputs
from stoker.models.stages.recognition import transcripts
from stoker.models.stages.recognition.silences import Silences, Span
from stoker.models.stages.recognition.transcript_writer import Joining, TranscriptWriter
from stoker.models.stages.recognition.transcripts import Segment, Transcript, Word

if TYPE_CHECKING:
    from stoker.media.audio import Samples

FIELD = "file"
WINDOW_S = 30.0
"""Length of a window in seconds. Longer recordings are split at silences."""
_SHORTEST_PIECE_S = 0.5
"""Minimum duration in seconds between two container gaps at which a recording is split."""
_MOST_GAPS = 8
_GAPS_A_SECOND = 0.1
"""Maximum number of gaps per second at which a recording is split. `_MOST_GAPS` are allowed in
addition.
"""
PAUSE_S = 0.6
LONGEST_SEGMENT_S = 10.0


class RecognitionStages(AudioPipelineStages):
    """Base of recognition stages. Stretches of different recordings share batches."""

    shared: ClassVar[tuple[str, ...]] = ("sound_s", "timeline", "audio_ms")
    """Extras that a following sample inherits from its recording."""
    pipeline = "AutomaticSpeechRecognitionPipeline"
    parts = {"feature_extractor": "AutoFeatureExtractor", "tokenizer": "AutoTokenizer"}
    auto_class = ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC")
    takes: ClassVar[tuple[str, ...]] = ()
    """Parameters of `OPTIONAL` that this kind of model supports."""

    OPTIONAL: ClassVar[Mapping[str, str]] = {
        "language": "chooses no language",
        "prompt": "takes no prompt",
        "temperature": "does not sample at random: 'temperature' must be 0",
        "logprobs": "does not report log probabilities",
        "words": "does not report the times of words",
    }
    """Maps parameters that some models do not support to their error messages."""

    _fields: ClassVar[Mapping[str, str]] = {
        "logprobs": "include",
        "words": "timestamp_granularities",
    }

    @property
    def window_s(self) -> float:
        """Length of a window in seconds."""
        return WINDOW_S

    @abstractmethod
    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        """Returns the options to run the model with for a request. Raises `InputError`."""

    @abstractmethod
    def windows(
        self, sound: "Samples", span: Span, silences: Silences, call: Hashable, *, is_cut: bool
    ) -> list[Sample]:
        """Returns the samples of one stretch of a recording (samples,).

        Args:
            span: The stretch.
            is_cut: True if the recording has other stretches or is longer than a window.
        """

    @abstractmethod
    def joining(self, parameters: Mapping[str, Any]) -> Joining:
        """Returns an object that joins the texts of windows as they arrive."""

    @abstractmethod
    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        """Returns the transcript of all windows."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        self._check(parameters)
        call = self.call(parameters)
        rate = self._parts["feature_extractor"].sampling_rate
        sound, timeline = self.timed_sound(item, rate, FIELD)
        sound = self.long_enough(sound, FIELD)
        silences = Silences.of(sound, rate)
        spans: list[Span] = []
        for whole in _pieces(timeline, len(sound), rate):
            is_long = len(whole) > self.window_s * rate
            spans += silences.stretches(self.window_s, whole) if is_long else [whole]
        is_cut = len(spans) > 1 or len(sound) > self.window_s * rate
        samples: list[Sample] = []
        for span in spans:
            windows = self.windows(sound, span, silences, call, is_cut=is_cut)
            samples += [replace(window, call=window.call or call) for window in windows]
        for sample in samples:
            sample.extras |= {"sound_s": len(sound) / rate, "timeline": timeline}
        samples[0].extras["audio_ms"] = self.sound_ms(sound)
        samples[0].is_held = False
        return samples

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        transcript = self.transcript(outputs, parameters)
        return transcripts.played(transcript, outputs[0]["timeline"])

    def writer(
        self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]
    ) -> TranscriptWriter:
        return TranscriptWriter(self.joining(parameters), logprobs=bool(parameters.get("logprobs")))

    def _check(self, parameters: Mapping[str, Any]) -> None:
        for name, lack in self.OPTIONAL.items():
            if parameters.get(name) and name not in self.takes:
                refuse(self._fields.get(name, name), f"This model {lack}.")
        if parameters.get("task") == "translate" and "translate" not in self.takes:
            refuse("model", "This model does not translate.")

    def read_by_pipeline(
        self, outputs: Sequence[Mapping[str, Any]], **options: Any
    ) -> dict[str, Any]:
        """Returns `text` and, if times are requested, `chunks`, as transformers reads them."""
        # The pipeline removes the tokens from its input.
        return self._pipe.postprocess([Outputs(output) for output in outputs], **options)


def _pieces(timeline: Timeline, size: int, rate: int) -> list[Span]:
    """Returns the parts of a recording between the gaps of its container.

    Gaps in short succession are skipped, because each part needs a forward pass.
    """
    edges = [0]
    for gap_s in timeline.gaps:
        at = round(gap_s * rate)
        is_frequent = len(edges) > _MOST_GAPS + at / rate * _GAPS_A_SECOND
        if min(at - edges[-1], size - at) >= _SHORTEST_PIECE_S * rate and not is_frequent:
            edges.append(at)
    return [Span(*pair) for pair in pairwise([*edges, size])]


def refuse(field: str, message: str) -> NoReturn:
    """Raises `InputError` for a request field that a model does not support."""
    raise InputError(message, field=field, of_item=False)


def segments_of(words: Sequence[Word], avg_logprob: float) -> list[Segment]:
    """Splits words into segments at pauses and at the maximum length, for models without
    segments.
    """
    groups: list[list[Word]] = []
    for word in words:
        last = groups[-1] if groups else None
        if (
            last is None
            or word["start"] - last[-1]["end"] > PAUSE_S
            or word["end"] - last[0]["start"] > LONGEST_SEGMENT_S
        ):
            groups.append([word])
        else:
            last.append(word)
    return [
        segment(
            " ".join(word["word"] for word in group),
            group[0]["start"],
            group[-1]["end"],
            avg_logprob,
        )
        for group in groups
    ]


def segment(text: str, start: float, end: float, avg_logprob: float = 0.0) -> Segment:
    """Returns a segment of a model that provides no further values."""
    return Segment(
        start=start,
        end=end,
        text=text,
        tokens=[],
        seek=0,
        avg_logprob=avg_logprob,
        no_speech_prob=0.0,
    )
