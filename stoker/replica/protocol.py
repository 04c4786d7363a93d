"""What the gateway and a replica say to each other: msgpack heads over ZeroMQ, never pickles.

A message is one frame with the msgpack head, followed by raw frames where the head says so. The
replica side imports nothing beyond the standard library, msgspec, pydantic, pyzmq and its engine.
"""

from typing import Any

import msgspec


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a replica learns about its deployment."""

    id: str
    pipeline: str
    model_dir: str
    address: str
    log_path: str
    flight_path: str
    engine: str
    device: str
    dtype: str
    threads: int
    batch_budget: int | None
    """Padded tokens a batch, as measured earlier; None: to be measured."""


# --- engine host: commands and events, one JSON line each ---


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    replica: ReplicaSpec


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    replica_id: str
    signal: int


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """Import the modelling code of an architecture, so that forks find it done."""

    model_type: str


class HostReady(msgspec.Struct, frozen=True, tag="host_ready"):
    threads: int
    """Threads of the host process: more than one makes forking unsafe."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    replica_id: str
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    replica_id: str
    status: int
    """Exit code, or minus the signal's number."""


HostCommand = Fork | Signal | Preload
HostEvent = HostReady | Forked | Exited


# --- gateway → replica ---


class Work(msgspec.Struct, frozen=True, tag="work"):
    id: int
    items: list[Any]
    parameters: dict[str, Any]
    single: bool


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    id: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


# --- replica → gateway ---


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    progress: float
    stage: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    seconds: float


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    message: str


class Result(msgspec.Struct, frozen=True, tag="result"):
    """One raw frame follows: the answer's JSON."""

    id: int


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    id: int
    code: str
    """`invalid_request` for an input at fault, `inference_failed` for the model."""
    message: str
    param: str | None


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    progress: int
    """Grows with every step of work done: accepted work and no growth means a hang."""
    accepted: int
    """Requests accepted and not yet answered."""
    memory_bytes: int


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    batch_budget: int


ToReplica = Work | Cancel | Shutdown
FromReplica = Loading | Loaded | LoadFailed | Result | Failure | Heartbeat | Calibrated
