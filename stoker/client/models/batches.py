# `python -m tools.client_api` writes this file.
"""Responses of batches, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec


class BatchCounts(msgspec.Struct, kw_only=True):
    completed: int
    failed: int
    """Lines of the error file."""
    total: int


class BatchFault(msgspec.Struct, kw_only=True):
    code: str
    line: int | None
    """Line of the input file, from 1."""
    message: str
    param: str | None = None


class BatchErrors(msgspec.Struct, kw_only=True):
    data: list[BatchFault]
    object: str = "list"


class BatchPause(msgspec.Struct, kw_only=True):
    code: str
    message: str


if TYPE_CHECKING:
    BatchStatus: TypeAlias = (
        Literal[
            "validating",
            "in_progress",
            "finalizing",
            "completed",
            "failed",
            "expired",
            "cancelling",
            "cancelled",
        ]
        | str
    )
else:
    BatchStatus = str


class BatchInputDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class BatchUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class Batch(msgspec.Struct, kw_only=True):
    cancelled_at: int | None
    cancelling_at: int | None
    completed_at: int | None
    completion_window: str = "24h"
    created_at: int
    """Unix seconds, like all times."""
    endpoint: str
    error_file_id: str | None
    errors: BatchErrors | None
    """Errors of a batch with the status `failed`."""
    expired_at: int | None
    expires_at: int
    """End of the completion window."""
    failed_at: int | None
    finalizing_at: int | None
    id: str
    in_progress_at: int | None
    input_file_id: str
    metadata: dict[str, str] | None
    model: str | None
    """The deployment's model id, once it is validated."""
    object: str = "batch"
    output_file_id: str | None
    paused: BatchPause | None
    """Reason why no lines are computed at present. The batch resumes by itself."""
    request_counts: BatchCounts
    status: BatchStatus
    usage: BatchUsage
