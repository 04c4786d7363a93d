"""Which files of a folder or repository make up a model, by their names alone.

The command line pushes these, and the server fetches them from a hub.
"""

import re
from collections.abc import Collection
from pathlib import PurePosixPath

GGUF = ".gguf"
SAFETENSORS = ".safetensors"
WEIGHT_SUFFIXES = frozenset({SAFETENSORS, GGUF})
# Besides JSON and text, where tokenizers keep their vocabularies and merges.
TEXT_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja"})
TOKENIZER_SUFFIXES = frozenset({".spm", ".tiktoken", ".codes", ".vocab"})
COLBERT_SETTINGS = "artifact.metadata"
"""JSON, of a model that Stanford's code has saved."""
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
OTHER_REASON = "not needed to serve a model"
INDEX_SUFFIX = ".safetensors.index.json"
PIPELINE = "model_index.json"
"""In the top folder of a diffusers pipeline, whose weights lie in folders below it."""
ADAPTER = "adapter_config.json"
"""Of an adapter, which has no configuration of a model."""
_VARIANT = re.compile(r"(.+)\.[A-Za-z0-9_]+((-\d{5}-of-\d{5})?\.safetensors)")


def why_left_out(path: str) -> str | None:
    """Why a file is no part of any model; None where it may be one of one."""
    lower = PurePosixPath(path.lower())
    return None if _is_useful(lower) else REASONS.get(lower.suffix, OTHER_REASON)


def why_spare(path: str, others: Collection[str]) -> str | None:
    """Why weights below a diffusers pipeline's folder are left out that would not be loaded.

    Args:
        others: the paths of all files; without `PIPELINE` among them nothing is spare.
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
    return "a variant of weights that are there in full" if whole else None


def why_folder_left_out(name: str) -> str | None:
    """Why nothing in a folder of this name is taken."""
    if name.startswith(".") or name == "__pycache__":
        return "a hidden folder"
    if name.startswith("checkpoint-"):
        return "a checkpoint of the training"
    return None


def _is_useful(path: PurePosixPath) -> bool:
    if path.name.startswith("."):
        return False
    if path.name.endswith(".index.json"):
        # The index of weights in another format names files that are not sent.
        return path.name.endswith(INDEX_SUFFIX)
    if path.stem in DOCUMENT_STEMS and path.suffix in DOCUMENT_SUFFIXES:
        return True
    if path.name == COLBERT_SETTINGS:
        return True
    return path.suffix in WEIGHT_SUFFIXES | TEXT_SUFFIXES | TOKENIZER_SUFFIXES
