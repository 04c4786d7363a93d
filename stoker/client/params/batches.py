# `python -m tools.client_api` writes this file.
"""Parameters of batches, from the OpenAPI document."""

from collections.abc import Mapping
from typing import Literal, Required, TypedDict


class OutputExpiryParams(TypedDict):
    anchor: Literal["created_at"]
    seconds: int
    """Seconds from the creation of the result files."""


class BatchCreateParams(TypedDict, total=False):
    completion_window: Required[Literal["24h"]]
    endpoint: Required[str]
    """Path of the requests: any endpoint that runs a model and answers in JSON."""
    input_file_id: Required[str]
    """A file with the purpose `batch`: one request a line."""
    metadata: Mapping[str, str] | None
    output_expires_after: OutputExpiryParams | None
    """Lifetime of the result files. Default: 30 days."""
