"""Zero-shot audio classification: the labels of the request that describe a recording."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import AliasChoices, Field

from stoker.models.stages import specimens
from stoker.models.stages.base import Sample
from stoker.models.stages.pipelines import AudioStages
from stoker.models.stages.towers import ITEM, TextTowerStages, finish
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import (
    PLACEHOLDER,
    AudioInputs,
    CandidateLabels,
    HypothesisTemplate,
    Label,
)

if TYPE_CHECKING:
    import torch

    from stoker.media.audio import Samples


class ZeroShotAudioClassificationRequest(MediaRequest):
    # Hugging Face's clients call it `inputs`.
    audio: AudioInputs = Field(validation_alias=AliasChoices("audio", "inputs"))
    candidate_labels: CandidateLabels
    hypothesis_template: HypothesisTemplate = "This is a sound of {}."

    input_fields: ClassVar[tuple[str, ...]] = ("audio",)


class ZeroShotAudioClassificationStages(TextTowerStages, AudioStages):
    """CLAP. Scores are the softmax over the labels of `ClapModel.forward`'s `logits_per_audio`."""

    auto_class = "AutoModel"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self._extractor: Any = library.AutoFeatureExtractor.from_pretrained(
            str(folder), local_files_only=True
        )
        self._rate: int = self._extractor.sampling_rate

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._scale = float(model.logit_scale_a.detach().float().exp())

    def texts(self, parameters: Mapping[str, Any]) -> list[str]:
        template: str = parameters["hypothesis_template"]
        return [template.replace(PLACEHOLDER, label) for label in parameters["candidate_labels"]]

    def item_sample(self, item: Any) -> Sample:
        return self._sample(self.sound(item, self._rate, "audio"))

    def _sample(self, sound: "Samples") -> Sample:
        with _fixed_draws():
            prepared = self._extractor([sound], sampling_rate=self._rate, return_tensors="pt")
        features = {name: prepared[name] for name in ("input_features", "is_longer")}
        return Sample(features, {"audio_ms": len(sound) * 1000 // self._rate}, call=ITEM)

    def probe(self, length: int, number: int = 0) -> Sample:
        import numpy

        if number:
            return self._sample(specimens.sound(number, self._rate, 1.0))
        return self._sample(numpy.zeros(self._rate, numpy.float32))

    def run_items(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        return {"embedding": model.get_audio_features(**batch).pooler_output}

    def score(
        self,
        item: Mapping[str, Any],
        embeddings: "torch.Tensor",
        parameters: Mapping[str, Any],
        /,
    ) -> list[Label]:
        # Both towers return normalised vectors.
        logits = (item["embedding"] @ embeddings.T)[0] * self._scale
        results = [
            Label(label=label, score=score)
            for label, score in zip(
                parameters["candidate_labels"], logits.softmax(-1).tolist(), strict=True
            )
        ]
        return sorted(results, key=lambda result: -result["score"])


@contextmanager
def _fixed_draws() -> Generator[None]:
    """Makes numpy's global generator draw the same numbers every time.

    The model accepts 10 s. From longer recordings, ClapFeatureExtractor takes crops at random
    positions from that generator. Without a fixed seed, the answers for the same recording would
    differ.
    """
    import numpy

    state = numpy.random.get_state()
    numpy.random.seed(0)
    try:
        yield
    finally:
        numpy.random.set_state(state)


TASK = Task(
    pipeline="zero-shot-audio-classification",
    path="/v1/classifications/zero-shot/audio",
    summary="Classify recordings by your own labels",
    request=ZeroShotAudioClassificationRequest,
    media={"audio": "audio", "inputs": "audio"},
    result=list[Label],
    architectures=("ClapModel",),
    families=("clap",),
    example={
        "audio": "https://sounds.example/bark.wav",
        "candidate_labels": ["dog", "vacuum cleaner"],
    },
    example_result=[{"label": "dog", "score": 0.99}, {"label": "vacuum cleaner", "score": 0.01}],
    stages=ZeroShotAudioClassificationStages,
    finish=finish,
)
