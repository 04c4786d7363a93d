"""Runs the app under uvicorn. The socket is opened first, so that port 0 works and can be
announced.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from types import FrameType
from typing import cast

import psutil
import uvicorn
from fastapi.concurrency import run_in_threadpool

from stoker import sandbox
from stoker.base import logs
from stoker.base.config import Settings
from stoker.inference.calls import Calls
from stoker.platform.parts import ServerParts
from stoker.server.app import create_app, know_routes, with_short_calls
from stoker.server.edge.connections import Connections
from stoker.server.edge.kernel import raise_open_files
from stoker.server.edge.limits import EdgeLimits
from stoker.server.edge.protocol import HttpConnection
from stoker.server.edge.uvicorn_server import EventServer
from stoker.server.lifecycle import end_streams
from stoker.server.loops import loop_factory
from stoker.server.telemetry.endpoints import Told, standalone
from stoker.server.telemetry.loop_watch import LoopWatch
from stoker.server.telemetry.recorder import Metrics
from stoker.server.telemetry.traces import Traces
from stoker.server.workers.acceptor import Acceptor
from stoker.server.workers.continued import ContinuedConnection
from stoker.server.workers.desk import CallChecks
from stoker.server.workers.fleet import RemoteConnection, WorkerFleet
from stoker.server.workers.host import WorkerHost, worker_count
from stoker.server.workers.process import answered_operations
from stoker.store.folder_lock import locked
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.limits import RateLimits

log = logging.getLogger(__name__)

_FORCE_CHECK_S = 0.1
LOCAL = "local"
"""Runtime that runs replicas in processes of this server."""

Started = Callable[[ServerParts, str], Awaitable[None]]


async def _nothing(_parts: ServerParts, _base_url: str) -> None:
    return None


def run(settings: Settings, started: Started = _nothing) -> None:
    """Serves until SIGTERM or SIGINT. `started` runs once requests are answered.

    Raises `FolderInUseError` if another server uses the data folder.
    """
    # Forked before the server opens files, starts threads, and takes locks.
    host = WorkerHost.fork(settings) if worker_count(settings) > 1 else None
    with locked(settings.data_dir, settings.database_url):
        logs.configure(settings.log_level, settings.log_format)
        sandbox.keep_to_itself()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, started, host))


class _MetricsServer(EventServer):
    """Server of the metrics. It ends with the main server, which handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_metrics(
    settings: Settings, limits: EdgeLimits, metrics: Told
) -> AsyncGenerator[None]:
    """Serves the metrics at a separate address, if one is set."""
    if settings.metrics_port is None:
        yield
        return
    listener = _listen(settings.metrics_host, settings.metrics_port)
    config = uvicorn.Config(
        standalone(metrics),
        http=_protocol(Connections(limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _MetricsServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class HttpServer(EventServer):
    """Server that ends with exit code 0 on SIGTERM. Uvicorn would raise the signal again."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_exit: Callable[[], None],
        connections: Connections,
        fleet: WorkerFleet | None = None,
        drain_s: float = 0,
    ) -> None:
        """
        Args:
            drain_s: seconds from a signal to the end of accepting requests.
            fleet: workers that answer calls of models. None if the server has none.
        """
        super().__init__(config)
        self._on_exit = on_exit
        self._connections = connections
        self._fleet = fleet
        self._drain_s = drain_s
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._fleet is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for listener in sockets or []:
            build_continued = partial(self._build_continued, self._fleet)
            self._acceptor = Acceptor(listener, self._fleet, self._build, build_continued)
            self._acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor:
            self._acceptor.close()
        await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        if self._fleet is None:
            await super()._wait_tasks_to_complete()
            return
        drained = asyncio.create_task(self._fleet.drain())
        try:
            while not (drained.done() or self.force_exit):
                await asyncio.wait([drained], timeout=_FORCE_CHECK_S)
            if self._acceptor:
                await self._acceptor.wait_opened()
            # Includes connections that workers have handed over at their end.
            await super()._wait_tasks_to_complete()
        finally:
            drained.cancel()
            await self._fleet.stop()

    def _build(self) -> asyncio.Protocol:
        state = self.lifespan.state
        return HttpConnection(self._connections, self.config, self.server_state, state)

    def _build_continued(
        self, fleet: WorkerFleet, remote: RemoteConnection, data: bytes
    ) -> asyncio.Protocol:
        return ContinuedConnection(
            self._connections,
            self.config,
            self.server_state,
            self.lifespan.state,
            fleet=fleet,
            remote=remote,
            data=data,
            ends=self.should_exit,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain_s and not self._connections.is_draining:
            # A further signal ends the drain.
            log.info("server is draining", extra={"seconds": self._drain_s})
            self._connections.is_draining = True
            if self._fleet:
                self._fleet.close_connections()
            loop = asyncio.get_running_loop()
            loop.call_later(self._drain_s, self._exit_after_drain, sig)
            return
        self._on_exit()
        super().handle_exit(sig, frame)

    def _exit_after_drain(self, sig: int) -> None:
        if not self.should_exit:
            self.handle_exit(sig, None)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _fleet(host: WorkerHost, parts: ServerParts, connections: Connections) -> WorkerFleet:
    settings = parts.get(Settings)
    checks = CallChecks(
        calls=parts.get(Calls),
        keyring=parts.get(Keyring),
        limits=parts.get(RateLimits),
        takes_packed=settings.runtime == LOCAL,
        traces=parts.find(Traces),
    )
    fleet = WorkerFleet(
        worker_count(settings),
        host,
        checks=checks,
        members=connections,
        metrics=parts.get(Metrics),
        paths=answered_operations(),
    )
    parts.add(WorkerFleet, fleet)
    return fleet


def _protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Returns the protocol factory that uvicorn calls for each connection."""
    return cast("type[asyncio.Protocol]", partial(HttpConnection, connections))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = f"it is in use{_user_of(port)}. Choose another port"
        raise OSError(f"Cannot listen on {shown}: {why}.") from error
    return listener


def _user_of(port: int) -> str:
    """Names the process that listens on a port. Empty if this process may not know it."""
    try:
        connections = psutil.net_connections("tcp")
        pid = next(
            connection.pid
            for connection in connections
            if connection.pid
            and connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
        )
        return f" by process {pid} ({psutil.Process(pid).name()})"
    except (psutil.Error, OSError, StopIteration):
        return ""


async def _serve(settings: Settings, started: Started, host: WorkerHost | None) -> None:
    # Disabled until the server answers requests: repeated collections of ten thousand deployments
    # take longer than creating them.
    gc.disable()
    app = create_app(settings)
    know_routes(app)
    parts: ServerParts = app.state.parts
    metrics, loop_watch = parts.get(Metrics), parts.get(LoopWatch)
    limits = EdgeLimits.of(settings, raise_open_files())
    connections = Connections(limits)
    metrics.add(connections.collect)
    parts.add(Connections, connections)
    listener = _listen(settings.host, settings.port)
    port = listener.getsockname()[1]
    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        with_short_calls(app),
        http=_protocol(connections),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.stop_grace_s) or 1,
    )
    fleet = _fleet(host, parts, connections) if host else None
    server = HttpServer(config, partial(end_streams, parts), connections, fleet, settings.drain_s)

    async def announce() -> None:
        # uvicorn has no event for this.
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # Imports the thread pool's modules. Otherwise the first request would import them, which
        # took 20 ms.
        await run_in_threadpool(int)
        # Imported and created objects stay in memory. Searching them for garbage would delay
        # requests again and again.
        gc.freeze()
        gc.enable()
        loop_watch.start()
        await started(parts, f"http://{address}:{port}")

    announcing = asyncio.create_task(announce())
    async with serving_metrics(settings, limits, metrics):
        await server.serve(sockets=[listener])
    loop_watch.stop()
    if announcing.done():
        announcing.result()
    else:
        announcing.cancel()
