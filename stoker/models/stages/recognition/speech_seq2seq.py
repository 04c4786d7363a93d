"""Encoder-decoder models other than Whisper: Moonshine and Speech2Text."""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from stoker.models.stages.base import Sample
from stoker.models.stages.generating import DEFAULT_NEW_TOKENS
from stoker.models.stages.kinds import ModelKind
from stoker.models.stages.recognition.base import RecognitionStages, segment
from stoker.models.stages.recognition.silences import Silences, Span
from stoker.models.stages.recognition.transcript_writer import JoinedAtEnd
from stoker.models.stages.recognition.transcripts import Transcript

if TYPE_CHECKING:
    import torch

    from stoker.media.audio import Samples

_PROBE_TOKENS = 4


class Seq2SeqRecognitionStages(RecognitionStages):
    """Stages of other encoder-decoder models. They use the model's own search, or sampling if the
    temperature is above 0.
    """

    kind = ModelKind.LOOPS
    takes = ("temperature",)

    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        temperature = parameters.get("temperature") or 0.0
        # Maximum number of positions of Speech2Text's decoder.
        most = getattr(self.config, "max_target_positions", DEFAULT_NEW_TOKENS)
        return (temperature, min(DEFAULT_NEW_TOKENS, most))

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        from stoker.models.stages.score_check import generated

        temperature, most = cast("tuple[float, int]", call)
        drawing: dict[str, Any] = {"do_sample": True, "temperature": temperature, "num_beams": 1}
        options = drawing if temperature else {}
        return generated(model, "tokens", **batch, **options, max_new_tokens=most)

    def windows(
        self, sound: "Samples", span: Span, silences: Silences, call: Hashable, *, is_cut: bool
    ) -> list[Sample]:
        rate = silences.rate
        size = int(self.window_s * rate)
        samples: list[Sample] = []
        # Without a silence, windows are adjacent: transformers does not merge the texts of these
        # models either.
        for begin in range(span.begin, span.end, size):
            end = min(begin + size, span.end)
            (prepared,) = self._pipe.preprocess(sound[begin:end])
            samples.append(self.sample(prepared))
            samples[-1].extras |= {"start_s": span.begin / rate, "end_s": span.end / rate}
        return samples

    def sample(self, prepared: Mapping[str, Any]) -> Sample:
        sample = super().sample(prepared)
        # Speech2Text divides by the recording's standard deviation, which produces infinity for
        # silence.
        if (features := sample.features.get("input_features")) is not None:
            sample.features["input_features"] = features.nan_to_num(0.0, posinf=0.0, neginf=0.0)
        return sample

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return super().counts(output) | {"output_tokens": output["tokens"].shape[1]}

    def joining(self, parameters: Mapping[str, Any]) -> JoinedAtEnd:
        return JoinedAtEnd(partial(self.transcript, parameters=parameters))

    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        segments = [
            segment(self._text(list(windows)), *span)
            for span, windows in groupby(outputs, lambda entry: (entry["start_s"], entry["end_s"]))
        ]
        text = " ".join(entry["text"] for entry in segments if entry["text"])
        transcript = Transcript(
            text=text,
            language="",
            duration=outputs[0]["sound_s"],
            sound_s=outputs[0]["sound_s"],
            output_tokens=sum(entry["tokens"].shape[1] for entry in outputs),
        )
        if parameters.get("timed"):
            transcript["segments"] = [entry for entry in segments if entry["text"]]
        return transcript

    def _text(self, outputs: Sequence[Mapping[str, Any]]) -> str:
        read = [{"tokens": output["tokens"]} for output in outputs]
        return self.read_by_pipeline(read)["text"].strip()

    def probe(self, length: int, number: int = 0) -> Sample | None:
        sample = super().probe(length, number)
        if sample is not None:
            sample.call = (0.0, _PROBE_TOKENS)
        return sample
