# `python -m tools.client_api` writes this file.
"""Parameters of artifacts, from the OpenAPI document."""

from typing import Required, TypedDict


class ArtifactCreateParams(TypedDict, total=False):
    display_name: Required[str]
    pipeline: str | None


class ArtifactUpdateParams(TypedDict, total=False):
    display_name: str | None


class ImportCreateParams(TypedDict, total=False):
    gguf: str | None
    repo_id: Required[str]
    revision: str
    token: str | None
