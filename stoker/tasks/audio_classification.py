"""Audio classification: the labels of a recording."""

from collections.abc import Mapping
from typing import Any

from stoker.replica.pipelines import AudioPipelineStages
from stoker.replica.stages import InputError
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import AudioInputs, FunctionToApply, Label, TopK

_WINDOW_S = 0.025
"""Length of the window that every served model hears in."""


class AudioClassificationRequest(MediaRequest):
    inputs: AudioInputs
    top_k: TopK = 5
    function_to_apply: FunctionToApply | None = None


class AudioClassificationStages(AudioPipelineStages):
    """Recordings share a batch only where the model's own preparation makes them of one length.

    Nothing is padded: models with group normalisation (wav2vec2-base, hubert-base) normalise over
    all of the time, padding included, and take no attention mask.
    """

    pipeline = "AudioClassificationPipeline"
    auto_class = "AutoModelForAudioClassification"

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        sound = super().read(item, parameters)
        rate = self._parts["feature_extractor"].sampling_rate
        shortest = max(_receptive_field(self.config), int(rate * _WINDOW_S))
        if len(sound) < shortest:
            raise InputError(
                f"The audio has {len(sound)} samples at {rate} Hz; "
                f"this model needs at least {shortest}.",
                code="invalid_media",
            )
        return sound


def _receptive_field(config: Any) -> int:
    """Samples that one output of the convolutions of a model such as wav2vec2 is made of."""
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    samples = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
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
    families=("audio-spectrogram-transformer", "wav2vec2"),
    example={"inputs": "https://sounds.example/bark.wav", "top_k": 2},
    example_result=[{"label": "dog", "score": 0.97}, {"label": "wolf", "score": 0.02}],
    stages=AudioClassificationStages,
)
