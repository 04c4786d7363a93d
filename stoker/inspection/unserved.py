"""Architectures that are not served, and the reasons for the error text."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError

# The first matching pattern applies.
_REASONS = {
    "EdgeTam*": "it needs timm, which is not installed",
    "Sam3*": "its image processor needs torchvision, which is not installed",
    "LayoutLMv2*": "it needs detectron2, which is not installed",
    "MarkupLM*": "it reads HTML nodes with their paths, which no endpoint accepts",
    "LayoutLM*": "it reads words with their positions on a page, which text endpoints lack",
    "Lilt*": "it reads words with their positions on a page, which text endpoints lack",
    "Bros*": "it reads words with their positions on a page, which text endpoints lack",
    "Bark*": "it uses three models in sequence, with voices in separate files",
    "ParlerTTS*": "its class is in the separate package parler-tts, not in transformers",
    "PixArt*": "its pipeline does not report its steps, which progress and cancellation need",
}

# Pipelines with patterns that match nearly any architecture, and thus also match by accident.
GENERAL = frozenset({"feature-extraction", "fill-mask"})
# Keys of config.json for the parts of a multimodal model.
_PARTS = frozenset({"text_config", "vision_config", "audio_config"})
# Keys of config.json that only models of other data than text have.
_OTHER_SENSES = (
    ("vision_config", "images"),
    ("image_config", "images"),
    ("backbone_config", "images"),
    ("image_size", "images"),
    ("patch_size", "images"),
    ("num_channels", "images"),
    ("visual_feat_dim", "images"),
    ("visual_embedding_dim", "images"),
    ("audio_config", "sound"),
    ("codec_config", "sound"),
    ("feat_extract_norm", "sound"),
    ("feature_projection_input_dim", "sound"),
    ("input_feat_per_channel", "sound"),
    ("num_mel_bins", "sound"),
    ("sampling_rate", "sound"),
)


def reason(architecture: str) -> str:
    """Returns why an architecture is not served, as the end of a sentence. Returns an empty text if
    no reason is known.
    """
    reasons = (why for pattern, why in _REASONS.items() if fnmatchcase(architecture, pattern))
    return next((f": {why}" for why in reasons), "")


def refuse_other_senses(
    pipeline: str, architecture: str, documents: Mapping[str, Json], *, asked: bool
) -> None:
    """Rejects a model of images or sound that matched only a general pattern for texts.

    Args:
        asked: whether the uploader or the model's own files name the pipeline. A multimodal model
            may embed only texts, and then serves that purpose.

    Raises:
        InspectionError: `UNSUPPORTED_ARCHITECTURE`.
    """
    config = documents.get("config.json")
    if pipeline not in GENERAL or not isinstance(config, dict):
        return
    if asked and not _PARTS.isdisjoint(config):
        return
    for key, sense in _OTHER_SENSES:
        if key in config:
            raise InspectionError(
                FailureCode.UNSUPPORTED_ARCHITECTURE,
                f"No pipeline here serves {architecture}: config.json describes {sense} "
                f"('{key}'), but {pipeline} reads texts. Upload a model for texts.",
                "config.json",
            )


def refuse_drawn_questions(documents: Mapping[str, Json]) -> None:
    """Rejects a Pix2Struct that reads questions, because they are drawn above the image.

    Raises:
        InspectionError: `UNSUPPORTED_MODEL`.
    """
    config = documents.get("config.json")
    if not isinstance(config, dict) or config.get("model_type") != "pix2struct":
        return
    for path in ("config.json", "preprocessor_config.json"):
        document = documents.get(path)
        if isinstance(document, dict) and document.get("is_vqa"):
            raise InspectionError(
                FailureCode.UNSUPPORTED_MODEL,
                f"{path} has 'is_vqa', so questions are drawn above the image. Their font would "
                "come from the hub, but nothing is fetched from there. Upload a "
                "Pix2Struct that captions images without a question.",
                path,
            )
