"""Visual question answering: a question about an image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.blip2 import Blip2Stages
from stoker.models.stages.generating import GenerateStages
from stoker.models.stages.pipelines import load_image_processor
from stoker.models.stages.text import TextStages
from stoker.models.tasks.base import Task
from stoker.models.tasks.inputs import Label, TopK
from stoker.models.tasks.questions import ImageQuestionRequest, ImageQuestionStages

if TYPE_CHECKING:
    import torch


_ASKED = "Question:"
"""Prefix of questions in BLIP-2's training data."""


class VisualQuestionAnsweringRequest(ImageQuestionRequest):
    top_k: TopK = 5


class _QuestionStages(TextStages, ImageQuestionStages):
    """Base of stages with an image and a question per item."""

    auto_class = "AutoModelForVisualQuestionAnswering"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._image_processor: Any = load_image_processor(folder)

    def features(self, item: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
        """Returns the features of an item from the tokenizer and the image processor. Raises
        `InputError`.
        """
        text = self.tokenizer(item["question"], return_tensors="pt")
        length, limit = text["input_ids"].shape[1], self.max_tokens()
        if length > limit:
            raise InputError(
                f"The question has {length} tokens; this model takes at most {limit}.",
                field=item["question_at"],
                of_item=False,
            )
        return {**text, **self._pixels(self.picture(item))}

    def _pixels(self, picture: Any) -> Mapping[str, Any]:
        return self._image_processor(images=[picture], return_tensors="pt")

    def sample(self, features: "Mapping[str, torch.Tensor]") -> Sample:
        """Returns a sample with the features that the model accepts."""
        return Sample(dict(features))

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [self.sample(self.features(item))]

    def probe(self, length: int, number: int = 0) -> Sample:
        text = super().probe(length, number).features
        return self.sample({**text, **self._pixels(specimens.picture(number))})


class ClassifyingStages(_QuestionStages):
    """ViLT. Returns independent scores for a fixed list of answers.

    Questions are padded, and the model masks the padding. Images share a batch only if they have
    the same shape: the model could pad them as well, but it interpolates its positions by a pixel
    mask.
    """

    def attach(self, model: Any) -> None:
        super().attach(model)
        # Use all patches. With a smaller value, the model drops some at random.
        model.config.max_image_length = -1

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Label]:
        # Follows VisualQuestionAnsweringPipeline, which transformers removed in release 5.3.
        scores = outputs[0]["logits"][0].sigmoid()
        best = scores.topk(min(parameters["top_k"], len(scores)))
        return [
            Label(label=self.config.id2label[index], score=score)
            for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


class GeneratingStages(_QuestionStages, GenerateStages):
    """BLIP. Generates one answer, with a score of 1.

    Only questions of equal length share a batch: its decoder attends to a question's padding.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.padding = {}

    def max_tokens(self) -> int:
        positions: int = self.config.text_config.max_position_embeddings
        return min(super().max_tokens(), positions)

    def sample(self, features: "Mapping[str, torch.Tensor]") -> Sample:
        names = ("input_ids", "attention_mask", "pixel_values")
        return Sample({name: features[name] for name in names}, call=self.call_of({}))

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Label]:
        return [Label(label=self.text(outputs[0]), score=1.0)]

    def _own_options(self) -> dict[str, Any]:
        # BLIP's `generate` stops at this token, even if generation_config.json names another.
        return super()._own_options() | {"eos_token_id": self.config.text_config.sep_token_id}


class Blip2AnswerStages(Blip2Stages, ImageQuestionStages):
    """BLIP-2. The answer is the continuation of the text."""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        question: str = item["question"]
        # The model would continue a bare question instead of answering it.
        prompt = question if question.startswith(_ASKED) else f"{_ASKED} {question} Answer:"
        return [self.sample(self.picture(item), prompt, {}, item["question_at"])]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[Label]:
        return [Label(label=self.text(outputs[0]), score=1.0)]


TASK = Task(
    pipeline="visual-question-answering",
    path="/v1/question-answering/visual",
    summary="Answer questions about images",
    request=VisualQuestionAnsweringRequest,
    media={"image": "image"},
    result=list[Label],
    # Less specific for models that can also caption without a question.
    architectures=("ViltForQuestionAnswering", "BlipForQuestionAnswering", "Blip2ForCond*"),
    families=("vilt", "blip", "blip-2"),
    example={"image": "https://images.example/cat.jpg", "question": "What colour is the cat?"},
    example_result=[{"label": "black", "score": 0.91}, {"label": "grey", "score": 0.06}],
    stages=by_kind(ClassifyingStages, {"blip": GeneratingStages, "blip-2": Blip2AnswerStages}),
)
