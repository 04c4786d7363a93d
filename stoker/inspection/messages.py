"""Questions to the inspecting process and its answers: JSON in the frames of `workers`."""

import msgspec

from stoker.inspection.inspector import Inspection
from stoker.models.adapters.merge_job import MergeJob


class InspectRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the inspection of files."""

    root: str
    """Folder of the blobs. If empty, the process requests its reads as `ReadRequest`."""
    files: dict[str, tuple[str, int]]
    """Maps a path to its blob key and size in bytes."""
    pipeline: str | None


class ReadRequest(msgspec.Struct, frozen=True):
    path: str
    offset: int
    length: int


class FitRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests a check of whether an adapter fits a base."""

    adapter: dict[str, str]
    """Paths of the adapter's two files, by their names."""
    base: str
    """Path of the base's folder."""
    why_unshared: str
    """Reason why no adapter shares the base's replicas, so that it must be mergeable. Empty if any
    may share them.
    """


class PlanRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests a plan for merging an adapter into its base's weights."""

    adapter: dict[str, str]
    base: str
    building: str
    """Destination folder of the merged weights."""
    is_single: bool


Question = InspectRequest | FitRequest | PlanRequest


class Fit(msgspec.Struct, frozen=True):
    why_alone: str
    """Reason why the adapter needs separate replicas. Empty if it can share its base's."""
    why_unfit: str
    """Reason why the adapter is for another base, or cannot be merged into this one. Empty if it
    fits.
    """


class InspectResult(msgspec.Struct, frozen=True):
    """Answer or rejection."""

    inspection: Inspection | None = None
    fit: Fit | None = None
    job: MergeJob | None = None
    """Plan of the merge."""
    why_not: str = ""
    """Reason for a missing plan."""
    code: str | None = None
    """`FailureCode` if the files were rejected, with message and path."""
    message: str = ""
    path: str | None = None
