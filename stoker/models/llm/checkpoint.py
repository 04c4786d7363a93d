"""Reads a language model's folder: safetensors and what lies beside them, or a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from stoker.models.engines import completeness
from stoker.models.llm import generation_fields, gguf_checkpoint
from stoker.models.llm.model_types import VISION

TEXT = "AutoModelForCausalLM"


class UnservedModelError(Exception):
    """A vision model of a kind that is not served."""


def load_config(folder: Path) -> Any:
    """The configuration, of transformers."""
    if name := gguf_checkpoint.gguf_file(folder):
        return gguf_checkpoint.load_config(folder, name)
    library: Any = transformers
    return library.AutoConfig.from_pretrained(str(folder), local_files_only=True)


def load_model(folder: Path, kind: str = TEXT, **options: Any) -> Any:
    """The model with a language modelling head, on the CPU.

    Args:
        kind: transformers' class that loads it, where it is no GGUF.
        options: `from_pretrained`'s.

    Raises:
        MissingWeightsError, GgufError: the files lack weights.
    """
    if name := gguf_checkpoint.gguf_file(folder):
        return gguf_checkpoint.load_model(folder, name, **options)
    library: Any = transformers
    return completeness.loaded(
        getattr(library, kind),
        str(folder),
        local_files_only=True,
        use_safetensors=True,
        **options,
    )


def load_skeleton(folder: Path) -> Any:
    """The model with a language modelling head, without weights: what it is made of."""
    library: Any = transformers
    with torch.device("meta"):
        return library.AutoModelForCausalLM.from_config(load_config(folder))


def architecture(folder: Path) -> str:
    """The class of a folder's vision model. Raises `UnservedModelError`."""
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
    (name, *_) = config.get("architectures") or [""]
    if name not in VISION:
        raise UnservedModelError(f"{name} is not served; served are: {', '.join(VISION)}.")
    return name


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer, with its chat template."""
    if name := gguf_checkpoint.gguf_file(folder):
        return gguf_checkpoint.load_tokenizer(folder, name)
    library: Any = transformers
    return library.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def load_generation_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """The fields that say how to generate, and the name of the file that they are from.

    As transformers reads them: those of generation_config.json; without that file, those of
    config.json. What a GGUF file says of itself holds where generation_config.json leaves it open.
    """
    own = _read_object(folder / generation_fields.FILE)
    if name := gguf_checkpoint.gguf_file(folder):
        of_file = gguf_checkpoint.generation_config(folder, name)
        return {**of_file, **(own or {})}, name if own is None else generation_fields.FILE
    if own is not None:
        return own, generation_fields.FILE
    config = _read_object(folder / generation_fields.CONFIG) or {}
    return generation_fields.of_config(config), generation_fields.CONFIG


def _read_object(path: Path) -> Mapping[str, Any] | None:
    """None: there is no such file, or it holds no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None
