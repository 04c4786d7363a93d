"""GGUF files: recognised, and refused where the fixed part of the header cannot be right.

Format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): the magic `GGUF`, a version as
an unsigned 32-bit number, the counts of tensors and of metadata entries as unsigned 64-bit numbers,
all little-endian. What follows is not read: an engine that loads GGUF has to check every length
and offset in it first.
"""

import struct

from stoker.artifacts.inspection.failure import FailureCode, InspectionError
from stoker.artifacts.inspection.files import FileSet

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_METADATA = 100_000

_HEADER = struct.Struct("<4sIQQ")


def check_gguf(files: FileSet, path: str) -> None:
    """Refuse a file whose GGUF header has an unknown version or impossible counts.

    Raises:
        InspectionError: `BAD_GGUF`.
    """
    head = files.head(path, _HEADER.size)
    if len(head) < _HEADER.size:
        raise _bad(path, "is too short for a GGUF header")
    magic, version, tensors, metadata = _HEADER.unpack(head)
    if magic != MAGIC:
        raise _bad(path, "does not begin as GGUF does")
    if version not in VERSIONS:
        raise _bad(path, f"is of GGUF version {version}, not 2 or 3 in little-endian order")
    if not 1 <= tensors <= MAX_TENSORS or metadata > MAX_METADATA:
        raise _bad(path, f"claims {tensors} tensors and {metadata} metadata entries")


def _bad(path: str, what: str) -> InspectionError:
    return InspectionError(
        FailureCode.BAD_GGUF, f"{path} {what}. Convert the model to GGUF again.", path
    )
