"""Selects the files of a folder or repository that make up a model, by name.

The command line pushes these files, and the server downloads them from a hub.
"""

import re
from collections.abc import Collection
from pathlib import PurePosixPath

GGUF = ".gguf"
SAFETENSORS = ".safetensors"
WEIGHT_SUFFIXES = frozenset({SAFETENSORS, GGUF})
# Formats other than JSON and text in which tokenizers keep vocabularies and merges.
TEXT_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
TOKENIZER_SUFFIXES = frozenset({".spm", ".tiktoken", ".codes", ".vocab"})
COLBERT_SETTINGS = "artifact.metadata"
"""JSON file of a model saved by Stanford's ColBERT code."""
DOCUMENT_STEMS = frozenset({"readme", "license", "licence", "notice"})
DOCUMENT_SUFFIXES = frozenset({"", ".md"})
PICKLED = "may hold a Python pickle"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
REASONS = {
    **dict.fromkeys(PICKLE_SUFFIXES, PICKLED),
    **dict.fromkeys((".h5", ".msgpack", ".onnx", ".tflite"), "weights of another framework"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp"), "an image"),
    ".py": "code is never run",
}
OTHER_REASON = "not needed to serve the model"
INDEX_SUFFIX = ".safetensors.index.json"
PIPELINE = "model_index.json"
"""File in the top folder of a diffusers pipeline. Weights are in its subfolders."""
ADAPTER = "adapter_config.json"
"""Configuration of an adapter, which has no config.json."""
_VARIANT = re.compile(r"(.+)\.[A-Za-z0-9_]+((-\d{5}-of-\d{5})?\.safetensors)")


def why_left_out(path: str) -> str | None:
    """Returns why a file is not part of a model, or None if it may be."""
    lower = PurePosixPath(path.lower())
    return None if _is_useful(lower) else REASONS.get(lower.suffix, OTHER_REASON)


def why_spare(path: str, others: Collection[str]) -> str | None:
    """Returns why weights of a diffusers pipeline are skipped, or None if they are loaded.

    Args:
        others: paths of all files. Without `PIPELINE`, nothing is skipped.
    """
    place = PurePosixPath(path)
    if place.suffix != SAFETENSORS or PIPELINE not in others:
        return None
    if len(place.parts) == 1:
        return "not one of the pipeline's folders"
    variant = _VARIANT.fullmatch(place.name)
    whole = variant and any(
        (place.parent / f"{variant[1]}{end}").as_posix() in others
        for end in (SAFETENSORS, INDEX_SUFFIX)
    )
    return "a variant of weights that are also present in full" if whole else None


def why_folder_left_out(name: str) -> str | None:
    """Returns why a folder of this name is skipped, or None."""
    if name.startswith(".") or name == "__pycache__":
        return "a hidden folder"
    if name.startswith("checkpoint-"):
        return "a training checkpoint"
    return None


def _is_useful(path: PurePosixPath) -> bool:
    if path.name.startswith("."):
        return False
    if path.name.endswith(".index.json"):
        # The index of a skipped weight format names files that are not sent.
        return path.name.endswith(INDEX_SUFFIX)
    if path.stem in DOCUMENT_STEMS and path.suffix in DOCUMENT_SUFFIXES:
        return True
    if path.name == COLBERT_SETTINGS:
        return True
    return path.suffix in WEIGHT_SUFFIXES | TEXT_SUFFIXES | TOKENIZER_SUFFIXES
