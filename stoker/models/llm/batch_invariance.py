"""Determines how a language model can be computed on torch without changing any answer.

If the model allows it, prompts are computed in pieces and sequences draw in one batch. A comparison
before the first answer decides that. It computes the same prompts in pieces and together, and
compares the logits with a direct call of the model on the whole prompt.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch

from stoker.models.engines.sharing import HALF_TOLERANCE, ModelUnfitError
from stoker.models.llm import probes
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner
from stoker.models.llm.probes import Probes
from stoker.wire.protocol import Sharing

log = logging.getLogger(__name__)

LENGTHS = (17, 19, 17)
"""Lengths of the prompts in tokens. Small, because one pass of a large model takes seconds. Both
halves of the first two have 17 tokens together, so the passes have few shapes.
"""
TOLERANCE = 1e-4
"""Largest difference due to different kernels in float32, as a share of the largest logit."""


def find(runner: TorchRunner) -> Sharing:
    """Returns how a model's sequences may be computed, and restricts the runner to it.

    Raises `ModelUnfitError` if they cannot be computed step by step.
    """
    known = _known(runner)
    worst = 0.0
    for sharing in (Sharing.PADDED, Sharing.ALONE, Sharing.ONE_PIECE):
        runner.restrict(sharing)
        worst = known.difference(probes.computed(runner, known.prompts))
        log.info("%s: differs by %.1e", sharing, worst)
        if worst <= _tolerance(runner):
            return sharing
    raise ModelUnfitError(
        "the model's results differ when it is computed step by step: by "
        f"{worst:.1e} of the largest logit"
    )


def paged(runner: TorchRunner, make: Callable[[], PagedRunner]) -> PagedRunner | None:
    """Returns a paged runner for the same model. None if its results differ: then the model's
    attention is restored.

    Args:
        make: creates the paged runner.
    """
    known = _known(runner)
    created: PagedRunner | None = None
    try:
        created = make()
        worst = known.difference(probes.computed(created, known.prompts))
        log.info("%s: differs by %.1e", Sharing.PAGED, worst)
        if worst <= _tolerance(runner):
            return created
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # A model's code may fail in any way on a packed pass.
        log.info("%s: %r", Sharing.PAGED, error)
    if created:
        created.restore()
    return None


def _known(runner: TorchRunner) -> Probes:
    """Returns prompts with the model's own logits."""
    config = runner.model.config
    prompts = probes.drawn(runner.vocabulary, runner.max_length, LENGTHS, without=_special(config))
    return Probes(prompts, torch.stack([runner.direct(prompt) for prompt in prompts]).cpu())


def _tolerance(runner: TorchRunner) -> float:
    return TOLERANCE if runner.model.dtype == torch.float32 else HALF_TOLERANCE


def _special(config: Any) -> frozenset[int]:
    """Returns the tokens that are not text. A placeholder for an image, for example, would require
    an image.
    """
    tokens: set[int] = set()
    for part in (config, config.get_text_config(decoder=True)):
        for name, value in part.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                tokens.update([value] if isinstance(value, int) else value or [])
    return frozenset(tokens)
