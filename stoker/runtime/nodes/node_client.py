"""Gateway side of one node: its connection, calls in flight and reported state."""

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, Protocol

from stoker.base.fairness import CURRENT_CALLER
from stoker.runtime.interface import KEEP_ALIVE, Call, OnProgress
from stoker.runtime.listening import Served
from stoker.runtime.nodes import identity, messages
from stoker.runtime.nodes.framed_connection import FramedConnection
from stoker.runtime.nodes.in_flight import NodeCall, NodeCalls, NodeLostError
from stoker.runtime.nodes.leases import NodeRecord
from stoker.runtime.nodes.messages import (
    AnswerPart,
    CallAnswer,
    CallProgress,
    CallRefused,
    CallReport,
    CallRequest,
    Changed,
    Done,
    Drop,
    End,
    Failed,
    FromGateway,
    Lines,
    ModelLoaded,
    Observed,
    ProtocolMismatchError,
    Put,
    Stop,
    Tail,
    Waits,
    Welcome,
    to_gateway,
    to_node,
)
from stoker.runtime.observed import DeploymentStats, MachineStats
from stoker.runtime.specification import DeploymentSpec
from stoker.store.secret import ServerSecret
from stoker.wire.framing import MOST_BYTES
from stoker.wire.generation_request import Generation

log = logging.getLogger(__name__)

CONNECT_S = 5.0
RETRY_S = 0.5
_MISMATCH_S = 30.0
SILENCE_S = 10.0
"""Timeout in seconds without a message. A node reports its state twice a second. If it does not, it
is disconnected, even if TCP is connected.
"""

_NOT_CONNECTED = (OSError, TimeoutError, ssl.SSLError, NodeLostError, ProtocolMismatchError)
_ids = itertools.count(1)


class NodeObserver(Protocol):
    """Receives events that nodes report on their own. Called on the event loop; must not block."""

    def on_connected(self, node: "NodeClient") -> None:
        """A node connected and does not know its specifications yet."""
        ...

    def on_observed(self) -> None:
        """A node reported new state, or disconnected."""
        ...

    def on_changed(self, change: Changed) -> None: ...

    def on_loaded(self, loaded: ModelLoaded) -> None: ...

    def on_served(self, served: Served) -> None: ...


