"""Rejects at upload the sentence-transformers settings that would fail at load."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from stoker.inspection.config import CONFIG
from stoker.inspection.documents import Json, load_json
from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import Header
from stoker.models.stages import cross_encoder, sentence_modules
from stoker.models.stages.late_interaction import STANFORD, STANFORD_PROJECTION
from stoker.models.stages.sentence_modules import (
    MODULES,
    PROMPTS,
    WEIGHTED,
    WEIGHTS,
    FolderUnfitError,
    Read,
)

FEATURE_EXTRACTION = "feature-extraction"
TEXT_CLASSIFICATION = "text-classification"
TEXT_RANKING = "text-ranking"

T = TypeVar("T")


def refuse_unfit_reranker(
    pipeline: str, documents: Mapping[str, Json], files: FileSet, *, asked: bool
) -> None:
    """Rejects a cross-encoder with modules or an activation that are not served.

    A classifier of texts serves its other endpoints with any activation.

    Args:
        asked: whether the uploader names the pipeline. A language model that ranks may write texts,
            too.

    Raises:
        InspectionError: `UNSUPPORTED_MODEL`.
    """
    settings = documents.get(PROMPTS)
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    is_misread = kind == cross_encoder.MODEL_TYPE and pipeline != TEXT_CLASSIFICATION and not asked
    if pipeline == TEXT_RANKING or is_misread:
        _described(cross_encoder.described, files)


def _described(read: Callable[[Read], T], files: FileSet) -> T:
    """Returns the settings of sentence-transformers' files. Raises `InspectionError`:
    `UNSUPPORTED_MODEL`.
    """
    try:
        return read(lambda path: load_json(files, path) if path in files else {})
    except FolderUnfitError as error:
        raise InspectionError(FailureCode.UNSUPPORTED_MODEL, str(error), error.path) from None


def refuse_unfit_modules(
    pipeline: str | None,
    files: FileSet,
    documents: Mapping[str, Json],
    headers: Mapping[str, Header],
) -> None:
    """Rejects a model with modules that are not served or lack their weights.

    Args:
        pipeline: None while it is unknown: a model without config.json may use words only, without
            a transformer.
        headers: the headers of its safetensors files.

    Raises:
        InspectionError: `UNSUPPORTED_MODEL`, `MISSING_WEIGHTS`.
    """
    lost = pipeline is None and CONFIG not in documents and MODULES in documents
    if not (pipeline == FEATURE_EXTRACTION or lost):
        return

    about = _described(sentence_modules.described, files)
    projected = about.interaction and MODULES not in documents
    if projected and not any(STANFORD_PROJECTION in module.tensors for module in headers.values()):
        raise InspectionError(
            FailureCode.MISSING_WEIGHTS,
            f"The weights lack {STANFORD_PROJECTION}, the last layer of a {STANFORD}.",
            CONFIG,
        )
    for module in (*about.tokens, *about.after):
        path = f"{module.path}/{WEIGHTS}"
        if module.kind in WEIGHTED and path not in files:
            raise InspectionError(
                FailureCode.MISSING_WEIGHTS,
                f"{path} is missing. It holds the weights of the module {module.kind}. Save the "
                "model with sentence-transformers, as safetensors.",
                path,
            )
