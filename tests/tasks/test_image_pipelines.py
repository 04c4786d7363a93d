"""The pipeline that an uploaded vision model gets if its owner names none."""

import pytest

from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES


@pytest.mark.parametrize(
    ("architecture", "pipeline"),
    [
        ("ViTForImageClassification", "image-classification"),
        ("DeiTForImageClassificationWithTeacher", "image-classification"),
        ("CLIPModel", "zero-shot-image-classification"),
        ("SiglipModel", "zero-shot-image-classification"),
        ("Siglip2Model", "zero-shot-image-classification"),
        ("ChineseCLIPModel", "zero-shot-image-classification"),
        ("DetrForSegmentation", "image-segmentation"),
        ("Mask2FormerForUniversalSegmentation", "image-segmentation"),
        ("SegformerForSemanticSegmentation", "image-segmentation"),
        ("DPTForSemanticSegmentation", "image-segmentation"),
        ("DetrForObjectDetection", "object-detection"),
        ("RTDetrForObjectDetection", "object-detection"),
        ("YolosForObjectDetection", "object-detection"),
        ("OwlViTForObjectDetection", "zero-shot-object-detection"),
        ("Owlv2ForObjectDetection", "zero-shot-object-detection"),
        ("DepthAnythingForDepthEstimation", "depth-estimation"),
        ("SamModel", "mask-generation"),
        ("ViTModel", "image-feature-extraction"),
        ("Dinov2WithRegistersModel", "image-feature-extraction"),
        ("SiglipVisionModel", "image-feature-extraction"),
    ],
)
def test_guess(architecture: str, pipeline: str) -> None:
    assert find_pipeline(architecture, None, (), PIPELINES) == pipeline


@pytest.mark.parametrize(
    "architecture", ["CLIPModel", "SiglipModel", "ViTForImageClassification", "ConvNextModel"]
)
def test_features_on_request(architecture: str) -> None:
    pipeline = "image-feature-extraction"
    assert find_pipeline(architecture, pipeline, (), PIPELINES) == pipeline


def test_a_zero_shot_detector_is_no_plain_one() -> None:
    with pytest.raises(Exception, match="OwlViTForObjectDetection cannot serve object-detection"):
        find_pipeline("OwlViTForObjectDetection", "object-detection", (), PIPELINES)
