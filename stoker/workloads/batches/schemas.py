"""`/v1/batches`: OpenAI's names, and `paused`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stoker.base.strict_json import Strict
from stoker.platform.web.schemas import ResponseModel
from stoker.store.db import NO_CONTROL
from stoker.store.open_enum import OpenEnum

MOST_METADATA = 16
_MetadataKey = Annotated[str, Field(min_length=1, max_length=64)]
_MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[_MetadataKey, _MetadataValue], Field(max_length=MOST_METADATA)]


class BatchStatus(OpenEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class _BatchRequest(Strict):
    """Base of requests, which ignore unknown fields like OpenAI's."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    is_stored = True


class OutputExpiry(_BatchRequest):
    anchor: Literal["created_at"]
    seconds: int = Field(
        ge=3600, le=2_592_000, description="Seconds from the creation of the result files."
    )


class BatchCreate(_BatchRequest):
    input_file_id: str = Field(
        min_length=1,
        max_length=64,
        pattern=NO_CONTROL,
        description="A file with the purpose `batch`: one request a line.",
    )
    endpoint: str = Field(
        max_length=128,
        pattern=NO_CONTROL,
        description="Path of the requests: any endpoint that runs a model and answers in JSON.",
    )
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = Field(
        default=None, description="Lifetime of the result files. Default: 30 days."
    )


class BatchFault(BaseModel):
    code: str
    message: str
    line: int | None = Field(description="Line of the input file, from 1.")
    param: str | None = None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchCounts(BaseModel):
    total: int
    completed: int
    failed: int = Field(description="Lines of the error file.")


class BatchInputDetails(BaseModel):
    cached_tokens: int


class BatchOutputDetails(BaseModel):
    reasoning_tokens: int


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchPause(BaseModel):
    code: str
    message: str


class Batch(ResponseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = Field(description="The deployment's model id, once it is validated.")
    errors: BatchErrors | None = Field(description="Errors of a batch with the status `failed`.")
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int = Field(description="Unix seconds, like all times.")
    in_progress_at: int | None
    expires_at: int = Field(description="End of the completion window.")
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    paused: BatchPause | None = Field(
        description="Reason why no lines are computed at present. The batch resumes by itself."
    )
