"""Settings of accounts: quotas, credits, keys and console sessions."""

from pydantic import Field
from pydantic_settings import BaseSettings


class AccountSettings(BaseSettings):
    """Settings of accounts: quotas, credits, keys and console sessions. Read by `Settings`."""

    quota_storage_gib: float = Field(
        default=4096,
        ge=0,
        le=1_000_000_000,
        description=(
            "Storage limit of an account, GiB: artifacts, declared or received uploads, "
            "and files. 0: unlimited. Operators can set this and the quotas "
            "below per account."
        ),
    )
    quota_upload_sessions: int = Field(
        default=1000,
        ge=0,
        description="Maximum number of open upload sessions of an account; 0: unlimited.",
    )
    quota_artifacts: int = Field(
        default=100_000,
        ge=0,
        description="Maximum number of artifacts of an account; 0: unlimited.",
    )
    quota_deployments: int = Field(
        default=100_000,
        ge=0,
        description="Maximum number of deployments of an account; 0: unlimited.",
    )
    quota_keys: int = Field(
        default=1_000_000,
        ge=0,
        description="Maximum number of active API keys of an account; 0: unlimited.",
    )
    quota_agents: int = Field(
        default=100_000, ge=0, description="Maximum number of agents of an account; 0: unlimited."
    )
    quota_runs: int = Field(
        default=1_000_000,
        ge=0,
        description=(
            "Maximum number of stored agent runs of an account, finished runs included; "
            "0: unlimited."
        ),
    )
    quota_files: int = Field(
        default=1_000_000,
        ge=0,
        description="Maximum number of files of an account, generated or uploaded; 0: unlimited.",
    )
    quota_videos: int = Field(
        default=100_000, ge=0, description="Maximum number of videos of an account; 0: unlimited."
    )
    quota_batches: int = Field(
        default=100,
        ge=0,
        description="Maximum number of unfinished batches of an account; 0: unlimited.",
    )
    console_session_h: float = Field(
        default=12,
        gt=0,
        le=720,
        description="Lifetime of a console session in a browser, hours.",
    )
    starting_credits: int = Field(
        default=1_000_000,
        ge=0,
        le=1_000_000_000,
        description=(
            "Credits of a new account. The default is large, so that no call is refused "
            "before an operator rations credits."
        ),
    )
    key_cache_s: float = Field(
        default=2,
        gt=0,
        le=60,
        description="Time for which a verified key is cached, seconds.",
    )
