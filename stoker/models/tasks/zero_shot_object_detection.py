"""Zero-shot object detection: boxes around the objects that the request's labels describe."""

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
            description="Grounding DINO: tokens of the labels name a box if their score is higher. "
            "Default: 0.25, or `threshold` if that is less.",
        ),
    ] = None

    input_fields: ClassVar[tuple[str, ...]] = ("image",)


class ZeroShotObjectDetectionStages(TowerStages):
    """OWL-ViT and OWLv2. Their class head compares each patch of an image with each text.

    The pipeline runs the whole model once per label. Here an image passes once, for any number of
    labels.
    """

    auto_class = "AutoModelForZeroShotObjectDetection"

    def preprocess_item(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if "text_threshold" in parameters:
            raise _refusal(
                "text_threshold", "is not supported by this model, which names boxes by labels."
            )
        return super().preprocess_item(item, parameters)

    def texts(self, parameters: Mapping[str, Any]) -> list[str]:
        return parameters["candidate_labels"]

    def run_texts(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        return super().run_texts(getattr(model, model.base_model_prefix), batch)

    def run_images(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """Returns the outputs of the class head that depend on the image, and a box per patch.

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
        # Ordered by label, as in the pipeline. This decides the order of equal scores.
        scores = logits.sigmoid().T.flatten()
        candidates = (scores > parameters["threshold"]).nonzero().flatten()
        order = scores[candidates].argsort(descending=True, stable=True)
        places: Any = candidates[order[: parameters["top_k"]]]
        boxes = self._boxes(image)
        labels: list[str] = parameters["candidate_labels"]
        detections: list[Detection] = []
        for place in places.tolist():
            label, patch = divmod(int(place), len(boxes))
            detections.append(
                Detection(score=scores[place].item(), label=labels[label], box=boxes[patch])
            )
        return detections

    def _boxes(self, image: Mapping[str, Any]) -> list[Box]:
        """Returns the box of each patch, in pixels."""
        import torch

        # The processor scales boxes as its model family requires. It also reads scores, so it
        # receives one per patch.
        outputs = Outputs(logits=image["shift"], pred_boxes=image["pred_boxes"])
        (result,) = self.image_processor.post_process_object_detection(
            outputs, threshold=-1, target_sizes=torch.tensor([image["target_size"]])
        )
        return [_box(corners) for corners in result["boxes"]]


class GroundedDetectionStages(TextStages, ImageStages):
    """Grounding DINO. All labels form one text, and the tokens that a box matches name it.

    Samples share a batch only if their texts have equal length and their images the same shape.
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
            raise _refusal(
                "candidate_labels", f"must not contain a '.', which ends a label: {stopped[0]!r}."
            )
        # Same format as the processor's.
        text = ". ".join(label.strip().lower() for label in labels) + "."
        encoded = self.tokenizer(text, return_tensors="pt", return_token_type_ids=True)
        length, limit = encoded["input_ids"].shape[1], self.max_tokens()
        if length > limit:
            raise _refusal(
                "candidate_labels",
                f"have {length} tokens in total; this model takes at most {limit}.",
            )
        pixels = self._images(images=[picture], return_tensors="pt")
        _, _, height, width = pixels["pixel_values"].shape
        if self._places(height, width) < self.config.num_queries:
            raise InputError(
                f"The image is {picture.width}x{picture.height}, which is too narrow: this "
                f"model must choose {self.config.num_queries} places of it.",
                field="image",
            )
        return Sample({**encoded, **pixels}, {"target_size": (picture.height, picture.width)})

    def _places(self, height: int, width: int) -> int:
        """Returns the number of cells of the feature maps from which the model selects its
        boxes.
        """
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
        """Returns {"logits": (images, queries, tokens), "pred_boxes": (images, queries, 4)}."""
        outputs = model(**batch)
        # Logits after the last token are infinite and cannot be compared.
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
        (result,) = self._processor.post_process_grounded_object_detection(
            Outputs({**output, "logits": logits}),
            threshold=threshold,
            text_threshold=parameters.get("text_threshold", min(threshold, _TEXT_THRESHOLD)),
            target_sizes=[output["target_size"]],
        )
        scores, boxes, labels = result["scores"], result["boxes"], result["text_labels"]
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
        # The image has several colours: the model sorts positions, and all positions of one colour
        # would be equal.
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
    summary="Detect objects by your own labels",
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
