"""Forms in vLLM: rules tokens out of the rows whose answers have to have one.

Imported by vLLM's child alone. vLLM's own guidance knows neither our limits nor a form that begins
behind a token, and a form that cannot be followed ends the answer there as if it were complete.
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
    """A class for vLLM to make its processor of logits of.

    Args:
        answers: the sequences by their numbers, with `matcher` and `error`; it is read each step.
    """

    class Forms(_processing.LogitsProcessor):
        def __init__(self, *_arguments: Any) -> None:
            self._rows: dict[int, Any] = {}
            """Row of the logits → the answer, of those with a form."""

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
                    # Whoever takes the step's tokens finds it, and ends the answer.
                    answer.error = error
            return logits

    def _with_form(params: Any, _prompt: Any, _output: Any) -> Any:
        answer = answers.get(params.extra_args["id"])
        return answer if answer and answer.matcher else None

    return Forms
