"""A base's weights as they are stored in its folder, for engines that run it in another form."""

from pathlib import Path
from typing import Any

import torch

_DEEPEST = 3
"""Maximum number of leading parts of a tensor's name that may belong to a model around the base, or
vice versa.
"""
_TIED = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
"""Embeddings that share their weights with a last layer that no file has."""
_LAST = ("lm_head", "embed_out")


class StoredWeights:
    """Reads one tensor at a time and caches none."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with _opened(path) as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def get(self, name: str) -> torch.Tensor | None:
        """Returns a parameter by its name in the model, float32 on the CPU. None if no file has
        it.
        """
        stored_name = self._found(name)
        module, _, kind = name.rpartition(".")
        if stored_name is None and module.split(".")[-1] in _LAST and kind == "weight":
            tied = (
                tensor_name
                for tensor_name in self._files
                if tensor_name.split(".")[-2:-1] in [[t] for t in _TIED]
            )
            stored_name = next(tied, None)
        if stored_name is None:
            return None
        with _opened(self._files[stored_name]) as file:
            return file.get_tensor(stored_name).float()

    def _found(self, name: str) -> str | None:
        if name in self._files:
            return name
        parts = name.split(".")
        for depth in range(min(_DEEPEST, len(parts) - 2) + 1):
            inner = ".".join(parts[depth:])
            ends = [
                tensor_name
                for tensor_name in self._files
                if tensor_name == inner or tensor_name.endswith(f".{inner}")
            ]
            if len(ends) == 1:
                return ends[0]
        return None


def _opened(path: Path) -> Any:
    from safetensors import safe_open

    library: Any = safe_open
    return library(str(path), framework="pt")
