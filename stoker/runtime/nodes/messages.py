"""What a gateway and a node host say to each other: messages of `stoker.wire.packing`.

A node host is asked as a `Runtime` is, and answers in the same words: what each message means
stands there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.base.errors import InternalError, StokerError
from stoker.runtime.interface import Call
from stoker.runtime.listening import Served
from stoker.runtime.observed import DeploymentStats, MachineStats, Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.generation_request import Generation
from stoker.wire.packing import Packing

VERSION = 2
"""Of this protocol: both ends must have the same."""


class Hello(msgspec.Struct, frozen=True, tag="hello", omit_defaults=True):
    """The first message of all, by which a gateway shows that it knows the servers' secret."""

    version: int
    token: str
    server_id: str
    is_probe: bool = False
    """Whoever says it wants to be welcomed, and nothing else."""


# --- gateway → node ---


class Put(msgspec.Struct, frozen=True, tag="put"):
    """`Runtime.apply`, with the lease that allows it."""

    spec: DeploymentSpec
    running: bool
    generation: int
    is_change: bool
    """Whether the gateway has just learnt of it; else it is for a node that knows nothing of it."""


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """`Runtime.remove`; `Done` answers."""

    id: int
    spec_id: str


class Ask(msgspec.Struct, frozen=True, tag="ask", omit_defaults=True):
    """`Runtime.call`, or `Runtime.stream`.

    A `Whole`, or `Part`s and an `End`, or a `Failed` or `Refused` answers.
    """

    id: int
    spec_id: str
    generation: int
    wait_s: float
    timeout_s: float
    account: str
    key: str
    call: Call | None = None
    generation_request: Generation | None = None
    """One of the two."""
    is_copy: bool = False
    is_streamed: bool = False
    keep_alive: bytes = b""
    has_progress: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Nobody waits for an answer any more. A `Report` still comes."""

    id: int


class Tail(msgspec.Struct, frozen=True, tag="tail"):
    """`Runtime.log_lines`; `Lines` answer."""

    id: int
    deployment_id: str
    limit: int


# --- node → gateway ---


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Answers a `Hello`."""

    version: int
    node_id: str


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """One raw frame follows: the answer."""

    id: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """One raw frame follows: the next of an answer that is streamed."""

    id: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """Of an answer that is streamed."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed", omit_defaults=True):
    """The error that a call has ended with."""

    id: int
    kind: str
    message: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None
    progress: float | None = None
    is_lasting: bool = False


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The node has no such lease, or knows nothing of what it is for: nothing was done."""

    id: int
    generation: int
    """Of the lease that it has; 0: it has none, or was not told what it is for."""


class Waits(msgspec.Struct, frozen=True, tag="waits", omit_defaults=True):
    """`RuntimeListener.waits`, and `given` before the replica gets it. Of a call that is given to
    one at once there is none.
    """

    id: int
    is_over: bool = False


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    id: int
    fraction: float


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How a call went, also one that was stopped: before its answer, or some time after its end.
    Of a call that had no place in a queue there is none.
    """

    id: int
    served: Served


class Done(msgspec.Struct, frozen=True, tag="done"):
    id: int


class Lines(msgspec.Struct, frozen=True, tag="lines"):
    id: int
    lines: list[str]


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """`RuntimeListener.changed`."""

    spec_id: str
    status: Status
    reason: Reason
    message: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """`RuntimeListener.loaded`; told to one gateway."""

    spec_id: str
    seconds: float


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """What has changed of what the node sees, some times a second."""

    stats: dict[str, DeploymentStats | None]
    """By specification; None: it is not known any more."""
    machine: MachineStats
    sources: list[str]
    """What it has the files of, as `DeploymentSpec.source` names them."""
    is_ready: bool
    """Whether replicas start without delay."""
    is_draining: bool = False
    """It is about to end: nothing new is to be asked of it."""


FromGateway = Hello | Put | Drop | Ask | Stop | Tail
OfCall = Whole | Part | End | Failed | Refused | Waits | Progress | Report
FromNode = Welcome | OfCall | Done | Lines | Changed | Loaded | Observed
to_node: Packing[FromGateway] = Packing(FromGateway)
to_gateway: Packing[FromNode] = Packing(FromNode)


def ask_for(call: Call | Generation) -> Mapping[str, Any]:
    """The field of an `Ask` that says what is wanted."""
    return {"generation_request" if isinstance(call, Generation) else "call": call}


def failed(identifier: int, error: Exception) -> Failed:
    """An error as a message; one that is no client's business as an `InternalError`."""
    if not isinstance(error, StokerError):
        error = InternalError()
    return Failed(
        identifier,
        type(error).__name__,
        error.message,
        error.code,
        error.param,
        error.retry_after_s,
        error.progress,
        error.is_lasting,
    )


def error_of(failure: Failed) -> StokerError:
    kind = _KINDS.get(failure.kind, InternalError)
    return kind(
        failure.message,
        code=failure.code,
        param=failure.param,
        retry_after_s=failure.retry_after_s,
        progress=failure.progress,
        is_lasting=failure.is_lasting,
    )


_KINDS = {one.__name__: one for one in StokerError.__subclasses__()}
