"""Automatic speech recognition: what is said in a recording."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.replica.recognition import transcripts
from stoker.replica.recognition.ctc import CtcStages
from stoker.replica.recognition.seq2seq import Seq2SeqRecognitionStages
from stoker.replica.recognition.stages import FIELD, RecognitionStages
from stoker.replica.recognition.whisper import WhisperStages
from stoker.tasks.base import MediaPipeline

if TYPE_CHECKING:
    from stoker.replica.protocol import Work

_KINDS: Mapping[str, Callable[[Path], RecognitionStages]] = {
    "whisper": WhisperStages,
    "moonshine": Seq2SeqRecognitionStages,
    "speech_to_text": Seq2SeqRecognitionStages,
}
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"


def stages(folder: Path) -> RecognitionStages:
    """Those of the model's kind."""
    kind = json.loads((folder / "config.json").read_bytes()).get("model_type")
    return _KINDS.get(kind, CtcStages)(folder)


def _finish(work: "Work", results: Sequence[Any]) -> Any:
    """The one recording's transcript, in the form that the request names."""
    return transcripts.written(results[0], transcripts.as_finishing(work.finishing))


PIPELINE = MediaPipeline(
    name="automatic-speech-recognition",
    paths=(TRANSCRIPTIONS, TRANSLATIONS),
    architectures=(
        "WhisperForConditionalGeneration",
        "Data2VecAudioForCTC",
        "HubertForCTC",
        "SEWForCTC",
        "SEWDForCTC",
        "UniSpeechForCTC",
        "UniSpeechSatForCTC",
        "Wav2Vec2ForCTC",
        "Wav2Vec2BertForCTC",
        "Wav2Vec2ConformerForCTC",
        "WavLMForCTC",
        "MoonshineForConditionalGeneration",
        "Speech2TextForConditionalGeneration",
    ),
    families=(
        "whisper",
        "wav2vec2",
        "wav2vec2-bert",
        "hubert",
        "wavlm",
        "moonshine",
        "speech_to_text",
    ),
    stages=stages,
    input_field=FIELD,
    finish=_finish,
)
