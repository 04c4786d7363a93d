"""Settings, read from the environment as ``STOKER_<NAME>`` or from an ``.env`` file."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from stoker.base import database_urls, secret_key
from stoker.base.cors_origins import Origin
from stoker.base.media_limits import MediaLimits

MIB = 1024 * 1024
MOST_UID = (1 << 32) - 1


def _range(value: str) -> str:
    """Checks a range of user ids, such as `200000-265535`, without root. An empty value is
    allowed.
    """
    first, dash, last = value.partition("-")
    if value and not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError("write the first and the last user id, as in '200000-265535'")
    if value and not 0 < int(first) <= int(last) < MOST_UID:
        raise ValueError(f"user ids go from 1 to {MOST_UID - 1}, the smaller one first")
    return value


def _network(value: str) -> str:
    return str(ip_network(value))


class Settings(BaseSettings):
    """All settings of an operator. A test keeps their list in docs/settings.md complete."""

    model_config = SettingsConfigDict(
        env_prefix="STOKER_",
        env_file=".env",
        extra="ignore",
        # An invalid secret is still a secret, so errors do not show it.
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(
        default=Path(".data"), description="Database, artifacts, logs and caches."
    )
    database_url: Annotated[str, AfterValidator(database_urls.checked)] | None = Field(
        default=None,
        description="`postgresql://user:password@host:port/database`, with libpq's options such as "
        "`?sslmode=verify-full`. Default: SQLite in the data folder.",
    )
    secret: Annotated[SecretStr, AfterValidator(secret_key.checked)] | None = Field(
        default=None,
        description=(
            "Key that encrypts stored answers, runs and tokens, and signs links: 32 "
            "random bytes in URL-safe base64. All servers of one database need the same. "
            "Default: the first server generates it and stores it in the data folder, or "
            "in PostgreSQL."
        ),
    )
    secret_file: Path | None = Field(
        default=None, description="File that contains the secret, instead of `STOKER_SECRET`."
    )
    blob_url: str | None = Field(
        default=None,
        pattern=r"^((s3|gs|az)://[^\s/?#]+(/[^\s?#]*)?|file:///[^\s?#]*)$",
        max_length=512,
        description=(
            "Storage for artifacts and generated files: `s3://bucket/prefix` (or "
            "`gs://…`, `az://…`) or `file:///folder`. Servers of one database must share "
            "it. Default: the data folder."
        ),
    )
    blob_timeout_s: float = Field(
        default=60,
        ge=1,
        le=300,
        description=(
            "Longest time a failing bucket request is retried before the client gets a "
            "503, seconds."
        ),
    )
    blob_redirects: bool = Field(
        default=False,
        description=(
            "Redirect downloads to signed URLs of the bucket. Clients must be able to "
            "reach the bucket and follow redirects. False: the server sends the bytes."
        ),
    )
    model_cache_gib: float = Field(
        default=100,
        gt=0,
        le=1_000_000,
        description=(
            "Size of the local cache of models from a bucket, GiB. The least recently "
            "loaded models are evicted first; loaded models stay."
        ),
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="Address that serves metrics without a key."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description=(
            "Port that serves metrics without a key, also of `stoker node host`. None: "
            "metrics need an operator's key, and a node host serves none."
        ),
    )
    allowed_hosts: list[str] = Field(
        default=["*"], description="Accepted Host headers; other requests get a 400."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(
        default=["127.0.0.1", "::1"],
        description=(
            "Addresses and networks of reverse proxies whose `X-Forwarded-For` and "
            '`X-Forwarded-Proto` headers are trusted, as in `["10.0.0.0/8"]`.'
        ),
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description=(
            "Origins of web pages that may call the API from a browser, as in "
            '`["https://chat.example"]`; `["*"]` allows all. Empty: none.'
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="`json`: one JSON object per line. `text`: for people."
    )

    connections_limit: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description=(
            "Most open connections; 0: 10,000. The limit is at most 80% of the files that"
            " the process may open."
        ),
    )
    connections_per_address: int = Field(
        default=2048,
        ge=0,
        le=1_000_000,
        description=(
            "Most open connections from one address, such as a reverse proxy's (for IPv6:"
            " from one /64 network). 0: no limit per address."
        ),
    )
    head_timeout_s: float = Field(
        default=20,
        gt=0,
        le=3600,
        description=(
            "Longest time to receive a complete request head, seconds. The connection is "
            "then closed."
        ),
    )
    body_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description=(
            "Longest time in which less than 16 KiB of a request's body arrive, seconds. "
            "The request is then aborted."
        ),
    )
    answer_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description=(
            "Longest time in which a client reads less than 16 KiB of a response, "
            "seconds. The connection is then closed."
        ),
    )

    loop_step_limit_ms: int = Field(
        default=100,
        ge=10,
        le=60_000,
        description="Event loop steps that take longer are logged, ms.",
    )

    body_limit_mib: int = Field(default=64, ge=1, le=4096, description="Largest request body, MiB.")
    json_limit_mib: int = Field(
        default=2,
        ge=1,
        le=4096,
        description="Most JSON in a request body, MiB, without inline media.",
    )
    list_limit: int = Field(default=256, ge=1, le=10_000, description="Most inputs in one request.")
    text_limit_chars: int = Field(
        default=1_000_000,
        ge=1,
        le=100_000_000,
        description="Longest single text input, characters.",
    )

    media_request_limit_mib: int = Field(
        default=256, ge=1, le=65_536, description="Most media of one request in total, MiB."
    )
    image_limit_mpixels: float = Field(
        default=64, gt=0, le=89, description="Largest image or video frame, megapixels."
    )
    audio_limit_s: float = Field(
        default=1800, gt=0, le=86_400, description="Longest recording, seconds."
    )
    video_limit_s: float = Field(
        default=600, gt=0, le=86_400, description="Longest video, seconds."
    )
    video_limit_frames: int = Field(
        default=512, ge=1, le=10_000, description="Most frames that are kept of an input video."
    )

    wait_default_s: float = Field(
        default=60,
        ge=0,
        le=3600,
        description="Longest time a request waits for a cold deployment, seconds.",
    )
    wait_max_s: float = Field(
        default=600,
        ge=0,
        le=3600,
        description="Upper limit of the `Prefer: wait=N` header, seconds.",
    )
    inference_timeout_s: float = Field(
        default=120,
        gt=0,
        le=3600,
        description="Longest inference on a loaded model, seconds.",
    )
    image_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description=(
            "Longest time without progress of an image generation, including its wait for"
            " a turn, seconds."
        ),
    )
    load_timeout_s: float = Field(
        default=600, gt=0, le=7200, description="Longest load of a replica, seconds."
    )
    stall_timeout_s: float = Field(
        default=180,
        gt=0,
        le=7200,
        description=(
            "A replica that makes no progress on its work for this long is replaced, seconds."
        ),
    )
    heartbeat_timeout_s: float = Field(
        default=15,
        gt=0,
        le=600,
        description="A replica that sends no heartbeat for this long is replaced, seconds.",
    )
    stop_grace_s: float = Field(
        default=20, ge=0, le=600, description="Time for work in flight at shutdown, seconds."
    )

    upload_part_mib: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Size of an upload's parts, MiB. The last part may be smaller.",
    )
    upload_expiry_days: float = Field(
        default=7,
        gt=0,
        le=365,
        description="Lifetime of an upload session that is not completed, days.",
    )
    artifact_limit_gib: float = Field(
        default=1024, gt=0, le=1_000_000, description="Largest artifact, GiB."
    )
    artifact_files_limit: int = Field(
        default=2000, ge=1, le=100_000, description="Most files in an artifact."
    )
    inspection_memory_mib: int = Field(
        default=2048,
        ge=512,
        le=1 << 20,
        description="Memory limit of one upload's inspection, MiB of address space.",
    )
    inspection_timeout_s: float = Field(
        default=120, gt=0, le=3600, description="Longest inspection of an upload, seconds."
    )
    disk_reserve_mib: int = Field(
        default=1024,
        ge=0,
        le=1 << 30,
        description=(
            "Disk space that uploads and generated files leave free for the database, "
            "MiB, at most 5% of the disk."
        ),
    )

    quota_storage_gib: float = Field(
        default=4096,
        ge=0,
        le=1_000_000_000,
        description=(
            "Storage limit of an account, GiB: artifacts, declared or received uploads, "
            "and generated files. 0: unlimited. Operators can set this and the quotas "
            "below per account."
        ),
    )
    quota_upload_sessions: int = Field(
        default=1000, ge=0, description="Most open upload sessions of an account; 0: unlimited."
    )
    quota_artifacts: int = Field(
        default=100_000, ge=0, description="Most artifacts of an account; 0: unlimited."
    )
    quota_deployments: int = Field(
        default=100_000, ge=0, description="Most deployments of an account; 0: unlimited."
    )
    quota_keys: int = Field(
        default=1_000_000,
        ge=0,
        description="Most active API keys of an account; 0: unlimited.",
    )
    quota_agents: int = Field(
        default=100_000, ge=0, description="Most agents of an account; 0: unlimited."
    )
    quota_runs: int = Field(
        default=1_000_000,
        ge=0,
        description="Most stored agent runs of an account, finished runs included; 0: unlimited.",
    )
    quota_files: int = Field(
        default=1_000_000, ge=0, description="Most generated files of an account; 0: unlimited."
    )
    quota_videos: int = Field(
        default=100_000, ge=0, description="Most videos of an account; 0: unlimited."
    )

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
    console_session_h: float = Field(
        default=12,
        gt=0,
        le=720,
        description="Lifetime of a console session in a browser, hours.",
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
        default=256, ge=1, le=100_000, description="Most queued and running jobs of a deployment."
    )
    job_timeout_s: float = Field(
        default=3600, gt=0, le=86_400, description="Longest attempt at a job, seconds."
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
        description="Most queued and running agent runs of an account.",
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
            "Token for imports without a token of their own. Everybody who may import "
            "gets access to what it can read."
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
    runtime: str = Field(
        default="local",
        min_length=1,
        max_length=256,
        description=(
            "Runtime of the replicas. `local`: processes on this machine. `nodes`: "
            "machines that run `stoker node host`, with a shared PostgreSQL. `ray`: "
            "machines that run `stoker node join`, placed by Ray. `module:attribute`: a "
            "runtime of your own, in the server's process."
        ),
    )
    node_host: str = Field(
        default="127.0.0.1",
        max_length=255,
        description="Address that `stoker node host` listens on.",
    )
    node_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port that `stoker node host` listens on; 0 picks a free one.",
    )
    node_address: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,255}$|^\[[0-9A-Fa-f:.]{2,45}\]$",
        description=(
            "Name or address, without a port, at which servers reach the node. Default: "
            "the address it listens on, or the machine's name if it listens on all "
            "addresses."
        ),
    )
    node_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,63}$",
        description="Name of the node in lists. Default: the machine's name.",
    )
    ray_node_ip: str | None = Field(
        default=None,
        pattern=r"^[0-9A-Fa-f:.]{2,45}$",
        description=(
            "Address of this machine that `stoker node join` and `stoker node head` "
            "announce to Ray. Default: Ray detects it."
        ),
    )
    adapter_cache_mib: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description=(
            "Memory for the loaded adapters of one replica, MiB. The least recently used "
            "adapters are dropped and reloaded on demand."
        ),
    )
    memory_budget_mib: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description=(
            "Memory budget of all replicas, MiB; 0: 80% of the machine's memory, or of "
            "its control group's limit."
        ),
    )
    hot_memory_share: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description=(
            "Share of the memory budget that one account may hold with `hot` deployments "
            "while other accounts wait. An account that is alone may hold all of it."
        ),
    )
    gpu_memory_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Share of each GPU's memory that all replicas together may use.",
    )
    replica_threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads of a replica's engine; 0: one per core."
    )
    replica_uids: Annotated[str, AfterValidator(_range)] = Field(
        default="200000-265535",
        description=(
            "Range of user ids, first and last. Each replica gets its own if the server "
            "runs as root. Empty: replicas run as root."
        ),
    )
    convert_after_s: float = Field(
        default=10,
        ge=0,
        le=86_400,
        description=(
            "Time in CPU forward passes after which a model is converted to OpenVINO, seconds."
        ),
    )
    vllm_python: Path | None = Field(
        default=None,
        description="Python interpreter with vLLM, instead of `stoker engines install vllm`.",
    )
    vllm_gpu_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description=(
            "Share of a GPU's memory that one vLLM replica uses, within `STOKER_GPU_MEMORY_SHARE`."
        ),
    )
    preload: bool = Field(
        default=True,
        description="Import the engines at startup. False: at the first deployment.",
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

    @field_validator("secret_file")
    @classmethod
    def _one_secret(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None:
            if info.data.get("secret") is not None:
                raise ValueError("STOKER_SECRET is set, too: set one of them")
            secret_key.read(value)
        return value

    @property
    def given_secret(self) -> bytes | None:
        """The secret that the operator has set. Raises `ValueError` if its file has become
        invalid.
        """
        secret = secret_key.read(self.secret_file) if self.secret_file else self.secret
        return secret.get_secret_value().encode() if secret else None

    @property
    def replica_users(self) -> range:
        first, _, last = self.replica_uids.partition("-")
        return range(int(first), int(last) + 1) if first else range(0)

    @property
    def media_limits(self) -> MediaLimits:
        return MediaLimits(
            image_pixels=int(self.image_limit_mpixels * 1e6),
            audio_s=self.audio_limit_s,
            video_s=self.video_limit_s,
            video_frames=self.video_limit_frames,
        )

    @field_validator("runtime")
    @classmethod
    def _has_what_it_needs(cls, value: str, info: ValidationInfo) -> str:
        url: str = info.data.get("database_url") or "sqlite"
        if value in ("nodes", "ray") and url.startswith("sqlite"):
            raise ValueError(
                f"'{value}' needs a PostgreSQL that all servers and nodes share: set "
                "STOKER_DATABASE_URL"
            )
        return value

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir.resolve()}/stoker.db"
