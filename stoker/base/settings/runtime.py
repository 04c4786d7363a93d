"""Settings of the runtime: nodes, memory, devices and engines."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings

MOST_UID = (1 << 32) - 1


def _range(value: str) -> str:
    """Checks a range of user ids, such as `200000-265535`, without root. An empty value is
    allowed.
    """
    first, dash, last = value.partition("-")
    if value and not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError("write the first and the last user id, as in '200000-265535'")
    if value and not 0 < int(first) <= int(last) < MOST_UID:
        raise ValueError(f"user ids must be between 1 and {MOST_UID - 1}, the smaller one first")
    return value


class RuntimeSettings(BaseSettings):
    """Settings of the runtime: nodes, memory, devices and engines. Read by `Settings`."""

    runtime: str = Field(
        default="local",
        min_length=1,
        max_length=256,
        description=(
            "Runtime of the replicas. `local`: processes on this machine. `nodes`: "
            "machines that run `stoker node host`, with a shared PostgreSQL. `ray`: "
            "machines that run `stoker node join`, placed by Ray. `module:attribute`: a "
            "custom runtime in the server's process."
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
    gpu_sleep: bool = Field(
        default=True,
        description=(
            "Move the GPU memory of an idle `warm` replica to main memory if others need the GPU. "
            "This needs driver 570 or later, or vLLM. Off: unload the replica."
        ),
    )
    gpu_prepared_workers: int = Field(
        default=1,
        ge=0,
        le=8,
        description=(
            "Processes per GPU that open CUDA in advance, so that models start sooner. Each holds "
            "the memory of a CUDA context, and ends if a model needs that memory."
        ),
    )
    replica_threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads of a replica's engine; 0: one per core."
    )
    preparation_processes: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description=(
            "Maximum number of processes on this machine, of all replicas together, that decode "
            "and resize media if one thread per replica is too slow; 0: none. Default for replicas "
            "on a GPU: the number of cores minus one, or none with fewer than three cores. Default "
            "for replicas on the CPU: none."
        ),
    )
    replica_uids: Annotated[str, AfterValidator(_range)] = Field(
        default="200000-265535",
        description=(
            "Range of user ids, first and last. Each replica gets its own if the server "
            "runs as root. Empty: replicas run as root."
        ),
    )
    gpu_sandbox: Literal["adapt", "strict"] = Field(
        default="adapt",
        description=(
            "Sandbox of replicas on a GPU if CUDA does not start inside it. `adapt`: they run with "
            "the smallest exception that works, and their deployments report it as an event. "
            "`strict`: they do not start."
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
            "Share of a GPU's memory that one vLLM replica uses, within `STOKER_GPU_MEMORY_SHARE`. "
            "A `warm` replica that may sleep uses 5% less."
        ),
    )
    preload: bool = Field(
        default=True,
        description="Import the engines at startup. False: at the first deployment.",
    )

    @property
    def replica_users(self) -> range:
        first, _, last = self.replica_uids.partition("-")
        return range(int(first), int(last) + 1) if first else range(0)
