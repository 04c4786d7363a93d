"""Reads the two files of LoRA adapters as PEFT saves them, without reading a matrix.

`adapter_config.json` has the settings. `adapter_model.safetensors` has for each adapted module
`base_model.model.<module>.lora_A.weight` of shape (rank, in) and `…lora_B.weight` of shape (out,
rank). The module's output gets scale · B A x added. The scale is alpha / rank, or alpha / √rank for
rank-stabilised LoRA (Hu et al., https://arxiv.org/abs/2106.09685; Kalajdzievski,
https://arxiv.org/abs/2312.03732). Modules of `modules_to_save`, such as a classifier, are stored
whole.

Some adapters change weights in a way that no sum expresses: `…lora_magnitude_vector` of DoRA (Liu
et al., https://arxiv.org/abs/2402.09353) is the length of each row of W + scale · B A, and trained
biases replace the model's. These are marked (`Lora.alone`): they need separate weights. This module
is light: inspection and replicas import it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ADAPTER = "adapter"
"""Marks an artifact that is an adapter."""
MAX_RANK = 512
MAX_ALPHA = 1e6

_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])\.weight")
_MAGNITUDE = re.compile(r"(?P<module>.+)\.lora_magnitude_vector(?:\.weight)?")
_ADDED_BIAS = re.compile(r"(?P<module>.+)\.lora_B\.bias")
_COPY = re.compile(
    r"(?P<module>(?:.+\.)?(?:embed_in|embed_out|embed_tokens|embeddings|lm_head|tok_embeddings|"
    r"word_embeddings|wte)|.+(?=\.base_layer\.))(?:\.base_layer)?\.weight"
)
_IN_A_WRAPPER = re.compile(r"\.(?:original_module|modules_to_save)\.")
_NAME = re.compile(r"\^?[\w.]{1,512}\$?")
_OF_THE_BASE = frozenset({"corda", "loftq", "olora", "pissa"})
"""Initializations of the training that change the base's own weights. PEFT replaces the value by
`true` if it converted the result to an adapter of the unchanged base.
"""
_BIASES = frozenset({"all", "lora_only", "none"})
_UNSERVED: Mapping[str, str] = {
    "layer_replication": "replicated layers",
    "trainable_token_indices": "trained tokens",
    "alora_invocation_tokens": "invocation tokens",
    "target_parameters": "parameters that are not modules",
    "megatron_config": "Megatron's layers",
}


class AdapterFormatError(ValueError):
    """The adapter's format is not served. The message continues a sentence that starts with the
    file's name.
    """

    def __init__(self, message: str, path: str = CONFIG) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Matrices:
    """Low-rank matrices that are added to a module."""

    rank: int
    inputs: int
    outputs: int
    scale: float
    down: str
    """Name of the tensor A, (rank, inputs)."""
    up: str
    """Name of the tensor B, (outputs, rank)."""


@dataclass(frozen=True)
class Lora:
    base: str
    """Base model named by the adapter: a name on a hub, or a path of another machine."""
    modules: Mapping[str, Matrices]
    """Matrices by module names within the adapted model."""
    saved: Mapping[str, tuple[str, Sequence[int]]]
    """Parameters that replace the base's, by name: tensor and shape."""
    copied: Mapping[str, tuple[str, Sequence[int]]]
    """Parameters that must equal the base's, by name: tensor and shape. PEFT adds a model's
    embeddings if these, or its last layer, are adapted, whether or not they have changed.
    """
    magnitudes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a module to the tensor, (outputs,), that DoRA scales the rows of its weights to."""
    added_biases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a module to the tensor, (outputs,), that is added to its bias as B A is to its
    weights.
    """
    alone: str = ""
    """Reason in words why it cannot be added to rows of a batch. Empty if it can."""
    fan_in_fan_out: bool = False
    """True if PEFT found layers with weights of shape (in, out)."""

    @property
    def rank(self) -> int:
        """Largest rank of its modules."""
        return max((matrices.rank for matrices in self.modules.values()), default=0)

    @property
    def kinds(self) -> list[str]:
        """Distinct last parts of the module names, as in `q_proj`."""
        return sorted({name.rpartition(".")[2] for name in self.modules})


