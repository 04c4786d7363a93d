"""Node side of a fleet: passes the requests of gateways to the node's own runtime, within its
leases.
"""

import asyncio
import hmac
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from stoker.base.errors import InvalidRequestError, StokerError
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.runtime.interface import Runtime
from stoker.runtime.listening import RuntimeListener, Served
from stoker.runtime.nodes import messages
from stoker.runtime.nodes.framed_connection import FramedConnection
from stoker.runtime.nodes.identity import Identity
from stoker.runtime.nodes.listener import ConnectionSlot, NodeListener
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
    FromNode,
    Hello,
    Lines,
    ModelLoaded,
    Observed,
    ProtocolMismatchError,
    Put,
    Stop,
    Tail,
    Waits,
    to_gateway,
    to_node,
)
from stoker.runtime.nodes.node_leases import NodeLeases
from stoker.runtime.observed import DeploymentStats, MachineStats, Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.errors import ErrorFields
from stoker.wire.framing import MOST_BYTES
from stoker.wire.generation_request import AdapterName

log = logging.getLogger(__name__)

OBSERVE_S = 0.25
"""Seconds between two updates of changed state. The machine's state is read for every other
update.
"""
_AT_REST = 4
"""Number of updates per update of specifications that are loaded and have no calls."""
_ALIVE_S = 2.0
"""Seconds after which an update is sent even without a change."""
_GREETING_BYTES = 4096
_ON_THE_WAY_S = 0.2
"""Seconds in which messages arrive that gateways sent before they learned of the drain."""


@dataclass(eq=False)
class _Gateway:
    """A connected gateway."""

    link: FramedConnection
    connection: ConnectionSlot
    server_id: str = ""
    """Id of the gateway's server. Empty until it has authenticated."""
    tasks: dict[int, "asyncio.Task[None]"] = field(default_factory=dict[int, "asyncio.Task[None]"])
    told: dict[str, DeploymentStats] = field(default_factory=dict[str, DeploymentStats])
    sent_node: "_NodeState | None" = None
    """Last state of the node that the gateway received."""
    sent_at: float = -math.inf

    def send(self, message: FromNode, content: bytes | None = None) -> None:
        frames = to_gateway.pack(message)
        self.link.send(frames if content is None else [*frames, content])


@dataclass(frozen=True)
class _NodeState:
    machine: MachineStats
    sources: list[str]
    is_ready: bool
    is_draining: bool


@dataclass(frozen=True)
class _Asked:
    gateway: _Gateway
    id: int


_ASKED: ContextVar[_Asked | None] = ContextVar("asked", default=None)
"""Request that the current task works on."""

HaveAdapter = Callable[[DeploymentSpec, AdapterName], Awaitable[None]]


