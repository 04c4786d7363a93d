"""Served kinds of language models, and the error for other kinds."""

from collections.abc import Mapping

from stoker.inspection.config import CONFIG, ModelConfig
from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.models.llm.model_types import ENCODERS, TEXT, TEXT_GENERATION, UNFIT

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
"""Names of the field of config.json with the number of attention heads. GPT-2 and MPT use other
names.
"""


def attention_heads(pipeline: str, documents: Mapping[str, Json]) -> int:
    """Returns the attention heads of a language model for text. 0 if the model has another
    pipeline, or if its config.json does not say.
    """
    config = documents.get(CONFIG)
    if pipeline != TEXT_GENERATION or not isinstance(config, dict):
        return 0
    counts = (config.get(name) for name in _HEADS)
    return next((count for count in counts if type(count) is int and count > 0), 0)


def refuse_unserved_writer(
    pipeline: str, model: ModelConfig, documents: Mapping[str, Json]
) -> None:
    """Rejects a language model for text of a kind that would not load, or not answer correctly.

    Raises:
        InspectionError: `UNSUPPORTED_ARCHITECTURE`, `UNSUPPORTED_MODEL`.
    """
    if pipeline != TEXT_GENERATION:
        return
    if model.model_type not in TEXT:
        unknown = (
            f"has the model type {model.model_type}, which was never compared with "
            "transformers. See docs/tasks.md for the supported model types."
        )
        raise InspectionError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"{model.architecture} {UNFIT.get(model.model_type, unknown)}",
            CONFIG,
        )
    config = documents.get(CONFIG)
    decodes = isinstance(config, dict) and config.get("is_decoder") is True
    if model.model_type in ENCODERS and not decodes:
        raise InspectionError(
            FailureCode.UNSUPPORTED_MODEL,
            f'{model.architecture} generates text only if {CONFIG} has "is_decoder": true. '
            "This model reads texts in both directions. To embed texts with it, request "
            "the pipeline feature-extraction.",
            CONFIG,
        )
