"""A worker's side of its conversation with the server that owns the runtime."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from stoker.base.errors import StokerError
from stoker.platform.web.http import server_stopping
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.parts import AnswerParts
from stoker.server.workers.channel import WorkerChannel
from stoker.server.workers.messages import (
    FIRST_ID_BITS,
    CallerKey,
    CallModel,
    CheckCaller,
    DropRequest,
    ErrorReply,
    FromWorker,
    Hint,
    LookUp,
    Question,
    Reply,
    StreamEnd,
    StreamPart,
    StreamReply,
    StreamStart,
    Verdict,
    encode,
)
from stoker.wire.framing import Frame

_MOST_HINTS = 10_000


class OutdatedError(Exception):
    """The call was built for a deployment that has changed. The hint is correct now."""


class HandOverError(Exception):
    """Only the server can answer the request. It was not counted yet."""


class Owner:
    """Asks the server for keys, deployments and answers. Its hints save questions, but the server
    checks each call.
    """

    def __init__(self, number: int, channel: WorkerChannel) -> None:
        """
        Args:
            number: number of this worker, from 1.
        """
        self._channel = channel
        self._ids = itertools.count(number << FIRST_ID_BITS)
        self._waiting: dict[int, asyncio.Future[tuple[Reply, bytes]]] = {}
        self._streams: dict[int, OwnerStream] = {}
        self._keys: set[CallerKey] = set()
        self._hints: dict[tuple[CallerKey, str | None], tuple[int, DirectoryEntry]] = {}
        self.is_gone = False
        self.is_stopping = False
        """True after the server has asked to cancel all requests."""

    def new_id(self) -> int:
        return next(self._ids)

    def tell(self, message: FromWorker, *frames: Frame) -> None:
        """Sends a message that has no answer."""
        self._channel.send([encode(message), *frames])

    async def check_key(self, caller: CallerKey) -> None:
        """Raises `HandOverError` if the key is not known to be valid."""
        if caller in self._keys:
            return
        hint, _ = await self.ask(LookUp(self.new_id(), caller, None, names_model=False))
        if not isinstance(hint, Hint) or not hint.is_valid:
            raise HandOverError
        if len(self._keys) >= _MOST_HINTS:
            self._keys.clear()
        self._keys.add(caller)

    async def find(self, caller: CallerKey, model: str | None) -> tuple[int, DirectoryEntry]:
        """Returns a deployment with its number. Raises `HandOverError` if the caller has none of
        this name.
        """
        known = self._hints.get((caller, model))
        if known is not None:
            return known
        hint, _ = await self.ask(LookUp(self.new_id(), caller, model, names_model=True))
        if not isinstance(hint, Hint) or hint.entry is None:
            raise HandOverError
        return self.learn(caller, model, hint.number, hint.entry)

    def learn(
        self, caller: CallerKey, model: str | None, number: int, entry: DirectoryEntry
    ) -> tuple[int, DirectoryEntry]:
        if len(self._hints) >= _MOST_HINTS:
            self._hints.clear()
        known = self._hints[caller, model] = number, entry
        return known

    def knows(self, caller: CallerKey, model: str | None) -> bool:
        """Returns True if `find` needs no question."""
        return (caller, model) in self._hints

    def forget_model(self, caller: CallerKey, model: str | None) -> None:
        """Forgets a deployment, so that the next `find` asks the server."""
        self._hints.pop((caller, model), None)

    def forget(self, caller: CallerKey) -> None:
        """Forgets a caller whose key was refused."""
        self._keys.discard(caller)

    async def begin(self, caller: CallerKey) -> tuple[Mapping[str, str], StokerError | None]:
        """Counts a request that the worker has rejected. Returns the headers of its response, and
        the error if the key, its limits or the credit do not allow the request.
        """
        verdict, _ = await self.ask(CheckCaller(self.new_id(), caller))
        if isinstance(verdict, ErrorReply):
            return verdict.headers, verdict.error.restored()
        return verdict.headers if isinstance(verdict, Verdict) else {}, None

    async def ask(self, message: Question, *frames: Frame) -> tuple[Reply, bytes]:
        """Sends a message and returns its answer. Cancelling drops the request."""
        identifier = message.id
        if self.is_gone:
            raise server_stopping()
        future: asyncio.Future[tuple[Reply, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = future
        self._channel.send([encode(message), *frames])
        try:
            return await future
        finally:
            if self._waiting.pop(identifier, None) is not None:
                self.tell(DropRequest(identifier))

    def open_stream(self, message: CallModel, *frames: Frame) -> "OwnerStream":
        """Sends a call whose answer arrives in parts. The reader closes the stream."""
        identifier = message.id
        if self.is_gone:
            raise server_stopping()
        stream = self._streams[identifier] = OwnerStream(lambda: self._close_stream(identifier))
        self._channel.send([encode(message), *frames])
        return stream

    def _close_stream(self, identifier: int) -> None:
        if self._streams.pop(identifier, None) is not None:
            self.tell(DropRequest(identifier))

    # --- answers ---

    def receive(self, reply: Reply | StreamReply, frames: Sequence[bytes]) -> None:
        identifier = reply.id
        stream = self._streams.get(identifier)
        if stream is not None:
            if stream.receive(reply, frames[1] if len(frames) > 1 else b""):
                del self._streams[identifier]
            return
        future = self._waiting.pop(identifier, None)
        if future is not None and not future.done() and not isinstance(reply, _OF_STREAMS):
            future.set_result((reply, frames[1] if len(frames) > 1 else b""))

    def lose(self) -> None:
        """Fails all requests, because the server is gone."""
        self.is_gone = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(server_stopping())
        self._waiting.clear()
        for stream in self._streams.values():
            stream.fail(server_stopping())
        self._streams.clear()


_OF_STREAMS = (StreamStart, StreamPart, StreamEnd)


class OwnerStream:
    """A streamed answer of the server."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._parts = AnswerParts()
        self.first: StreamStart | Hint | ErrorReply | None = None
        """First message of the answer."""

    def receive(self, reply: Reply | StreamReply, content: bytes) -> bool:
        """Returns True if this is the last message."""
        if self.first is None and isinstance(reply, StreamStart | Hint | ErrorReply):
            self.first = reply
        match reply:
            case StreamStart() | StreamPart():
                self._parts.add(content)
                return False
            case Hint():
                self.fail(OutdatedError())
            case ErrorReply():
                self.fail(reply.error.restored())
            case _:
                self._parts.end()
        return True

    def fail(self, error: Exception) -> None:
        self._parts.fail(error)

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yields the parts as they arrive."""
        try:
            while part := await self._parts.next():
                yield part
        finally:
            self._close()
