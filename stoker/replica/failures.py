"""Whose fault a failure is, and what is said of it.

- The input's: an `InputError` of a step that reads inputs or outputs. The client gets its message.
- The model's: whatever else a step of the work raises. It is logged, and the client learns which
  step failed, not how. The request fails alone; of a batch, only those that fail by themselves.
- The replica's: a model that cannot be loaded (`load_failure`), or that says of itself that it
  cannot compute any more (`Serving.alive`). The process ends.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.models.stages.base import InputError
from stoker.wire.protocol import Failure, LoadFailed

log = logging.getLogger(__name__)

Place = Callable[[InputError | None], str | None]
"""The request's field that is at fault; of None, the one that the model failed on."""

_REASON_CHARACTERS = 600
_NAMED_PARTS = 3
_LASTING = (
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    PermissionError,
    TypeError,
    ValueError,
)
"""Errors that a load fails with again, however long it waits: a package is missing, a class or a
value does not fit, a file may not be read. Disks, memory and devices may be there the next time.
"""
_LACKING: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            r"Can't load (?:the )?([a-z ]+?) (?:for|of) .* containing an? (?:file named )?"
            r"([\w.-]+?\w)(?: file)?\.?$",
            r"the model's folder has no \2, which its \1 is loaded from. Upload it with the model.",
        ),
        (
            r"Can't load (?:the )?([a-z ]+?) (?:for|of) .*",
            r"the model's folder lacks files that its \1 is loaded from. Upload the whole folder "
            "that save_pretrained wrote.",
        ),
        (
            r".*(?:Error no|does not appear to have a) file named ([\w.-]+\w).*",
            r"the model's folder has no \1. Upload it with the model.",
        ),
        (
            r".*We couldn't connect to .*",
            "the model's files refer to others on a hub, from which nothing is fetched here. "
            "Save the model with all its parts in one folder.",
        ),
        (
            r"(\S+) is not a local folder .*",
            r"the model's files refer to \1, and nothing is fetched here. Save the model with all "
            "its parts in one folder.",
        ),
        (r"(.* is not a valid JSON file\.?)", r"\1"),
        (r"(Unable to load vocabulary .*)", r"\1"),
    )
)
"""What transformers says, in an OSError, of a folder that lacks something → what is said of it. It
names the folder, and a hub that is never asked.
"""
_PATH = re.compile(r"(?:(?<=[\s'\"(=])|^)(?:[a-z]+:/)?/[^\s'\"),;]+")


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
NO_NUMBERS = Step(
    "an answer holds no numbers",
    "The model's answer for this input is not a number (NaN or infinity). Its weights may be "
    "damaged, or its 'dtype' too narrow: deploy it with 'dtype': 'float32'.",
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


def load_failure(error: Exception, folder: str = "") -> LoadFailed:
    """What is said of a model that cannot be loaded, and whether trying again may help.

    Args:
        folder: of the model: the message names its files by their paths below.
    """
    out_of_memory = _is_out_of_memory(error)
    return LoadFailed(
        _reason(error, folder), out_of_memory, not out_of_memory and _is_lasting(error)
    )


def _is_lasting(error: Exception) -> bool:
    return isinstance(error, _LASTING) or _lacking(error) is not None


def _lacking(error: Exception) -> str | None:
    """What a model's folder lacks; None: the error is about something else."""
    # Errors of the system have a number.
    if not isinstance(error, OSError) or error.errno is not None:
        return None
    line = " ".join(str(error).split())
    found = ((pattern.fullmatch(line), message) for pattern, message in _LACKING)
    return next((match.expand(message) for match, message in found if match), None)


def _reason(error: Exception, folder: str) -> str:
    """An error in one line, without folders of this machine; a long one ends with a word.

    Of a file outside the model's folder that cannot be opened, the end of the path is named: it
    says which package the file is of.
    """
    line = _lacking(error) or " ".join(str(error).split())
    line = _PATH.sub(lambda found: _shown(found[0], folder), line)
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:
        path = Path(error.filename)
        if not (folder and path.is_relative_to(folder)):
            end = "/".join(part.strip("/") for part in path.parts[-_NAMED_PARTS:])
            line = f"{error.strerror} …/{end}"
    if len(line) > _REASON_CHARACTERS:
        line = line[:_REASON_CHARACTERS].rpartition(" ")[0] + " …"
    line = f"{type(error).__name__}: {line}" if line else f"{type(error).__name__}"
    return line if line.endswith((".", "!", "?", "…")) else f"{line}."


def _shown(path: str, folder: str) -> str:
    """A file of the model by its path in its folder, any other one by its name alone."""
    bare, folder = path.rstrip(".:"), folder.rstrip("/")
    rest = path[len(bare) :]
    if folder and bare.rstrip("/") == folder:
        return f"the model's folder{rest}"
    if folder and bare.startswith(f"{folder}/"):
        return bare[len(folder) + 1 :] + rest
    return f"…/{bare.rstrip('/').rpartition('/')[2]}{rest}"


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a plain RuntimeError, "DefaultCPUAllocator: can't allocate memory", and of a GPU
    # one that says "CUDA out of memory. Tried to allocate 2.00 GiB."
    said = ("allocate memory", "CUDA out of memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)
