"""Checks whether a model for images or sound has its preprocessing settings."""

from collections.abc import Mapping

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.packages import PREPROCESSOR_CONFIG, PROCESSOR_CONFIG, is_seeing

VIDEO_CONFIG = "video_preprocessor_config.json"
_VIDEO = "video-classification"
_HEARING = frozenset(
    {"audio-classification", "automatic-speech-recognition", "zero-shot-audio-classification"}
)
_WITHOUT = frozenset(
    {"LayoutLMForQuestionAnswering", "TimmWrapperForImageClassification", "TimmWrapperModel"}
)
"""Architectures that read no pixels, or with preprocessing that config.json describes."""


def refuse_missing_processor(
    pipeline: str, architecture: str, files: FileSet, documents: Mapping[str, Json]
) -> None:
    """Rejects a model without settings for preparing its images or recordings.

    The settings are preprocessor_config.json, or are part of processor_config.json.

    Raises:
        InspectionError: `MISSING_PROCESSOR`.
    """
    if pipeline in _HEARING:
        kinds, part = "recordings", "feature_extractor"
    elif is_seeing(pipeline) and architecture not in _WITHOUT:
        kinds, part = "images", "image_processor"
    else:
        return
    settings = documents.get(PROCESSOR_CONFIG)
    nested = settings if isinstance(settings, dict) else {}
    if PREPROCESSOR_CONFIG in files or part in nested:
        return
    if pipeline == _VIDEO and (VIDEO_CONFIG in files or "video_processor" in nested):
        return
    raise InspectionError(
        FailureCode.MISSING_PROCESSOR,
        f"{PREPROCESSOR_CONFIG} is missing. It describes how {kinds} are prepared for the "
        "model. Upload the original model's file, or "
        f"{PROCESSOR_CONFIG} if it has '{part}'.",
        PREPROCESSOR_CONFIG,
    )
