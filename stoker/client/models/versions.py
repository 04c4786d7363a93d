# `python -m tools.client_api` writes this file.
"""Responses of versions, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from .common import JobStatus


class Result(msgspec.Struct, kw_only=True):
    is_passed: bool
    message: str
    ms: float
    name: str


class Report(msgspec.Struct, kw_only=True):
    """Results of a deployment's checks."""

    created_at: str
    deployment_id: str
    is_passed: bool
    object: str = "deployment.check_report"
    results: list[Result]


class Checks(msgspec.Struct, kw_only=True):
    checks: list[dict[str, Any]]
    deployment_id: str
    object: str = "deployment.checks"
    report: Report | None
    updated_at: str | None


class Example(msgspec.Struct, kw_only=True):
    """A call that was answered differently. Long texts are cut."""

    at: float
    live: str
    mirror: str
    request: str


class Latency(msgspec.Struct, kw_only=True):
    calls: int
    longest_ms: float
    mean_ms: float | None


if TYPE_CHECKING:
    RowStatus: TypeAlias = Literal["measured", "differs", "failed", "unavailable"] | str
else:
    RowStatus = str


class Row(msgspec.Struct, kw_only=True):
    """Configuration of the model that can be applied to a deployment."""

    agreement: float | None = None
    alone_ms: float | None = None
    difference: float | None = None
    dtype: str
    engine: str
    items_per_s: float | None = None
    measure: str | None = None
    memory_bytes: int | None = None
    reason: str = ""
    status: RowStatus
    weight_format: str | None = None


class TrialError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class Trial(msgspec.Struct, kw_only=True):
    """Measurements of several configurations of a deployment's model on the same inputs."""

    completed_at: str | None
    created_at: str
    deployment_id: str
    error: TrialError | None
    examples: int | None
    id: str
    object: str = "deployment.trial"
    progress: float
    rows: list[Row]
    status: JobStatus


class VersionComparison(msgspec.Struct, kw_only=True):
    """Comparison of a version's answers to copies of the live version's calls."""

    compared: int
    deployment_id: str
    difference: float | None
    differing: int
    dropped: int
    equal_texts: float | None
    equal_top_labels: float | None
    examples: list[Example]
    failed: int
    least_cosine: float | None
    live: Latency
    live_version_id: str
    mean_cosine: float | None
    measure: str
    mirror: Latency
    object: str = "deployment.version_comparison"
    version_id: str
