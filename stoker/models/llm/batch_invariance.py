"""Finds how a language model may be computed on torch without changing anybody's answer.

Prompts are computed in pieces and sequences draw in one batch, where the model allows it. That it
does is seen from its answers, once, before the first one: the same prompts in pieces and together,
against the model called directly on the whole.
"""

import logging
from typing import Any

import torch

from stoker.models.engines.sharing import HALF_TOLERANCE, UnfitError
from stoker.models.llm import probes
from stoker.models.llm.engines.torch import TorchRunner
from stoker.models.llm.probes import Probes
from stoker.wire.protocol import Sharing

log = logging.getLogger(__name__)

LENGTHS = (5, 21, 9, 13)
"""Of the prompts, tokens: a pass of a large model takes seconds."""
TOLERANCE = 1e-4
"""Largest difference that other kernels make in float32, as a share of the largest logit."""


def find(runner: TorchRunner) -> Sharing:
    """How a model's sequences may be computed. Leaves the runner restricted to it.

    Raises `UnfitError` where they cannot be computed step by step at all.
    """
    config = runner.model.config
    prompts = probes.drawn(runner.vocabulary, runner.max_length, LENGTHS, without=_special(config))
    known = Probes(prompts, torch.stack([runner.direct(one) for one in prompts]))
    tolerance = TOLERANCE if runner.model.dtype == torch.float32 else HALF_TOLERANCE
    worst = 0.0
    for sharing in (Sharing.PADDED, Sharing.ALONE, Sharing.ONE_PIECE):
        runner.restrict(sharing)
        worst = known.difference(probes.computed(runner, prompts))
        log.info("%s: differs by %.1e", sharing, worst)
        if worst <= tolerance:
            return sharing
    raise UnfitError(
        f"the model gives other tokens when it is computed step by step: by {worst:.1e} of the "
        "largest logit"
    )


def _special(config: Any) -> frozenset[int]:
    """Tokens that are no text: what stands for an image would want one."""
    found: set[int] = set()
    for part in (config, config.get_text_config(decoder=True)):
        for name, value in part.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update([value] if isinstance(value, int) else value or [])
    return frozenset(found)
