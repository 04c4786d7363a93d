# `python -m tools.client_api` writes this file.
"""Responses of versions, from the OpenAPI document."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from .common import JobStatus


class Result(msgspec.Struct, kw_only=True):
    is_passed: bool
    message: str
    """Difference from the expected result; empty if the check passed."""
    ms: float
    """Time until the answer, milliseconds."""
    name: str


class Report(msgspec.Struct, kw_only=True):
    """Results of a deployment's checks."""

    created_at: str
    deployment_id: str
    is_passed: bool
    """Whether all were."""
    object: str = "deployment.check_report"
    results: list[Result]


class Checks(msgspec.Struct, kw_only=True):
    checks: list[dict[str, Any]]
    deployment_id: str
    object: str = "deployment.checks"
    report: Report | None
    """Report of the last run of these checks."""
    updated_at: str | None


class Example(msgspec.Struct, kw_only=True):
    """A call that was answered differently. Long texts are cut."""

    at: float
    """Unix seconds."""
    live: str
    mirror: str
    request: str


class Latency(msgspec.Struct, kw_only=True):
    calls: int
    longest_ms: float
    mean_ms: float | None
    """Null if there were no calls."""


if TYPE_CHECKING:
    RowStatus: TypeAlias = Literal["measured", "differs", "failed", "unavailable"] | str
else:
    RowStatus = str


class Row(msgspec.Struct, kw_only=True):
    """Configuration of the model that can be applied to a deployment."""

    agreement: float | None = None
    """With the first row's answers: what `measure` names."""
    alone_ms: float | None = None
    """Time of one example at a time, without HTTP: the mean of the examples' medians."""
    difference: float | None = None
    """Largest difference of any number from the first row's answers."""
    dtype: str
    engine: str
    items_per_s: float | None = None
    """Inputs per second for sixteen callers that each ask again once answered."""
    measure: str | None = None
    """`top_labels`: share of equal labels. `cosine`: lowest similarity between vectors.
    `texts`: share of equal texts.
    """
    memory_bytes: int | None = None
    """Memory that a replica held: proportional set size, bytes."""
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
    """Number of examples in the request. Null if the request had none."""
    id: str
    object: str = "deployment.trial"
    progress: float
    """0 to 1."""
    rows: list[Row]
    """Rows; the first one is the reference."""
    status: JobStatus


class VersionComparison(msgspec.Struct, kw_only=True):
    """Comparison of a version's answers to copies of the live version's calls."""

    compared: int
    """Calls that both versions answered."""
    deployment_id: str
    difference: float | None
    """Largest difference of any number. Null if it is not finite."""
    differing: int
    """Answers that differ, by the criteria of a trial."""
    dropped: int
    """Copies that were dropped for lack of an idle moment."""
    equal_texts: float | None
    """Share of equal texts. Null if the answers have no texts."""
    equal_top_labels: float | None
    """Share of equal labels. Null if the answers have no labels."""
    examples: list[Example]
    """Last calls that were answered differently, if the traffic has `examples`."""
    failed: int
    """Copies that ended with an error."""
    least_cosine: float | None
    live: Latency
    live_version_id: str
    mean_cosine: float | None
    """Mean cosine of two vectors. Null if the answers have no vectors."""
    measure: str
    """Measure that applies to most of these answers."""
    mirror: Latency
    object: str = "deployment.version_comparison"
    version_id: str
