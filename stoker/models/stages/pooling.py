"""Pools token vectors into one vector per text, as a sentence-transformers folder describes.

See `stoker.models.stages.sentence_modules`. Without `modules.json`, a folder is pooled by the mean
over unmasked tokens, without normalisation.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages.late_interaction import STANFORD_PROJECTION
from stoker.models.stages.sentence_modules import (
    DENSE,
    LAYER_NORM,
    LAYERS,
    NORMALIZE,
    WEIGHTS,
    FolderUnfitError,
    Module,
    Sentence,
    described,
)

if TYPE_CHECKING:
    import torch

    Works = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class SentenceHead:
    """Modules after the transformer, in the order of the folder."""

    about: Sentence
    tokens: "tuple[Works, ...]" = ()
    """Functions that change the vectors of tokens."""
    after: "tuple[Works, ...]" = ()
    """Functions that change the vector of the text."""
    layers: "Callable[[Sequence[torch.Tensor]], torch.Tensor] | None" = None
    """Function that merges the vectors of all layers into the vectors of tokens."""

    @classmethod
    def of(cls, folder: Path) -> "SentenceHead":
        """Returns the head of a model folder. Raises `FolderUnfitError` if it is not served."""
        about = described_folder(folder)
        weighted = [
            _weighted_layers(folder, module) for module in about.tokens if module.kind == LAYERS
        ]
        projected = (_projection(folder),) if about.interaction and not about.tokens else ()
        return cls(
            about,
            tokens=projected or _working(folder, about.tokens),
            after=_working(folder, about.after),
            layers=weighted[0] if weighted else None,
        )

    def pool(self, hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Returns (batch, features) vectors from (batch, tokens, width) hidden states and a (batch,
        tokens) mask. `finish` completes them.
        """
        import torch

        hidden = self.token_vectors(hidden)
        return torch.cat([_POOLING[mode](hidden, mask) for mode in self.about.pooling], dim=-1)

    def token_vectors(self, hidden: "torch.Tensor") -> "torch.Tensor":
        """Returns the vectors of tokens before they are pooled."""
        for work in self.tokens:
            hidden = work(hidden)
        return hidden

    def pools_padded_rows(self, padding_side: str) -> bool:
        """Returns True if `pool` works on padded rows, on any device.

        The weights of modules before pooling are in main memory. A weighted mean counts positions
        from the start of a row.
        """
        return not self.tokens and (
            padding_side == "right" or "weightedmean" not in self.about.pooling
        )

    def finish(self, vector: "torch.Tensor", *, normalize: bool | None = None) -> "torch.Tensor":
        """Applies the modules after pooling to (batch, features) vectors.

        Without `normalize`, the model's own modules decide whether the vectors have length one.
        """
        last = len(self.after)
        while normalize is not None and last and self.after[last - 1] is _normalize:
            last -= 1
        for work in self.after[:last]:
            vector = work(vector)
        return _normalize(vector) if normalize else vector

    def vectors(self, hidden: "torch.Tensor", *, normalize: bool = True) -> "torch.Tensor":
        """Returns (tokens, features) vectors from (tokens, width) hidden states, normalised to
        length one unless disabled.
        """
        for work in (*self.tokens, *self.after):
            if work is not _normalize:
                hidden = work(hidden)
        return _normalize(hidden) if normalize else hidden

    def shortened(
        self, vector: "torch.Tensor", dimensions: int, *, normalize: bool | None = None
    ) -> "torch.Tensor":
        """Returns the first numbers of a (features,) vector, normalised by the same rule as in
        `finish`.
        """
        short = vector[:dimensions]
        normalize = _normalize in self.after if normalize is None else normalize
        return _normalize(short[None])[0] if normalize else short


