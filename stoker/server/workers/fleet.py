"""The server's worker processes: starts and replaces them, and gives them connections."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterable

from prometheus_client.metrics_core import Metric

from stoker.server.edge.connections import Connections, Ended
from stoker.server.telemetry.recorder import Metrics
from stoker.server.workers.channel import WorkerChannel
from stoker.server.workers.desk import CallChecks, Desk
from stoker.server.workers.host import StartedWorker, WorkerHost
from stoker.server.workers.messages import (
    CallModel,
    CloseConnections,
    Closed,
    CountReport,
    DrainWorker,
    DropRequest,
    HandOver,
    ReportRequest,
    RequestEnded,
    RequestStarted,
    StopWorker,
    WorkerReady,
    decode_from_worker,
    encode,
)
from stoker.server.workers.process import CONNECTION

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_MOST_BACKOFF_S = 10.0
_PROVED_S = 10.0
"""Seconds after which a worker's end is not counted as a failed start."""
_CHECK_S = 10.0
"""Seconds between two checks of whether a worker hangs."""
_SILENCE_S = 10.0
"""Maximum seconds until a worker that does not hang answers."""
_STACK_S = 2.0
"""Maximum seconds until a worker that hangs has written its stack."""
_MOST_STACK_BYTES = 16 << 10
REPORT_S = 0.5
"""Maximum seconds that a scrape waits for the counts of a worker."""
_STOP_S = 3.0
"""Maximum seconds that a worker has to end after its requests were cancelled."""

Continue = Callable[["RemoteConnection", bytes], None]
"""Continues a connection in the server, with the bytes that were read and not answered."""


class RemoteConnection:
    """A connection that a worker answers. The server keeps its socket, to continue it or to end it
    if the worker is lost.
    """

    def __init__(self, client: socket.socket) -> None:
        self.number = 0
        self.client = client
        self.calls = 0
        """Calls that workers have answered on it."""

    def check(self, now: float) -> None:
        """Implements `LimitedConnection.check`: the worker enforces the time limits."""

    def give_way(self) -> None:
        """Implements `LimitedConnection.give_way`."""
        self.end()

    def end(self) -> None:
        """Closes the connection, also for the worker."""
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)
        self.client.close()


