"""Token vectors into one vector a text, as a sentence-transformers folder describes it.

Format: `modules.json` lists the modules in order; `Transformer` reads
`sentence_bert_config.json`, `Pooling`, `Dense` and `Normalize` follow
(sentence-transformers, "Creating Custom Models"). A folder without it is pooled by the mean over
unmasked tokens, unnormalised.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Module = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class SentenceHead:
    modes: tuple[str, ...]
    after: "tuple[Module, ...]"
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name → what precedes a text of that kind."""
    default_prompt: str = ""
    lowercase: bool = False

    @classmethod
    def of(cls, folder: Path) -> "SentenceHead":
        """The head of a model folder. Raises ValueError for a module that is not known."""
        if not (folder / "modules.json").exists():
            return cls(("mean",), ())
        modes: tuple[str, ...] = ("mean",)
        after: list[Module] = []
        for module in _json(folder / "modules.json"):
            # Older releases name `sentence_transformers.models.Pooling`, newer ones longer paths.
            kind = str(module["type"]).rpartition(".")[2]
            path = folder / str(module.get("path", ""))
            if kind == "Pooling":
                modes = _pooling_modes(_json(path / "config.json"))
            elif kind == "Dense":
                after.append(_dense(path))
            elif kind == "Normalize":
                after.append(_normalize)
            elif kind != "Transformer":
                raise ValueError(f"modules.json names the module '{kind}', which is not supported")
        sentence = _json(folder / "sentence_bert_config.json")
        prompts = _json(folder / "config_sentence_transformers.json")
        return cls(
            modes=modes,
            after=tuple(after),
            max_tokens=sentence.get("max_seq_length"),
            prompts=prompts.get("prompts") or {},
            default_prompt=_default_prompt(prompts),
            lowercase=bool(sentence.get("do_lower_case")),
        )

    def prepare(self, text: str, prompt: str | None = None) -> str:
        """The text behind a prompt; None: behind the model's default one."""
        text = (self.default_prompt if prompt is None else prompt) + text
        return text.lower() if self.lowercase else text

    def pool(self, hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """(batch, tokens, width) hidden states and (batch, tokens) mask → (batch, features)."""
        import torch

        vector = torch.cat([_POOLING[mode](hidden, mask) for mode in self.modes], dim=-1)
        for module in self.after:
            vector = module(vector)
        return vector

    def shortened(self, vector: "torch.Tensor", dimensions: int) -> "torch.Tensor":
        """The leading numbers of a (features,) vector, of length one where the model has it so."""
        short = vector[:dimensions]
        return _normalize(short[None])[0] if _normalize in self.after else short


def cosines(one: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    """The cosine of a vector with each of others, from -1 to 1."""
    import torch

    rows = torch.tensor(others, dtype=torch.float32)
    found: Any = torch.nn.functional.cosine_similarity(torch.tensor(one)[None], rows)
    return found.tolist()


def _default_prompt(config: Mapping[str, Any]) -> str:
    prompts: Mapping[str, str] = config.get("prompts") or {}
    return prompts.get(str(config.get("default_prompt_name")), "")


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def _pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    if mode := config.get("pooling_mode"):
        named = [mode] if isinstance(mode, str) else list(mode)
    else:
        named = [name for name, key in _FLAGS.items() if config.get(key)]
    if unknown := [name for name in named if name not in _POOLING]:
        raise ValueError(f"pooling mode '{unknown[0]}' is not supported")
    return tuple(named) or ("mean",)


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
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def _normalize(vector: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.nn.functional.normalize(vector, p=2, dim=-1)


def _dense(folder: Path) -> "Module":
    import safetensors.torch
    import torch

    config = _json(folder / "config.json")
    library: Any = safetensors.torch
    weights: dict[str, torch.Tensor] = library.load_file(str(folder / "model.safetensors"))
    weight, bias = weights["linear.weight"].float(), weights.get("linear.bias")
    # The name comes from the artifact: looked up here, never imported.
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    activations: dict[str, Module] = {
        "Identity": lambda vector: vector,
        "Tanh": torch.tanh,
        "ReLU": torch.relu,
        "GELU": torch.nn.functional.gelu,
        "Sigmoid": torch.sigmoid,
    }
    if name not in activations:
        raise ValueError(f"activation '{name}' of a Dense module is not supported")

    def apply(vector: torch.Tensor) -> torch.Tensor:
        return activations[name](torch.nn.functional.linear(vector, weight, bias))

    return apply
