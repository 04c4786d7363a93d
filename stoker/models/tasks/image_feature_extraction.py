"""Image feature extraction: one vector per image."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages.pipelines import ImagePipelineStages
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.inputs import ImageInputs

if TYPE_CHECKING:
    import torch


class ImageFeatureExtractionRequest(MediaRequest):
    inputs: ImageInputs


class ImageFeatureExtractionStages(ImagePipelineStages):
    """Stages that pool with the model's own pooler, if it has one, or else with the mean over the
    image's patches.
    """

    pipeline = "ImageFeatureExtractionPipeline"
    auto_class = "AutoModel"

    def part(self, model: Any) -> Any:
        if model.config.model_type == "vit_mae":
            # In training, the model hides three quarters of an image at random.
            model.config.mask_ratio = 0.0
        return model

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._pools = _pooler_is_stored(self.folder, model)

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """Returns {"vector": (images, width)}."""
        if hasattr(model, "get_image_features"):
            return {"vector": model.get_image_features(**batch).pooler_output}
        outputs = model(**batch)
        pooled = outputs.get("pooler_output") if self._pools else None
        if pooled is not None:
            # The pooler output of a convolutional network has the shape (images, width, 1, 1).
            return {"vector": pooled.flatten(1)}
        hidden = outputs.last_hidden_state
        if hidden.dim() == 4:
            return {"vector": hidden.mean((2, 3))}
        before = _tokens_before_patches(model.config, batch["pixel_values"], hidden.shape[1])
        return {"vector": hidden[:, before:].mean(1)}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[float]:
        return outputs[0]["vector"][0].tolist()


def _pooler_is_stored(folder: Path, model: Any) -> bool:
    """Returns True if the folder has all weights of the model's pooler.

    A classifier's checkpoint often has none. transformers then initialises random ones without a
    warning.
    """
    names = [name for name, _ in model.named_parameters() if "pooler." in name]
    stored = _stored_names(folder) if names else []
    # One of the two names may have the prefix of the class that saved the checkpoint.
    return all(any(_same_weight(name, other) for other in stored) for name in names)


def _same_weight(one: str, other: str) -> bool:
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def _stored_names(folder: Path) -> list[str]:
    import safetensors

    library: Any = safetensors
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with library.safe_open(str(path), framework="pt") as file:
            names += file.keys()
    return names


def _tokens_before_patches(config: Any, pixels: "torch.Tensor", tokens: int) -> int:
    """Returns the number of tokens, such as [CLS], that a vision transformer puts before the
    patches' tokens.
    """
    patch = getattr(config, "patch_size", None)
    if patch is None:
        return 0
    tall, wide = (patch, patch) if isinstance(patch, int) else patch
    patches = (pixels.shape[-2] // tall) * (pixels.shape[-1] // wide)
    return max(tokens - patches, 0)


TASK = Task(
    pipeline="image-feature-extraction",
    path="/v1/images/feature-extraction",
    summary="Extract features of images",
    request=ImageFeatureExtractionRequest,
    media={"inputs": "image"},
    result=list[float],
    architectures=(
        "ViTModel",
        "DeiTModel",
        "BeitModel",
        "SwinModel",
        "Swinv2Model",
        "Dinov2*Model",
        "DINOv3*Model",
        "ConvNextModel",
        "ConvNextV2Model",
        "ResNetModel",
        "CLIPVisionModel",
        "SiglipVisionModel",
        "ViTMAEModel",
        "ViTMAEForPreTraining",
        # Less specific than the patterns of zero-shot and plain classification, which take
        # precedence.
        "*CLIPMode?",
        "Siglip*Mode?",
        "MetaClip2Mode?",
        "AlignMode?",
        "*ForImageClass*",
    ),
    families=("align", "clip", "convnext", "dinov2", "metaclip_2", "vit", "vit_mae"),
    example={"inputs": "https://images.example/cat.jpg"},
    example_result=[0.021, -0.114, 0.087],
    stages=ImageFeatureExtractionStages,
)
