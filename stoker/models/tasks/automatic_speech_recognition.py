"""Automatic speech recognition: the transcript of a recording."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.models.stages.base import by_kind
from stoker.models.stages.recognition import transcripts
from stoker.models.stages.recognition.base import FIELD
from stoker.models.stages.recognition.ctc import CtcStages
from stoker.models.stages.recognition.speech_seq2seq import Seq2SeqRecognitionStages
from stoker.models.stages.recognition.whisper import WhisperStages
from stoker.models.tasks.base import MediaPipeline

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

_SEQ2SEQ = ("moonshine", "speech_to_text")
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"


def _finish(work: "Work", results: Sequence[Any]) -> Any:
    """Returns the transcript of the single recording, in the format that the request names."""
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
    stages=by_kind(
        CtcStages, {"whisper": WhisperStages, **dict.fromkeys(_SEQ2SEQ, Seq2SeqRecognitionStages)}
    ),
    input_field=FIELD,
    finish=_finish,
)
