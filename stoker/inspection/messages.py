"""Questions and answers of the process that inspects: JSON within the frames of `workers`."""

import msgspec

from stoker.inspection.inspector import Inspection


class Ask(msgspec.Struct, frozen=True):
    """Inspect these files."""

    root: str
    """The folder of the blobs. Empty: the process requests what it reads, as `Wanted`."""
    files: dict[str, tuple[str, int]]
    """path → (blob key, size in bytes)"""
    pipeline: str | None


class Wanted(msgspec.Struct, frozen=True):
    path: str
    offset: int
    length: int


class Found(msgspec.Struct, frozen=True):
    """Either an inspection or a refusal."""

    inspection: Inspection | None = None
    code: str | None = None
    """The files were refused: a `FailureCode`, with message and path."""
    message: str = ""
    path: str | None = None
