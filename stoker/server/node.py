"""Node host: runs replicas on one machine for the servers of a fleet.

It is not a server: only servers call it, by `stoker.runtime.nodes`. It records the memory usage and
events of its replicas itself.
"""

import asyncio
import contextlib
import json
import logging
import os
import platform
import signal
import socket
import time
from pathlib import Path

import stoker
from stoker import sandbox
from stoker.base import logs
from stoker.base.config import MIB, Settings
from stoker.base.ids import Prefix, new_id
from stoker.base.private_files import write_private
from stoker.inspection import Inspectors
from stoker.platform.quotas.service import QuotaService
from stoker.registry.deployments import adapters, versions
from stoker.registry.deployments import repository as deployment_rows
from stoker.registry.deployments.events import EventLog
from stoker.registry.deployments.folders import ModelFolders
from stoker.runtime import choose
from stoker.runtime.interface import Runtime
from stoker.runtime.nodes import leases
from stoker.runtime.nodes.host import NodeHost
from stoker.runtime.nodes.identity import new_identity, token
from stoker.runtime.nodes.leases import Registration, SupersededError, Use
from stoker.runtime.specification import DeploymentSpec
from stoker.server.background import Background, bounded
from stoker.server.edge.kernel import raise_open_files
from stoker.server.edge.limits import EdgeLimits
from stoker.server.lifecycle import STEP_S
from stoker.server.loops import loop_factory
from stoker.server.serve import serving_metrics
from stoker.server.telemetry.nodes import HostedMetrics, refused_connections
from stoker.store.blobs import open_blobs
from stoker.store.db import Database
from stoker.store.folder_lock import locked
from stoker.store.secret import ServerSecret
from stoker.store.tables.deployments import Deployment
from stoker.store.waiting import repeated
from stoker.tenancy.usage.balances import CreditCheck
from stoker.tenancy.usage.counts import Counts
from stoker.tenancy.usage.metering import Metering
from stoker.wire.generation_request import AdapterName

log = logging.getLogger(__name__)

BEAT_S = 1.0
SWEEP_S = 600.0
NODE_ID, STATE = "node-id", "node.json"
"""Names of files in the data folder."""


def run(settings: Settings) -> None:
    """Runs replicas for the servers of the same PostgreSQL, until SIGTERM or SIGINT.

    Raises `FolderInUseError` if another process uses the data folder.
    """
    with locked(settings.data_dir, settings.database_url):
        logs.configure(settings.log_level, settings.log_format)
        sandbox.keep_to_itself()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_Host(settings).run())


