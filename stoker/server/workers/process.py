"""Main function of a worker process."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Collection
from contextvars import copy_context
from typing import Any

from stoker import sandbox
from stoker.base import logs
from stoker.base.config import Settings
from stoker.inference.operation import Operation
from stoker.inference.registry import OPERATIONS
from stoker.server.edge.connections import SWEEP_S
from stoker.server.edge.kernel import raise_open_files
from stoker.server.loops import loop_factory
from stoker.server.telemetry.loop_watch import LoopWatch
from stoker.server.telemetry.tally import Answers
from stoker.server.telemetry.traces import is_enabled
from stoker.server.workers.channel import WorkerChannel
from stoker.server.workers.connection import WorkerConnection
from stoker.server.workers.heads import CallHead, CallHeads
from stoker.server.workers.messages import (
    CloseConnections,
    Closed,
    CountReport,
    DrainWorker,
    HandOver,
    PathAnswers,
    ReportRequest,
    RequestEnded,
    RequestStarted,
    StopWorker,
    WorkerReady,
    decode_to_worker,
)
from stoker.server.workers.owner import Owner
from stoker.server.workers.requests import HttpCall

log = logging.getLogger(__name__)

CONNECTION = struct.Struct("<Q")
"""Message with which the server passes a connection: its number."""
_MOST_BODY_BYTES = 256 << 10
_FLUSH_S = 1.0
"""Seconds for sending the last bytes of responses before the process ends."""


def run(number: int, settings: Settings, channel: socket.socket, passing: socket.socket) -> None:
    """Answers calls until the server is gone or asks to end.

    Args:
        number: number of the worker, from 1.
        channel: socket for messages.
        passing: socket on which the server passes connections.
    """
    # The server decides when its workers end. A terminal and a supervisor signal all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logs.configure(settings.log_level, settings.log_format)
    sandbox.keep_to_itself()
    raise_open_files()
    gc.freeze()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(HttpWorker(number, settings).serve(channel, passing))


def answered_operations() -> dict[str, Operation[Any]]:
    """Returns the operations that workers answer, by path: those without files."""
    return {path: operation for path, operation in OPERATIONS.items() if not operation.media}


def call_heads(settings: Settings, paths: Collection[str]) -> CallHeads:
    is_any_host = "*" in settings.allowed_hosts
    return CallHeads(
        paths=frozenset(paths),
        most_body_bytes=_MOST_BODY_BYTES,
        has_cross_origin=bool(settings.cors_origins),
        hosts=None if is_any_host else frozenset(settings.allowed_hosts),
        settings=settings,
    )


class HttpWorker:
    def __init__(self, number: int, settings: Settings) -> None:
        self.answer_s = settings.answer_timeout_s
        self._number = number
        self._settings = settings
        self._operations = answered_operations()
        self._heads = call_heads(settings, self._operations).cached()
        self._connections: set[WorkerConnection] = set()
        self._arrivals: set[asyncio.Task[object]] = set()
        self._tallies: dict[str, Answers] = {}
        self._reporting: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._closes_connections = False
        self._is_draining = False
        self._is_traced = is_enabled()
        """True if the server creates spans of requests."""
        self._ended = asyncio.Event()

    async def serve(self, channel: socket.socket, passing: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = WorkerChannel(self._receive, self._lose_owner)
        self._owner = Owner(self._number, self._channel)
        await self._loop.create_unix_connection(lambda: self._channel, sock=channel)
        passing.setblocking(False)
        self._loop.add_reader(passing, self._accept, passing)
        watch = LoopWatch(self._settings.loop_step_limit_ms / 1000, f"HTTP worker {os.getpid()}")
        watch.start()
        self._owner.tell(WorkerReady(os.getpid()))
        await self._ended.wait()
        self._loop.remove_reader(passing)
        await self._finish()
        watch.stop()

    # --- connections ---

    def _accept(self, passing: socket.socket) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(passing, CONNECTION.size, 1)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(passing)
                return
            [number] = CONNECTION.unpack(data)
            for descriptor in descriptors:
                self._open(number, socket.socket(fileno=descriptor))

    def _open(self, number: int, client: socket.socket) -> None:
        connection = WorkerConnection(number, self)
        connection.closes = self._closes_connections
        self._connections.add(connection)
        opening = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: connection, client)
        )
        self._arrivals.add(opening)
        opening.add_done_callback(self._arrivals.discard)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check(now)
        if self._connections:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)

    def read_head(self, head: bytes) -> CallHead | None:
        """Implements `CallHandler.read_head`."""
        return self._heads(head)

    def answer(
        self, connection: WorkerConnection, head: CallHead, body: bytes, started: float
    ) -> asyncio.Task[None]:
        """Implements `CallHandler.answer`."""
        call = self._call(connection, head, body, started)
        return self._loop.create_task(self._run(connection, call))

    def abandon(self, connection: WorkerConnection, head: CallHead, started: float) -> None:
        """Implements `CallHandler.abandon`."""
        copy_context().run(self._abandon, self._call(connection, head, b"", started))

    def _abandon(self, call: HttpCall) -> None:
        self._trace(call.started)
        call.abandon()
        self._end(call)

    def _call(
        self, connection: WorkerConnection, head: CallHead, body: bytes, started: float
    ) -> HttpCall:
        return HttpCall(
            self._owner,
            self._settings,
            self._operations[head.path],
            connection=connection,
            head=head,
            body=body,
            started=started,
        )

    async def _run(self, connection: WorkerConnection, request: HttpCall) -> None:
        self._trace(request.started)
        if not await request.answer():
            self._trace(request.ended)
            connection.give_back()
            return
        self._end(request)
        connection.finish()

    def _end(self, request: HttpCall) -> None:
        self._count(request, request.log())
        self._trace(request.ended)

    def _trace(self, message: Callable[[], RequestStarted | RequestEnded]) -> None:
        if self._is_traced:
            self._owner.tell(message())

    def hand_over(self, connection: WorkerConnection, data: bytes) -> None:
        """Implements `CallHandler.hand_over`."""
        self._owner.tell(HandOver(connection.number, connection.calls), data)
        self._remove(connection)

    def lost(self, connection: WorkerConnection, reason: str) -> None:
        """Implements `CallHandler.lost`."""
        self._owner.tell(Closed(connection.number, reason))
        self._remove(connection)

    def _remove(self, connection: WorkerConnection) -> None:
        self._connections.discard(connection)
        if self._is_draining and not self._connections:
            self._ended.set()

    # --- server ---

    def _receive(self, frames: list[bytes]) -> None:
        message = decode_to_worker(frames[0])
        match message:
            case ReportRequest():
                self._report(is_asked=True)
            case CloseConnections():
                self._close_connections()
            case DrainWorker():
                self._drain()
            case StopWorker():
                self._owner.is_stopping = True
                self._ended.set()
            case _:
                self._owner.receive(message, frames)

    def _lose_owner(self) -> None:
        self._owner.lose()
        self._ended.set()

    def _close_connections(self) -> None:
        self._closes_connections = True
        for connection in self._connections:
            connection.closes = True

    def _drain(self) -> None:
        self._closes_connections = self._is_draining = True
        for connection in list(self._connections):
            connection.end_when_idle()
        if not self._connections:
            self._ended.set()

    async def _finish(self) -> None:
        """Cancels all requests and sends the rest of their responses."""
        tasks = [connection.task for connection in self._connections if connection.task]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), _FLUSH_S)
        for connection in list(self._connections):
            connection.end_when_idle()
        deadline = self._loop.time() + _FLUSH_S
        while self._connections and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._report()
        self._channel.close()

    # --- metrics ---

    def _count(self, request: HttpCall, seconds: float) -> None:
        tally = self._tallies.get(request.path)
        if tally is None:
            tally = self._tallies[request.path] = Answers()
        tally.statuses[request.status] += 1
        tally.seconds.observe(seconds)
        if self._reporting is None:
            self._reporting = self._loop.call_later(SWEEP_S, self._report)

    def _report(self, *, is_asked: bool = False) -> None:
        if self._reporting:
            self._reporting.cancel()
            self._reporting = None
        tallies, self._tallies = self._tallies, {}
        if tallies or is_asked:
            answers = [
                PathAnswers(path, dict(tally.statuses), tally.seconds.counts, tally.seconds.total)
                for path, tally in tallies.items()
            ]
            self._owner.tell(CountReport(answers))
