"""sentence-transformers' settings of a cross-encoder, which scores pairs of texts.

They are in `config_sentence_transformers.json` next to `modules.json`. Older releases wrote them
into config.json (sentence-transformers, `CrossEncoder.get_default_activation_fn`). Inspection and
replicas import this module, so it imports no heavy libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from stoker.models.stages.sentence_modules import (
    CONFIG,
    MODULES,
    PROMPTS,
    SETTINGS,
    FolderUnfitError,
    Read,
)

if TYPE_CHECKING:
    import torch

MODEL_TYPE = "CrossEncoder"
LOGIT_SCORE = "LogitScore"
"""Module that scores by the logits of a language model."""
TRANSFORMER = "Transformer"
SIGMOID = "Sigmoid"
ACTIVATIONS = (
    "CELU",
    "ELU",
    "GELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "ReLU",
    "ReLU6",
    "SELU",
    SIGMOID,
    "SiLU",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
)
"""Classes of `torch.nn` that map each logit to a score independently."""

_OLD_ACTIVATION = "sbert_ce_default_activation_function"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class CrossEncoder:
    activation: str = SIGMOID
    """Name from `ACTIVATIONS` of the function that maps the logit of a model with one label to the
    score.
    """
    prompt: str = ""
    """Text before the query."""


def described(read: Read) -> CrossEncoder:
    """Returns the settings of a model folder, or the defaults if it has none.

    Raises:
        UnfitError: The settings need something that is not served.
    """
    config, about = _object(read(CONFIG)), _object(read(PROMPTS))
    is_ours = bool(read(MODULES)) and about.get("model_type") == MODEL_TYPE
    if is_ours:
        _check_modules(read(MODULES))
        _check_ways(_object(read(SETTINGS)))
    places = [(PROMPTS, about.get("activation_fn"))] if is_ours else []
    places += [
        (CONFIG, _object(config.get("sentence_transformers")).get("activation_fn")),
        (CONFIG, config.get(_OLD_ACTIVATION)),
    ]
    named = ((file, str(path)) for file, path in places if path is not None)
    file, path = next(named, (CONFIG, SIGMOID))
    activation = path.rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise FolderUnfitError(
            file,
            f"names the activation {ascii(path)[:_SHOWN_CHARACTERS]}, which is not "
            f"supported. Use one of {', '.join(ACTIVATIONS)}, all of torch.nn.",
        )
    prompts = _object(about.get("prompts") if is_ours else None)
    return CrossEncoder(activation, str(prompts.get(str(about.get("default_prompt_name"))) or ""))


def _check_modules(modules: Any) -> None:
    kinds = [str(_object(module).get("type", "")).rpartition(".")[2] for module in modules]
    if LOGIT_SCORE in kinds:
        raise FolderUnfitError(
            MODULES,
            f"names the module {LOGIT_SCORE}: scores from a language model's logits are "
            "not supported. Upload it as a model for sequence classification.",
        )
    if kinds != [TRANSFORMER]:
        raise FolderUnfitError(
            MODULES,
            f"names the modules {ascii(', '.join(kinds))[:_SHOWN_CHARACTERS]}. A "
            f"supported cross-encoder consists of one {TRANSFORMER} for sequence "
            "classification.",
        )


def _check_ways(settings: Mapping[str, Any]) -> None:
    if "message" in _object(settings.get("modality_config")):
        raise FolderUnfitError(
            SETTINGS,
            "formats pairs of texts as chat messages before they are scored, which is "
            "not supported.",
        )


def score(activation: str, logit: "torch.Tensor") -> float:
    """Returns the score of one logit. Double precision makes equal scores less frequent."""
    import torch

    # The name is from a fixed list.
    activated: torch.Tensor = getattr(torch.nn, activation)()(logit.double())
    return activated.item()


def _object(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