class _Host:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        data_dir = settings.data_dir.resolve()
        self._id = node_id(data_dir)
        url = settings.resolved_database_url
        self._database = Database(url, server_id=self._id, connections=5)
        # Heartbeats use a separate connection: a node that waits for a shared one would be
        # considered lost.
        self._own = Database(self._database.url, connections=1)
        blobs = open_blobs(settings.blob_url, data_dir, timeout_s=settings.blob_timeout_s)
        self._inspectors = Inspectors(
            memory_bytes=settings.inspection_memory_mib * MIB,
            deadline_s=settings.inspection_timeout_s,
        )
        quotas = QuotaService(settings)
        self._folders = ModelFolders(settings, self._database, blobs, quotas, self._inspectors)
        self._credits = CreditCheck()
        build: choose.Builder = choose.builder("local")
        self._runtime: Runtime = build(settings, self._folders, self._credits.exhausted)
        self._folders.copies.runs = self._folders.merged.runs = self._has_replicas
        self._secret = ServerSecret(data_dir, given=settings.given_secret, waits=True)
        self._background = Background()
        self._placed: set[str] = set()
        self._is_draining = False
        self._is_placed = settings.runtime == "ray"
        self._told_uses: dict[int, Use] = {}
        self._ended = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ended.set)
        limits = EdgeLimits.of(self._settings, raise_open_files())
        await self._database.migrate()
        await self._secret.agree(self._database)
        await self._sweep()
        identity = new_identity(self._id)
        host = NodeHost(
            self._runtime,
            self._id,
            identity,
            token(self._secret, identity.certificate),
            have_adapter=self._have_adapter,
            sources=self._sources,
        )
        metering = Metering(
            self._database,
            self._runtime.meter,
            self._credits,
            Counts(),
            starting_credits=self._settings.starting_credits,
            is_first=lambda: False,
        )
        await metering.open()
        events = EventLog(self._database)
        name = self._settings.node_name or socket.gethostname()[:63]
        metrics = HostedMetrics((name, self._id), self._runtime, host.leases.specs)
        metrics.add(refused_connections((name, self._id), lambda: host.listener.refused))
        await self._runtime.start([events, host, metrics])
        port = await host.listen(self._settings.node_host, self._settings.node_port)
        me = Registration(
            id=self._id,
            name=name,
            address=f"{_address(self._settings)}:{port}",
            certificate=identity.certificate,
            pid=os.getpid(),
            version=stoker.__version__,
            python=platform.python_version(),
        )
        async with serving_metrics(self._settings, limits, metrics):
            await self._work(me, host, events, metering)

    async def _work(
        self, me: Registration, host: NodeHost, events: EventLog, metering: Metering
    ) -> None:
        """Serves the servers until the process is stopped."""
        await me.begin(self._own)
        # A newer server that saw no heartbeat of this node may have contracted the schema.
        await self._database.migrate()
        self._background.start("heartbeat", lambda: self._beat(me, host))
        self._background.start("events of deployments", events.run)
        self._background.start("metering", metering.run)
        self._background.start("upkeep", lambda: self._keep(host))
        state = {"id": me.id, "name": me.name, "address": me.address, "pid": me.pid}
        write_private(self._settings.data_dir.resolve() / STATE, json.dumps(state) + "\n")
        log.info("node started", extra={"node": me.id, "address": me.address})
        try:
            await self._ended.wait()
        finally:
            await self._end(me, host, metering)

    # --- during operation ---

    async def _beat(self, me: Registration, host: NodeHost) -> None:
        async def beat() -> None:
            try:
                machine = self._runtime.machine()
                held_leases = await me.beat(self._own, machine, is_draining=self._is_draining)
            except SupersededError:
                log.error("another process registered as this node: exiting")
                self._ended.set()
                return
            if returned := host.leases.learn(held_leases):
                await leases.give_back(self._own, returned)
            if self._is_placed:
                await self._tell_uses(host)

        await repeated(beat, BEAT_S, "telling that this node is there")

    async def _tell_uses(self, host: NodeHost) -> None:
        """Writes the changed uses of leases to the database, for the placer."""
        uses = host.leases.uses()
        new = {
            generation: use
            for generation, use in uses.items()
            if use != self._told_uses.get(generation)
        }
        if new:
            await leases.tell_use(self._own, new, time.monotonic())
        self._told_uses = uses

    async def _keep(self, host: NodeHost) -> None:
        async def keep() -> None:
            await self._forget_deleted(host)
            await self._sweep()
            await self._folders.merged.drop_idle()

        await repeated(keep, SWEEP_S, "upkeep")

    async def _sweep(self) -> None:
        """Deletes local links and adapters of deployments that no longer exist."""
        async with self._database.reading() as session:
            await versions.keep_links(session, self._folders)
            self._placed.clear()
            await adapters.keep_placed(session, self._folders)

    async def _forget_deleted(self, host: NodeHost) -> None:
        """Forgets deployments that were deleted while no gateway could send a notification. They
        have no lease, and no caller requests them.
        """
        unleased = host.leases.unleased()
        ids = {spec.version for spec in unleased if spec.version}
        async with self._database.reading() as session:
            deleted = ids - await deployment_rows.existing_versions(session, ids)
        # The spec of a trial belongs to no version. A trial that continues gets another lease, and
        # its spec is sent again.
        over = {spec.id for spec in unleased if not spec.version and self._is_at_rest(spec.id)}
        await host.leases.forget(deleted | over)

    async def _have_adapter(self, spec: DeploymentSpec, name: AdapterName) -> None:
        if name.folder in self._placed:
            return
        async with self._database.reading() as session:
            row = await session.get(Deployment, name.deployment_id)
            if row is not None and row.adapter_of == spec.deployment:
                await adapters.place(session, self._folders, row)
                self._placed.add(name.folder)

    def _sources(self) -> list[str]:
        return self._folders.names

    def _has_replicas(self, spec_id: str) -> bool:
        stats = self._runtime.stats(spec_id)
        return stats is not None and bool(stats.replicas)

    def _is_at_rest(self, spec_id: str) -> bool:
        stats = self._runtime.stats(spec_id)
        return stats is None or not (stats.replicas or stats.calls)

    # --- shutdown ---

    async def _end(self, me: Registration, host: NodeHost, metering: Metering) -> None:
        """Directs servers elsewhere, finishes the calls in progress, and ends."""
        self._is_draining = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STEP_S):
                await me.beat(self._own, self._runtime.machine(), is_draining=True)
        grace_s = self._settings.stop_grace_s
        await bounded("calls", host.drain(grace_s), grace_s + STEP_S)
        await bounded("replicas", self._runtime.stop(), 2 * grace_s + STEP_S)
        await bounded("node", host.close(), STEP_S)
        await bounded("background", self._background.stop_all(), STEP_S)
        await bounded("metering", metering.close(), STEP_S)
        await bounded("inspections", self._inspectors.close(), STEP_S)
        await bounded("copies of models", self._folders.copies.close(), STEP_S)
        await bounded("leases", me.end(self._own), STEP_S)
        for database in (self._own, self._database):
            await bounded("database", database.close(), STEP_S)


def node_id(data_dir: Path) -> str:
    """Returns the node's id from the data folder. A node that restarts keeps its id."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data_dir / NODE_ID
    if not path.exists():
        write_private(path, new_id(Prefix.NODE) + "\n")
    return path.read_text().strip()


def _address(settings: Settings) -> str:
    if settings.node_address:
        return settings.node_address
    host = settings.node_host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is asked whether it is that
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