def read(config: Any, shapes: Mapping[str, Sequence[int]]) -> Lora:
    """
    Args:
        config: adapter_config.json, parsed.
        shapes: shapes of the tensors in the file of weights, by name.

    Raises:
        FormatError: its kind is not served, or its files do not fit each other.
    """
    if not isinstance(config, dict):
        raise AdapterFormatError("is no object.")
    settings = cast("dict[str, Any]", config)
    _check_kind(settings)
    tensors = _sorted(settings, shapes)
    if not tensors.pairs:
        raise AdapterFormatError("has no LoRA matrices.", WEIGHTS)
    alpha = _number(settings.get("lora_alpha", 8), "lora_alpha")
    alphas = _Alphas.of(_patterns(settings, "alpha_pattern"), alpha)
    is_stabilised = bool(settings.get("use_rslora"))
    modules: dict[str, Matrices] = {}
    for module, pair in tensors.pairs.items():
        module_alpha = alphas.alpha(module)
        modules[module] = _matrices(module, pair, shapes, module_alpha, is_stabilised=is_stabilised)
    _check_rows(settings, modules, tensors, shapes)
    return Lora(
        str(settings.get("base_model_name_or_path") or "")[:256],
        modules,
        tensors.saved,
        tensors.copied,
        tensors.magnitudes,
        tensors.added_biases,
        _alone(tensors),
        bool(settings.get("fan_in_fan_out")),
    )


@dataclass(frozen=True)
class _Tensors:
    """Tensors of a file by their role."""

    pairs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    saved: dict[str, tuple[str, Sequence[int]]] = field(
        default_factory=dict[str, tuple[str, Sequence[int]]]
    )
    copied: dict[str, tuple[str, Sequence[int]]] = field(
        default_factory=dict[str, tuple[str, Sequence[int]]]
    )
    magnitudes: dict[str, str] = field(default_factory=dict[str, str])
    added_biases: dict[str, str] = field(default_factory=dict[str, str])
    biases: list[str] = field(default_factory=list[str])
    """Biases of the model that were trained."""


