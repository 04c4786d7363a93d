"""The runtime of a fleet: replicas run on nodes, each of which has a host that gateways ask.

A deployment runs where it has a lease (`leases.py`). With what it has leases for a node does what
the local runtime does on one machine. A request goes from the gateway to the node's host and from
there to a replica, through nobody else.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing

from stoker.base.config import Settings
from stoker.base.errors import CapacityError, ConflictError, ModelLoadingError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.runtime.amounts import in_words
from stoker.runtime.interface import KEEP_ALIVE, Call, ModelLocator, OnProgress
from stoker.runtime.listening import Listeners, RuntimeListener, Served
from stoker.runtime.metering import Meter
from stoker.runtime.nodes.fleet import Fleet, TrackedSpec
from stoker.runtime.nodes.in_flight import NodeLostError, RefusedError
from stoker.runtime.nodes.leases import NodeLease
from stoker.runtime.nodes.messages import Changed, Loaded
from stoker.runtime.nodes.node_client import NodeClient
from stoker.runtime.nodes.observing import machine_of, stats_of
from stoker.runtime.nodes.placing import Load, affinity_of, least_busy
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStats, Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.wire.generation_request import Generation

log = logging.getLogger(__name__)

SCALE_UP_AT = 16
"""Calls a replica, from which on another node helps: as the pool starts another replica."""
FAILING_NODES = 2
"""On how many nodes what fails to load is tried."""
_ATTEMPTS = 4
"""Of one call, where leases change meanwhile."""
_PLACING_S = 1.0
"""A call waits so long for a lease, also one that does not wait for the load: else nothing would be
loaded for the next one.
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
            settings: with the URL of a PostgreSQL.
            folders: is not asked: nodes find models by themselves.
            unfunded: the accounts for which nothing is kept loaded.
            places: it chooses the nodes itself; else whoever places leases does.
        """
        self._settings = settings
        self._places = places
        self._listeners = Listeners()
        secret = ServerSecret(settings.data_dir.resolve(), given=settings.given_secret, waits=True)
        # Its own connections: a request that waits for one must not hold up where others go.
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
        """Nodes write down what their replicas hold: here nothing is."""

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        self._listeners.add(*listeners)
        await self._fleet.start()

    async def stop(self) -> None:
        """What runs on nodes goes on: other gateways have it, or the next start of this one."""
        await self._fleet.close()

    # --- what is to run ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        self._fleet.apply(spec, running=running)

    def check_fits(self, spec: DeploymentSpec) -> None:
        nodes = self._connected()
        if spec.readiness is not Readiness.HOT or not nodes:
            return
        share = self._settings.hot_memory_share
        rooms = sorted(
            int(one.machine.budget_bytes * share) - self._fleet.reserved_besides(one, spec.id)
            for one in nodes
        )
        parts = max(1, min(len(rooms), spec.min_replicas))
        need = spec.memory_bytes * max(1, spec.min_replicas)
        if rooms[-parts] * parts < need:
            raise CapacityError(
                f"A 'hot' deployment of this model needs about {in_words(need)} of memory kept for "
                f"it, and the node with most room has {in_words(max(0, rooms[-1]))} for such.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        live, nodes = self._fleet.known.get(live_id), self._connected()
        if live is None or len(nodes) != 1:
            # Each has a node.
            return
        budget = nodes[0].machine.budget_bytes
        if spec.memory_bytes + live.spec.memory_bytes > budget:
            raise CapacityError(
                f"The version needs about {in_words(spec.memory_bytes)} of memory and cannot be "
                f"loaded beside the live one: the only node has {in_words(budget)}. With the "
                "strategy 'in_place', the live one makes room for it first.",
                code="insufficient_memory",
                retry_after_s=60,
            )

    async def remove(self, spec_id: str) -> None:
        nodes = await self._fleet.forget(spec_id)
        await asyncio.gather(*(self._drop(one, spec_id) for one in nodes))

    async def _drop(self, node: NodeClient, spec_id: str) -> None:
        try:
            async with asyncio.timeout(self._settings.stop_grace_s + _DROP_S):
                await node.drop(spec_id)
        except (NodeLostError, TimeoutError):
            # It finds by itself that it has no lease any more.
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
            node, held = await self._node_for(known, call, deadline)
            try:
                return await node.call(
                    known.spec,
                    held.generation,
                    call,
                    wait_s=max(0.0, deadline - self._now()),
                    timeout_s=timeout_s,
                    on_progress=on_progress,
                )
            except RefusedError as error:
                await self._refused(held, error)
            except NodeLostError as error:
                may_repeat = self._after_loss(error, may_repeat)
        raise _lost()

    def stream(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        # Raises at once where it is not known, as others do.
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
            node, held = await self._node_for(known, call, deadline)
            parts = node.stream(
                known.spec,
                held.generation,
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
            except RefusedError as error:
                await self._refused(held, error)
            except NodeLostError as error:
                may_repeat = self._after_loss(error, may_repeat)
        raise _lost()

    async def _node_for(
        self, known: TrackedSpec, call: Call | Generation, deadline: float
    ) -> tuple[NodeClient, NodeLease]:
        """Where a call goes. Has a lease taken where there is none that this gateway can use."""
        fleet, spec_id = self._fleet, known.spec.id
        placed_by = max(deadline, self._now() + _PLACING_S)
        while True:
            if fleet.known.get(spec_id) is not known:
                # It was deleted while the call waited.
                raise _unknown()
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
        spec, found = known.spec, {node.id: (node, held) for node, held in usable}
        loads = {node.id: _load(node, spec.id) for node, _ in usable}
        name = least_busy([*loads.values()], affinity_of(spec, call) if len(usable) > 1 else b"")
        is_busy = loads[name].score >= SCALE_UP_AT and len(usable) < known.most_nodes
        # It may be the node's fault, as where its disk is full; but rather it is the model's.
        has_failed = loads[name].has_failed and len(usable) < FAILING_NODES
        if is_busy or has_failed:
            self._fleet.take(known, len(usable) + 1)
        return found[name]

    async def _refused(self, held: NodeLease, error: RefusedError) -> None:
        """The node has another lease than this gateway knows, or this one was deleted meanwhile."""
        await self._fleet.look()
        if not error.generation and held in self._fleet.held(held.spec_id):
            self._fleet.put(held, is_change=False)

    def _after_loss(self, error: NodeLostError, may_repeat: bool) -> bool:
        """Before another attempt. Returns whether there may be one after a further loss; raises
        where there is to be none.
        """
        if not error.sent:
            return may_repeat
        if error.waited:
            # It was not worked on. But its load may be what has ended the node: not all of them go.
            if may_repeat:
                return False
            self.on_served(error.waited)
        # What it may have worked on is not begun anew: it may be what has ended the node.
        raise _lost() from None

    def _why_nowhere(self, known: TrackedSpec) -> CapacityError | ModelLoadingError:
        if not self._connected():
            return CapacityError(
                "No node is there to run it: start one with "
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

    # --- what nodes tell ---

    def on_connected(self, node: NodeClient) -> None:
        self._fleet.put_all(node)
        self._fleet.changes.notify_all()

    def on_observed(self) -> None:
        self._fleet.changes.notify_all()

    def on_changed(self, change: Changed) -> None:
        if known := self._fleet.known.get(change.spec_id):
            self._listeners.changed(known.spec, change.status, change.reason, change.message)

    def on_loaded(self, loaded: Loaded) -> None:
        if known := self._fleet.known.get(loaded.spec_id):
            self._listeners.loaded(known.spec, loaded.seconds)

    def on_served(self, served: Served) -> None:
        self._listeners.served(served)

    # --- what is observed ---

    def stats(self, spec_id: str) -> DeploymentStats | None:
        known = self._fleet.known.get(spec_id)
        if known is None:
            return None
        told = [
            stats
            for node in self._fleet.nodes.values()
            if (stats := node.stats.get(spec_id)) is not None
        ]
        return stats_of(
            known.spec,
            told,
            running=known.running,
            is_awaited=known.is_taking or self._fleet.wanted(known) > 0,
            problem=self._fleet.why_waits(known),
            is_hopeless=self._places,
        )

    def machine(self) -> MachineStats:
        return machine_of([one.machine for one in self._connected()])

    def nodes(self) -> Sequence[NodeStats]:
        return self._fleet.observed()

    def at_work(self, besides: str) -> bool:
        return any(
            node.calls(spec_id)
            for node in self._connected()
            for spec_id in {*node.outstanding, *node.stats} - {besides}
        )

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        """Node by node."""

        async def told(node: NodeClient) -> list[str]:
            try:
                return await node.tail(deployment_id, limit)
            except NodeLostError:
                return []

        found = await asyncio.gather(*(told(one) for one in self._connected()))
        return [line for lines in found for line in lines][-limit:]

    def why_not_ready(self) -> str | None:
        nodes = self._connected()
        if not nodes:
            return "No node is connected that could run replicas."
        if not any(one.is_ready for one in nodes):
            return "The nodes' engine hosts are still importing their libraries."
        return None

    def check(self) -> str | None:
        return self._fleet.problem

    # --- small things ---

    def _connected(self) -> list[NodeClient]:
        return [one for one in self._fleet.nodes.values() if one.is_connected]

    def _find(self, spec_id: str) -> TrackedSpec:
        known = self._fleet.known.get(spec_id)
        if known is None:
            raise _unknown()
        return known

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _load(node: NodeClient, spec_id: str) -> Load:
    stats = node.stats.get(spec_id)
    ready = sum(one.status is Status.READY for one in stats.replicas) if stats else 0
    return Load(
        node_id=node.id,
        outstanding=node.calls(spec_id),
        ready=ready,
        has_failed=stats is not None and stats.status is Status.FAILED,
    )


def _unknown() -> NotFoundError:
    return NotFoundError("Deployment not found", code="deployment_not_found")


def _lost() -> CapacityError:
    return CapacityError(
        "The node that worked on this request was lost. Others are unaffected.",
        code="worker_lost",
        retry_after_s=1,
    )


def with_ray(
    settings: Settings, folders: ModelLocator, unfunded: Callable[[], Collection[str]]
) -> NodesRuntime:
    """Where Ray places the leases (`stoker.runtime.ray`)."""
    return NodesRuntime(settings, folders, unfunded, places=False)
