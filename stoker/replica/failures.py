"""Whose fault a failure is, and what is said of it.

- The input's: an `InputError` of a step that reads inputs or outputs. The client gets its message.
- The model's: whatever else a step of the work raises. It is logged, and the client learns which
  step failed, not how. The request fails alone; of a batch, only those that fail by themselves.
- The replica's: a model that cannot be loaded (`load_failure`), or that says of itself that it
  cannot compute any more (`Serving.alive`). The process ends.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from stoker.stages.base import InputError
from stoker.wire.protocol import Failure, LoadFailed

log = logging.getLogger(__name__)

Place = Callable[[InputError | None], str | None]
"""The request's field that is at fault; of None, the one that the model failed on."""

_REASON_CHARACTERS = 600
_LASTING = (ImportError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""What a load fails with again, however long one waits: a package is missing, a class or a value
does not fit. Files that cannot be read, memory and devices may be there the next time.
"""


@dataclass(frozen=True)
class Step:
    """A part of the work on a request, and what is said where it fails."""

    logged: str
    message: str
    """For the client, where the fault is the model's."""
    reads_input: bool = False
    """Whether an `InputError` of it is the input's fault; else it is as good as any other."""


PREPARE_INPUT = Step(
    "an input could not be prepared",
    "The input could not be prepared for the model.",
    reads_input=True,
)
READ_OUTPUT = Step(
    "an output could not be read", "The model's output could not be read.", reads_input=True
)
ENCODE_RESULT = Step("a result could not be encoded", "The result could not be encoded.")
PREPARE_PROMPT = Step(
    "a prompt could not be prepared", "The prompt could not be prepared.", reads_input=True
)
WRITE_ANSWER = Step("an answer could not be written", "The answer was unreadable.")


def failure(request_id: int, step: Step, error: Exception, place: Place) -> Failure:
    """What a request is answered whose step has raised an error."""
    if step.reads_input and isinstance(error, InputError):
        return Failure(request_id, error.code, error.message, place(error))
    log.error(step.logged, exc_info=error)
    return model_failure(request_id, step.message, place(None))


def model_failure(request_id: int, message: str, param: str | None = None) -> Failure:
    """What a request is answered on which the model has failed."""
    return Failure(request_id, "inference_failed", message, param)


def load_failure(error: Exception) -> LoadFailed:
    """What is said of a model that cannot be loaded, and whether trying again may help."""
    out_of_memory = _is_out_of_memory(error)
    is_lasting = not out_of_memory and isinstance(error, _LASTING)
    return LoadFailed(_reason(error), out_of_memory, is_lasting)


def _reason(error: Exception) -> str:
    """An error in one line, without paths of this machine; a long one ends with a word."""
    words = ["…" if "/" in word else word for word in str(error).split()]
    line = " ".join(words)
    if len(line) > _REASON_CHARACTERS:
        line = line[:_REASON_CHARACTERS].rpartition(" ")[0] + " …"
    line = f"{type(error).__name__}: {line}" if line else f"{type(error).__name__}"
    return line if line.endswith((".", "!", "?", "…")) else f"{line}."


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a plain RuntimeError, "DefaultCPUAllocator: can't allocate memory", and of a GPU
    # one that says "CUDA out of memory. Tried to allocate 2.00 GiB."
    said = ("allocate memory", "CUDA out of memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)
