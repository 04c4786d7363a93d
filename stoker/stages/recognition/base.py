"""What all models that transcribe share: windows of a recording, and an answer made of them.

Imported by the gateway through the task file, so torch and transformers are imported inside.
"""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

from stoker.stages.base import InputError, Sample
from stoker.stages.pipelines import AudioPipelineStages, Outputs
from stoker.stages.recognition.transcript_writer import Joining, TranscriptWriter
from stoker.stages.recognition.transcripts import Segment, Transcript, Word

FIELD = "file"
WINDOW_S = 30.0
"""Longer recordings are transcribed in windows that overlap by a third, as transformers does it."""
PAUSE_S = 0.6
LONGEST_SEGMENT_S = 10.0


class RecognitionStages(AudioPipelineStages):
    """The windows of one recording and those of others share batches."""

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

    overlap_s: ClassVar[float | None] = None
    """Of windows, on each side; None: a sixth of one."""

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return WINDOW_S

    @property
    def _windows(self) -> dict[str, Any]:
        return {"chunk_length_s": self.window_s, "stride_length_s": self.overlap_s}

    @abstractmethod
    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        """How the model is to be run for a request. Raises `InputError`."""

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
        sound = self.long_enough(self.read(item, parameters), FIELD)
        rate = self._parts["feature_extractor"].sampling_rate
        is_long = len(sound) > self.window_s * rate
        windows = self._pipe.preprocess(sound, **(self._windows if is_long else {}))
        samples = [replace(self.sample(window), call=call) for window in windows]
        begin = 0
        for sample in samples:
            size, before, after = sample.extras.get("stride", (len(sound), 0, 0))
            begin -= before
            sample.extras |= {"start_s": begin / rate, "sound_s": len(sound) / rate}
            begin += size - after
        # Windows overlap: the first one stands for all of it.
        samples[0].extras["audio_ms"] = self.sound_ms(sound)
        return samples

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        return self.transcript(outputs, parameters)

    def writer(
        self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]
    ) -> TranscriptWriter:
        return TranscriptWriter(self.joining(parameters), logprobs=bool(parameters.get("logprobs")))

    def sound(self, media: Any, rate: int, field: str = FIELD) -> Any:
        return super().sound(media, rate, field)

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
        Segment(
            start=group[0]["start"],
            end=group[-1]["end"],
            text=" ".join(word["word"] for word in group),
            tokens=[],
            seek=0,
            avg_logprob=avg_logprob,
            no_speech_prob=0.0,
        )
        for group in groups
    ]


def whole(text: str, outputs: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """The one segment of a model that knows no times."""
    return [
        Segment(
            start=0.0,
            end=outputs[0]["sound_s"],
            text=text,
            tokens=[],
            seek=0,
            avg_logprob=0.0,
            no_speech_prob=0.0,
        )
    ]
