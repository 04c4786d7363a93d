"""Messages between the gateway and the engine host: one JSON line each."""

from typing import Literal

import msgspec

from stoker.wire.conversions import Conversion, ConversionTrial
from stoker.wire.protocol import ReplicaSpec, WorkerSpec


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Starts a replica."""

    replica: ReplicaSpec
    worker: str = ""
    """Id of the prepared worker that becomes the replica. If it has ended, or does not accept the
    specification, the replica is forked. Empty: the replica is forked.
    """


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Forks a worker, which reports `WorkerReport` and waits for `Fork`."""

    worker: WorkerSpec


class Convert(msgspec.Struct, frozen=True, tag="convert"):
    job: Conversion


class Try(msgspec.Struct, frozen=True, tag="try"):
    job: ConversionTrial


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Sends a signal to a child that has not ended."""

    replica_id: str
    signal: int


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """Imports the modelling code of an architecture before forks need it."""

    name: str
    """A model type of transformers, or a pipeline class of diffusers. The value comes from an
    artifact.
    """
    library: Literal["transformers", "diffusers"] = "transformers"


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Requests a `Pong`, which is answered after the current work."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The host still accepts commands."""


class HostReady(msgspec.Struct, frozen=True, tag="host_ready"):
    """The imports are done. The host accepts commands from now on."""

    threads: int
    """Number of threads of the host process. More than one makes forking unsafe."""
    cuda_problem: str = ""
    """Reason that forks cannot use CUDA. Replicas on GPUs are then fresh processes. Empty if they
    can.
    """


class Preloaded(msgspec.Struct, frozen=True, tag="preloaded"):
    threads: int
    """Number of threads as in `HostReady`: the imported code may have started some."""
    name: str
    """Name as in `Preload`."""
    cuda_problem: str = ""
    """Reason that the code was not imported: forks could not use CUDA after it. Empty if it was."""
    is_new: bool = False
    """True if earlier forks lack the code."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    replica_id: str
    """Id of the replica, worker, conversion or trial."""
    pid: int
    worker: str = ""
    """Id of the prepared worker that became the replica. It no longer exists under this id."""


class WorkerReport(msgspec.Struct, frozen=True, tag="worker_report"):
    """A worker waits for a replica, or could not open its context."""

    worker_id: str
    problem: str = ""
    """Reason that the context could not be opened. The worker ends. Empty if it waits."""


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A child process was reaped."""

    replica_id: str
    """Id of the replica, worker, conversion or trial."""
    status: int
    """Exit code, or the negative signal number."""


HostCommand = Fork | Prepare | Convert | Try | Signal | Preload | Ping
HostEvent = HostReady | Preloaded | Forked | WorkerReport | Exited | Pong
