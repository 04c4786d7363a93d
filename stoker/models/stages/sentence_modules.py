"""Reads the description of a sentence-transformers folder, and checks that it can be served.

Format: `modules.json` lists the modules in order. `Transformer` has its settings in
`sentence_bert_config.json`. The other modules have settings and weights in separate folders
(sentence-transformers, "Creating Custom Models"). Inspection and replicas import this module, so it
imports no heavy libraries.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from stoker.models.stages import late_interaction
from stoker.models.stages.late_interaction import (
    STANFORD,
    STANFORD_SETTINGS,
    Interaction,
    SettingError,
)

CONFIG = "config.json"
MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
SETTINGS = "sentence_bert_config.json"
WEIGHTS = "model.safetensors"
TRANSFORMER = "Transformer"
POOLING = "Pooling"
DENSE = "Dense"
LAYER_NORM = "LayerNorm"
NORMALIZE = "Normalize"
DROPOUT = "Dropout"
LAYERS = "WeightedLayerPooling"
SPLADE = "SpladePooling"
MASK = "MultiVectorMask"
_MLM = "MLMTransformer"
"""Older name of a transformer that predicts masked tokens."""
SERVED = (TRANSFORMER, POOLING, DENSE, LAYER_NORM, NORMALIZE, DROPOUT, LAYERS, SPLADE, MASK)
_HEADS = frozenset({POOLING, SPLADE, MASK})
WEIGHTED = frozenset({DENSE, LAYER_NORM, LAYERS})
"""Modules with weights."""

POOLING_FLAGS: Mapping[str, str] = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Maps pooling modes to their flags in configurations of older releases."""
ACTIVATIONS = ("GELU", "Identity", "ReLU", "Sigmoid", "Tanh")