class NodeClient:
    """Client of one node for one gateway. It connects, and reconnects, until it is closed."""

    def __init__(
        self, record: NodeRecord, secret: ServerSecret, server_id: str, hearer: NodeObserver
    ) -> None:
        self.record = record
        self.machine = MachineStats()
        self.sources: frozenset[str] = frozenset()
        self.stats: dict[str, DeploymentStats] = {}
        self.is_ready = False
        self._is_draining = False
        self._calls = NodeCalls(hearer.on_served)
        self._counted: dict[str, int] = {}
        """Outstanding calls of this gateway at the time of the last `stats`, by specification."""
        self._secret = secret
        self._server_id = server_id
        self._hearer = hearer
        self._link: FramedConnection | None = None
        self._is_welcome = False
        self._mismatch: ProtocolMismatchError | None = None
        self._heard_at = 0.0
        self._replies: dict[int, asyncio.Future[list[str]]] = {}
        self._loop = asyncio.get_running_loop()
        self._connecting = asyncio.create_task(self._keep_connected())

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def problem(self) -> str:
        """Reason that the node cannot be used until it is restarted with another release. Empty if
        there is none.
        """
        return f"The node cannot be used: {self._mismatch}." if self._mismatch else ""

    @property
    def is_connected(self) -> bool:
        return self._is_welcome and self._link is not None and self._link.is_open

    @property
    def outstanding(self) -> Counter[str]:
        """Maps a specification to this gateway's unanswered calls."""
        return self._calls.outstanding

    @property
    def takes_work(self) -> bool:
        return self.is_connected and not self.is_draining

    @property
    def is_draining(self) -> bool:
        return self._is_draining or self.record.is_draining

    def calls(self, spec_id: str) -> int:
        """Returns the known number of queued or running calls on the node, from all gateways."""
        stats = self.stats.get(spec_id)
        other_calls = (stats.calls if stats else 0) - self._counted.get(spec_id, 0)
        return self.outstanding[spec_id] + max(0, other_calls)

    def update_record(self, record: NodeRecord) -> None:
        """Replaces the record after it was read again."""
        self.record = record

    async def close(self) -> None:
        self._connecting.cancel()
        await asyncio.gather(self._connecting, return_exceptions=True)
        if self._link:
            self._link.close()
        self._lost()

    # --- requests to the node ---

    def put(self, spec: DeploymentSpec, *, running: bool, generation: int, is_change: bool) -> None:
        """Sends a specification. Does nothing if the node is not connected, because it receives all
        its specifications when it connects.
        """
        if self.is_connected:
            self._send(Put(spec, running, generation, is_change))

    async def drop(self, spec_id: str) -> None:
        """Removes a specification from the node. Returns when its replicas have ended. Raises
        `NodeLostError`.
        """
        identifier = next(_ids)
        await self._reply(identifier, Drop(identifier, spec_id))

    async def tail(self, deployment_id: str, limit: int) -> list[str]:
        """Returns the last log lines of a deployment on the node. Raises `NodeLostError`."""
        identifier = next(_ids)
        return await self._reply(identifier, Tail(identifier, deployment_id, limit))

    async def call(
        self,
        spec: DeploymentSpec,
        generation: int,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        """Sends a call to the node. Raises `LeaseRefusedError`, `NodeLostError` and the errors of
        `Runtime.call`.
        """
        options = {
            "wait_s": wait_s,
            "timeout_s": timeout_s,
            "has_progress": on_progress is not None,
        }
        with self._asked(spec, generation, call, on_progress, options) as node_call:
            return await node_call.parts.next()

    async def stream(
        self,
        spec: DeploymentSpec,
        generation: int,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        """Streams a call's answer from the node. Raises as `call` does, and `NodeLostError` also
        after the first part.
        """
        options: dict[str, Any] = {"wait_s": wait_s, "timeout_s": timeout_s}
        options |= {"is_streamed": True, "keep_alive": keep_alive}
        with self._asked(spec, generation, call, None, options) as node_call:
            while part := await node_call.parts.next():
                yield part

    @contextlib.contextmanager
    def _asked(
        self,
        spec: DeploymentSpec,
        generation: int,
        call: Call | Generation,
        on_progress: OnProgress | None,
        given: Mapping[str, Any],
    ) -> Generator[NodeCall]:
        if not self.is_connected:
            raise NodeLostError(sent=False)
        identifier, party = next(_ids), CURRENT_CALLER.get()
        ask = CallRequest(
            id=identifier,
            spec_id=spec.id,
            generation=generation,
            account=party.account,
            key=party.key,
            is_copy=party.is_copy,
            tier=party.tier,
            **messages.ask_for(call),
            **given,
        )
        with self._calls.open(
            identifier, spec, on_progress, lambda: self._send(Stop(identifier))
        ) as node_call:
            self._send(ask)
            yield node_call

    async def _reply(self, identifier: int, message: FromGateway) -> list[str]:
        if not self.is_connected:
            raise NodeLostError(sent=False)
        reply = self._replies[identifier] = self._loop.create_future()
        try:
            self._send(message)
            return await reply
        finally:
            self._replies.pop(identifier, None)

    def _send(self, message: FromGateway) -> None:
        if self._link:
            self._link.send(to_node.pack(message))

    # --- the connection ---

    async def _keep_connected(self) -> None:
        is_told = False
        while True:
            try:
                await self._connect()
                is_told = False
            except _NOT_CONNECTED as error:
                if not is_told:
                    log.warning("node cannot be reached: %s", error, extra={"node": self.id})
                is_told = True
            # A node of another release has another certificate, and so another client.
            await asyncio.sleep(_MISMATCH_S if self._mismatch else RETRY_S)

    async def _connect(self) -> None:
        """Connects, and returns when the connection has ended. Raises if no connection was made."""
        record = self.record
        host, _, port = record.address.rpartition(":")
        ended, welcome = asyncio.Event(), asyncio.Event()

        def lost() -> None:
            ended.set()
            if self._link is link:
                self._lost()

        def received(frames: list[bytes]) -> None:
            self._heard_at = self._loop.time()
            self._receive(frames, welcome)

        link = FramedConnection(received, lost, most_bytes=MOST_BYTES)
        async with asyncio.timeout(CONNECT_S):
            await self._loop.create_connection(
                lambda: link,
                host.strip("[]"),
                int(port),
                ssl=identity.trusting(record.certificate),
                server_hostname="",
            )
        self._link = link
        try:
            token = identity.token(self._secret, record.certificate)
            self._send(messages.hello(token, self._server_id))
            async with asyncio.timeout(CONNECT_S):
                await _first(welcome, ended)
            if self._mismatch:
                raise self._mismatch
            if not welcome.is_set():
                raise NodeLostError(sent=False)
            log.info("connected to a node", extra={"node": self.id, "address": record.address})
            self._is_welcome = True
            self._hearer.on_connected(self)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SILENCE_S / 4):
                        await ended.wait()
                if self._loop.time() - self._heard_at > SILENCE_S:
                    log.warning("node timed out: connection closed", extra={"node": self.id})
                    break
        finally:
            link.abort()
            self._lost()

    def _lost(self) -> None:
        """Fails all calls in flight."""
        was_there = self._is_welcome
        self._is_welcome, self._link = False, None
        self.stats, self._counted, self.is_ready = {}, {}, False
        self._calls.lose_all()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(NodeLostError(sent=True))
        if was_there:
            log.warning("connection to a node closed", extra={"node": self.id})
            self._hearer.on_observed()

    # --- messages of the node ---

    def _receive(self, frames: list[bytes], welcome: asyncio.Event) -> None:
        message = to_gateway.unpack(frames[:1])
        match message:
            case (
                AnswerPart()
                | CallAnswer()
                | End()
                | Failed()
                | CallRefused()
                | Waits()
                | CallProgress()
                | CallReport()
            ):
                self._calls.receive(message, frames)
            case Done() | Lines():
                reply = self._replies.get(message.id)
                if reply and not reply.done():
                    reply.set_result(message.lines if isinstance(message, Lines) else [])
            case Observed():
                self._observe(message)
            case Changed():
                self._hearer.on_changed(message)
            case ModelLoaded():
                self._hearer.on_loaded(message)
            case Welcome():
                self._agree(message)
                welcome.set()

    def _agree(self, welcome: Welcome) -> None:
        try:
            messages.agreed_version(welcome)
        except ProtocolMismatchError as error:
            self._mismatch = error
        else:
            self._mismatch = None

    def _observe(self, observed: Observed) -> None:
        self.machine, self.is_ready = observed.machine, observed.is_ready
        self._is_draining = observed.is_draining
        self.sources = frozenset(observed.sources)
        for spec_id, stats in observed.stats.items():
            if stats is None:
                self.stats.pop(spec_id, None)
                self._counted.pop(spec_id, None)
            else:
                self.stats[spec_id] = stats
                self._counted[spec_id] = self.outstanding[spec_id]
        self._hearer.on_observed()


async def _first(*events: asyncio.Event) -> None:
    """Waits until one of the events is set."""
    tasks = [asyncio.ensure_future(one.wait()) for one in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in tasks:
            one.cancel()
