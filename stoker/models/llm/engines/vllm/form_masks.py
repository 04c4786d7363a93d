"""Enforces forms on several GPUs. Uses internal APIs of the installed vLLM version.

The logits are in other processes than the answers. vLLM's scheduler runs in the child, and sends a
mask of the allowed tokens to all processes in each step. These classes compute it from Stoker's
matchers instead of vLLM's own grammars (see `logits_processor`).

Imported only by vLLM's child process.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stoker.models.llm.errors import DrawError
from stoker.models.llm.sampling import NOTHING


def prepare(core: Any, vocabulary: int) -> None:
    """Makes vLLM's scheduler use masks of this module. Raises any error of vLLM.

    Args:
        core: vLLM's `EngineCore`.
        vocabulary: width of the logits.
    """
    manager = core.structured_output_manager
    if manager.backend is not None:
        raise RuntimeError("vLLM has a backend for forms already")
    manager.backend = FormBackend(vocabulary)


def attach(core: Any, identifier: int, answer: Any) -> None:
    """Makes vLLM's scheduler send masks for a sequence that it has just received. Raises any error
    of vLLM.

    Args:
        answer: sequence with `matcher` and `error`.
    """
    requests = reversed(core.scheduler.requests.values())
    request = next(
        request for request in requests if request.sampling_params.extra_args["id"] == identifier
    )
    kind: Any = importlib.import_module("vllm.v1.structured_output.request").StructuredOutputRequest
    form = kind(params=None)
    form.grammar = FormGrammar(answer)
    request.structured_output_request = form


class FormBackend:
    """Implements vLLM's `StructuredOutputBackend`."""

    def __init__(self, vocabulary: int) -> None:
        self._width = -(-vocabulary // 32)

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        return torch.full((max_num_seqs, self._width), -1, dtype=torch.int32)

    def destroy(self) -> None: ...


class FormGrammar:
    """Implements vLLM's `StructuredOutputGrammar` for one answer. The child itself passes drawn
    tokens to the matcher, so vLLM's methods for that do nothing.
    """

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def accept_tokens(self, _request_id: str, _tokens: Sequence[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, _num_tokens: int) -> None: ...

    def reset(self) -> None: ...

    def is_terminated(self) -> bool:
        return False

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Writes the allowed tokens as one row: one bit per token, in words of 32 bits."""
        row = bitmask[batch_index].numpy()
        row.fill(-1)
        try:
            if (allowed := self._answer.matcher.allowed()) is None:
                return
            words = allowed.view(np.int32)[: len(row)]
            if not words.any():
                raise DrawError(NOTHING)
        except DrawError as error:
            # The code that processes the step's tokens finds the error and ends the answer.
            self._answer.error = error
            return
        row[: len(words)] = words
        row[len(words) :] = 0
