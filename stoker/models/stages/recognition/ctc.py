"""Models that return a letter for about every 20 ms: Wav2Vec2, HuBERT, WavLM, Wav2Vec2-BERT.

Nothing is padded: models with group normalisation normalise over the whole time axis, including
padding, and accept no attention mask. Recordings of equal length and full windows share batches. A
stretch is extended by some of the following sound, so that stretches have few different lengths.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from stoker.models.stages.base import Sample
from stoker.models.stages.recognition.base import WINDOW_S, RecognitionStages, segments_of
from stoker.models.stages.recognition.joining import CtcJoining
from stoker.models.stages.recognition.silences import Silences, Span
from stoker.models.stages.recognition.transcripts import Transcript, Word

if TYPE_CHECKING:
    from stoker.media.audio import Samples

_STEP_S = 5
"""Stretches of a recording are extended to a multiple of this duration in seconds."""


class CtcStages(RecognitionStages):
    """Connectionist temporal classification: returns the most likely letter of each frame."""

    takes = ("words",)

    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        return ()

    def joining(self, parameters: Mapping[str, Any]) -> CtcJoining:
        tokenizer = self._parts["tokenizer"]
        delimiter = getattr(tokenizer, "word_delimiter_token_id", None)
        return _Cutting(self, tokenizer, delimiter)

    def windows(
        self, sound: "Samples", span: Span, silences: Silences, call: Hashable, *, is_cut: bool
    ) -> list[Sample]:
        rate = silences.rate
        if len(span) > self.window_s * rate:
            # Without a silence, windows overlap by a third, as in transformers' pipeline.
            prepared = list(
                self._pipe.preprocess(sound[span.begin : span.end], chunk_length_s=WINDOW_S)
            )
        else:
            step = _STEP_S * rate if is_cut else len(span)
            end = min(span.begin + -(-len(span) // step) * step, len(sound))
            (window,) = self._pipe.preprocess(sound[span.begin : end])
            beyond = end - span.end
            prepared = [window | ({"stride": (end - span.begin, 0, beyond)} if beyond else {})]
        samples = [self.sample(window) for window in prepared]
        for sample in samples:
            sample.extras["start_s"] = span.begin / rate
        return samples

    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        is_timed = bool(parameters.get("timed"))
        texts: list[str] = []
        words: list[Word] = []
        for start_s, windows in groupby(outputs, lambda output: output["start_s"]):
            read = [self.frames(output) for output in windows]
            result = self.read_by_pipeline(
                read, **{"return_timestamps": "word"} if is_timed else {}
            )
            texts.append(result["text"].strip())
            words += _moved(result.get("chunks", ()), start_s, outputs[0]["sound_s"])
        text = " ".join(filter(None, texts))
        transcript = Transcript(
            text=text,
            language="",
            duration=outputs[0]["sound_s"],
            sound_s=outputs[0]["sound_s"],
            output_tokens=len(self._parts["tokenizer"](text)["input_ids"]),
        )
        if is_timed:
            transcript["words"] = words
            transcript["segments"] = segments_of(words, _confidence(outputs))
        return transcript

    def frames(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `tokens` (1, frames) and, if the sample has one, the `stride` in frames."""
        from transformers.pipelines import automatic_speech_recognition

        library: Any = automatic_speech_recognition
        result = {"tokens": output["logits"].argmax(-1)}
        if "stride" in output:
            (result["stride"],) = library.rescale_stride(
                [output["stride"]], 1 / self._pipe._align_to
            )
        return result


class _Cutting(CtcJoining):
    """Removes the overlap from each window."""

    def __init__(self, stages: CtcStages, tokenizer: Any, delimiter: int | None) -> None:
        super().__init__(tokenizer, delimiter)
        self._stages = stages

    def add(self, output: Mapping[str, Any]) -> Any:
        read = self._stages.frames(output)
        read["start_s"] = output["start_s"]
        if stride := read.get("stride"):
            size, before, after = stride
            read["tokens"] = read["tokens"][:, before : size - after]
        return super().add(read)


def _moved(chunks: Sequence[Mapping[str, Any]], start_s: float, sound_s: float) -> Iterator[Word]:
    """Yields the words of a stretch with their times in the recording."""
    for chunk in chunks:
        start, end = (min(start_s + time, sound_s) for time in chunk["timestamp"])
        yield Word(word=chunk["text"], start=start, end=end)


def _confidence(outputs: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean log probability of the most likely letters."""
    frames = [output["logits"].log_softmax(-1).amax(-1).mean() for output in outputs]
    return float(sum(frames) / len(frames))
