"""Zero-shot object detection: boxes around what the request's own labels describe."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.pipelines import ImageStages, Outputs, load_image_processor
from stoker.models.stages.text import TextStages
from stoker.models.stages.towers import TowerStages, finish
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import MAX_TOP_K, CandidateLabels, ImageInputs, TopK
from stoker.models.tasks.object_detection import Box, Detection, DetectionThreshold

if TYPE_CHECKING:
    import torch


_TEXT_THRESHOLD = 0.25


class ZeroShotObjectDetectionRequest(MediaRequest):
    # Named as for zero-shot image classification; Hugging Face's clients call it `inputs`.
    image: ImageInputs = Field(validation_alias=AliasChoices("image", "inputs"))
    candidate_labels: CandidateLabels
    threshold: DetectionThreshold = 0.1
    top_k: TopK = MAX_TOP_K
    text_threshold: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Grounding DINO: tokens of the labels name a box whose score is higher; "
            "default: 0.25, or `threshold` where that is less.",
        ),
    ] = None

    input_fields: ClassVar[tuple[str, ...]] = ("image",)


class ZeroShotObjectDetectionStages(TowerStages):
    """OWL-ViT and OWLv2. Their class head compares each patch of an image with each text.

    The pipeline runs the whole model once a label; here an image passes once, whatever its labels.
    """

    auto_class = "AutoModelForZeroShotObjectDetection"

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if "text_threshold" in parameters:
            raise _refusal("text_threshold", "is not for this model, which names boxes by labels.")
        return super().preprocess(item, parameters)

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
        return [_box(corners) for corners in found["boxes"]]


class GroundedDetectionStages(TextStages, ImageStages):
    """Grounding DINO: all labels are one text, and a box is named by the tokens that it is of.

    Only texts of one length share a batch, and only images of one shape.
    """

    auto_class = "AutoModelForZeroShotObjectDetection"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self.padding = {}
        self._images: Any = load_image_processor(folder)
        self._processor: Any = library.GroundingDinoProcessor(self._images, self.tokenizer)

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self.config.max_text_len)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        picture = self.image(item, "image")
        return [self._sample(picture, parameters["candidate_labels"])]

    def _sample(self, picture: Any, labels: Sequence[str]) -> Sample:
        if stopped := [label for label in labels if "." in label]:
            raise _refusal("candidate_labels", f"{stopped[0]!r} has a '.', which ends a label.")
        # As the processor writes them.
        text = ". ".join(label.strip().lower() for label in labels) + "."
        asked = self.tokenizer(text, return_tensors="pt", return_token_type_ids=True)
        length, limit = asked["input_ids"].shape[1], self.max_tokens()
        if length > limit:
            raise _refusal(
                "candidate_labels",
                f"are {length} tokens together; this model takes at most {limit}.",
            )
        seen = self._images(images=[picture], return_tensors="pt")
        _, _, height, width = seen["pixel_values"].shape
        if self._places(height, width) < self.config.num_queries:
            raise InputError(
                f"The image is {picture.width}x{picture.height}: that is too narrow for this model "
                f"to choose {self.config.num_queries} places of it.",
                field="image",
            )
        return Sample({**asked, **seen}, {"target_size": (picture.height, picture.width)})

    def _places(self, height: int, width: int) -> int:
        """Cells of the feature maps that the model chooses its boxes from."""
        backbone = self.config.backbone_config
        if backbone.model_type != "swin":
            return self.config.num_queries
        steps = [backbone.patch_size * 2 ** (index - 1) for index in backbone.out_indices]
        while len(steps) < self.config.num_feature_levels:
            steps.append(2 * steps[-1])
        return sum(-(-height // step) * -(-width // step) for step in steps)

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """{"logits": (images, queries, tokens), "pred_boxes": (images, queries, 4)}."""
        outputs = model(**batch)
        # Behind the tokens all are infinite, which nobody can compare.
        logits = outputs["logits"][:, :, : batch["input_ids"].shape[1]]
        return {"logits": logits, "pred_boxes": outputs["pred_boxes"]}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Callable[[], list[Detection]]:
        import torch

        (output,) = outputs
        threshold: float = parameters["threshold"]
        logits = output["logits"]
        missing = self.config.max_text_len - logits.shape[2]
        logits = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        (found,) = self._processor.post_process_grounded_object_detection(
            Outputs({**output, "logits": logits}),
            threshold=threshold,
            text_threshold=parameters.get("text_threshold", min(threshold, _TEXT_THRESHOLD)),
            target_sizes=[output["target_size"]],
        )
        scores, boxes, labels = found["scores"], found["boxes"], found["text_labels"]
        order = scores.argsort(descending=True, stable=True)[: parameters["top_k"]]
        detections = [
            Detection(score=scores[place].item(), label=labels[place], box=_box(boxes[place]))
            for place in order.tolist()
        ]
        return lambda: detections

    def probe(self, length: int, number: int = 0) -> Sample:
        from PIL import Image

        if number:
            return self._sample(specimens.picture(number), ["a cat"])
        # Not of one colour: the model puts places into order, which then would all be alike.
        down, out = Image.linear_gradient("L"), Image.radial_gradient("L")
        picture = Image.merge("RGB", (down, down.rotate(90), out)).resize((320, 240))
        return self._sample(picture, ["a cat"])


def _box(corners: Any) -> Box:
    xmin, ymin, xmax, ymax = corners.int().tolist()
    return Box(xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax)


def _normalized(vectors: Any) -> Any:
    return vectors / (vectors.norm(dim=-1, keepdim=True) + 1e-6)


def _refusal(field: str, what: str) -> InputError:
    return InputError(f"'{field}' {what}", field=field, of_item=False)


TASK = Task(
    pipeline="zero-shot-object-detection",
    path="/v1/detections/zero-shot/object",
    summary="Detect objects by labels of your own",
    request=ZeroShotObjectDetectionRequest,
    media={"image": "image", "inputs": "image"},
    result=list[Detection],
    architectures=(
        "OwlViTForObjectDetection",
        "Owlv2ForObjectDetection",
        "GroundingDinoForObjectDetection",
        "MMGroundingDinoForObjectDetection",
    ),
    families=("owlvit", "owlv2", "grounding-dino", "mm-grounding-dino"),
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
    stages=by_kind(
        ZeroShotObjectDetectionStages,
        {
            "grounding-dino": GroundedDetectionStages,
            "mm-grounding-dino": GroundedDetectionStages,
        },
    ),
    finish=finish,
)