def described_folder(folder: Path) -> Sentence:
    """Returns the sentence-transformers description of a model folder.

    Raises `FolderUnfitError`.
    """
    return described(lambda path: read_json(folder / path))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def _mean(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _mean_sqrt(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9).sqrt()


def _first(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    return hidden[_rows(hidden), mask.argmax(1)]


def _last(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    return hidden[_rows(hidden), mask.shape[1] - 1 - mask.flip(1).argmax(1)]


def _max(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _weighted_mean(hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
    import torch

    positions = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    return _mean(hidden * positions[:, None], mask) * (
        mask.sum(1, keepdim=True) / (mask * positions).sum(1, keepdim=True).clamp(min=1e-9)
    )


def _rows(hidden: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.arange(hidden.shape[0], device=hidden.device)


_POOLING: "Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]" = {
    "cls": _first,
    "mean": _mean,
    "max": _max,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def _working(folder: Path, modules: Sequence[Module]) -> "tuple[Works, ...]":
    """Returns the functions of modules, in order. Modules that only training needs are left out."""
    kinds: dict[str, Callable[[Path, Module], Works]] = {
        DENSE: _dense,
        LAYER_NORM: _layer_norm,
        NORMALIZE: lambda _folder, _module: _normalize,
    }
    return tuple(kinds[module.kind](folder, module) for module in modules if module.kind in kinds)


def _normalize(vector: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.nn.functional.normalize(vector, p=2, dim=-1)


def _dense(folder: Path, module: Module) -> "Works":
    import torch

    weights = _weights(folder, module)
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    # The name comes from the artifact. It is looked up in a table and never imported.
    name = str(module.config.get("activation_function", "Tanh")).rpartition(".")[2]
    activations: dict[str, Works] = {
        "GELU": torch.nn.functional.gelu,
        "Identity": lambda vector: vector,
        "ReLU": torch.relu,
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
    }
    activation = activations[name]
    residual = bool(module.config.get("use_residual"))
    beside = weights.get("residual.weight")

    def apply(vector: torch.Tensor) -> torch.Tensor:
        projected = activation(torch.nn.functional.linear(vector, weight, bias))
        if not residual:
            return projected
        return projected + (
            vector if beside is None else torch.nn.functional.linear(vector, beside, None)
        )

    return apply


def _projection(folder: Path) -> "Works":
    """Returns the last layer of a model in Stanford's format, which stores it among its other
    weights.
    """
    import safetensors
    import torch

    library: Any = safetensors
    for path in sorted(folder.glob("*.safetensors")):
        with library.safe_open(str(path), "pt") as weights:
            if STANFORD_PROJECTION in weights.keys():  # noqa: SIM118 - it is no mapping
                weight: torch.Tensor = weights.get_tensor(STANFORD_PROJECTION).float()
                return lambda hidden: torch.nn.functional.linear(hidden, weight)
    raise FolderUnfitError("model.safetensors", f"has no {STANFORD_PROJECTION}.")


def _layer_norm(folder: Path, module: Module) -> "Works":
    import torch

    weights = _weights(folder, module)
    weight, bias = weights["norm.weight"], weights["norm.bias"]
    return lambda vector: torch.nn.functional.layer_norm(vector, weight.shape, weight, bias)


def _weighted_layers(
    folder: Path, module: Module
) -> "Callable[[Sequence[torch.Tensor]], torch.Tensor]":
    import torch

    weights = _weights(folder, module)["layer_weights"]
    start = int(module.config.get("layer_start", 4))

    def apply(layers: Sequence[torch.Tensor]) -> torch.Tensor:
        chosen = torch.stack([*layers[start:]])
        shares = (weights / weights.sum()).to(chosen)
        return (shares[:, None, None, None] * chosen).sum(0)

    return apply


def _weights(folder: Path, module: Module) -> "dict[str, torch.Tensor]":
    import safetensors.torch

    library: Any = safetensors.torch
    tensors: dict[str, torch.Tensor] = library.load_file(str(folder / module.path / WEIGHTS))
    return {name: value.float() for name, value in tensors.items()}
