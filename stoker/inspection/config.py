"""Determines a model's use: its architecture, and the pipelines that serve it."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from stoker.inspection.documents import Json
from stoker.inspection.failure import FailureCode, InspectionError, quoted
from stoker.inspection.files import FileSet
from stoker.inspection.unserved import GENERAL, reason
from stoker.inspection.weights import MODULES
from stoker.models.stages.sentence_modules import PROMPTS
from stoker.models.stages.speech.folder import unfit
from stoker.models.tasks.architectures import matching

CONFIG = "config.json"
README = "README.md"
README_BYTES = 64 << 10

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_WILDCARDS = re.compile(r"\[!?\]?[^\]]*\]|[*?]")
_FRONT_MATTER = re.compile(
    r"\A(?:\ufeff)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE
)
_PIPELINE_TAG = re.compile(
    r"""^pipeline_tag[ \t]*:[ \t]*["']?([a-z0-9-]+)["']?[ \t]*(?:\#.*)?\r?$""", re.MULTILINE
)
# The hub's names for pipelines that have another name here.
_HUB_NAMES = {
    "sentence-similarity": "feature-extraction",
    "text-to-audio": "text-to-speech",
}

# Pipelines that convert a text to tokens.
TEXT_PIPELINES = frozenset(
    {
        "document-question-answering",
        "feature-extraction",
        "fill-mask",
        "image-text-to-text",
        "image-to-text",
        "question-answering",
        "sentence-similarity",
        "summarization",
        "table-question-answering",
        "text-classification",
        "text-generation",
        "text-ranking",
        "text2text-generation",
        "token-classification",
        "translation",
        "visual-question-answering",
        "zero-shot-audio-classification",
        "zero-shot-classification",
        "zero-shot-image-classification",
        "zero-shot-object-detection",
    }
)
# Architectures that read a text for pipelines that otherwise do not.
_TEXT_ARCHITECTURES = frozenset({"OneFormerForUniversalSegmentation"})
# Pipelines with models that may spell character by character, with a vocab.json and no merges.
SPEECH_PIPELINES = frozenset({"automatic-speech-recognition", "text-to-audio", "text-to-speech"})
_TOKENIZER_FILES = frozenset({"tokenizer.json", "tekken.json", "vocab.txt"})
_TOKENIZER_SUFFIXES = frozenset({".model", ".spm"})
_PAIRED_VOCABULARIES = frozenset({"vocab-src.json", "vocab-tgt.json", "merges.txt"})
# Tokenizers that read bytes or characters and have no vocabulary.
_PLAIN_TOKENIZERS = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})


@dataclass(frozen=True)
class ModelConfig:
    """Facts of config.json that determine how a model is loaded."""

    architecture: str
    model_type: str


def read_config(documents: Mapping[str, Json]) -> ModelConfig:
    """Returns the architecture (the first of `architectures`) and the model type of config.json.

    Both must be plain names, because a loader looks classes up by them.

    Raises:
        InspectionError: `MISSING_CONFIG`, `BAD_CONFIG`.
    """
    if CONFIG not in documents:
        raise InspectionError(
            FailureCode.MISSING_CONFIG,
            f"{CONFIG} is missing from the top folder. Upload what save_pretrained wrote.",
        )
    config = documents[CONFIG]
    if not isinstance(config, dict):
        raise _bad_config("is not a JSON object")
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(first, str) or not _IDENTIFIER.fullmatch(first):
        raise _bad_config('does not name the model\'s class, as in "architectures": ["BertModel"]')
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _MODEL_TYPE.fullmatch(model_type):
        raise _bad_config('does not name the model\'s kind, as in "model_type": "bert"')
    return ModelConfig(first, model_type)


def find_pipeline(
    architecture: str,
    given: str | None,
    hints: Sequence[str],
    pipelines: Mapping[str, Sequence[str]],
) -> str:
    """Returns the pipeline that serves an architecture.

    If the uploader requests none, the first hint that can serve the architecture is used. A model's
    card states what it was trained for, while its class may serve several pipelines. Without a
    hint, the most specific matching pattern is used: the one with the most characters outside its
    wildcards.

    Args:
        architecture: the class that the model was saved from.
        given: the pipeline that the uploader requests, or None.
        hints: pipelines that the model's own files suggest, the strongest first.
        pipelines: by name, patterns of the architectures that each serves; see `matching`.

    Raises:
        InspectionError: `UNKNOWN_PIPELINE`, `PIPELINE_MISMATCH`, `UNSUPPORTED_ARCHITECTURE`,
            `AMBIGUOUS_PIPELINE`.
    """
    if given is not None and given not in pipelines:
        raise unknown_pipeline(given, pipelines)
    ranks = {
        name: max(_literal_length(pattern) for pattern in matched)
        for name, patterns in pipelines.items()
        if (matched := matching(architecture, patterns))
    }
    # A general pattern may match architectures that are known to be unserved.
    why = reason(architecture)
    if not ranks or (why and GENERAL.issuperset(ranks)):
        raise InspectionError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"No pipeline here serves {architecture}{why}. Upload a model for one "
            f"of: {_listed(pipelines)}.",
            CONFIG,
        )
    if given is not None:
        if given not in ranks:
            raise InspectionError(
                FailureCode.PIPELINE_MISMATCH,
                f"{architecture} cannot serve {given}. It can serve: {_listed(ranks)}. "
                f"Name one of those, or upload a model that was trained for {given}.",
                CONFIG,
            )
        return given
    if hinted := [hint for hint in hints if hint in ranks]:
        return hinted[0]
    best = [name for name, rank in ranks.items() if rank == max(ranks.values())]
    if len(best) > 1:
        raise InspectionError(
            FailureCode.AMBIGUOUS_PIPELINE,
            f"{architecture} can serve: {_listed(ranks)}. Set one as the artifact's pipeline, or "
            "as pipeline_tag in the model card.",
            CONFIG,
        )
    return best[0]