_SETTINGS = (
    SETTINGS,
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_UNREAD = (
    "config_args",
    "config_kwargs",
    "processing_kwargs",
    "processor_kwargs",
    "tokenizer_args",
)
"""Arguments with which sentence-transformers loads or calls a transformer. They have no effect
here.
"""
_TOKENS, _SENTENCE = "token_embeddings", "sentence_embedding"
_FEATURES, _FILL_MASK = "feature-extraction", "fill-mask"
_CALLS: Mapping[str, Mapping[str, str]] = {
    _FEATURES: {"method": "forward", "method_output_name": "last_hidden_state"},
    _FILL_MASK: {"method": "forward", "method_output_name": "logits"},
}
"""Maps a transformer's task to the method and output that are used."""

Kind = Literal["dense", "sparse", "multi"]
"""Kind of vectors: one short vector per text, one with a number per vocabulary word, or one vector
per token.
"""

_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_SHOWN_CHARACTERS = 80

Read = Callable[[str], Any]
"""Maps a path to the JSON of that file, or {} if the file does not exist."""


class FolderUnfitError(Exception):
    """Raised if a folder cannot be served: the invalid file, and the reason as a continuation of
    its name.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path = path
        self.what = what


@dataclass(frozen=True)
class Module:
    """A module after the transformer."""

    kind: str
    path: str
    """Folder of the module."""
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Splade:
    """Settings that turn the logits of a text's tokens into word weights."""

    pooling: Literal["max", "sum"] = "max"
    is_doubled: bool = False
    """True if the logarithm is applied twice."""


@dataclass(frozen=True)
class Sentence:
    """Modules of a folder and settings of its transformer."""

    kind: Kind = "dense"
    tokens: Sequence[Module] = ()
    """Modules that change the vectors of tokens before pooling."""
    pooling: Sequence[str] = ("mean",)
    include_prompt: bool = True
    """True if the tokens of a prompt are pooled too."""
    after: Sequence[Module] = ()
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a prompt's name to the prefix of such texts."""
    default_prompt: str = ""
    similarity: str | None = None
    """sentence-transformers' name of the measure that compares vectors. None means that the folder
    names none.
    """
    dimensions: int | None = None
    """Number of leading values of a vector that are kept. None means all."""
    lowercase: bool = False
    unread: Sequence[str] = ()
    """Settings of the transformer that have no effect here."""
    splade: Splade = Splade()
    """Settings of a sparse model."""
    interaction: Interaction | None = None
    """Settings of a model with a vector per token."""


def described(read: Read) -> Sentence:
    """Returns the description from a model's sentence-transformers files. Without `modules.json`:
    the mean over all tokens.

    Raises:
        UnfitError: The files need something that is not served, or have an invalid format.
    """
    listed = read(MODULES)
    if listed == {}:
        return _without_modules(read)
    modules = [_module(module, read) for module in _objects(listed)]
    about = _object(PROMPTS, read(PROMPTS))
    is_pylate = about.get("model_type") == late_interaction.PYLATE
    if is_pylate:
        modules = [module for module in modules if module.kind != MASK]
    _check_order(modules, needs_head=not is_pylate)
    at = next(
        (place for place, module in enumerate(modules) if module.kind in _HEADS), len(modules)
    )
    tokens, head, after = modules[1:at], modules[at : at + 1], modules[at + 1 :]
    kind: Kind = "multi" if not head or head[0].kind == MASK else "dense"
    if head and head[0].kind == SPLADE:
        kind = "sparse"
    for module in () if is_pylate else tokens:
        _check(module, _TOKENS)
    for module in after:
        _check(module, _TOKENS if kind == "multi" else _SENTENCE)
    settings, lowercase = _settings(read, _FILL_MASK if kind == "sparse" else _FEATURES)
    named = _object(PROMPTS, about.get("prompts") or {})
    prompts = {name: str(prompt or "") for name, prompt in named.items()}
    sentence = Sentence(
        kind=kind,
        tokens=tokens,
        after=after,
        max_tokens=settings.get("max_seq_length"),
        prompts=prompts,
        default_prompt=prompts.get(str(about.get("default_prompt_name")), ""),
        similarity=_name(about.get("similarity_fn_name")),
        dimensions=_dimensions(about.get("truncate_dim")),
        lowercase=lowercase,
        unread=[name for name in _UNREAD if settings.get(name)],
    )
    if kind == "multi":
        return _of_tokens(sentence, settings, head[0].config if head else None, about)
    config = head[0].config
    if kind == "sparse":
        return replace(sentence, splade=_splade(head[0]))
    included = bool(config.get("include_prompt", True))
    return replace(sentence, pooling=_pooling(head[0]), include_prompt=included)


def _without_modules(read: Read) -> Sentence:
    if STANFORD not in (_object(CONFIG, read(CONFIG)).get("architectures") or []):
        return Sentence()
    settings = _object(STANFORD_SETTINGS, read(STANFORD_SETTINGS))
    try:
        interaction = late_interaction.of_stanford(settings)
    except SettingError as error:
        raise FolderUnfitError(STANFORD_SETTINGS, str(error)) from None
    return Sentence(kind="multi", prompts=interaction.prompts, interaction=interaction)


def _of_tokens(
    found: Sentence,
    settings: Mapping[str, Any],
    mask: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> Sentence:
    """Returns the description of a model with a vector per token.

    Args:
        mask: Settings of the module that leaves out tokens. None for PyLate's models, which do not
            have it.
    """
    try:
        if mask is None:
            interaction = late_interaction.of_pylate(about)
        else:
            interaction = late_interaction.of_modules(settings, mask, found.prompts)
    except SettingError as error:
        raise FolderUnfitError(PROMPTS if mask is None else MODULES, str(error)) from None
    prompts = {**found.prompts, **interaction.prompts}
    return replace(found, prompts=prompts, interaction=interaction)


def _splade(module: Module) -> Splade:
    config, file = module.config, f"{module.path}/config.json"
    pooling = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise FolderUnfitError(
            file,
            f"names the pooling {_shown(pooling)} and the activation "
            f"{_shown(activation)}. Use the pooling 'max' or 'sum', and the activation "
            "'relu' or 'log1p_relu'.",
        )
    return Splade(pooling, activation == "log1p_relu")


def _module(given: Mapping[str, Any], read: Read) -> Module:
    # Older releases name `sentence_transformers.models.Pooling`, newer ones longer paths, and
    # PyLate its own paths.
    kind = str(given.get("type", "")).rpartition(".")[2]
    kind = TRANSFORMER if kind == _MLM else kind
    if kind not in SERVED:
        raise FolderUnfitError(
            MODULES,
            f"names the module {_shown(kind)}, which is not supported. A model of "
            f"sentence-transformers may consist of {', '.join(SERVED)}.",
        )
    path = str(given.get("path", ""))
    if kind == TRANSFORMER and path:
        raise FolderUnfitError(
            MODULES,
            f"has the transformer in the folder {_shown(path)}. Save the model with a newer "
            "release of sentence-transformers, which puts it into the top folder.",
        )
    if kind != TRANSFORMER and not _FOLDER.fullmatch(path):
        raise FolderUnfitError(
            MODULES, f"names the folder {_shown(path)}, which is not the folder of a module."
        )
    file = f"{path}/config.json"
    return Module(kind, path, _object(file, read(file)) if path else {})


def _check_order(modules: Sequence[Module], *, needs_head: bool) -> None:
    kinds = [kind.kind for kind in modules]
    if not kinds or kinds[0] != TRANSFORMER or kinds.count(TRANSFORMER) > 1:
        raise FolderUnfitError(
            MODULES, f"must have exactly one {TRANSFORMER}, as its first module."
        )
    heads = sum(kind in _HEADS for kind in kinds)
    if heads > 1 or (needs_head and not heads):
        raise FolderUnfitError(
            MODULES,
            f"names {heads} modules of {POOLING}, {SPLADE} or {MASK}; exactly one is "
            "needed to make a text's vector from the vectors of its tokens.",
        )
    if LAYERS in kinds[2:]:
        raise FolderUnfitError(
            MODULES, f"has {LAYERS} in another position than directly after {TRANSFORMER}."
        )


def _check(module: Module, works_on: str) -> None:
    """Raises `FolderUnfitError` if a module reads or writes values that are not served, or has an
    unserved activation.
    """
    if module.kind == LAYERS:
        return
    config, file = module.config, f"{module.path}/config.json"
    reads = config.get("module_input_name") or _SENTENCE
    gives = config.get("module_output_name") or reads
    if reads != works_on or gives != works_on:
        side = "before" if works_on == _TOKENS else "behind"
        raise FolderUnfitError(
            file,
            f"has a {module.kind} {side} {POOLING} that reads {_shown(reads)} and writes "
            f"{_shown(gives)}; both must be {works_on!r}.",
        )
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if module.kind == DENSE and activation not in ACTIVATIONS:
        raise FolderUnfitError(
            file,
            f"names the activation {_shown(activation)}, which is not supported. Use one "
            f"of {', '.join(ACTIVATIONS)}.",
        )


def _pooling(module: Module) -> tuple[str, ...]:
    config, file = module.config, f"{module.path}/config.json"
    mode: Any = config.get("pooling_mode")
    named: list[Any] = [name for name, key in POOLING_FLAGS.items() if config.get(key)]
    if mode:
        named = cast("list[Any]", mode) if isinstance(mode, list) else [mode]
    if unknown := [name for name in named if name not in POOLING_FLAGS]:
        raise FolderUnfitError(
            file,
            f"names the pooling {_shown(unknown[0])}, which is not supported. Use one of "
            f"{', '.join(POOLING_FLAGS)}.",
        )
    return tuple(named) or ("mean",)


def _settings(read: Read, task: str) -> tuple[Mapping[str, Any], bool]:
    """Returns the transformer's settings, and True if texts are converted to lower case.

    Older releases name the file after the kind of model.
    """
    file = next((name for name in _SETTINGS if read(name)), _SETTINGS[0])
    settings = _object(file, read(file))
    named_task, call = settings.get("transformer_task", task), _CALLS[task]
    if named_task != task:
        raise FolderUnfitError(
            file, f"states that the transformer is for {_shown(named_task)}, not {task}."
        )
    ways = _object(file, settings.get("modality_config", {"text": call}))
    if "message" in ways:
        raise FolderUnfitError(
            file, "formats texts as chat messages before they are embedded, which is not supported."
        )
    if ways.get("text") != call or settings.get("module_output_name", _TOKENS) != _TOKENS:
        output_name = "last hidden states" if task == _FEATURES else "logits"
        raise FolderUnfitError(file, f"requests an output other than the {output_name} of texts.")
    longest = settings.get("max_seq_length")
    if longest is not None and not (type(longest) is int and longest > 0):
        raise FolderUnfitError(
            file, f"has the max_seq_length {_shown(longest)}, which is not a positive whole number."
        )
    return settings, bool(settings.get("do_lower_case"))


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dimensions(value: Any) -> int | None:
    if value is not None and not (type(value) is int and value > 0):
        raise FolderUnfitError(
            PROMPTS, f"has the truncate_dim {_shown(value)}, which is not a positive whole number."
        )
    return value


def _object(file: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FolderUnfitError(file, "has another value in the place of a JSON object.")
    return cast("dict[str, Any]", value)


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise FolderUnfitError(MODULES, "is not a list of JSON objects.")
    return [_object(MODULES, item) for item in cast("list[Any]", value)]


def _shown(value: Any) -> str:
    """Returns an uploader's value in a safe format for a message."""
    return ascii(value)[:_SHOWN_CHARACTERS]
