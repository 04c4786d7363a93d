"""Settings of model folders, the hub and fetched media."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings


class SourceSettings(BaseSettings):
    """Settings of model folders, the hub and fetched media. Read by `Settings`."""

    source_dirs: list[Path] = Field(
        default=[],
        description="Folders that contain the models which a deployment's `source` may name.",
    )
    hub_imports: bool = Field(default=True, description="Allow imports of models from the hub.")
    hub_endpoint: str = Field(
        default="https://huggingface.co",
        description="URL of the Hugging Face hub, or of a server with its protocol.",
    )
    hub_token: SecretStr | None = Field(
        default=None,
        description=(
            "Token for imports without their own token. Every user who may import gets "
            "access to everything that it can read."
        ),
    )
    hub_private_hosts: list[str] = Field(
        default=[],
        description=(
            "Hosts that may have private addresses, such as the targets of an internal "
            "hub's redirects (`host` or `host:port`). The hub's own host is always "
            "allowed."
        ),
    )
    media_hosts: list[str] = Field(
        default=[],
        description=(
            "Hosts that media may be fetched from (`host`, `.domain`, `host:port`). "
            "Empty: all public hosts."
        ),
    )
    media_private_hosts: list[str] = Field(
        default=[],
        description=(
            "Hosts of media that may have private addresses, such as an object store "
            "(`host` or `host:port`)."
        ),
    )
    media_dirs: list[Path] = Field(
        default=[],
        description="Folders from which media may be given as a path. Empty: paths are rejected.",
    )
    media_limit_mib: int = Field(
        default=64, ge=1, le=4096, description="Largest media that is fetched or decoded, MiB."
    )
    media_timeout_s: float = Field(
        default=120,
        gt=0,
        le=3600,
        description="Longest download of media, seconds.",
    )
