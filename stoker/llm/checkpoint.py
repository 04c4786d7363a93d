"""Reads a language model's folder: safetensors and what lies beside them, or a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from stoker.engines import completeness
from stoker.llm import gguf_checkpoint
from stoker.llm.model_types import VISION

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


def load_generation_config(folder: Path) -> Mapping[str, Any]:
    """generation_config.json, over what a GGUF file says of itself; empty without either."""
    name = gguf_checkpoint.gguf_file(folder)
    of_file: Mapping[str, Any] = gguf_checkpoint.generation_config(folder, name) if name else {}
    path = folder / "generation_config.json"
    own: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {**of_file, **own}