class NodeHost(RuntimeListener):
    """Accepts connections of gateways. Must be registered as a listener of its runtime."""

    def __init__(
        self,
        runtime: Runtime,
        node_id: str,
        identity: Identity,
        token: str,
        *,
        have_adapter: HaveAdapter,
        sources: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            token: token that gateways send to authenticate.
            have_adapter: puts a call's adapter into the folder of the replicas.
            sources: returns the sources with files on this node.
        """
        self.node_id = node_id
        self._runtime = runtime
        self._token = token
        self._have_adapter = have_adapter
        self._sources = sources
        self.leases = NodeLeases(runtime, self._stir, clock)
        self._is_draining = False
        self._gateways: list[_Gateway] = []
        self._lively: set[str] = set()
        """Specifications with changes to report, now or soon."""
        self._at_rest: set[str] = set()
        """Loaded specifications without calls. Only their measurements may change."""
        self._clock = clock
        self.listener = NodeListener(identity.context, self._connect)
        self._background: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Starts to accept connections. Returns the port; 0 picks a free one."""
        port = await self.listener.listen(host, port)
        self._spawn(self._observe())
        return port

    async def drain(self, grace_s: float) -> None:
        """Redirects gateways to other nodes, and waits for calls in progress, at most `grace_s`
        seconds.
        """
        self._is_draining = True
        for gateway in self._gateways:
            self._tell(gateway, ())
        await asyncio.sleep(_ON_THE_WAY_S)
        if tasks := [task for peer in self._gateways for task in peer.tasks.values()]:
            await asyncio.wait(tasks, timeout=grace_s)

    async def close(self) -> None:
        await self.listener.close()
        for gateway in self._gateways:
            gateway.link.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    # --- calls ---

    def _begin(self, gateway: _Gateway, ask: CallRequest) -> None:
        spec_or_generation = self.leases.used(ask.spec_id, ask.generation)
        if isinstance(spec_or_generation, int):
            gateway.send(CallRefused(ask.id, spec_or_generation))
        else:
            self._stir(ask.spec_id)
            self._run(gateway, ask.id, self._work(gateway, ask, spec_or_generation))

    async def _work(self, gateway: _Gateway, ask: CallRequest, spec: DeploymentSpec) -> None:
        _ASKED.set(_Asked(gateway, ask.id))
        CURRENT_CALLER.set(Party(ask.account, ask.key, ask.is_copy, ask.tier))
        try:
            await self._answer(gateway, ask, spec)
        except Exception as error:
            if not isinstance(error, StokerError):
                log.exception("call failed", extra={"spec": spec.id})
            gateway.send(Failed(ask.id, ErrorFields.of(error)))
        finally:
            self.leases.touch(ask.spec_id)

    async def _answer(self, gateway: _Gateway, ask: CallRequest, spec: DeploymentSpec) -> None:
        call = ask.call or ask.generation_request
        if call is None:
            raise InvalidRequestError("Nothing is asked.")
        if call.adapter:
            await self._have_adapter(spec, call.adapter)
        times = {"wait_s": ask.wait_s, "timeout_s": ask.timeout_s}
        if ask.is_streamed:
            parts = self._runtime.stream(spec.id, call, keep_alive=ask.keep_alive, **times)
            # The header of every token's message is the same.
            head = to_gateway.pack(AnswerPart(ask.id))
            async with aclosing(parts):
                async for part in parts:
                    gateway.link.send([*head, part])
            gateway.send(End(ask.id))
            return

        def progressed(fraction: float) -> None:
            gateway.send(CallProgress(ask.id, fraction))

        on_progress = progressed if ask.has_progress else None
        content = await self._runtime.call(spec.id, call, on_progress=on_progress, **times)
        gateway.send(CallAnswer(ask.id), content)

    async def _drop(self, gateway: _Gateway, drop: Drop) -> None:
        await self.leases.drop(drop.spec_id)
        gateway.send(Done(drop.id))

    async def _tail(self, gateway: _Gateway, tail: Tail) -> None:
        lines = await self._runtime.log_lines(tail.deployment_id, tail.limit)
        gateway.send(Lines(tail.id, lines))

    # --- connections ---

    def _connect(self, connection: ConnectionSlot) -> FramedConnection:
        gateway: _Gateway

        def received(frames: list[bytes]) -> None:
            if gateway.server_id:
                self._receive(gateway, frames)
            else:
                self._greet(gateway, frames)

        def lost() -> None:
            connection.end()
            if gateway in self._gateways:
                self._gateways.remove(gateway)
                log.info("gateway disconnected", extra={"server": gateway.server_id})
            for task in gateway.tasks.values():
                task.cancel()

        link = FramedConnection(received, lost, most_bytes=_GREETING_BYTES)
        gateway = _Gateway(link, connection)
        return link

    def _greet(self, gateway: _Gateway, frames: list[bytes]) -> None:
        hello = to_node.unpack(frames)
        is_one = isinstance(hello, Hello) and hmac.compare_digest(hello.token, self._token)
        if not isinstance(hello, Hello) or not is_one:
            log.warning(
                "unauthenticated peer connected to this node", extra={"peer": gateway.link.peer}
            )
            gateway.link.abort()
            return
        gateway.send(messages.welcome(self.node_id))
        if hello.is_probe:
            gateway.link.close()
            return
        try:
            version = messages.agreed_version(hello)
        except ProtocolMismatchError as error:
            log.warning("gateway rejected: %s", error, extra={"server": hello.server_id})
            gateway.link.close()
            return
        gateway.server_id = hello.server_id or gateway.link.peer
        gateway.connection.introduce()
        gateway.link.takes(MOST_BYTES)
        self._gateways.append(gateway)
        log.info("gateway connected", extra={"server": gateway.server_id, "protocol": version})
        self._tell(gateway, self.leases.known)

    def _receive(self, gateway: _Gateway, frames: list[bytes]) -> None:
        message = to_node.unpack(frames)
        match message:
            case CallRequest():
                self._begin(gateway, message)
            case Stop():
                if task := gateway.tasks.get(message.id):
                    task.cancel()
            case Put():
                self.leases.put(message)
            case Drop():
                # Continues even if the gateway disconnects.
                self._spawn(self._drop(gateway, message))
            case Tail():
                self._run(gateway, message.id, self._tail(gateway, message))
            case Hello():
                raise ValueError("a gateway has already sent its hello")

    def _run(self, gateway: _Gateway, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = gateway.tasks[number] = self._spawn(work)
        task.add_done_callback(lambda _: gateway.tasks.pop(number, None))

    # --- reports to gateways ---

    def _stir(self, spec_id: str) -> None:
        """Marks a specification with changes to report, now or soon."""
        self._lively.add(spec_id)

    async def _observe(self) -> None:
        for number in itertools.count():
            lively, self._lively = self._lively, set()
            if number % _AT_REST == 0:
                lively |= self._at_rest
            self._at_rest -= lively
            is_due = number % 2 == 1
            for gateway in self._gateways:
                self._tell(
                    gateway, {*lively, *gateway.told.keys() - self.leases.known.keys()}, is_due
                )
            for spec_id in lively:
                stats = self._runtime.stats(spec_id)
                if stats and stats.status is Status.READY and not stats.calls:
                    self._at_rest.add(spec_id)
                elif stats and (stats.replicas or stats.calls):
                    self._stir(spec_id)
            await asyncio.sleep(OBSERVE_S)

    def _tell(self, gateway: _Gateway, spec_ids: Collection[str], is_due: bool = True) -> None:
        """Sends the state of the specifications that changed since the last report."""
        changed: dict[str, DeploymentStats | None] = {}
        for spec_id in spec_ids:
            stats = self._runtime.stats(spec_id) if spec_id in self.leases.known else None
            if stats != gateway.told.get(spec_id):
                changed[spec_id] = stats
                if stats:
                    gateway.told[spec_id] = stats
                else:
                    del gateway.told[spec_id]
        if not (changed or is_due):
            return
        node = _NodeState(
            self._runtime.machine(),
            [*self._sources()],
            self._runtime.why_not_ready() is None,
            self._is_draining,
        )
        now = self._clock()
        if changed or node != gateway.sent_node or now - gateway.sent_at >= _ALIVE_S:
            gateway.sent_node, gateway.sent_at = node, now
            gateway.send(
                Observed(changed, node.machine, node.sources, node.is_ready, node.is_draining)
            )

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        self._stir(spec.id)
        for gateway in self._gateways:
            # Before the event: its receivers read the state.
            self._tell(gateway, [spec.id], is_due=False)
            gateway.send(Changed(spec.id, status, reason, message))

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        # Sent to one gateway only, so that all gateways together count it once.
        if self._gateways:
            first = min(self._gateways, key=lambda gateway: gateway.server_id)
            first.send(ModelLoaded(spec.id, seconds))

    def waits(self) -> None:
        if request := _ASKED.get():
            request.gateway.send(Waits(request.id))

    def given(self) -> None:
        if request := _ASKED.get():
            request.gateway.send(Waits(request.id, is_over=True))

    def served(self, call: Served) -> None:
        if request := _ASKED.get():
            request.gateway.send(CallReport(request.id, call))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
