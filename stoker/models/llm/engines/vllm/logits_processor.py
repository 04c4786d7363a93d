"""Enforces forms in vLLM: excludes tokens from the logits of answers that require a form.

Imported only by vLLM's child process. vLLM's own guidance supports neither Stoker's limits nor a
form that begins after a token. If a form cannot be followed, it ends the answer as if it were
complete.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from stoker.models.llm.errors import DrawError
from stoker.models.llm.sampling import NOTHING

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
            for row, answer in self._rows.items():
                try:
                    answer.matcher.mask(logits[row])
                    if not torch.isfinite(logits[row].max()):
                        raise DrawError(NOTHING)
                except DrawError as error:
                    # The code that processes the step's tokens finds the error and ends the answer.
                    answer.error = error
            return logits

    def _with_form(params: Any, _prompt: Any, _output: Any) -> Any:
        answer = answers.get(params.extra_args["id"])
        return answer if answer and answer.matcher else None

    return FormsProcessor
