"""Attributes a failure to its cause and chooses the message that reports it.

- Input: an `InputError` of a step that reads inputs or outputs. The client receives its message.
- Model: any other error of a step. It is logged, and the client learns which step failed, but not
  how. The request fails alone. In a batch, only requests that fail by themselves fail.
- Replica: a model that cannot be loaded (`load_failure`), or that reports that it cannot compute
  any more (`Serving.alive`). The process ends.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.models.stages.base import InputError
from stoker.wire.protocol import LoadFailed, RequestFailure

log = logging.getLogger(__name__)

Place = Callable[[InputError | None], str | None]
"""Returns the request's field at fault for an error. For None: the field that the model failed
on.
"""

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
"""Errors that a retried load raises again: a package is missing, a class or a value does not fit,
or a file may not be read. Errors of disks, memory and devices may be temporary.
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
            "the model's files refer to others on a hub, but nothing is fetched from a hub. "
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
"""Maps a pattern of transformers' OSError for an incomplete folder to the message that replaces it.
The original names the folder and a hub that is never contacted.
"""
_PATH = re.compile(r"(?:(?<=[\s'\"(=])|^)(?:[a-z]+:/)?/[^\s'\"),;]+")


@dataclass(frozen=True)
class Step:
    """Part of the work on a request, with the messages for its failure."""

    logged: str
    message: str
    """Message for the client if the model is at fault."""
    reads_input: bool = False
    """True if an `InputError` of this step is the input's fault. Otherwise it counts like any other
    error.
    """


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


def failure(request_id: int, step: Step, error: Exception, place: Place) -> RequestFailure:
    """Returns the answer to a request with a step that raised an error."""
    if step.reads_input and isinstance(error, InputError):
        return RequestFailure(request_id, error.code, error.message, place(error))
    log.error(step.logged, exc_info=error)
    return model_failure(request_id, step.message, place(None))


def model_failure(request_id: int, message: str, param: str | None = None) -> RequestFailure:
    """Returns the answer to a request that the model failed on."""
    return RequestFailure(request_id, "inference_failed", message, param)


def load_failure(error: Exception, folder: str = "") -> LoadFailed:
    """Returns the report of a model that cannot be loaded, including whether a retry may help.

    Args:
        folder: the model's folder. The message names its files by their relative paths.
    """
    out_of_memory = _is_out_of_memory(error)
    return LoadFailed(
        _reason(error, folder), out_of_memory, not out_of_memory and _is_lasting(error)
    )


def _is_lasting(error: Exception) -> bool:
    return isinstance(error, _LASTING) or _lacking(error) is not None


def _lacking(error: Exception) -> str | None:
    """Returns a message about the file that a model's folder lacks. None if the error has another
    cause.
    """
    # Errors of the operating system have a number.
    if not isinstance(error, OSError) or error.errno is not None:
        return None
    line = " ".join(str(error).split())
    matches = ((pattern.fullmatch(line), message) for pattern, message in _LACKING)
    return next((match.expand(message) for match, message in matches if match), None)


def _reason(error: Exception, folder: str) -> str:
    """Returns an error as one line without this machine's folders. A long line is cut after a word.

    For a file outside the model's folder that cannot be opened, the line names the end of the path.
    It shows the package of the file.
    """
    line = _lacking(error) or " ".join(str(error).split())
    line = _PATH.sub(lambda match: _shown(match[0], folder), line)
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
    """Returns a path relative to the model's folder, or only the name of a file outside it."""
    bare, folder = path.rstrip(".:"), folder.rstrip("/")
    rest = path[len(bare) :]
    if folder and bare.rstrip("/") == folder:
        return f"the model's folder{rest}"
    if folder and bare.startswith(f"{folder}/"):
        return bare[len(folder) + 1 :] + rest
    return f"…/{bare.rstrip('/').rpartition('/')[2]}{rest}"


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises a plain RuntimeError: "DefaultCPUAllocator: can't allocate memory" for a CPU, and
    # "CUDA out of memory. Tried to allocate 2.00 GiB." for a GPU.
    phrases = ("allocate memory", "CUDA out of memory", "CUDA error: out of memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in phrases)
