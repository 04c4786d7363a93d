"""A base's weights as they lie in its folder, for who runs it in another form."""

from pathlib import Path
from typing import Any

import torch

_DEEPEST = 3
"""Leading parts of a tensor's name that may be those of a model around ours, or the other way."""
_TIED = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
"""What a last layer shares its weights with, where no file has them."""
_LAST = ("lm_head", "embed_out")


class StoredWeights:
    """Reads one tensor at a time; nothing is kept."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with _opened(path) as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def get(self, name: str) -> torch.Tensor | None:
        """By a parameter's name in the model, float32 on the CPU; None: no file has it."""
        found = self._found(name)
        module, _, kind = name.rpartition(".")
        if found is None and module.split(".")[-1] in _LAST and kind == "weight":
            tied = (one for one in self._files if one.split(".")[-2:-1] in [[t] for t in _TIED])
            found = next(tied, None)
        if found is None:
            return None
        with _opened(self._files[found]) as file:
            return file.get_tensor(found).float()

    def _found(self, name: str) -> str | None:
        if name in self._files:
            return name
        parts = name.split(".")
        for depth in range(min(_DEEPEST, len(parts) - 2) + 1):
            inner = ".".join(parts[depth:])
            ends = [one for one in self._files if one == inner or one.endswith(f".{inner}")]
            if len(ends) == 1:
                return ends[0]
        return None


def _opened(path: Path) -> Any:
    from safetensors import safe_open

    library: Any = safe_open
    return library(str(path), framework="pt")
