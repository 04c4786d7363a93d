"""What all models that transcribe share: a recording is cut at silences into stretches.

A recording of one window is not cut. Nothing is said twice in two stretches, and no word is cut.

Imported by the gateway through the task file, so torch and transformers are imported inside.
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
"""Longer recordings are cut at silences."""
_SHORTEST_PIECE_S = 0.5
"""Between two gaps of the container at which a recording is cut."""
_MOST_GAPS = 8
_GAPS_A_SECOND = 0.1
"""A recording is cut at no more gaps than both allow."""
PAUSE_S = 0.6
LONGEST_SEGMENT_S = 10.0


class RecognitionStages(AudioPipelineStages):
    """The stretches of one recording and those of others share batches."""

    shared: ClassVar[tuple[str, ...]] = ("sound_s", "timeline", "audio_ms")
    """Extras of a recording that a sample which follows another takes over."""
    pipeline = "AutomaticSpeechRecognitionPipeline"
    parts = {"feature_extractor": "AutoFeatureExtractor", "tokenizer": "AutoTokenizer"}
    auto_class = ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC")
    takes: ClassVar[tuple[str, ...]] = ()
    """Those of `OPTIONAL` that this kind of model honours."""

    OPTIONAL: ClassVar[Mapping[str, str]] = {
        "language": "chooses no language",
        "prompt": "takes no prompt",
        "temperature": "draws nothing at random: it must be 0",
        "logprobs": "does not report them",
        "words": "does not tell when words are spoken",
    }
    """Parameters that not every model can honour → what to say of one that cannot."""

    _fields: ClassVar[Mapping[str, str]] = {
        "logprobs": "include",
        "words": "timestamp_granularities",
    }

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return WINDOW_S

    @abstractmethod
    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        """How the model is to be run for a request. Raises `InputError`."""

    @abstractmethod
    def windows(
        self, sound: "Samples", span: Span, silences: Silences, call: Hashable, *, is_cut: bool
    ) -> list[Sample]:
        """Returns the samples of one stretch of a recording (samples,).

        Args:
            span: the stretch.
            is_cut: whether the recording has others, or is longer than a window.
        """

    @abstractmethod
    def joining(self, parameters: Mapping[str, Any]) -> Joining:
        """Makes one text of windows, as they come."""

    @abstractmethod
    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        """What all windows say together."""

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
            samples += [replace(one, call=one.call or call) for one in windows]
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
        """`text` and, where times are wanted, `chunks`, as transformers reads them."""
        # It takes the tokens out of what it is given.
        return self._pipe.postprocess([Outputs(output) for output in outputs], **options)


def _pieces(timeline: Timeline, size: int, rate: int) -> list[Span]:
    """Returns the parts of a recording between the gaps of its container.

    Gaps in short succession are passed over: each part takes a forward pass.
    """
    edges = [0]
    for gap_s in timeline.gaps:
        at = round(gap_s * rate)
        is_frequent = len(edges) > _MOST_GAPS + at / rate * _GAPS_A_SECOND
        if min(at - edges[-1], size - at) >= _SHORTEST_PIECE_S * rate and not is_frequent:
            edges.append(at)
    return [Span(*pair) for pair in pairwise([*edges, size])]


def refuse(field: str, message: str) -> NoReturn:
    """Raise `InputError` for a field of the request that a model cannot honour."""
    raise InputError(message, field=field, of_item=False)


def segments_of(words: Sequence[Word], avg_logprob: float) -> list[Segment]:
    """Words parted at pauses, and where they become long, for models that know no segments."""
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
    """Returns a segment of a model that knows no more of it."""
    return Segment(
        start=start,
        end=end,
        text=text,
        tokens=[],
        seek=0,
        avg_logprob=avg_logprob,
        no_speech_prob=0.0,
    )
