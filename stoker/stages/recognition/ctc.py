"""Models that tell a letter for every 20 ms or so: Wav2Vec2, HuBERT, WavLM, Wav2Vec2-BERT.

Nothing is padded: models with group normalisation normalise over all of the time, padding
included, and take no attention mask. Recordings of one length, and full windows, share batches.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from stoker.stages.recognition.base import RecognitionStages, segments_of
from stoker.stages.recognition.joining import CtcJoining
from stoker.stages.recognition.transcripts import Transcript, Word


class CtcStages(RecognitionStages):
    """Connectionist temporal classification: the likeliest letter of each frame."""

    takes = ("words",)

    def call(self, parameters: Mapping[str, Any]) -> Hashable:
        return ()

    def joining(self, parameters: Mapping[str, Any]) -> CtcJoining:
        tokenizer = self._parts["tokenizer"]
        delimiter = getattr(tokenizer, "word_delimiter_token_id", None)
        return _Cutting(self, tokenizer, delimiter)

    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        read = [self.frames(output) for output in outputs]
        timed = bool(parameters.get("timed"))
        found = self.read_by_pipeline(read, **{"return_timestamps": "word"} if timed else {})
        text: str = found["text"].strip()
        transcript = Transcript(
            text=text,
            language="",
            duration=outputs[0]["sound_s"],
            output_tokens=len(self._parts["tokenizer"](text)["input_ids"]),
        )
        if timed:
            words = [
                Word(word=chunk["text"], start=chunk["timestamp"][0], end=chunk["timestamp"][1])
                for chunk in found["chunks"]
            ]
            transcript["words"] = words
            transcript["segments"] = segments_of(words, _confidence(outputs))
        return transcript

    def frames(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """`tokens` (1, frames), and the `stride` in frames where there are several windows."""
        from transformers.pipelines import automatic_speech_recognition

        library: Any = automatic_speech_recognition
        found = {"tokens": output["logits"].argmax(-1)}
        if "stride" in output:
            (found["stride"],) = library.rescale_stride(
                [output["stride"]], 1 / self._pipe._align_to
            )
        return found


class _Cutting(CtcJoining):
    """Cuts off each window what overlaps."""

    def __init__(self, stages: CtcStages, tokenizer: Any, delimiter: int | None) -> None:
        super().__init__(tokenizer, delimiter)
        self._stages = stages

    def add(self, output: Mapping[str, Any]) -> Any:
        read = self._stages.frames(output)
        if stride := read.get("stride"):
            size, before, after = stride
            read["tokens"] = read["tokens"][:, before : size - after]
        return super().add(read)


def _confidence(outputs: Sequence[Mapping[str, Any]]) -> float:
    """The mean logarithm of the likeliest letters' probabilities."""
    frames = [output["logits"].log_softmax(-1).amax(-1).mean() for output in outputs]
    return float(sum(frames) / len(frames))
