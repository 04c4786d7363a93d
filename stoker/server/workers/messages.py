"""Protocol between a worker process and the server that owns the runtime and the database."""

from typing import NamedTuple

import msgspec

from stoker.registry.deployments.directory import DirectoryEntry
from stoker.wire.errors import ErrorFields

FIRST_ID_BITS = 40
"""Bits of a call's id below the worker's number. The server's own ids stay below them."""


class CallerKey(NamedTuple):
    """The caller that a request's head names."""

    public_id: str
    secret_sha256: bytes


# --- worker → server ---


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The worker is ready for connections."""

    pid: int


class LookUp(msgspec.Struct, frozen=True, array_like=True, tag="look_up"):
    """Asks for a `Hint`. Counts for no limit."""

    id: int
    caller: CallerKey
    model: str | None
    names_model: bool
    """False asks only whether the key is valid."""


class CheckCaller(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Asks whether a request with a rejected body may start. Counts the request
    for the key's limits.
    """

    id: int
    caller: CallerKey


class CallModel(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """Call of a model. The frames after the head are the message for its replica."""

    id: int
    connection: int
    caller: CallerKey
    request_id: str
    model: str | None
    entry: int
    """Number of the deployment's `Hint`, with which the worker has built the call."""
    wait_s: float
    headers: dict[str, str]
    """Headers that select the version."""
    user: str | None
    is_stream: bool
    timeout_s: float | None
    keep_alive: bytes


class DropRequest(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The client of a request has disconnected."""

    id: int


class RequestStarted(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """A request has arrived. Sent only if traces are enabled."""

    connection: int
    path: str
    request_id: str
    start_ns: int
    """Time of the request by `time.time_ns`."""
    parent: dict[str, str]
    """Headers that name the caller's span."""


class RequestEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The request of a `RequestStarted` has ended."""

    connection: int
    end_ns: int
    status: int | None
    """Status of the response. None if the server must answer the request."""


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag="hand_over"):
    """The server continues a connection. One frame follows: the bytes of unanswered requests."""

    connection: int
    calls: int
    """Calls that the worker has answered on the connection."""


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="closed"):
    """A connection has ended."""

    connection: int
    reason: str = ""
    """Reason for which the worker has ended it. Empty if the client did."""


class PathAnswers(msgspec.Struct, frozen=True, array_like=True):
    """Counted responses of one path."""

    path: str
    statuses: dict[int, int]
    counts: list[int]
    """Observations per bucket of the histogram of durations."""
    seconds: float


class CountReport(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Responses since the last report."""

    answers: list[PathAnswers]


Question = LookUp | CheckCaller | CallModel
"""Message that the server answers."""
FromWorker = (
    WorkerReady
    | Question
    | DropRequest
    | RequestStarted
    | RequestEnded
    | HandOver
    | Closed
    | CountReport
)


# --- server → worker ---


class Hint(msgspec.Struct, frozen=True, array_like=True, tag="hint"):
    """Answers a `LookUp`, or a `CallModel` with an outdated entry."""

    id: int
    is_valid: bool
    """True if the key is valid and no operator's."""
    number: int = 0
    entry: DirectoryEntry | None = None


class Verdict(msgspec.Struct, frozen=True, array_like=True, tag="verdict"):
    """Answers a `CheckCaller`: the request may start."""

    id: int
    headers: dict[str, str]


class WholeReply(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """The whole answer of a call. One frame with its bytes follows."""

    id: int
    version_id: str | None
    headers: dict[str, str]


class StreamStart(msgspec.Struct, frozen=True, array_like=True, tag="streaming"):
    """A streamed answer starts. One frame with its first part follows."""

    id: int
    version_id: str | None
    headers: dict[str, str]


class StreamPart(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Next part of a streamed answer. One frame follows."""

    id: int


class StreamEnd(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A streamed answer is complete."""

    id: int


class ErrorReply(msgspec.Struct, frozen=True, array_like=True, tag="error"):
    """A request failed, before or after the first part of its answer."""

    id: int
    headers: dict[str, str]
    """Headers that the response has whether it succeeds or fails."""
    error: ErrorFields


class ReportRequest(msgspec.Struct, frozen=True, array_like=True, tag="report_now"):
    """Asks for a `CountReport`, because the metrics are read."""


class DrainWorker(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Asks the worker to finish its requests and to end. It accepts no further ones."""


class CloseConnections(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """Asks the worker to end each connection with its next answer."""


class StopWorker(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Asks the worker to cancel its requests and to end."""


Reply = Hint | Verdict | WholeReply | ErrorReply
"""Answer to a `Question`. That of a stream has several messages."""
StreamReply = StreamStart | StreamPart | StreamEnd
ToWorker = Reply | StreamReply | ReportRequest | CloseConnections | DrainWorker | StopWorker

encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
