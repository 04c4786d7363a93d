# `python -m tools.client_api` writes this file.
"""Responses of machine, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from .common import Status


class Engine(msgspec.Struct, kw_only=True):
    available: bool
    detail: str
    """Version of the engine, or how to install it."""
    engine: str


class Health(msgspec.Struct, kw_only=True):
    problem: str | None = None
    """Problem that keeps the server from working."""
    status: str
    version: str
    warning: str | None = None
    """Problems that affect some models, or a missing HTTP worker. Calls still work."""


class NodeReplica(msgspec.Struct, kw_only=True):
    device: str
    """`cpu`, or `cuda:N`. Empty before the model is loaded."""
    device_bytes: int | None
    """Measured GPU memory. Null if unknown."""
    device_held_bytes: int
    """GPU memory that the replica claims."""
    engine: str
    """Engine that runs the model now; empty before the model is loaded."""
    id: str
    memory_bytes: int | None
    outstanding: int
    """Calls sent to it and not yet answered."""
    pid: int | None
    """Process id on the node's machine."""
    started_at: str | None
    status: Status


class Lease(msgspec.Struct, kw_only=True):
    """A node's permission to run one version of a deployment."""

    account_id: str | None
    """Null, like `model`, if this server does not know the deployment, such as another
    server's trials.
    """
    deployment_id: str
    """Id of the deployment or of the trial."""
    generation: int
    """Number of the lease. Each new lease gets a higher one."""
    model: str | None
    replicas: list[NodeReplica]
    """Empty while the node is unreachable."""
    spec_id: str
    """Id of the version. Deployments without versions and trials: their own id."""


class MachineDevice(msgspec.Struct, kw_only=True):
    budget_bytes: int
    """Memory that all replicas together may use; 0 if the device is missing."""
    held_bytes: int
    """Memory that replicas and prepared workers have claimed."""
    index: int
    """Number N of the device `cuda:N`, as in `device` of a deployment."""
    name: str
    other_bytes: int
    """Memory held by processes that are not replicas of this server."""
    prepared_workers: int
    """Processes that have opened the device and wait for a model."""
    total_bytes: int
    used_bytes: int | None
    """Memory in use by all processes, as the driver reports it. Null if unknown."""
    uuid: str
    """UUID of the GPU or of its MIG instance."""


class MachineMemory(msgspec.Struct, kw_only=True):
    budget_bytes: int
    """Memory that all replicas together may hold."""
    held_bytes: int
    """Memory that loaded replicas claim from the budget. Claims exclude libraries, which
    replicas share.
    """
    reserved_bytes: int
    """Memory reserved for hot deployments, loaded or not."""
    total_bytes: int
    used_bytes: int
    """Measured memory of all replicas: the sum of their proportional set sizes, and of the
    `memory_bytes` of deployments.
    """


class MachineReplica(msgspec.Struct, kw_only=True):
    account_id: str
    deployment_id: str
    device: str
    """`cpu`, or `cuda:N`. Empty before the model is loaded."""
    device_bytes: int | None
    """Measured GPU memory. Null if unknown."""
    device_held_bytes: int
    """GPU memory that the replica claims."""
    engine: str
    memory_bytes: int | None
    model: str
    started_at: str | None
    status: Status


class Waiting(msgspec.Struct, kw_only=True):
    bytes: int
    """Memory that the next replica needs."""
    deployment_id: str
    model: str
    reason: str


class Machine(msgspec.Struct, kw_only=True):
    cores: int
    device_problem: str
    """Reason that the driver's devices are unknown. Empty if they are known."""
    devices: list[MachineDevice]
    """Graphics devices that models may run on."""
    engines: list[Engine]
    memory: MachineMemory
    object: str = "machine"
    processor: str
    replicas: list[MachineReplica]
    sandbox_openings: list[str]
    """Exceptions from the sandbox of replicas on a GPU, without which CUDA does not start.
    Usually empty.
    """
    waiting: list[Waiting]
    """Deployments that wait for memory, in order."""


if TYPE_CHECKING:
    NodeStatus: TypeAlias = Literal["ready", "starting", "draining", "unreachable"] | str
else:
    NodeStatus = str


class Node(msgspec.Struct, kw_only=True):
    """A machine that runs replicas for servers."""

    address: str
    """`host:port` at which servers reach the node."""
    cores: int
    devices: list[MachineDevice]
    """Graphics devices that models may run on."""
    id: str
    leases: list[Lease]
    """Leases of the node, oldest first."""
    memory: MachineMemory
    name: str
    object: str = "node"
    pid: int
    """Process id of `stoker node host` on its machine."""
    problem: str | None = None
    """Reason that the answering server cannot use the node until one of the two runs another
    release.
    """
    processor: str
    python: str
    seen_at: str
    """Last heartbeat of the node, by the database's clock."""
    started_at: str
    status: NodeStatus
    """`starting`: the engines' libraries are being imported; `draining`: the node is about
    to stop and gets no new work; `unreachable`: the server that answers has no connection
    to the node.
    """
    version: str
    """Of Stoker."""
    waiting: list[Waiting]
    """Deployments that wait for the node's memory, in order."""
