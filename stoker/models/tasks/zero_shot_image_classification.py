"""Zero-shot image classification: the labels of the request that describe an image."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import AliasChoices, Field

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.towers import ITEM, TEXT, TowerStages, finish
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import (
    PLACEHOLDER,
    CandidateLabels,
    HypothesisTemplate,
    ImageInputs,
    Label,
)

if TYPE_CHECKING:
    import torch


class ZeroShotImageClassificationRequest(MediaRequest):
    # Hugging Face's clients call it `inputs`.
    image: ImageInputs = Field(validation_alias=AliasChoices("image", "inputs"))
    candidate_labels: CandidateLabels
    hypothesis_template: HypothesisTemplate = "This is a photo of {}."

    input_fields: ClassVar[tuple[str, ...]] = ("image",)


class ZeroShotImageClassificationStages(TowerStages):
    """Stages of models with a text and an image tower.

    Items of the embeddings endpoint are texts or objects with `image`.
    """

    auto_class = "AutoModelForZeroShotImageClassification"

    def attach(self, model: Any) -> None:
        super().attach(model)
        # ALIGN divides by its temperature; the other models multiply by an exponential.
        self._scale: float = (
            1 / model.temperature.item()
            if hasattr(model, "temperature")
            else model.logit_scale.float().exp().item()
        )
        # Only SigLIP has a bias.
        self._bias: float = model.logit_bias.item() if hasattr(model, "logit_bias") else 0.0

    def completed(self, samples: list[Sample], parameters: Mapping[str, Any]) -> list[Sample]:
        return samples if parameters.get("counted") else super().completed(samples, parameters)

    def preprocess_item(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not parameters.get("counted"):
            return super().preprocess_item(item, parameters)
        if parameters.get("prompt_name") is not None:
            raise InputError("This model has no prompts.", field="prompt_name", of_item=False)
        if isinstance(item, str):
            return [self._embedded_text(item, truncation=bool(parameters.get("truncation")))]
        fields = cast("dict[str, Any]", item)
        if "image" not in fields:
            raise InputError(
                "This model embeds texts and images, not lists of tokens.", field="input"
            )
        sample = self.item_sample(fields["image"])
        sample.call = ITEM
        return [sample]

    def _embedded_text(self, text: str, *, truncation: bool) -> Sample:
        limit = self.max_tokens()
        cut = {"truncation": True, "max_length": limit} if truncation else {}
        features = dict(self.tokenizer(text, return_tensors="pt", **{**cut, **self.text_options}))
        if (length := features["input_ids"].shape[1]) > limit:
            raise self.too_long(length, limit, "input")
        return Sample(features, {"tokens": length}, call=TEXT)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """Returns the result. With the parameter `counted`: the vector of length one and the number
        of tokens.
        """
        if not parameters.get("counted"):
            return super().postprocess(outputs, parameters)
        import torch

        (output,) = outputs
        vector = torch.nn.functional.normalize(output["embedding"].float(), dim=-1)[0]
        if parameters.get("dimensions") not in (None, len(vector)):
            raise InputError(
                f"This model's vectors have {len(vector)} dimensions.",
                field="dimensions",
                of_item=False,
            )
        return vector.numpy(), output.get("tokens", 0)

    def texts(self, parameters: Mapping[str, Any]) -> list[str]:
        template: str = parameters["hypothesis_template"]
        return [template.replace(PLACEHOLDER, label) for label in parameters["candidate_labels"]]

    def score(
        self,
        image: Mapping[str, Any],
        embeddings: "torch.Tensor",
        parameters: Mapping[str, Any],
    ) -> list[Label]:
        import torch

        picture = torch.nn.functional.normalize(image["embedding"], dim=-1)
        texts = torch.nn.functional.normalize(embeddings, dim=-1)
        logits = (picture @ texts.T)[0] * self._scale + self._bias
        # SigLIP scores labels independently; other models compare the labels with each other.
        scores: Any = logits.sigmoid() if self.siglip else logits.softmax(-1)
        labels: list[str] = parameters["candidate_labels"]
        results = [
            Label(label=label, score=score)
            for label, score in zip(labels, scores.tolist(), strict=True)
        ]
        return sorted(results, key=lambda result: -result["score"])


TASK = Task(
    pipeline="zero-shot-image-classification",
    path="/v1/classifications/zero-shot/image",
    summary="Classify images by your own labels",
    request=ZeroShotImageClassificationRequest,
    media={"image": "image", "inputs": "image"},
    result=list[Label],
    architectures=(
        "CLIPModel",
        "SiglipModel",
        "Siglip2Model",
        "ChineseCLIPModel",
        "AltCLIPModel",
        "MetaClip2Model",
        "AlignModel",
    ),
    families=("align", "chinese_clip", "clip", "metaclip_2", "siglip", "siglip2"),
    example={
        "image": "https://images.example/cat.jpg",
        "candidate_labels": ["a cat", "a dog", "a tram"],
    },
    example_result=[
        {"label": "a cat", "score": 0.97},
        {"label": "a dog", "score": 0.02},
        {"label": "a tram", "score": 0.01},
    ],
    stages=ZeroShotImageClassificationStages,
    finish=finish,
)
