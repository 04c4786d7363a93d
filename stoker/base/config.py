"""Settings, read from the environment as ``STOKER_<NAME>`` or from an ``.env`` file."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from stoker.base import database_urls, secret_key
from stoker.base.media_limits import MediaLimits
from stoker.base.origins import Origin

MIB = 1024 * 1024
MOST_UID = (1 << 32) - 1


def _range(value: str) -> str:
    """First and last of some numbers, root's not among them, or nothing."""
    first, dash, last = value.partition("-")
    if value and not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError("write the first and the last user id, as in '200000-265535'")
    if value and not 0 < int(first) <= int(last) < MOST_UID:
        raise ValueError(f"user ids go from 1 to {MOST_UID - 1}, the smaller one first")
    return value


def _network(value: str) -> str:
    return str(ip_network(value))


class Settings(BaseSettings):
    """Everything an operator can set. docs/settings.md lists them; a test keeps it complete."""

    model_config = SettingsConfigDict(
        env_prefix="STOKER_",
        env_file=".env",
        extra="ignore",
        # A secret that is wrong is one all the same.
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
        description="What answers, runs and tokens are sealed and links are signed with: 32 random "
        "bytes in URL-safe base64, the same for all servers of one database. Default: the first "
        "server makes it, and keeps it in the data folder, or in a PostgreSQL.",
    )
    secret_file: Path | None = Field(
        default=None, description="A file that has it, in the place of `STOKER_SECRET`."
    )
    blob_url: str | None = Field(
        default=None,
        pattern=r"^((s3|gs|az)://[^\s/?#]+(/[^\s?#]*)?|file:///[^\s?#]*)$",
        max_length=512,
        description="Where the bytes of artifacts and generated files are kept: "
        "`s3://bucket/prefix` (or `gs://…`, `az://…`) or `file:///folder`; servers of one database "
        "must share it. Default: the data folder.",
    )
    blob_timeout_s: float = Field(
        default=60,
        ge=1,
        le=300,
        description="How long a bucket that does not answer as it should is asked again before "
        "callers are told (503), seconds.",
    )
    blob_redirects: bool = Field(
        default=False,
        description="Whether links to files lead on to the bucket by links that it has signed: for "
        "clients that can reach it and follow redirects. False: the server sends what the bucket "
        "has.",
    )
    model_cache_gib: float = Field(
        default=100,
        gt=0,
        le=1_000_000,
        description="What this machine keeps of the models that are in a bucket, GiB: beyond, "
        "those that were loaded longest ago go, and never one that runs.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one."
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="Address that metrics are served on without a key."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of that address, also of `stoker node host`; none: metrics need an "
        "operator's key, and a node host has none.",
    )
    allowed_hosts: list[str] = Field(
        default=["*"], description="Host headers that are answered; others get 400."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = Field(
        default=["127.0.0.1", "::1"],
        description='Addresses and networks of reverse proxies, as in `["10.0.0.0/8"]`: their '
        "`X-Forwarded-For` and `X-Forwarded-Proto` headers are believed.",
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description="Origins of the pages whose scripts may call the API from a browser, as in "
        '`["https://chat.example"]`; `["*"]`: of all. None: no page may.',
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="One JSON object a line, or text."
    )

    connections_limit: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Most open connections; 0: 10,000. Never more than 80% of the files that the "
        "server may open.",
    )
    connections_per_address: int = Field(
        default=2048,
        ge=0,
        le=1_000_000,
        description="Most open connections from one address (of IPv6: one /64 network), such as a "
        "reverse proxy's; 0: as many as there may be in all.",
    )
    head_timeout_s: float = Field(
        default=20,
        gt=0,
        le=3600,
        description="A connection that brings no whole request head in so long is ended, seconds.",
    )
    body_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description="A request's body that is waited for and brings less than 16 KiB in so long is "
        "given up, seconds.",
    )
    answer_timeout_s: float = Field(
        default=60,
        gt=0,
        le=3600,
        description="An answer that waits for its reader, who takes less than 16 KiB of it in so "
        "long, is given up, seconds.",
    )

    loop_step_limit_ms: int = Field(
        default=100,
        ge=10,
        le=60_000,
        description="A step of the event loop that computes for longer is logged, ms.",
    )

    body_limit_mib: int = Field(default=64, ge=1, le=4096, description="Largest request body, MiB.")
    json_limit_mib: int = Field(
        default=2,
        ge=1,
        le=4096,
        description="Most JSON in a request body, MiB: all but the media that stand in it.",
    )
    list_limit: int = Field(default=256, ge=1, le=10_000, description="Most inputs in one request.")
    text_limit_chars: int = Field(
        default=1_000_000,
        ge=1,
        le=100_000_000,
        description="Longest single text input, characters.",
    )

    media_request_limit_mib: int = Field(
        default=256, ge=1, le=65_536, description="All media of one request together, MiB."
    )
    image_limit_mpixels: float = Field(
        default=64, gt=0, le=89, description="Largest image, megapixels; also a video's frame."
    )
    audio_limit_s: float = Field(
        default=1800, gt=0, le=86_400, description="Longest recording, seconds."
    )
    video_limit_s: float = Field(
        default=600, gt=0, le=86_400, description="Longest video, seconds."
    )
    video_limit_frames: int = Field(
        default=512, ge=1, le=10_000, description="Most frames that are kept of a video."
    )

    wait_default_s: float = Field(
        default=60,
        ge=0,
        le=3600,
        description="How long a request waits for a cold deployment, seconds.",
    )
    wait_max_s: float = Field(
        default=600, ge=0, le=3600, description="Ceiling of the Prefer: wait=N header, seconds."
    )
    inference_timeout_s: float = Field(
        default=120,
        gt=0,
        le=3600,
        description="Longest inference once the model is ready, seconds.",
    )
    image_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="Longest time without a step while an image is drawn, or waits for it, s.",
    )
    load_timeout_s: float = Field(
        default=600, gt=0, le=7200, description="Longest time a replica may take to load, seconds."
    )
    stall_timeout_s: float = Field(
        default=180,
        gt=0,
        le=7200,
        description="Accepted work without progress for so long: the replica is replaced, s.",
    )
    heartbeat_timeout_s: float = Field(
        default=15, gt=0, le=600, description="A replica silent for so long is replaced, seconds."
    )
    stop_grace_s: float = Field(
        default=20, ge=0, le=600, description="Time that work in flight gets at shutdown, seconds."
    )

    upload_part_mib: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Size of an upload's parts, MiB (the last may be smaller).",
    )
    upload_expiry_days: float = Field(
        default=7,
        gt=0,
        le=365,
        description="An upload session not completed is removed after, days.",
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
        description="Memory that the inspection of one upload may take, MiB of address space.",
    )
    inspection_timeout_s: float = Field(
        default=120, gt=0, le=3600, description="Longest inspection of an upload, seconds."
    )
    disk_reserve_mib: int = Field(
        default=1024,
        ge=0,
        le=1 << 30,
        description="Space that uploads and generated files leave on the disk, MiB, but never "
        "more than 5% of the disk: the database needs it to go on.",
    )

    quota_storage_gib: float = Field(
        default=4096,
        ge=0,
        le=1_000_000_000,
        description="What one account may store, GiB: its artifacts, what its upload sessions have "
        "declared or received, and generated files; 0: as much as there is. An operator may "
        "set this limit, and those below, for an account of its own.",
    )
    quota_upload_sessions: int = Field(
        default=1000, ge=0, description="Most open upload sessions of one account; 0: any."
    )
    quota_artifacts: int = Field(
        default=100_000, ge=0, description="Most artifacts of one account; 0: any."
    )
    quota_deployments: int = Field(
        default=100_000, ge=0, description="Most deployments of one account; 0: any."
    )
    quota_keys: int = Field(
        default=1_000_000,
        ge=0,
        description="Most API keys of one account that are not revoked; 0: any.",
    )
    quota_agents: int = Field(
        default=100_000, ge=0, description="Most agents of one account; 0: any."
    )
    quota_runs: int = Field(
        default=1_000_000,
        ge=0,
        description="Most runs of one account's agents that are kept, those that have ended, too; "
        "0: any.",
    )
    quota_files: int = Field(
        default=1_000_000, ge=0, description="Most generated files of one account; 0: any."
    )
    quota_videos: int = Field(
        default=100_000, ge=0, description="Most videos of one account; 0: any."
    )

    media_retention_h: float = Field(
        default=24, gt=0, le=87_600, description="How long generated images and videos are kept, h."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        max_length=512,
        description="Address that links to files begin with, as in https://models.example; "
        "default: the one that the request came to. Its path may be one that a "
        "proxy adds, whether it takes it away or leaves it in requests.",
    )
    console_session_h: float = Field(
        default=12,
        gt=0,
        le=720,
        description="How long a browser that signs in to the console stays so, hours.",
    )
    job_lease_s: float = Field(
        default=15,
        ge=1,
        le=3600,
        description="A job whose server was not heard of for so long is taken over, seconds.",
    )
    jobs_at_once: int = Field(
        default=8, ge=1, le=1000, description="Jobs that this server works on at a time."
    )
    jobs_queued: int = Field(
        default=256, ge=1, le=100_000, description="Most jobs of one deployment that wait or run."
    )
    job_timeout_s: float = Field(
        default=3600, gt=0, le=86_400, description="Longest time that one try of a job takes, s."
    )

    agent_runs_at_once: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="Agents' runs that this server works on at a time.",
    )
    agent_runs_queued: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Most runs of one account's agents that wait or run.",
    )
    agent_run_retention_days: float = Field(
        default=30,
        gt=0,
        le=36_500,
        description="A run that has ended, or waits for outputs for so long, is erased, days.",
    )
    tool_timeout_s: float = Field(
        default=60, gt=0, le=3600, description="Longest answer of an agent's tool server, seconds."
    )
    tool_hosts: list[str] = Field(
        default=[],
        description="The only hosts whose tool servers (MCP) agents may use (`host`, `.domain`, "
        "`host:port`); none: all public ones.",
    )
    tool_private_hosts: list[str] = Field(
        default=[],
        description="Hosts of tool servers whose addresses need not be public (`host` or "
        "`host:port`).",
    )

    source_dirs: list[Path] = Field(
        default=[], description="Folders below which a deployment's source may lie."
    )
    hub_imports: bool = Field(
        default=True, description="Whether models can be imported from the hub."
    )
    hub_endpoint: str = Field(
        default="https://huggingface.co",
        description="Address of the Hugging Face hub, or of a server that speaks its protocol.",
    )
    hub_token: SecretStr | None = Field(
        default=None,
        description="Token for imports whose callers give none: everybody who may import gets to "
        "what it may read.",
    )
    hub_private_hosts: list[str] = Field(
        default=[],
        description="Hosts whose addresses need not be public, such as those that a hub inside "
        "redirects to (`host` or `host:port`); its own need not be named.",
    )
    media_hosts: list[str] = Field(
        default=[],
        description="The only hosts media is fetched from (`host`, `.domain`, `host:port`); "
        "none: all public ones.",
    )
    media_private_hosts: list[str] = Field(
        default=[],
        description="Hosts whose addresses need not be public, such as an object store "
        "(`host` or `host:port`).",
    )
    media_dirs: list[Path] = Field(
        default=[], description="Folders below which media may be given as a path; none: refused."
    )
    media_limit_mib: int = Field(
        default=64, ge=1, le=4096, description="Largest media that is fetched or decoded, MiB."
    )
    media_timeout_s: float = Field(
        default=120,
        gt=0,
        le=3600,
        description="Ceiling of the time that fetching media takes, seconds.",
    )
    runtime: str = Field(
        default="local",
        min_length=1,
        max_length=256,
        description="What runs the replicas: `local`, processes of this machine; `nodes`, those of "
        "all machines on which `stoker node host` runs, with a PostgreSQL that they share; `ray`, "
        "those of machines on which `stoker node join` runs, where Ray places what is to run; or "
        "`module:attribute`, a runtime of your own, which runs inside the server.",
    )
    node_host: str = Field(
        default="127.0.0.1",
        max_length=255,
        description="Of `stoker node host`: the address that it listens on for servers.",
    )
    node_port: int = Field(
        default=0, ge=0, le=65535, description="And the port; 0 picks a free one."
    )
    node_address: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,255}$|^\[[0-9A-Fa-f:.]{2,45}\]$",
        description="The name or address, without a port, by which servers reach that node. "
        "Default: what it listens on, or the machine's name where that is all addresses.",
    )
    node_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,63}$",
        description="What the node is called in lists. Default: the machine's name.",
    )
    ray_node_ip: str | None = Field(
        default=None,
        pattern=r"^[0-9A-Fa-f:.]{2,45}$",
        description="Of `stoker node join` and `stoker node head`: the address of this machine "
        "that Ray tells the others. Default: Ray finds it.",
    )
    adapter_cache_mib: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="What the adapters that one replica keeps loaded may take, MiB: beyond, those "
        "that were used longest ago are dropped, and loaded again when they are asked for.",
    )
    memory_budget_mib: int = Field(
        default=0,
        ge=0,
        le=1 << 30,
        description="Memory that all replicas together may take, MiB; 0: 80% of the machine's, or "
        "of what its control group allows.",
    )
    hot_memory_share: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="The part of that memory that one account may keep for its `hot` deployments "
        "beside other accounts; one that is alone may keep all, and lends what is beyond it.",
    )
    gpu_memory_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="The part of each GPU's memory that all replicas together may take.",
    )
    replica_threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads of a replica's engine; 0: one per core."
    )
    replica_uids: Annotated[str, AfterValidator(_range)] = Field(
        default="200000-265535",
        description="User ids of which each replica gets one of its own where the server runs as "
        "root, first and last; empty: replicas stay root.",
    )
    convert_after_s: float = Field(
        default=10,
        ge=0,
        le=86_400,
        description="Time in forward passes on a CPU after which a model is converted for "
        "OpenVINO, seconds.",
    )
    vllm_python: Path | None = Field(
        default=None,
        description="An interpreter that has vLLM, instead of `stoker engines install vllm`.",
    )
    vllm_gpu_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="The part of a GPU's memory that one replica on vLLM takes, as far as "
        "`STOKER_GPU_MEMORY_SHARE` goes.",
    )
    preload: bool = Field(
        default=True,
        description="Import the engines when the server starts; false: with the first deployment.",
    )
    starting_credits: int = Field(
        default=1_000_000,
        ge=0,
        le=1_000_000_000,
        description="What every account starts with, credits: generous, so that none is refused "
        "before an operator decides to ration.",
    )
    key_cache_s: float = Field(
        default=2,
        gt=0,
        le=60,
        description="How long a checked key is trusted without the database, seconds.",
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
        """The secret that is set. Raises `ValueError` where its file has become another's."""
        found = secret_key.read(self.secret_file) if self.secret_file else self.secret
        return found.get_secret_value().encode() if found else None

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