class RemoteWorker:
    """One worker process as the server sees it."""

    def __init__(self, number: int, fleet: "WorkerFleet", started: StartedWorker) -> None:
        self.number = number
        self.pid = 0
        self.began = asyncio.get_running_loop().time()
        self.is_ready = False
        self.connections: dict[int, RemoteConnection] = {}
        self.ended = asyncio.Event()
        self._fleet = fleet
        self._passing = started.passing
        self._stack = started.stack
        self.channel = WorkerChannel(self._receive, self._lose)
        self._desk = Desk(fleet.checks, self.channel.send, self._answered)
        self._reported: asyncio.Future[None] | None = None

    def give(self, connection: RemoteConnection) -> bool:
        """Passes a connection. Returns False if the worker does not accept it now."""
        data = [CONNECTION.pack(connection.number)]
        try:
            socket.send_fds(self._passing, data, [connection.client.fileno()])
        except OSError:
            return False
        self.connections[connection.number] = connection
        return True

    async def report(self, timeout_s: float = REPORT_S) -> bool:
        """Adds the worker's counts to the metrics. Returns False if the worker does not answer."""
        if self._reported is None or self._reported.done():
            self._reported = asyncio.get_running_loop().create_future()
            self.tell(ReportRequest())
        await asyncio.wait([self._reported], timeout=timeout_s)
        return self._reported.done()

    async def kill(self) -> None:
        """Ends a worker that hangs. It first writes its stack, unless the kernel has stopped it."""
        for number in (signal.SIGABRT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.kill(self.pid, number)
                await asyncio.wait_for(self.ended.wait(), _STACK_S)
        await self.ended.wait()

    def tell(self, message: ReportRequest | CloseConnections | DrainWorker | StopWorker) -> None:
        self.channel.send([encode(message)])

    def _receive(self, frames: list[bytes]) -> None:
        message = decode_from_worker(frames[0])
        match message:
            case CallModel():
                if connection := self.connections.get(message.connection):
                    self._fleet.members.work(connection)
                self._desk.receive(message, frames)
            case DropRequest():
                self._desk.drop(message.id)
            case RequestStarted():
                self._desk.open_span(message)
            case RequestEnded():
                self._desk.end_span(message)
            case HandOver():
                if connection := self.connections.pop(message.connection, None):
                    self._hand_over(connection, message, frames[1])
            case Closed():
                self._close(message)
            case CountReport():
                self._fleet.count(message)
                if self._reported and not self._reported.done():
                    self._reported.set_result(None)
            case WorkerReady():
                self.pid = message.pid
                self.is_ready = True
            case _:
                self._desk.receive(message, frames)

    def _hand_over(self, connection: RemoteConnection, message: HandOver, data: bytes) -> None:
        connection.calls += message.calls
        # It may have given way to another connection meanwhile.
        if connection.client.fileno() >= 0:
            self._fleet.members.work(connection)
            self._fleet.take_over(connection, data)

    def _answered(self, number: int) -> None:
        if connection := self.connections.get(number):
            self._fleet.members.wait(connection)

    def _close(self, closed: Closed) -> None:
        if connection := self.connections.pop(closed.connection, None):
            connection.client.close()
            self._fleet.members.forget(connection)
        if closed.reason:
            self._fleet.members.ended[Ended(closed.reason)] += 1

    def _lose(self) -> None:
        self.is_ready = False
        self._desk.close()
        self._passing.close()
        for connection in self.connections.values():
            connection.end()
            self._fleet.members.forget(connection)
        self.connections.clear()
        self._log_stack()
        self.ended.set()

    def _log_stack(self) -> None:
        """Logs the stack of a worker that a signal has ended."""
        with self._stack as file:
            stack = os.pread(file.fileno(), _MOST_STACK_BYTES, 0).decode(errors="replace")
        if stack:
            # The list of extension modules behind the stack says nothing about the cause.
            stack = stack.partition("\nExtension modules:")[0].strip()
            log.error(
                "stack of the ended HTTP worker",
                extra={"worker": self.number, "pid": self.pid, "stack": stack},
            )


class WorkerFleet:
    """All workers of a server."""

    def __init__(
        self,
        size: int,
        host: WorkerHost,
        *,
        checks: CallChecks,
        members: Connections,
        metrics: Metrics,
        paths: Collection[str],
    ) -> None:
        """
        Args:
            paths: paths of the operations that workers answer.
        """
        self.checks = checks
        self.members = members
        self._size = size
        self._host = host
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._workers: dict[int, RemoteWorker] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._last_number = 0
        self._starts = 0
        """Number of started processes. The ids of their calls contain it."""
        self._continue: Continue = lambda connection, _data: connection.end()

    def start(self, continue_connection: Continue) -> None:
        """Starts all workers. Replaces each one that ends."""
        self._continue = continue_connection
        self._metrics.add(self.collect)
        for number in range(1, self._size + 1):
            self._keeping.append(asyncio.create_task(self._keep(number)))

    @property
    def warning(self) -> str | None:
        """Description of the missing workers. None if all run."""
        missing = self._size - sum(worker.is_ready for worker in self._workers.values())
        if not missing:
            return None
        return f"{missing} of {self._size} HTTP workers are not running and are being started."

    @property
    def is_ready(self) -> bool:
        """True if a worker accepts connections."""
        return any(worker.is_ready for worker in self._workers.values())

    def answers(self, path: str) -> bool:
        """Returns True if workers answer calls of a path."""
        return path in self._paths

    def give(self, client: socket.socket, host: str) -> bool:
        """Gives a new connection to the worker with the fewest. Returns False if the server must
        answer it.
        """
        return self.members.has_room(host) and self._pass(RemoteConnection(client), host)

    def take_back(self, connection: RemoteConnection, client: socket.socket, host: str) -> None:
        """Gives a connection that the server has continued to a worker again. Closes it if no
        worker accepts it.
        """
        connection.client = client
        if not self._pass(connection, host):
            connection.end()

    def _pass(self, connection: RemoteConnection, host: str) -> bool:
        ready = [worker for worker in self._workers.values() if worker.is_ready]
        if not ready:
            return False
        self._last_number += 1
        connection.number = self._last_number
        self.members.admit(connection, host)
        least_busy = min(ready, key=lambda worker: len(worker.connections))
        if least_busy.give(connection):
            return True
        self.members.forget(connection)
        return False

    def take_over(self, connection: RemoteConnection, data: bytes) -> None:
        """Continues a connection in the server."""
        self._continue(connection, data)

    def count(self, report: CountReport) -> None:
        for answers in report.answers:
            self._metrics.answered_elsewhere(
                answers.path, "POST", answers.statuses, answers.counts, answers.seconds
            )

    async def collect(self) -> Iterable[Metric]:
        """Collects the counts of all workers before the metrics are written."""
        ready = [worker.report() for worker in self._workers.values() if worker.is_ready]
        await asyncio.gather(*ready)
        return []

    def close_connections(self) -> None:
        """Ends each connection with its next answer."""
        for worker in self._workers.values():
            worker.tell(CloseConnections())

    async def drain(self) -> None:
        """Waits until all workers have answered their requests and ended."""
        for task in self._keeping:
            task.cancel()
        for worker in self._workers.values():
            worker.tell(DrainWorker())
        await asyncio.gather(*(worker.ended.wait() for worker in self._workers.values()))

    async def stop(self) -> None:
        """Cancels all requests of workers, and ends the workers."""
        for task in self._keeping:
            task.cancel()
        for worker in self._workers.values():
            worker.tell(StopWorker())
        ended = asyncio.gather(*(worker.ended.wait() for worker in self._workers.values()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, _STOP_S)
        for worker in self._workers.values():
            worker.channel.abort()
        self._host.close()

    async def _keep(self, number: int) -> None:
        """Runs one worker after another."""
        backoff_s = _FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run(number)
            except OSError:
                log.exception("HTTP worker could not be started")
            else:
                log.error("HTTP worker ended; starting another one", extra={"worker": number})
            if loop.time() - began > _PROVED_S:
                backoff_s = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MOST_BACKOFF_S)

    async def _run(self, number: int) -> None:
        self._starts += 1
        started = self._host.start(self._starts)
        worker = RemoteWorker(number, self, started)
        self._workers[number] = worker
        await asyncio.get_running_loop().create_unix_connection(
            lambda: worker.channel, sock=started.channel
        )
        while not worker.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), _CHECK_S)
            is_silent = worker.is_ready and not await worker.report(_SILENCE_S)
            if is_silent and not worker.ended.is_set():
                log.error(
                    "HTTP worker hangs; it is killed",
                    extra={"worker": number, "pid": worker.pid},
                )
                await worker.kill()
