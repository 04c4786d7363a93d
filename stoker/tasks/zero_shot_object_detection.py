"""Zero-shot object detection: boxes around what the request's own labels describe."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import AliasChoices, Field

from stoker.replica.pipelines import Outputs
from stoker.replica.towers import TowerStages, finish
from stoker.tasks.base import MediaRequest, Task
from stoker.tasks.inputs import MAX_TOP_K, CandidateLabels, ImageInputs, TopK
from stoker.tasks.object_detection import Box, Detection, DetectionThreshold

if TYPE_CHECKING:
    import torch


class ZeroShotObjectDetectionRequest(MediaRequest):
    # Named as for zero-shot image classification; Hugging Face's clients call it `inputs`.
    image: ImageInputs = Field(validation_alias=AliasChoices("image", "inputs"))
    candidate_labels: CandidateLabels
    threshold: DetectionThreshold = 0.1
    top_k: TopK = MAX_TOP_K

    input_fields: ClassVar[tuple[str, ...]] = ("image",)


class ZeroShotObjectDetectionStages(TowerStages):
    """OWL-ViT and OWLv2. Their class head compares each patch of an image with each text.

    The pipeline runs the whole model once a label; here an image passes once, whatever its labels.
    """

    auto_class = "AutoModelForZeroShotObjectDetection"

    def texts(self, parameters: Mapping[str, Any]) -> list[str]:
        return parameters["candidate_labels"]

    def run_texts(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        return super().run_texts(getattr(model, model.base_model_prefix), batch)

    def run_images(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """The image's side of the model's class head, and the boxes, one a patch.

        "patches" (images, patches, width); "shift", "scale" (images, patches, 1); "pred_boxes"
        (images, patches, 4). Follows `OwlViTClassPredictionHead.forward` of transformers.
        """
        feature_map = model.image_embedder(batch["pixel_values"])[0]
        patches = feature_map.flatten(1, 2)
        head = model.class_head
        return {
            "patches": _normalized(head.dense0(patches)),
            "shift": head.logit_shift(patches),
            "scale": head.elu(head.logit_scale(patches)) + 1,
            "pred_boxes": model.box_predictor(patches, feature_map),
        }

    def score(
        self,
        image: Mapping[str, Any],
        embeddings: "torch.Tensor",
        parameters: Mapping[str, Any],
    ) -> list[Detection]:
        logits = image["patches"][0] @ _normalized(embeddings).T
        logits = (logits + image["shift"][0]) * image["scale"][0]
        # Label by label, as the pipeline goes through them: it settles the order of equal scores.
        scores = logits.sigmoid().T.flatten()
        kept = (scores > parameters["threshold"]).nonzero().flatten()
        order = scores[kept].argsort(descending=True, stable=True)
        places: Any = kept[order[: parameters["top_k"]]]
        boxes = self._boxes(image)
        labels: list[str] = parameters["candidate_labels"]
        found: list[Detection] = []
        for place in places.tolist():
            label, patch = divmod(int(place), len(boxes))
            found.append(
                Detection(score=scores[place].item(), label=labels[label], box=boxes[patch])
            )
        return found

    def _boxes(self, image: Mapping[str, Any]) -> list[Box]:
        """The box of each patch, in pixels."""
        import torch

        # The processor knows how its family scales boxes; it also reads scores, of which it is
        # given one a patch.
        outputs = Outputs(logits=image["shift"], pred_boxes=image["pred_boxes"])
        (found,) = self.image_processor.post_process_object_detection(
            outputs, threshold=-1, target_sizes=torch.tensor([image["target_size"]])
        )
        return [
            Box(xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax)
            for xmin, ymin, xmax, ymax in found["boxes"].int().tolist()
        ]


def _normalized(vectors: Any) -> Any:
    return vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-6)


TASK = Task(
    pipeline="zero-shot-object-detection",
    path="/v1/detections/zero-shot/object",
    summary="Detect objects by labels of your own",
    request=ZeroShotObjectDetectionRequest,
    media={"image": "image", "inputs": "image"},
    result=list[Detection],
    architectures=("OwlViTForObjectDetection", "Owlv2ForObjectDetection"),
    families=("owlvit", "owlv2"),
    example={
        "image": "https://images.example/street.jpg",
        "candidate_labels": ["a bicycle", "a tram"],
    },
    example_result=[
        {
            "score": 0.41,
            "label": "a bicycle",
            "box": {"xmin": 40, "ymin": 112, "xmax": 310, "ymax": 290},
        }
    ],
    stages=ZeroShotObjectDetectionStages,
    finish=finish,
)
