# `python -m tools.client_api` writes this file.
"""Parameters of artifacts, from the OpenAPI document."""

from typing import Required, TypedDict


class ArtifactCreateParams(TypedDict, total=False):
    display_name: Required[str]
    pipeline: str | None
    """Pipeline of the model; detected from its files if absent."""


class ArtifactUpdateParams(TypedDict, total=False):
    display_name: str | None


class ImportCreateParams(TypedDict, total=False):
    gguf: str | None
    """GGUF file to import, or a part of its name that identifies it, as in `Q4_K_M`.
    Default: safetensors, or the only GGUF file.
    """
    repo_id: Required[str]
    """Model repository on the hub, such as `org/name`."""
    revision: str
    """Branch, tag or commit. It is resolved to a commit when the import is created."""
    token: str | None
    """Token that may read the repository. It is stored encrypted, used for this import only,
    and erased when the import ends.
    """
