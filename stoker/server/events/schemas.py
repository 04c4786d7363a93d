from typing import Literal

from pydantic import Field

from stoker.platform.web.schemas import ResponseModel, UtcString
from stoker.runtime.observed import NodeStatus, Status
from stoker.store.tables.agents import RunStatus
from stoker.workloads.agents.schemas import RunError, RunUsage

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
    queue: Counts = Field(description="Calls that waited or were worked on, at most.")
    batch_size: Numbers = Field(description="Samples or sequences a forward pass.")
    tokens: Counts = Field(description="Read and written.")
    replicas: Counts = Field(description="Most replicas that answered.")
    memory_bytes: Counts


class MachineMemory(ResponseModel):
    total_bytes: int
    budget_bytes: int = Field(description="What all replicas together may hold.")
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
    index: int = Field(description="As `device` of a deployment names it, `cuda:N`.")
    name: str
    total_bytes: int
    budget_bytes: int = Field(
        description="Memory that all replicas together may use; 0 if the device is gone."
    )
    held_bytes: int = Field(description="What they have claimed.")


class Engine(ResponseModel):
    engine: str
    available: bool
    detail: str = Field(description="Its version, or how to get it.")


class MachineReplica(ResponseModel):
    deployment_id: str
    model: str
    account_id: str
    status: Status
    engine: str
    memory_bytes: int | None
    started_at: UtcString | None


class Waiting(ResponseModel):
    deployment_id: str
    model: str
    bytes: int = Field(description="What its next replica needs.")
    reason: str


class Machine(ResponseModel):
    object: Literal["machine"] = "machine"
    cores: int
    processor: str
    memory: MachineMemory
    devices: list[MachineDevice] = Field(description="Graphics devices that models may run on.")
    engines: list[Engine]
    replicas: list[MachineReplica]
    waiting: list[Waiting] = Field(description="What waits for memory, in turn.")


class NodeReplica(ResponseModel):
    id: str
    status: Status
    engine: str = Field(description="What runs the model now; empty before it is loaded.")
    pid: int | None = Field(description="Of its process, on the node's machine.")
    outstanding: int = Field(description="Calls sent to it and not yet answered.")
    memory_bytes: int | None
    started_at: UtcString | None


class Lease(ResponseModel):
    """A node's permission to run one version of a deployment."""

    spec_id: str = Field(
        description="The version's id; of a deployment without versions, and of a trial, its own."
    )
    deployment_id: str = Field(description="Or the trial's id.")
    account_id: str | None = Field(
        description=(
            "Null, like `model`, if this server does not know the deployment, such as "
            "another server's trials."
        )
    )
    model: str | None
    generation: int = Field(description="Grows with each lease there ever was.")
    replicas: list[NodeReplica] = Field(description="Empty while the node is unreachable.")


class Node(ResponseModel):
    """A machine that runs replicas for servers."""

    id: str
    object: Literal["node"] = "node"
    name: str
    address: str = Field(description="`host:port` at which servers reach the node.")
    status: NodeStatus = Field(
        description="`starting`: its engines' libraries are being imported; `draining`: it is "
        "about to end and gets nothing new; `unreachable`: the server that was asked has no "
        "connection to it."
    )
    pid: int = Field(description="Of `stoker node host`, on its machine.")
    version: str = Field(description="Of Stoker.")
    python: str
    started_at: UtcString
    seen_at: UtcString = Field(description="Its last sign of life, by the database's clock.")
    cores: int
    processor: str
    memory: MachineMemory
    devices: list[MachineDevice] = Field(description="Graphics devices that models may run on.")
    leases: list[Lease] = Field(description="Leases of the node, oldest first.")
    waiting: list[Waiting] = Field(description="What waits for its memory, in turn.")


class RunState(ResponseModel):
    """A run without its messages."""

    id: str
    object: Literal["agent.run"] = "agent.run"
    agent_id: str
    model: str
    status: RunStatus
    finish_reason: str | None
    usage: RunUsage
    error: RunError | None
    created_at: UtcString
    completed_at: UtcString | None
