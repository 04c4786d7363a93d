"""Runtime of a fleet: replicas run on nodes, and gateways send requests to the node hosts.

A deployment runs on the nodes that have a lease for it (`leases.py`). A node treats its leases as
the local runtime treats the deployments of one machine. A request goes from the gateway to the
node's host and from there directly to a replica.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing

from stoker.base.config import Settings
from stoker.base.errors import CapacityError, ConflictError, ModelLoadingError
from stoker.base.ids import Prefix, new_id
from stoker.runtime.amounts import in_words
from stoker.runtime.interface import KEEP_ALIVE, Call, ModelLocator, OnProgress
from stoker.runtime.listening import Listeners, RuntimeListener, Served
from stoker.runtime.metering import Meter
from stoker.runtime.nodes.errors import node_lost, unknown_deployment
from stoker.runtime.nodes.fleet import Fleet
from stoker.runtime.nodes.in_flight import LeaseRefusedError, NodeLostError
from stoker.runtime.nodes.leases import NodeLease
from stoker.runtime.nodes.messages import Changed, ModelLoaded
from stoker.runtime.nodes.node_client import NodeClient
from stoker.runtime.nodes.observing import machine_of, stats_of
from stoker.runtime.nodes.placing import Load, affinity_of, least_busy
from stoker.runtime.nodes.tracked_spec import TrackedSpec
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.wire.generation_request import Generation

log = logging.getLogger(__name__)

SCALE_UP_AT = 16
"""Calls per replica from which on another node is added, as the pool starts another replica."""
FAILING_NODES = 2
"""Maximum number of nodes on which a failing deployment is tried."""
_ATTEMPTS = 4
"""Maximum attempts for one call if leases change meanwhile."""
_PLACING_S = 1.0
"""Minimum seconds that a call waits for a lease, even if it does not wait for the load. Otherwise
no replica would be loaded for the next call.
"""
_DROP_S = 30.0
_RETRY_AFTER_S = 2.0


class NodesRuntime:
    is_remote = True

    def __init__(
        self,
        settings: Settings,
        folders: ModelLocator,
        unfunded: Callable[[], Collection[str]] = frozenset[str],
        *,
        places: bool = True,
    ) -> None:
        """
        Args:
            settings: with the URL of a PostgreSQL database.
            folders: not used, because nodes locate models themselves.
            unfunded: returns the accounts for which no replica is kept loaded.
            places: True if this runtime chooses the nodes. False if a placer does.
        """
        self._settings = settings
        self._places = places
        self._listeners = Listeners()
        secret = ServerSecret(settings.data_dir.resolve(), given=settings.given_secret, waits=True)
        # Separate connections, so that a request that waits for one does not delay routing.
        self._fleet = Fleet(
            Database(
                settings.resolved_database_url, server_id=new_id(Prefix.SERVER), connections=3
            ),
            secret,
            self,
            unfunded,
            places=places,
        )
        self.meter = Meter()
        """Always empty, because nodes meter their replicas."""

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        self._listeners.add(*listeners)
        await self._fleet.start()

    async def stop(self) -> None:
        """Closes the connections. Replicas on nodes continue to run, for other gateways or the next
        start of this one.
        """
        await self._fleet.close()

    # --- specifications ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        self._fleet.apply(spec, running=running)

    def check_fits(self, spec: DeploymentSpec) -> None:
        nodes = self._connected()
        if spec.readiness is not Readiness.HOT or not nodes:
            return
        share = self._settings.hot_memory_share
        rooms = sorted(
            int(node.machine.budget_bytes * share) - self._fleet.reserved_besides(node, spec.id)
            for node in nodes
        )
        parts = max(1, min(len(rooms), spec.min_replicas))
        need = spec.memory_bytes * max(1, spec.min_replicas)
        if rooms[-parts] * parts < need:
            raise CapacityError(
                f"A 'hot' deployment of this model needs about {in_words(need)} of reserved "
                "memory, but the node with the most room can reserve "
                f"{in_words(max(0, rooms[-1]))}.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        live, nodes = self._fleet.known.get(live_id), self._connected()
        if live is None or len(nodes) != 1:
            # With several nodes, each version can have its own.
            return
        budget = nodes[0].machine.budget_bytes
        if spec.memory_bytes + live.spec.memory_bytes > budget:
            raise CapacityError(
                f"The version needs about {in_words(spec.memory_bytes)} of memory and cannot be "
                f"loaded next to the live version. The only node has {in_words(budget)}. Use the "
                "strategy 'in_place' to unload the live version first.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    async def remove(self, spec_id: str) -> None:
        nodes = await self._fleet.forget(spec_id)
        await asyncio.gather(*(self._drop(node, spec_id) for node in nodes))

    async def _drop(self, node: NodeClient, spec_id: str) -> None:
        try:
            async with asyncio.timeout(self._settings.stop_grace_s + _DROP_S):
                await node.drop(spec_id)
        except (NodeLostError, TimeoutError):
            # The node will notice that it has no lease any more.
            log.warning("node did not confirm a stop", extra={"node": node.id})

    async def sweep_strays(self) -> None:
        await self._fleet.sweep_strays()

    # --- calls ---

    async def call(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        deadline = self._now() + wait_s
        may_repeat = True
        for _ in range(_ATTEMPTS):
            known = self._find(spec_id)
            node, lease = await self._node_for(known, call, deadline)
            try:
                return await node.call(
                    known.spec,
                    lease.generation,
                    call,
                    wait_s=max(0.0, deadline - self._now()),
                    timeout_s=timeout_s,
                    on_progress=on_progress,
                )
            except LeaseRefusedError as error:
                await self._refused(lease, error)
            except NodeLostError as error:
                may_repeat = self._after_loss(error, may_repeat)
        raise node_lost()

    def stream(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        # Raises immediately for an unknown deployment, like other runtimes.
        self._find(spec_id)
        return self._stream(spec_id, call, wait_s, timeout_s, keep_alive)

    async def _stream(
        self,
        spec_id: str,
        call: Call | Generation,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes,
    ) -> AsyncGenerator[bytes]:
        deadline = self._now() + wait_s
        may_repeat = True
        for _ in range(_ATTEMPTS):
            known = self._find(spec_id)
            node, lease = await self._node_for(known, call, deadline)
            parts = node.stream(
                known.spec,
                lease.generation,
                call,
                wait_s=max(0.0, deadline - self._now()),
                timeout_s=timeout_s,
                keep_alive=keep_alive,
            )
            try:
                async with aclosing(parts):
                    async for part in parts:
                        yield part
                return
            except LeaseRefusedError as error:
                await self._refused(lease, error)
            except NodeLostError as error:
                may_repeat = self._after_loss(error, may_repeat)
        raise node_lost()

    async def _node_for(
        self, known: TrackedSpec, call: Call | Generation, deadline: float
    ) -> tuple[NodeClient, NodeLease]:
        """Returns the node for a call, and its lease. Acquires a lease if this gateway can use
        none.
        """
        fleet, spec_id = self._fleet, known.spec.id
        placed_by = max(deadline, self._now() + _PLACING_S)
        while True:
            if fleet.known.get(spec_id) is not known:
                # The deployment was deleted while the call waited.
                raise unknown_deployment()
            if not known.running:
                raise ConflictError(
                    f"The deployment '{known.spec.model}' is stopped: start it first.",
                    code="deployment_stopped",
                )
            if usable := fleet.usable(spec_id):
                return self._least_busy(known, usable, call)
            fleet.take(known)
            remaining = (placed_by if known.is_taking else deadline) - self._now()
            if remaining <= 0:
                raise self._why_nowhere(known)
            await fleet.changes.wait(remaining)

    def _least_busy(
        self,
        known: TrackedSpec,
        usable: Sequence[tuple[NodeClient, NodeLease]],
        call: Call | Generation,
    ) -> tuple[NodeClient, NodeLease]:
        spec, nodes_by_id = known.spec, {node.id: (node, lease) for node, lease in usable}
        loads = {node.id: _load(node, spec.id) for node, _ in usable}
        name = least_busy([*loads.values()], affinity_of(spec, call) if len(usable) > 1 else b"")
        is_busy = loads[name].score >= SCALE_UP_AT and len(usable) < known.most_nodes
        # The node may be the cause, such as a full disk, but the model is more likely.
        has_failed = loads[name].has_failed and len(usable) < FAILING_NODES
        if is_busy or has_failed:
            self._fleet.take(known, len(usable) + 1)
        return nodes_by_id[name]

    async def _refused(self, held: NodeLease, error: LeaseRefusedError) -> None:
        """Updates the leases after a node rejected a call: it has another lease, or the lease was
        deleted.
        """
        await self._fleet.look()
        if not error.generation and held in self._fleet.held(held.spec_id):
            self._fleet.put(held, is_change=False)

    def _after_loss(self, error: NodeLostError, may_repeat: bool) -> bool:
        """Decides on another attempt after a lost connection. Returns True if a further loss may be
        followed by one more attempt. Raises if no attempt is allowed.
        """
        if not error.sent:
            return may_repeat
        if error.waited:
            # The call was not worked on. But its load may have crashed the node, so limit the
            # attempts.
            if may_repeat:
                return False
            self.on_served(error.waited)
        # A call that may have been worked on is not repeated, because it may have crashed the node.
        raise node_lost() from None

    def _why_nowhere(self, known: TrackedSpec) -> CapacityError | ModelLoadingError:
        if not self._connected():
            return CapacityError(
                "No node is available to run it. Start one with "
                f"`stoker node {'host' if self._places else 'join'}`.",
                code="no_node",
                retry_after_s=_RETRY_AFTER_S,
            )
        if problem := self._fleet.why_waits(known):
            return CapacityError(problem, code="insufficient_memory", retry_after_s=60)
        return ModelLoadingError(
            f"'{known.spec.model}' waits for a node. Try again later.",
            retry_after_s=_RETRY_AFTER_S,
            progress=0.0,
        )

    # --- reports of nodes ---

    def on_connected(self, node: NodeClient) -> None:
        self._fleet.put_all(node)
        self._fleet.changes.notify_all()

    def on_observed(self) -> None:
        self._fleet.changes.notify_all()

    def on_changed(self, change: Changed) -> None:
        if known := self._fleet.known.get(change.spec_id):
            self._listeners.changed(known.spec, change.status, change.reason, change.message)

    def on_loaded(self, loaded: ModelLoaded) -> None:
        if known := self._fleet.known.get(loaded.spec_id):
            self._listeners.loaded(known.spec, loaded.seconds)

    def on_served(self, served: Served) -> None:
        self._listeners.served(served)

    # --- observations ---

    def stats(self, spec_id: str) -> DeploymentStats | None:
        known = self._fleet.known.get(spec_id)
        if known is None:
            return None
        node_stats = [
            stats
            for node in self._fleet.nodes.values()
            if (stats := node.stats.get(spec_id)) is not None
        ]
        return stats_of(
            known.spec,
            node_stats,
            running=known.running,
            is_awaited=known.is_taking or self._fleet.wanted(known) > 0,
            problem=self._fleet.why_waits(known),
            is_hopeless=self._places,
        )

    def machine(self) -> MachineStats:
        return machine_of([node.machine for node in self._connected()])

    def nodes(self) -> Sequence[NodeStats]:
        return self._fleet.observed()

    def at_work(self, besides: str) -> bool:
        return any(
            node.calls(spec_id)
            for node in self._connected()
            for spec_id in {*node.outstanding, *node.stats} - {besides}
        )

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        """Returns the log lines of all nodes, node by node."""

        async def told(node: NodeClient) -> list[str]:
            try:
                return await node.tail(deployment_id, limit)
            except NodeLostError:
                return []

        lines_by_node = await asyncio.gather(
            *(told(connected_node) for connected_node in self._connected())
        )
        return [line for lines in lines_by_node for line in lines][-limit:]

    def why_not_ready(self) -> str | None:
        nodes = self._connected()
        if not nodes:
            return "No node is connected, so no replica can run."
        if not any(node.is_ready for node in nodes):
            return "The nodes' engine hosts are still importing their libraries."
        return None

    def check(self) -> str | None:
        return self._fleet.problem

    # --- helpers ---

    def _connected(self) -> list[NodeClient]:
        return [node for node in self._fleet.nodes.values() if node.is_connected]

    def _find(self, spec_id: str) -> TrackedSpec:
        known = self._fleet.known.get(spec_id)
        if known is None:
            raise unknown_deployment()
        return known

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _load(node: NodeClient, spec_id: str) -> Load:
    stats = node.stats.get(spec_id)
    ready = sum(replica.status is Status.READY for replica in stats.replicas) if stats else 0
    return Load(
        node_id=node.id,
        outstanding=node.calls(spec_id),
        ready=ready,
        has_failed=stats is not None and stats.status is Status.FAILED,
    )


def with_ray(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> NodesRuntime:
    """Builds a runtime with leases that Ray places (`stoker.runtime.ray`)."""
    return NodesRuntime(settings, folders, unfunded, places=False)