def _sorted(settings: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> _Tensors:
    tensors = _Tensors()
    whole = _saved_modules(settings)
    has_biases = settings.get("bias", "none") != "none"
    for tensor, shape in shapes.items():
        name = tensor.removeprefix(_PREFIX)
        if name == tensor:
            raise AdapterFormatError(
                f"has the tensor {_shown(tensor)}, which is not a LoRA tensor.", WEIGHTS
            )
        if match := _MATRIX.fullmatch(name):
            tensors.pairs.setdefault(match["module"], {})[match["which"]] = tensor
        elif settings.get("use_dora") and (match := _MAGNITUDE.fullmatch(name)):
            tensors.magnitudes[match["module"]] = tensor
        elif settings.get("lora_bias") and (match := _ADDED_BIAS.fullmatch(name)):
            tensors.added_biases[match["module"]] = tensor
        elif match := _COPY.fullmatch(name):
            tensors.copied[f"{match['module']}.weight"] = (tensor, shape)
        elif any(part in whole for part in name.split(".")[:-1]):
            # With trained biases, the file also has the model's own layer and its replacement.
            if not _IN_A_WRAPPER.search(name):
                tensors.saved[name] = (tensor, shape)
        elif has_biases and name.endswith(".bias"):
            parameter = name.replace(".base_layer.", ".")
            tensors.saved[parameter] = (tensor, shape)
            tensors.biases.append(parameter)
        else:
            raise AdapterFormatError(
                f"has the tensor {_shown(tensor)}, which is not supported.", WEIGHTS
            )
    return tensors


def _check_rows(
    settings: Mapping[str, Any],
    modules: Mapping[str, Matrices],
    found: _Tensors,
    shapes: Mapping[str, Sequence[int]],
) -> None:
    """Raises `AdapterFormatError` unless exactly the adapted modules have tensors with one number
    per output.
    """
    kinds = (("use_dora", found.magnitudes), ("lora_bias", found.added_biases))
    for name, tensors in kinds:
        if bool(settings.get(name)) != bool(tensors) or (tensors and {*tensors} != {*modules}):
            raise AdapterFormatError(
                f"must have tensors of {name} for exactly the LoRA modules.", WEIGHTS
            )
        for module, tensor in tensors.items():
            if tuple(shapes[tensor]) != (modules[module].outputs,):
                raise AdapterFormatError(
                    f"has {_shown(tensor)} with the shape {[*shapes[tensor]]}, but its matrices "
                    f"have {modules[module].outputs} outputs.",
                    WEIGHTS,
                )


def _alone(found: _Tensors) -> str:
    kinds = (
        ("DoRA", found.magnitudes),
        ("trained biases", found.biases),
        ("biases of its matrices", found.added_biases),
    )
    named = [kind for kind, tensors in kinds if tensors]
    return (
        f"The adapter has {' and '.join(named)}, which the rows of a batch cannot share."
        if named
        else ""
    )


def _check_kind(settings: Mapping[str, Any]) -> None:
    kind = str(settings.get("peft_type"))
    if kind.upper() != "LORA":
        raise AdapterFormatError(f"has the type {_shown(kind)}: only LoRA is supported.")
    for name, description in _UNSERVED.items():
        if settings.get(name):
            raise AdapterFormatError(
                f"has {name}: {description} are not supported. Train the adapter without them."
            )
    bias: Any = settings.get("bias", "none")
    if not isinstance(bias, str) or bias not in _BIASES:
        raise AdapterFormatError(
            f"has the unknown bias {_shown(str(bias))}. Use one of {', '.join(sorted(_BIASES))}."
        )
    begun = str(settings.get("init_lora_weights", True)).lower()
    if begun.startswith(tuple(_OF_THE_BASE)):
        raise AdapterFormatError(
            f"was initialized by {_shown(begun)}, which changed the base's weights. Save "
            "the adapter with path_initial_model_for_weight_conversion, or merge it."
        )


def _matrices(
    module: str,
    found: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
    alpha: float,
    *,
    is_stabilised: bool,
) -> Matrices:
    if len(found) != 2:
        raise AdapterFormatError(f"has only one of the two matrices of {_shown(module)}.", WEIGHTS)
    down, up = shapes[found["A"]], shapes[found["B"]]
    if len(down) != 2 or len(up) != 2 or down[0] != up[1]:
        raise AdapterFormatError(
            f"has matrices of {_shown(module)} that do not match: {[*down]} and {[*up]}. "
            "Only matrices of linear layers are supported.",
            WEIGHTS,
        )
    rank = down[0]
    if not 1 <= rank <= MAX_RANK:
        raise AdapterFormatError(
            f"has a rank of {rank} for {_shown(module)}; it must be from 1 to {MAX_RANK}.", WEIGHTS
        )
    scale = alpha / (math.sqrt(rank) if is_stabilised else rank)
    return Matrices(rank, down[1], up[0], scale, found["A"], found["B"])


def _saved_modules(settings: Mapping[str, Any]) -> frozenset[str]:
    modules: Any = settings.get("modules_to_save") or []
    if not isinstance(modules, list) or not all(
        isinstance(module, str) for module in cast("list[Any]", modules)
    ):
        raise AdapterFormatError("has a modules_to_save that is not a list of names.")
    return frozenset(cast("list[str]", modules))


def _patterns(settings: Mapping[str, Any], name: str) -> dict[str, float]:
    """Maps modules to their numbers. PEFT treats the keys as regular expressions; only names are
    served.
    """
    patterns: Any = settings.get(name) or {}
    if not isinstance(patterns, dict):
        raise AdapterFormatError(f"has a value for {name} that is not an object.")
    numbers: dict[str, float] = {}
    for key, value in cast("dict[str, Any]", patterns).items():
        plain = key.replace("\\.", ".")
        if not _NAME.fullmatch(plain):
            raise AdapterFormatError(
                f"has {_shown(key)} in its {name}: only names of modules are supported."
            )
        numbers[plain.removesuffix("$")] = _number(value, name)
    return numbers


@dataclass(frozen=True)
class _Alphas:
    """Alphas of modules. A module has the alpha of the first pattern that equals its name or,
    without `^`, its end.
    """

    default: float
    names: Mapping[str, tuple[int, float]]
    """Patterns with `^`: maps the whole name to the pattern's position and its alpha."""
    ends: Mapping[str, tuple[int, float]]
    """Other patterns: maps the end of a name to the pattern's position and its alpha."""

    @classmethod
    def of(cls, patterns: Mapping[str, float], default: float) -> "_Alphas":
        numbered = [(key, (at, value)) for at, (key, value) in enumerate(patterns.items())]
        names = {key[1:]: ranked for key, ranked in numbered if key.startswith("^")}
        return cls(
            default, names, dict(pattern for pattern in numbered if not pattern[0].startswith("^"))
        )

    def alpha(self, module: str) -> float:
        parts = module.split(".")
        ends = (".".join(parts[at:]) for at in range(len(parts)))
        matches = [self.ends[end] for end in ends if end in self.ends]
        if module in self.names:
            matches.append(self.names[module])
        return min(matches)[1] if matches else self.default


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AdapterFormatError(f"has a value for {name} that is not a number.")
    if not (math.isfinite(value) and abs(value) <= MAX_ALPHA):
        raise AdapterFormatError(f"has the value {value} for {name}, which is out of range.")
    return float(value)


def _shown(text: str) -> str:
    return ascii(text[:120])
