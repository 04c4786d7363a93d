# `python -m tools.client_api` writes this file.
"""Responses of machine, from the OpenAPI document."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from .common import Status


class Engine(msgspec.Struct, kw_only=True):
    available: bool
    detail: str
    engine: str


class Health(msgspec.Struct, kw_only=True):
    problem: str | None = None
    status: str
    version: str
    warning: str | None = None


class NodeReplica(msgspec.Struct, kw_only=True):
    device: str
    device_bytes: int | None
    device_held_bytes: int
    engine: str
    id: str
    memory_bytes: int | None
    outstanding: int
    pid: int | None
    started_at: str | None
    status: Status


class Lease(msgspec.Struct, kw_only=True):
    """A node's permission to run one version of a deployment."""

    account_id: str | None
    deployment_id: str
    generation: int
    model: str | None
    replicas: list[NodeReplica]
    spec_id: str


class MachineDevice(msgspec.Struct, kw_only=True):
    budget_bytes: int
    held_bytes: int
    index: int
    name: str
    other_bytes: int
    prepared_workers: int
    total_bytes: int
    used_bytes: int | None
    uuid: str


class MachineMemory(msgspec.Struct, kw_only=True):
    budget_bytes: int
    held_bytes: int
    reserved_bytes: int
    total_bytes: int
    used_bytes: int


class MachineReplica(msgspec.Struct, kw_only=True):
    account_id: str
    deployment_id: str
    device: str
    device_bytes: int | None
    device_held_bytes: int
    engine: str
    memory_bytes: int | None
    model: str
    started_at: str | None
    status: Status


class Waiting(msgspec.Struct, kw_only=True):
    bytes: int
    deployment_id: str
    model: str
    reason: str


class Machine(msgspec.Struct, kw_only=True):
    cores: int
    device_problem: str
    devices: list[MachineDevice]
    engines: list[Engine]
    memory: MachineMemory
    object: str = "machine"
    processor: str
    replicas: list[MachineReplica]
    sandbox_openings: list[str]
    waiting: list[Waiting]


if TYPE_CHECKING:
    NodeStatus: TypeAlias = Literal["ready", "starting", "draining", "unreachable"] | str
else:
    NodeStatus = str


class Node(msgspec.Struct, kw_only=True):
    """A machine that runs replicas for servers."""

    address: str
    cores: int
    devices: list[MachineDevice]
    id: str
    leases: list[Lease]
    memory: MachineMemory
    name: str
    object: str = "node"
    pid: int
    processor: str
    python: str
    seen_at: str
    started_at: str
    status: NodeStatus
    version: str
    waiting: list[Waiting]
