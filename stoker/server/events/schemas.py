from typing import Literal

from pydantic import Field

from stoker.platform.web.schemas import ResponseModel, UtcString
from stoker.runtime.observed import NodeStatus, Status

Counts = list[int | None]
Numbers = list[float | None]


class RequestCounts(ResponseModel):
    ok: Counts
    client_error: Counts = Field(description="Invalid requests, and clients that disconnected.")
    server_error: Counts


class Latencies(ResponseModel):
    """Milliseconds from the request to the end of its response, accurate to 5 percent."""

    p50: Numbers
    p90: Numbers
    p99: Numbers


class DeploymentMetrics(ResponseModel):
    """A number for each step; null if the step has no value. The last step is not complete."""

    object: Literal["deployment.metrics"] = "deployment.metrics"
    start: int = Field(description="Start of the first step, unix seconds.")
    step_s: int
    requests: RequestCounts
    latency_ms: Latencies
    queue: Counts = Field(description="Maximum number of waiting and running calls.")
    batch_size: Numbers = Field(description="Samples or sequences per forward pass.")
    tokens: Counts = Field(description="Read and written.")
    replicas: Counts = Field(description="Maximum number of replicas that answered.")
    memory_bytes: Counts


class MachineMemory(ResponseModel):
    total_bytes: int
    budget_bytes: int = Field(description="Memory that all replicas together may hold.")
    held_bytes: int = Field(
        description=(
            "Memory that loaded replicas claim from the budget. Claims exclude libraries,"
            " which replicas share."
        )
    )
    used_bytes: int = Field(
        description="Measured memory of all replicas: the sum of their proportional set sizes, and "
        "of the `memory_bytes` of deployments."
    )
    reserved_bytes: int = Field(description="Memory reserved for hot deployments, loaded or not.")


class MachineDevice(ResponseModel):
    index: int = Field(
        description="Number N of the device `cuda:N`, as in `device` of a deployment."
    )
    name: str
    total_bytes: int
    budget_bytes: int = Field(
        description="Memory that all replicas together may use; 0 if the device is missing."
    )
    held_bytes: int = Field(description="Memory that replicas and prepared workers have claimed.")
    uuid: str = Field(description="UUID of the GPU or of its MIG instance.")
    used_bytes: int | None = Field(
        description="Memory in use by all processes, as the driver reports it. Null if unknown."
    )
    other_bytes: int = Field(
        description="Memory held by processes that are not replicas of this server."
    )
    prepared_workers: int = Field(
        description="Processes that have opened the device and wait for a model."
    )


class Engine(ResponseModel):
    engine: str
    available: bool
    detail: str = Field(description="Version of the engine, or how to install it.")


class MachineReplica(ResponseModel):
    deployment_id: str
    model: str
    account_id: str
    status: Status
    engine: str
    memory_bytes: int | None
    device: str = Field(description="`cpu`, or `cuda:N`. Empty before the model is loaded.")
    device_bytes: int | None = Field(description="Measured GPU memory. Null if unknown.")
    device_held_bytes: int = Field(description="GPU memory that the replica claims.")
    started_at: UtcString | None


class Waiting(ResponseModel):
    deployment_id: str
    model: str
    bytes: int = Field(description="Memory that the next replica needs.")
    reason: str


class Machine(ResponseModel):
    object: Literal["machine"] = "machine"
    cores: int
    processor: str
    memory: MachineMemory
    devices: list[MachineDevice] = Field(description="Graphics devices that models may run on.")
    device_problem: str = Field(
        description="Reason that the driver's devices are unknown. Empty if they are known."
    )
    sandbox_openings: list[str] = Field(
        description=(
            "Exceptions from the sandbox of replicas on a GPU, without which CUDA does not start. "
            "Usually empty."
        )
    )
    engines: list[Engine]
    replicas: list[MachineReplica]
    waiting: list[Waiting] = Field(description="Deployments that wait for memory, in order.")


class NodeReplica(ResponseModel):
    id: str
    status: Status
    engine: str = Field(
        description="Engine that runs the model now; empty before the model is loaded."
    )
    pid: int | None = Field(description="Process id on the node's machine.")
    outstanding: int = Field(description="Calls sent to it and not yet answered.")
    memory_bytes: int | None
    device: str = Field(description="`cpu`, or `cuda:N`. Empty before the model is loaded.")
    device_bytes: int | None = Field(description="Measured GPU memory. Null if unknown.")
    device_held_bytes: int = Field(description="GPU memory that the replica claims.")
    started_at: UtcString | None


class Lease(ResponseModel):
    """A node's permission to run one version of a deployment."""

    spec_id: str = Field(
        description="Id of the version. Deployments without versions and trials: their own id."
    )
    deployment_id: str = Field(description="Id of the deployment or of the trial.")
    account_id: str | None = Field(
        description=(
            "Null, like `model`, if this server does not know the deployment, such as "
            "another server's trials."
        )
    )
    model: str | None
    generation: int = Field(description="Number of the lease. Each new lease gets a higher one.")
    replicas: list[NodeReplica] = Field(description="Empty while the node is unreachable.")


class Node(ResponseModel):
    """A machine that runs replicas for servers."""

    id: str
    object: Literal["node"] = "node"
    name: str
    address: str = Field(description="`host:port` at which servers reach the node.")
    status: NodeStatus = Field(
        description="`starting`: the engines' libraries are being imported; `draining`: the node "
        "is about to stop and gets no new work; `unreachable`: the server that answers has "
        "no connection to the node."
    )
    problem: str | None = Field(
        default=None,
        description="Reason that the answering server cannot use the node until one of the two "
        "runs another release.",
    )
    pid: int = Field(description="Process id of `stoker node host` on its machine.")
    version: str = Field(description="Of Stoker.")
    python: str
    started_at: UtcString
    seen_at: UtcString = Field(description="Last heartbeat of the node, by the database's clock.")
    cores: int
    processor: str
    memory: MachineMemory
    devices: list[MachineDevice] = Field(description="Graphics devices that models may run on.")
    leases: list[Lease] = Field(description="Leases of the node, oldest first.")
    waiting: list[Waiting] = Field(
        description="Deployments that wait for the node's memory, in order."
    )
