from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.registry.deployments.schemas import Dtype
from stoker.store.db import NO_CONTROL
from stoker.store.open_enum import OpenEnum
from stoker.store.tables.jobs import JobStatus

MAX_EXAMPLES = 100

Name = Annotated[str, Field(min_length=1, max_length=32, pattern=NO_CONTROL)]


class TrialCreate(RequestModel):
    examples: list[dict[str, Any]] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_EXAMPLES,
        description=(
            "Request bodies for the deployment's first endpoint, without `model`. Every "
            "configuration is timed on them and its answers are compared. Default: "
            "generated examples."
        ),
    )
    engines: list[Name] | None = Field(
        default=None, min_length=1, max_length=8, description="Only these engines."
    )
    dtypes: list[Dtype] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Only these dtypes, in addition to float32.",
    )


class RowStatus(OpenEnum):
    MEASURED = "measured"
    DIFFERS = "differs"
    """The answers to the examples differ: another top label, distant vectors or other texts."""
    FAILED = "failed"
    """The model could not be run. `reason` contains the cause."""
    UNAVAILABLE = "unavailable"
    """The server has no such engine, or lacks its requirements."""


class Row(ResponseModel):
    """Configuration of the model that can be applied to a deployment."""

    engine: str
    dtype: str
    weight_format: str | None = None
    status: RowStatus
    reason: str = ""
    alone_ms: float | None = Field(
        default=None,
        description=(
            "Time of one example at a time, without HTTP: the mean of the examples' medians."
        ),
    )
    items_per_s: float | None = Field(
        default=None,
        description="Inputs per second for sixteen callers that each ask again once answered.",
    )
    memory_bytes: int | None = Field(
        default=None, description="Memory that a replica held: proportional set size, bytes."
    )
    difference: float | None = Field(
        default=None, description="Largest difference of any number from the first row's answers."
    )
    agreement: float | None = Field(
        default=None,
        description="With the first row's answers: what `measure` names.",
    )
    measure: Literal["top_labels", "cosine", "texts"] | SkipJsonSchema[str] | None = Field(
        default=None,
        description="`top_labels`: share of equal labels. `cosine`: lowest similarity between "
        "vectors. `texts`: share of equal texts.",
    )


class TrialError(ResponseModel):
    code: str
    message: str


class Trial(ResponseModel):
    """Measurements of several configurations of a deployment's model on the same inputs."""

    id: str
    object: Literal["deployment.trial"] = "deployment.trial"
    deployment_id: str
    status: JobStatus
    progress: float = Field(description="0 to 1.")
    examples: int | None = Field(
        description="Number of examples in the request. Null if the request had none."
    )
    rows: list[Row] = Field(description="Rows; the first one is the reference.")
    error: TrialError | None
    created_at: UtcString
    completed_at: UtcString | None
