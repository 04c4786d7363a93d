"""Enforces forms in vLLM: excludes tokens from the logits of answers that require a form.

Imported only by vLLM's child process. vLLM's own guidance supports neither Stoker's limits nor a
form that begins after a token. If a form cannot be followed, it ends the answer as if it were
complete.
"""

import importlib
from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch

from stoker.models.llm.errors import DrawError
from stoker.models.llm.sampling import NOTHING
from stoker.models.llm.token_edits import Array, exclude

_processing: Any = importlib.import_module("vllm.v1.sample.logits_processor")
_builtin: Any = importlib.import_module("vllm.v1.sample.logits_processor.builtin")


def processor(answers: Mapping[int, Any]) -> type[Any]:
    """Returns a class from which vLLM creates its logits processor.

    Args:
        answers: maps numbers to sequences with `matcher` and `error`. It is read at each step.
    """

    class FormsProcessor(_processing.LogitsProcessor):
        def __init__(self, *_arguments: Any) -> None:
            self._rows: dict[int, Any] = {}
            """Maps a row of the logits to its answer, for answers with a form."""

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            _builtin.process_dict_updates(self._rows, batch_update, _with_form)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            masks: dict[int, Array] = {}
            for row, answer in self._rows.items():
                try:
                    if (mask := answer.matcher.allowed()) is not None:
                        masks[row] = mask
                except DrawError as error:
                    # The code that processes the step's tokens finds the error and ends the answer.
                    answer.error = error
            exclude(logits, masks)
            largest: Any = logits.amax(-1)
            for row, value in enumerate(largest.tolist() if self._rows else ()):
                if row in self._rows and not isfinite(value):
                    answer = self._rows[row]
                    answer.error = answer.error or DrawError(NOTHING)
            return logits

    def _with_form(params: Any, _prompt: Any, _output: Any) -> Any:
        answer = answers.get(params.extra_args["id"])
        return answer if answer and answer.matcher else None

    return FormsProcessor
