"""Reads a language model's folder: safetensors with their other files, or a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from stoker.models.engines import completeness
from stoker.models.llm import generation_fields, gguf_checkpoint
from stoker.models.llm.model_types import VISION
from stoker.models.stages import added_tokens

TEXT = "AutoModelForCausalLM"


class UnservedModelError(Exception):
    """Raised for a vision model of an unsupported kind."""


def load_config(folder: Path) -> Any:
    """Returns the model's configuration as a transformers object."""
    if name := gguf_checkpoint.gguf_file(folder):
        return gguf_checkpoint.load_config(folder, name)
    library: Any = transformers
    return library.AutoConfig.from_pretrained(str(folder), local_files_only=True)


def load_model(folder: Path, kind: str = TEXT, **options: Any) -> Any:
    """Returns the model with a language modelling head, on the CPU.

    Args:
        kind: class of transformers that loads the model, unless it is a GGUF file.
        options: arguments of `from_pretrained`.

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
    """Returns the model with a language modelling head but without weights: its structure only."""
    library: Any = transformers
    with torch.device("meta"):
        return library.AutoModelForCausalLM.from_config(load_config(folder))


def architecture(folder: Path) -> str:
    """Returns the class of a folder's vision model. Raises `UnservedModelError`."""
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
    (name, *_) = config.get("architectures") or [""]
    if name not in VISION:
        raise UnservedModelError(f"{name} is not supported. Use one of {', '.join(VISION)}.")
    return name


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer with its chat template."""
    if name := gguf_checkpoint.gguf_file(folder):
        return gguf_checkpoint.load_tokenizer(folder, name)
    library: Any = transformers
    return library.AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, **added_tokens.arguments(folder)
    )


def load_generation_config(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Returns the fields that control generation, and the name of the file that holds them.

    The rule is that of transformers: the fields of generation_config.json or, without that file,
    those of config.json. The metadata of a GGUF file fills in fields that generation_config.json
    omits.
    """
    generation = _read_object(folder / generation_fields.FILE)
    if name := gguf_checkpoint.gguf_file(folder):
        of_file = gguf_checkpoint.generation_config(folder, name)
        return {
            **of_file,
            **(generation or {}),
        }, name if generation is None else generation_fields.FILE
    if generation is not None:
        return generation, generation_fields.FILE
    config = _read_object(folder / generation_fields.CONFIG) or {}
    return generation_fields.of_config(config), generation_fields.CONFIG


def _read_object(path: Path) -> Mapping[str, Any] | None:
    """Returns the JSON object of a file. None if the file does not exist or holds no JSON
    object.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else None
