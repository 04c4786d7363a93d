"""Settings of generated files, jobs and agents."""

from pydantic import Field
from pydantic_settings import BaseSettings


class JobSettings(BaseSettings):
    """Settings of generated files, jobs and agents. Read by `Settings`."""

    media_retention_h: float = Field(
        default=24, gt=0, le=87_600, description="Lifetime of generated images and videos, hours."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        max_length=512,
        description=(
            "Base URL of links to files, as in https://models.example. Default: the URL "
            "of the request. It may have a path that a reverse proxy adds, whether the "
            "proxy strips it from requests or not."
        ),
    )
    job_lease_s: float = Field(
        default=15,
        ge=1,
        le=3600,
        description=(
            "A job whose server is silent for this long is taken over by another server, seconds."
        ),
    )
    jobs_at_once: int = Field(
        default=8, ge=1, le=1000, description="Jobs that this server runs at the same time."
    )
    jobs_queued: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Maximum number of queued and running jobs of a deployment.",
    )
    job_timeout_s: float = Field(
        default=3600, gt=0, le=86_400, description="Longest attempt at a job, seconds."
    )
    batch_lines: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Maximum number of lines of a batch."
    )
    batch_mib: int = Field(
        default=1024, ge=1, le=1_048_576, description="Maximum size of a batch's input file, MiB."
    )
    batch_line_mib: int = Field(
        default=4, ge=1, le=64, description="Maximum size of a line of a batch, MiB."
    )
    batch_lines_at_once: int = Field(
        default=64,
        ge=1,
        le=4096,
        description=(
            "Lines of one deployment's batches that this server computes at the same time. At "
            "most half of the deployment's `max_queue` is used."
        ),
    )
    agent_runs_at_once: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="Agent runs that this server executes at the same time.",
    )
    agent_runs_queued: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Maximum number of queued and running agent runs of an account.",
    )
    responses_queued: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Maximum number of queued and running background responses of a deployment.",
    )
    response_retention_days: float = Field(
        default=30,
        gt=0,
        le=36_500,
        description="Days after which a stored response is deleted, with its content.",
    )
    agent_run_retention_days: float = Field(
        default=30,
        gt=0,
        le=36_500,
        description=(
            "Finished runs, and runs that wait for tool outputs, are erased after this many days."
        ),
    )
    tool_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description="Longest response of an agent's tool server, seconds.",
    )
    tool_hosts: list[str] = Field(
        default=[],
        description=(
            "Hosts of tool servers (MCP) that agents may use (`host`, `.domain`, "
            "`host:port`). Empty: all public hosts."
        ),
    )
    tool_private_hosts: list[str] = Field(
        default=[],
        description=(
            "Hosts of tool servers that may have private addresses (`host` or `host:port`)."
        ),
    )
