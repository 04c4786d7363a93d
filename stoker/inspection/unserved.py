"""Architectures that are not served, and the reasons for the error text."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError

# The first matching pattern applies.
_REASONS = {
    "EdgeTam*": "it needs timm, which is not there",
    "Sam3*": "its image processor needs torchvision, which is not there",
    "LayoutLMv2*": "it needs detectron2, which is not there",
    "MarkupLM*": "it reads the nodes of HTML with their paths, which no endpoint takes",
    "LayoutLM*": "it reads words with their places on a page, which an endpoint of texts lacks",
    "Lilt*": "it reads words with their places on a page, which an endpoint of texts lacks",
    "Bros*": "it reads words with their places on a page, which an endpoint of texts lacks",
    "Bark*": "it speaks with three models in turn, in voices that are files beside them",
    "ParlerTTS*": "its class is in a package of its own, parler-tts, and not in transformers",
    "PixArt*": "its pipeline does not tell of its steps, which progress and giving up need",
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
                f"('{key}'), and {pipeline} reads texts. Upload a model of texts.",
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
                f"{path} has 'is_vqa': questions are drawn above the image, in a font that is "
                "fetched from the hub, which never happens here. Upload a Pix2Struct that captions "
                "images without a question.",
                path,
            )
