"""Questions and answers of the process that inspects: JSON within the frames of `workers`."""

import msgspec

from stoker.inspection.inspector import Inspection
from stoker.models.adapters.merge_job import Job


class Ask(msgspec.Struct, frozen=True, tag=True):
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


class AskFit(msgspec.Struct, frozen=True, tag=True):
    """Does this adapter fit this base?"""

    adapter: dict[str, str]
    """The paths of its two files, by their names."""
    base: str
    """A folder."""
    why_unshared: str
    """Why no adapter shares the base's replicas: then it has to be mergeable. Empty: any may."""


class AskPlan(msgspec.Struct, frozen=True, tag=True):
    """What is to be written so that this adapter is a part of its base's weights?"""

    adapter: dict[str, str]
    base: str
    building: str
    """The folder that is written into."""
    is_single: bool


Question = Ask | AskFit | AskPlan


class Fit(msgspec.Struct, frozen=True):
    why_alone: str
    """Why the adapter needs replicas of its own; empty: it can share its base's."""
    why_unfit: str
    """Why it is for another base, or cannot be merged into this one; empty: it fits."""


class Found(msgspec.Struct, frozen=True):
    """An answer, or a refusal."""

    inspection: Inspection | None = None
    fit: Fit | None = None
    job: Job | None = None
    """The plan of merging."""
    why_not: str = ""
    """Why there is no plan."""
    code: str | None = None
    """The files were refused: a `FailureCode`, with message and path."""
    message: str = ""
    path: str | None = None
