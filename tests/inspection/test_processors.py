"""Models of images or audio without the settings of their preprocessing."""

from collections.abc import Mapping
from typing import Any

import pytest

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.models.tasks.registry import PIPELINES

from .builders import MemoryFiles, config, dumps, model

SETTINGS = dumps({"image_processor_type": "ViTImageProcessorPil", "feature_extractor_type": "X"})
ARCHITECTURES = {
    "audio-classification": "ASTForAudioClassification",
    "automatic-speech-recognition": "WhisperForConditionalGeneration",
    "depth-estimation": "DPTForDepthEstimation",
    "document-question-answering": "LayoutLMv3ForQuestionAnswering",
    "image-classification": "ViTForImageClassification",
    "image-feature-extraction": "ViTModel",
    "image-segmentation": "SegformerForSemanticSegmentation",
    "image-text-to-text": "LlavaForConditionalGeneration",
    "image-to-text": "Florence2ForConditionalGeneration",
    "mask-generation": "Sam2Model",
    "object-detection": "DetrForObjectDetection",
    "video-classification": "VideoMAEForVideoClassification",
    "visual-question-answering": "ViltForQuestionAnswering",
    "zero-shot-audio-classification": "ClapModel",
    "zero-shot-image-classification": "CLIPModel",
    "zero-shot-object-detection": "OwlViTForObjectDetection",
}


def pushed(pipeline: str, architecture: str, **files: bytes) -> str:
    named = {f"{name}.json": data for name, data in files.items()}
    contents: Mapping[str, Any] = {**model(config_json=config(architecture)), **named}
    return inspect(MemoryFiles(contents), pipeline, PIPELINES).pipeline


@pytest.mark.parametrize("pipeline", ARCHITECTURES)
def test_it_is_refused(pipeline: str) -> None:
    architecture = ARCHITECTURES[pipeline]
    with pytest.raises(InspectionError) as caught:
        pushed(pipeline, architecture)
    assert caught.value.code is FailureCode.MISSING_PROCESSOR
    assert caught.value.path == "preprocessor_config.json"
    assert "preprocessor_config.json is missing" in caught.value.message
    # Older models have such a file without settings of a processor.
    with pytest.raises(InspectionError):
        pushed(pipeline, architecture, processor_config=dumps({"processor_class": "X"}))
    assert pushed(pipeline, architecture, preprocessor_config=SETTINGS) == pipeline
    part = "feature_extractor" if "audio" in pipeline or "speech" in pipeline else "image_processor"
    nested = dumps({part: {"do_resize": True}})
    assert pushed(pipeline, architecture, processor_config=nested) == pipeline


def test_every_pipeline_that_sees_or_hears_is_tried() -> None:
    served = {
        name for name in PIPELINES if any(medium in name for medium in ("image", "audio", "video"))
    }
    drawn = {name for name in PIPELINES if name.endswith(("-to-image", "-to-video"))}
    assert served - drawn - {"unconditional-image-generation"} <= set(ARCHITECTURES)


def test_settings_of_videos() -> None:
    name = "VJEPA2ForVideoClassification"
    pipeline = pushed("video-classification", name, video_preprocessor_config=SETTINGS)
    assert pipeline == "video-classification"


def test_a_model_of_words_on_a_page_needs_none() -> None:
    name = "LayoutLMForQuestionAnswering"
    assert pushed("document-question-answering", name) == "document-question-answering"
