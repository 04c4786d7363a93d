"""Audio classification: the labels of a recording."""

from collections.abc import Mapping
from typing import Any

from stoker.models.stages.base import Sample
from stoker.models.stages.pipelines import AudioPipelineStages
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import AudioInputs, FunctionToApply, Label, TopK


class AudioClassificationRequest(MediaRequest):
    inputs: AudioInputs
    top_k: TopK = 5
    function_to_apply: FunctionToApply | None = None


class AudioClassificationStages(AudioPipelineStages):
    """Stages of audio classification.

    Recordings share a batch only if the model's own preprocessing makes them equally long. Nothing
    is padded: models with group normalisation (wav2vec2-base, hubert-base) normalise over the whole
    time axis, including padding, and accept no attention mask.
    """

    pipeline = "AudioClassificationPipeline"
    auto_class = "AutoModelForAudioClassification"

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        return self.long_enough(super().read(item, parameters))

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        samples = super().preprocess(item, parameters)
        # `read` does not decode the recording a second time.
        samples[0].extras["audio_ms"] = self.sound_ms(self.read(item, parameters))
        return samples


TASK = Task(
    pipeline="audio-classification",
    path="/v1/classifications/audio",
    summary="Classify recordings",
    request=AudioClassificationRequest,
    media={"inputs": "audio"},
    result=list[Label],
    architectures=(
        "*ForAudioClassification",
        "Data2VecAudioForSequenceClassification",
        "HubertForSequenceClassification",
        "SEW*ForSequenceClassification",
        "UniSpeech*ForSequenceClassification",
        "Wav2Vec2*ForSequenceClassification",
        "WavLMForSequenceClassification",
    ),
    families=("audio-spectrogram-transformer", "wav2vec2", "wav2vec2-bert"),
    example={"inputs": "https://sounds.example/bark.wav", "top_k": 2},
    example_result=[{"label": "dog", "score": 0.97}, {"label": "wolf", "score": 0.02}],
    stages=AudioClassificationStages,
)
