"""Messages between a gateway and a node host, packed by `stoker.wire.packing`.

A node host accepts the same requests as a `Runtime` and gives the same answers. `Runtime` documents
their meaning.

The two ends may be of different releases. A receiver ignores fields that it does not know, and a
new field has a default. A change that a receiver must know needs a new version of the protocol. Its
sender uses it only if both ends have agreed on that version.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.base.fairness import Tier
from stoker.runtime.interface import Call
from stoker.runtime.listening import Served
from stoker.runtime.observed import DeploymentStats, MachineStats, Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.errors import ErrorFields
from stoker.wire.generation_request import Generation
from stoker.wire.packing import Packing

VERSION = 4
"""Newest version of this protocol that this release uses."""
OLDEST_VERSION = 4
"""Oldest version that this release accepts: the one of the release before."""


class Hello(msgspec.Struct, frozen=True, tag="hello", omit_defaults=True):
    """First message of a connection. The gateway shows that it knows the servers' secret."""

    version: int
    """Newest version of the protocol that the sender uses."""
    token: str
    server_id: str
    is_probe: bool = False
    """True if the sender only wants a `Welcome`."""
    oldest: int = 0
    """Oldest version that the sender accepts. 0 means only `version`."""


# --- gateway → node ---


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Requests `Runtime.apply`, with the lease that allows it."""

    spec: DeploymentSpec
    running: bool
    generation: int
    is_change: bool
    """True if the gateway has just received this change. False if the message is for a node that
    does not know the specification.
    """


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Requests `Runtime.remove`. The answer is `Done`."""

    id: int
    spec_id: str


class CallRequest(msgspec.Struct, frozen=True, tag="ask", omit_defaults=True):
    """Requests `Runtime.call` or `Runtime.stream`.

    The answer is a `CallAnswer`, or `AnswerPart`s and an `End`, or a `Failed` or `CallRefused`.
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
    """Exactly one of `call` and `generation_request` is set."""
    is_copy: bool = False
    is_streamed: bool = False
    keep_alive: bytes = b""
    has_progress: bool = False
    tier: Tier = Tier.DEFAULT
    """A node of an earlier release answers a call of any tier as `default`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """No caller waits for the answer any more. A `CallReport` is still sent."""

    id: int


class Tail(msgspec.Struct, frozen=True, tag="tail"):
    """Requests `Runtime.log_lines`. The answer is `Lines`."""

    id: int
    deployment_id: str
    limit: int


# --- node → gateway ---


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Answers a `Hello`. Sent even if both ends have no version in common."""

    version: int
    node_id: str
    oldest: int = 0
    """As in `Hello`."""


class CallAnswer(msgspec.Struct, frozen=True, tag="whole"):
    """Announces one raw frame with the answer."""

    id: int


class AnswerPart(msgspec.Struct, frozen=True, tag="part"):
    """Announces one raw frame with the next part of a streamed answer."""

    id: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """Marks the end of a streamed answer."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The error that ended a call."""

    id: int
    error: ErrorFields


class CallRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The node does not have the lease, or does not know its specification. The call was not
    started.
    """

    id: int
    generation: int
    """Generation of the node's lease. 0 if it has none, or does not know its specification."""


class Waits(msgspec.Struct, frozen=True, tag="waits", omit_defaults=True):
    """Reports `RuntimeListener.waits`, and `given` before the replica gets the call. Not sent for a
    call that is sent to a replica at once.
    """

    id: int
    is_over: bool = False


class CallProgress(msgspec.Struct, frozen=True, tag="progress"):
    id: int
    fraction: float


class CallReport(msgspec.Struct, frozen=True, tag="report"):
    """Outcome of a call, including stopped ones. Sent before the answer, or some time after the
    call's end. Not sent for a call that was not admitted to a queue.
    """

    id: int
    served: Served


class Done(msgspec.Struct, frozen=True, tag="done"):
    id: int


class Lines(msgspec.Struct, frozen=True, tag="lines"):
    id: int
    lines: list[str]


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """Reports `RuntimeListener.changed`."""

    spec_id: str
    status: Status
    reason: Reason
    message: str


class ModelLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """Reports `RuntimeListener.loaded`. Sent to one gateway only."""

    spec_id: str
    seconds: float


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """Reports changes of the node's observed state, several times a second."""

    stats: dict[str, DeploymentStats | None]
    """Maps a specification to its stats. None means that it is no longer known."""
    machine: MachineStats
    sources: list[str]
    """Sources with files on this node, as in `DeploymentSpec.source`."""
    is_ready: bool
    """True if replicas start without delay."""
    is_draining: bool = False
    """True if the node is about to end and accepts no new requests."""


FromGateway = Hello | Put | Drop | CallRequest | Stop | Tail
OfCall = CallAnswer | AnswerPart | End | Failed | CallRefused | Waits | CallProgress | CallReport
FromNode = Welcome | OfCall | Done | Lines | Changed | ModelLoaded | Observed
to_node: Packing[FromGateway] = Packing(FromGateway)
to_gateway: Packing[FromNode] = Packing(FromNode)


class ProtocolMismatchError(Exception):
    """Raised if two ends have no version of the protocol in common."""

    def __init__(self, version: int, oldest: int) -> None:
        """
        Args:
            version: newest version of the other end.
            oldest: its oldest version.
        """
        super().__init__(
            f"it speaks {_versions(version, oldest)} of the protocol, and this release "
            f"{_versions(VERSION, OLDEST_VERSION)}"
        )


def _versions(newest: int, oldest: int) -> str:
    return f"version {newest}" if oldest in (0, newest) else f"versions {oldest} to {newest}"


def hello(token: str, server_id: str = "", *, is_probe: bool = False) -> Hello:
    return Hello(VERSION, token, server_id, is_probe=is_probe, oldest=OLDEST_VERSION)


def welcome(node_id: str) -> Welcome:
    return Welcome(VERSION, node_id, OLDEST_VERSION)


def agreed_version(greeting: Hello | Welcome) -> int:
    """Returns the newest version that both ends accept. Raises `ProtocolMismatchError`."""
    version = min(VERSION, greeting.version)
    if version < max(OLDEST_VERSION, greeting.oldest or greeting.version):
        raise ProtocolMismatchError(greeting.version, greeting.oldest)
    return version


def ask_for(call: Call | Generation) -> Mapping[str, Any]:
    """Returns the field of an `CallRequest` that holds the call."""
    return {"generation_request" if isinstance(call, Generation) else "call": call}
