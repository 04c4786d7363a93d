from typing import Any, Literal

from pydantic import Field, model_validator

from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.registry.deployments.schemas import Config, Device, Dtype, Engine, Memory, VersionId
from stoker.store.db import NO_CONTROL
from stoker.store.tables.deployments import VersionStatus

Promote = Literal["when_ready", "manual"]
Strategy = Literal["beside", "in_place"]


class VersionCreate(RequestModel):
    """Changes for a new version. Omitted fields are copied from the live version."""

    artifact_id: str | None = Field(
        default=None, max_length=64, pattern=NO_CONTROL, description="A ready artifact."
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description=(
            "Model folder, instead of an artifact. It must be below a folder that the "
            "operator allows."
        ),
    )
    engine: Engine | None = None
    device: Device | None = None
    dtype: Dtype | None = None
    config: Config | None = Field(
        default=None,
        description="Omitted options stay unchanged. Null resets an option.",
    )
    note: str = Field(default="", max_length=1024, description="Note for people: what changed.")
    promote: Promote = Field(
        default="when_ready",
        description=(
            "`when_ready`: the version goes live once it passes all checks. `manual`: it "
            "waits for a promotion."
        ),
    )
    strategy: Strategy = Field(
        default="beside",
        description=(
            "`beside`: the version loads while the live version serves. `in_place`: the "
            "live version is unloaded first, and calls wait."
        ),
    )

    @model_validator(mode="after")
    def _differs(self) -> "VersionCreate":
        if self.artifact_id is not None and self.source is not None:
            raise ValueError("give either artifact_id or source")
        changes = (self.artifact_id, self.source, self.engine, self.device, self.dtype, self.config)
        if all(change is None for change in changes):
            raise ValueError(
                "send at least one change: artifact_id, source, engine, device, dtype, config"
            )
        return self


class Rollback(RequestModel):
    version: VersionId | None = Field(
        default=None, description="Default: the previous live version."
    )


class Latency(ResponseModel):
    calls: int
    mean_ms: float | None = Field(description="Null if there were no calls.")
    longest_ms: float


class Example(ResponseModel):
    """A call that was answered differently. Long texts are cut."""

    at: float = Field(description="Unix seconds.")
    request: str
    live: str
    mirror: str


class VersionComparison(ResponseModel):
    """Comparison of a version's answers to copies of the live version's calls."""

    object: Literal["deployment.version_comparison"] = "deployment.version_comparison"
    deployment_id: str
    version_id: str
    live_version_id: str
    compared: int = Field(description="Calls that both versions answered.")
    failed: int = Field(description="Copies that ended with an error.")
    dropped: int = Field(description="Copies that were dropped for lack of an idle moment.")
    differing: int = Field(description="Answers that differ, by the criteria of a trial.")
    measure: Literal["top_labels", "cosine", "texts"] = Field(
        description="Measure that applies to most of these answers."
    )
    equal_top_labels: float | None = Field(
        description="Share of equal labels. Null if the answers have no labels."
    )
    equal_texts: float | None = Field(
        description="Share of equal texts. Null if the answers have no texts."
    )
    mean_cosine: float | None = Field(
        description="Mean cosine of two vectors. Null if the answers have no vectors."
    )
    least_cosine: float | None
    difference: float | None = Field(
        description="Largest difference of any number. Null if it is not finite."
    )
    live: Latency
    mirror: Latency
    examples: list[Example] = Field(
        description="Last calls that were answered differently, if the traffic has `examples`."
    )


class Version(ResponseModel):
    id: str
    object: Literal["deployment.version"] = "deployment.version"
    deployment_id: str
    number: int
    artifact_id: str | None
    source: str | None
    engine: str
    device: str
    dtype: str
    config: dict[str, Any]
    status: VersionStatus
    reason: str = Field(description="Error code of the failure. Empty if the version did not fail.")
    message: str
    note: str
    promote: Promote
    strategy: Strategy
    progress: float = Field(description="Progress of the preparation, 0 to 1.")
    memory: Memory
    is_loaded: bool = Field(description="True if the version can answer at once.")
    created_at: UtcString
    promoted_at: UtcString | None
    retired_at: UtcString | None
