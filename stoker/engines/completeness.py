"""Whether a model got all its weights from its files.

transformers makes up what they lack: it draws random numbers, and such a model answers nonsense.
"""

import re
from collections.abc import Collection
from typing import Any

_SHOWN = 3
_TRAINING = re.compile(r"(^|\.)(masked_spec_embed|mask_token)$")
"""What stands for hidden inputs while a model is trained: many are published without."""
_POOLER = re.compile(r"(^|\.)pooler\.")
"""Of a model without a head, whoever wants its pooler looks whether that is stored."""


class MissingWeightsError(ValueError):
    """The files lack weights of the model."""


def loaded(kind: Any, *given: Any, **options: Any) -> Any:
    """What `kind.from_pretrained` loads, if that is complete.

    Weights that are tied to others or computed count as there, as transformers tells them.

    Raises:
        MissingWeightsError: it is not; the message names some of what is missing.
    """
    model, found = kind.from_pretrained(*given, output_loading_info=True, **options)
    check(model, found["missing_keys"])
    return model


def check(model: Any, missing: Collection[str]) -> None:
    """Raise `MissingWeightsError` where parameters are among the missing keys.

    Buffers are not: those begin with what the class says.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    is_headless = type(model).__name__.endswith("Model")
    lacking = sorted(
        name
        for name in parameters.intersection(missing)
        if not _TRAINING.search(name) and not (is_headless and _POOLER.search(name))
    )
    if lacking:
        shown = ", ".join(lacking[:_SHOWN])
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise MissingWeightsError(
            f"the files lack {len(lacking)} of the weights that {type(model).__name__} has by its "
            f"configuration: {shown}{more}. Save the model with all its weights"
        )