def unknown_pipeline(given: str, pipelines: Mapping[str, Sequence[str]]) -> InspectionError:
    """Returns the error for a pipeline that is not served here."""
    return InspectionError(
        FailureCode.UNKNOWN_PIPELINE,
        f"The pipeline {quoted(given)} is not served here. Name one of: {_listed(pipelines)}.",
    )


def find_hints(files: FileSet, documents: Mapping[str, Json]) -> tuple[str, ...]:
    """Returns the pipelines that a model's own files suggest, the strongest hint first.

    The first hint is `pipeline_tag` in the front matter of README.md
    (https://huggingface.co/docs/hub/model-cards#model-card-metadata). The second is feature
    extraction if modules.json is present, which sentence-transformers writes. It also writes the
    file for its cross-encoders, but their settings distinguish them.
    """
    hints: list[str] = []
    if README in files:
        text = files.head(README, README_BYTES).decode("utf-8", "replace")
        front_matter = _FRONT_MATTER.match(text)
        tag = _PIPELINE_TAG.search(front_matter[1]) if front_matter else None
        if tag:
            hints.append(_HUB_NAMES.get(tag[1], tag[1]))
    settings = documents.get(PROMPTS)
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if MODULES in documents and kind in {None, "SentenceTransformer"}:
        hints.append("feature-extraction")
    return tuple(hints)


def refuse_missing_tokenizer(
    pipeline: str, files: FileSet, documents: Mapping[str, Json], architecture: str = ""
) -> None:
    """Rejects a model for text that has no tokenizer in its top folder.

    A tokenizer is one of tokenizer.json, tekken.json, vocab.txt, a SentencePiece or tiktoken model,
    or vocab.json with merges.txt (FSMT has a vocabulary for each language). For speech, vocab.json
    alone is sufficient. Tokenizers of bytes or characters need only their tokenizer_config.json.

    Raises:
        InspectionError: `MISSING_TOKENIZER`.
    """
    reader = architecture if architecture in _TEXT_ARCHITECTURES else pipeline
    if reader not in TEXT_PIPELINES | SPEECH_PIPELINES | _TEXT_ARCHITECTURES:
        return
    names = {path for path in files.sizes if "/" not in path and files.sizes[path] > 0}
    if not _TOKENIZER_FILES.isdisjoint(names):
        return
    if any(PurePosixPath(name).suffix.lower() in _TOKENIZER_SUFFIXES for name in names):
        return
    if names.issuperset(_PAIRED_VOCABULARIES):
        return
    if "vocab.json" in names and ("merges.txt" in names or pipeline in SPEECH_PIPELINES):
        return
    tokenizer = documents.get("tokenizer_config.json")
    kind = tokenizer.get("tokenizer_class") if isinstance(tokenizer, dict) else None
    if isinstance(kind, str) and kind in _PLAIN_TOKENIZERS:
        return
    raise InspectionError(
        FailureCode.MISSING_TOKENIZER,
        f"{reader} needs a tokenizer, but the files contain none. Upload tokenizer.json, or "
        "vocab.txt, or the SentencePiece model, or vocab.json with merges.txt.",
    )


def refuse_unspeakable(architecture: str, files: FileSet, documents: Mapping[str, Json]) -> None:
    """Rejects a model for speech that lacks a part, or with a tokenizer that needs something
    unavailable.

    Raises:
        InspectionError: `UNSUPPORTED_MODEL`.
    """
    tokenizer = documents.get("tokenizer_config.json")
    settings = tokenizer if isinstance(tokenizer, dict) else {}
    if fault := unfit(architecture, settings, files.sizes):
        path, problem = fault
        raise InspectionError(FailureCode.UNSUPPORTED_MODEL, f"{path} {problem}", path)


def _literal_length(pattern: str) -> int:
    return len(_WILDCARDS.sub("", pattern))


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _bad_config(what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_CONFIG, f"{CONFIG} {what}. Correct it or save the model again.", CONFIG
    )
