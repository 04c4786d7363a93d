"""State of the fleet as seen by one gateway: specifications, nodes and leases."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stoker.base.ids import Prefix, is_a
from stoker.runtime.graphics import graphics_of
from stoker.runtime.nodes import leases
from stoker.runtime.nodes.leases import LeaseWatch, NodeLease
from stoker.runtime.nodes.node_client import NodeClient, NodeObserver
from stoker.runtime.nodes.observing import node_of
from stoker.runtime.nodes.placing import Place, chosen, shares, why_none
from stoker.runtime.nodes.tracked_spec import TrackedSpec
from stoker.runtime.observed import MIG, NodeStats
from stoker.runtime.pool.state import ChangeSignal
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two polls of nodes and leases."""
_PLACED_S = (0.005, 0.01, 0.01, 0.02, 0.02, 0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.5)
"""Delays in seconds between polls for leases that the placer places."""
CONNECT_S = 3.0
"""Maximum seconds that the start waits for connections to existing nodes, so that a ready server
can answer.
"""


class Fleet:
    def __init__(
        self,
        database: Database,
        secret: ServerSecret,
        hearer: NodeObserver,
        unfunded: Callable[[], Collection[str]],
        *,
        places: bool = True,
    ) -> None:
        """
        Args:
            hearer: is notified of nodes' messages after the fleet has processed them.
            unfunded: returns the accounts for which no replica is kept loaded.
            places: True if this gateway chooses the nodes. False if a placer does.
        """
        self.nodes: dict[str, NodeClient] = {}
        self.known: dict[str, TrackedSpec] = {}
        self.changes = ChangeSignal()
        """Notified of every change of the fleet."""
        self.problem: str | None = None
        """Reason that the state of the fleet cannot be read now."""
        self._database = database
        self._secret = secret
        self._hearer = hearer
        self._unfunded = unfunded
        self._are_wishes = not places
        self._watch = LeaseWatch(database)
        self._leases: dict[str, list[NodeLease]] = {}
        self._stays_loaded: set[str] = set()
        """Specifications that always stay loaded on some node."""
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts polling. Waits a moment for connections to the existing nodes."""
        await self._secret.agree(self._database)
        await self.look()
        self._spawn(repeated(self.look, LOOK_S, "reading what nodes there are"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_S
        while any(not node.is_connected for node in self.nodes.values()):
            if (remaining := deadline - loop.time()) <= 0:
                break
            await self.changes.wait(remaining)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self.nodes.values()))
        await self._database.close()

    async def look(self) -> None:
        """Updates nodes and leases from the database."""
        try:
            records, node_leases = await self._watch.look()
        except Exception:
            self.problem = "The nodes cannot be read from the database."
            raise
        self.problem = None
        records_by_id = {record.id: record for record in records}
        for node_id, node in [*self.nodes.items()]:
            record = records_by_id.get(node_id)
            if record is None or record.certificate != node.record.certificate:
                del self.nodes[node_id]
                await node.close()
        for record in records:
            if record.id in self.nodes:
                self.nodes[record.id].update_record(record)
            else:
                server_id = self._database.server_id
                self.nodes[record.id] = NodeClient(record, self._secret, server_id, self._hearer)
        leases_by_spec: dict[str, list[NodeLease]] = {}
        for lease in node_leases:
            leases_by_spec.setdefault(lease.spec_id, []).append(lease)
        for spec_id in {*self._leases, *leases_by_spec}:
            known = self.known.get(spec_id)
            if known is None or not known.is_taking:
                self._learn(spec_id, leases_by_spec.get(spec_id, []))
        # Check only these: of ten thousand deployments, most are neither loaded nor required to be.
        for spec_id in self._stays_loaded | self._leases.keys():
            if known := self.known.get(spec_id):
                self._keep_leased(known)
        self.changes.notify_all()

    # --- specifications ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        known = self.known.setdefault(spec.id, TrackedSpec(spec, running))
        known.update(spec, running=running)
        if known.least_nodes:
            self._stays_loaded.add(spec.id)
        else:
            self._stays_loaded.discard(spec.id)
        # Even without a change, because a failed load is then retried.
        for lease in self.held(spec.id):
            self.put(lease, is_change=True)
        self._keep_leased(known)
        self.changes.notify_all()

    async def forget(self, spec_id: str) -> list[NodeClient]:
        """Removes a specification from the fleet. Returns the nodes that may run it."""
        known = self.known.pop(spec_id, None)
        self._stays_loaded.discard(spec_id)
        if known and known.taking:
            known.taking.cancel()
        self.changes.notify_all()
        leased = {one.node_id for one in self.held(spec_id)}
        connected_nodes = [
            one
            for one in self.nodes.values()
            if one.is_connected and (one.id in leased or spec_id in one.stats)
        ]
        await leases.revoke(self._database, spec_id)
        self._leases.pop(spec_id, None)
        return connected_nodes

    async def sweep_strays(self) -> None:
        """Releases leases of deployments that were deleted by a server that was killed before it
        could do so.
        """
        deployments = {known.spec.deployment for known in self.known.values()}
        stray = [
            lease.generation
            for spec_leases in self._leases.values()
            for lease in spec_leases
            # Another gateway's trial has no deployment here. Its node releases the lease.
            if lease.deployment_id not in deployments
            and not is_a(Prefix.TRIAL, lease.deployment_id)
        ]
        if stray:
            await leases.give_back(self._database, stray)

    def wanted(self, known: TrackedSpec) -> int:
        """Returns the number of nodes on which a specification has to stay loaded."""
        least = known.least_nodes
        return least if least and known.spec.account_id not in self._unfunded() else 0

    # --- leases ---

    def held(self, spec_id: str) -> list[NodeLease]:
        """Returns the leases of a specification, oldest first."""
        return self._leases.get(spec_id, [])

    def why_waits(self, known: TrackedSpec) -> str:
        """Returns why a specification has no lease, in words. Empty if unknown."""
        problems = (lease.problem for lease in self.held(known.spec.id) if lease.problem)
        return known.problem or next(problems, "")

    def observed(self) -> list[NodeStats]:
        """Returns the nodes and their leases, as seen by this gateway."""
        leases_by_node: dict[str, list[NodeLease]] = {node_id: [] for node_id in sorted(self.nodes)}
        for held in itertools.chain.from_iterable(self._leases.values()):
            # Leases of a node that joined since appear with the next poll.
            if held.node_id in leases_by_node:
                leases_by_node[held.node_id].append(held)
        specs = {one: self.known[one].spec for one in self._leases.keys() & self.known.keys()}
        return [
            node_of(self.nodes[node_id], sorted(held, key=lambda one: one.generation), specs)
            for node_id, held in leases_by_node.items()
        ]

    def usable(self, spec_id: str) -> list[tuple[NodeClient, NodeLease]]:
        """Returns the nodes that may run a specification and are reachable, with their leases."""
        return [
            (self.nodes[lease.node_id], lease)
            for lease in self.held(spec_id)
            if self._is_usable(lease)
        ]

    def _counts(self, held: NodeLease) -> bool:
        """Returns True if a lease can be used now, or once it is placed."""
        return not held.node_id or self._is_usable(held)

    def _is_usable(self, held: NodeLease) -> bool:
        node = self.nodes.get(held.node_id)
        return node is not None and node.takes_work

    def _keep_leased(self, known: TrackedSpec) -> None:
        """Acquires missing leases of a specification that stays loaded, and withdraws unneeded
        ones.
        """
        wanted_count, spec_leases = (
            min(self.wanted(known), len(self._placeable())),
            self.held(known.spec.id),
        )
        if sum(self._counts(lease) for lease in spec_leases) < wanted_count:
            self.take(known, wanted_count, may_evict=known.spec.readiness is Readiness.HOT)
        waiting = [lease for lease in spec_leases if not lease.node_id]
        if waiting and not known.running:
            self._spawn(self._withdraw(leases.give_back, waiting))
        elif unneeded := [lease for lease in waiting if lease.is_kept and not wanted_count]:
            self._spawn(self._withdraw(leases.keep_no_more, unneeded))

    async def _withdraw(
        self, how: Callable[[Database, Sequence[int]], Awaitable[None]], held: Sequence[NodeLease]
    ) -> None:
        """Withdraws requests to the placer that are no longer wanted."""
        try:
            await how(self._database, [lease.generation for lease in held])
        except Exception as error:
            # The next poll withdraws them again.
            log.warning("leases could not be revoked: %s", error)

    def take(self, known: TrackedSpec, wanted: int = 1, *, may_evict: bool = True) -> None:
        """Starts to acquire leases up to the wanted number. One task serves all waiting callers.

        Args:
            may_evict: True if other replicas may be evicted for it.
        """
        if known.may_take(self._now()):
            known.begin_taking(self._spawn(self._take(known, wanted, may_evict=may_evict)))

    async def _take(self, known: TrackedSpec, wanted: int, *, may_evict: bool) -> None:
        spec = known.spec
        need, graphics = spec.memory_bytes, graphics_of(spec)

        def choose(found: Sequence[NodeLease]) -> Sequence[str]:
            used_nodes, picked = {lease.node_id for lease in found}, list[str]()
            known.report_problem("")
            for _ in range(wanted - sum(self._counts(lease) for lease in found)):
                places = [*self._places(spec, {*used_nodes, *picked})]
                best = chosen(need, places, graphics)
                if self._are_wishes:
                    picked.append(best or "")
                elif best is not None:
                    picked.append(best)
                elif places and not found:
                    known.report_problem(f"'{spec.model}' {why_none(need, places, graphics)}.")
            return picked

        how = {"are_wishes": self._are_wishes, "may_evict": may_evict}
        try:
            spec_leases = await leases.take(self._database, spec, choose, **how)
            self._learn(spec.id, spec_leases)
            if any(not lease.node_id for lease in spec_leases):
                await self._wait_placed(spec)
            if len(self.usable(spec.id)) < wanted:
                known.mark_sought(self._now())
        except Exception as error:
            log.warning("lease could not be acquired: %s", error, extra={"spec": spec.id})
            await asyncio.sleep(LOOK_S)
        self.changes.notify_all()

    async def _wait_placed(self, spec: DeploymentSpec) -> None:
        """Waits briefly for the placement. A running placer places leases at once if room is free.
        Later placements are found by `look`.
        """
        await leases.hint(self._database)
        for delay_s in _PLACED_S:
            await asyncio.sleep(delay_s)
            async with self._database.reading() as session:
                spec_leases = await leases.leases_of(session, spec.id)
            self._learn(spec.id, spec_leases)
            if all(lease.node_id for lease in spec_leases):
                return

    def _placeable(self) -> list[NodeClient]:
        return [node for node in self.nodes.values() if node.takes_work]

    def _places(self, spec: DeploymentSpec, taken: Collection[str]) -> Iterator[Place]:
        """Yields the nodes that can get another lease. Their claims include the specifications that
        they have leases for but have not loaded yet.
        """
        promised, counts = dict[str, int](), dict[str, int]()
        for spec_id, spec_leases in self._leases.items():
            known = self.known.get(spec_id)
            for lease in spec_leases:
                node = self.nodes.get(lease.node_id)
                stats = node.stats.get(spec_id) if node else None
                counts[lease.node_id] = counts.get(lease.node_id, 0) + 1
                if known and not (stats and stats.replicas):
                    need = promised.get(lease.node_id, 0) + known.spec.memory_bytes
                    promised[lease.node_id] = need
        for candidate in self._placeable():
            if candidate.id not in taken:
                yield Place(
                    node_id=candidate.id,
                    budget_bytes=candidate.machine.budget_bytes,
                    claimed_bytes=candidate.machine.held_bytes + promised.get(candidate.id, 0),
                    leases=counts.get(candidate.id, 0),
                    has_files=spec.source in candidate.sources,
                    devices={
                        device.index: max(0, device.budget_bytes - device.held_bytes)
                        for device in candidate.machine.devices
                        if device.budget_bytes
                    },
                    parts=[
                        device.index
                        for device in candidate.machine.devices
                        if device.uuid.startswith(MIG)
                    ],
                )

    def reserved_besides(self, node: NodeClient, spec_id: str) -> int:
        """Returns the bytes that a node reserves for other `hot` deployments."""
        part = self._part(spec_id, node.id)
        is_counted = part is not None and part.readiness is Readiness.HOT
        own_size = part.memory_bytes * max(1, part.min_replicas) if part and is_counted else 0
        return max(0, node.machine.reserved_bytes - own_size)

    def _part(self, spec_id: str, node_id: str) -> DeploymentSpec | None:
        """Returns the specification with a node's share of the replicas. None if the node has no
        lease.
        """
        known = self.known.get(spec_id)
        ids = [lease.node_id for lease in self.held(spec_id)]
        if known is None or node_id not in ids:
            return None
        at, spec = ids.index(node_id), known.spec
        return replace(
            spec,
            min_replicas=shares(spec.min_replicas, len(ids))[at],
            max_replicas=max(1, shares(known.most_nodes, len(ids))[at]),
        )

    def put(self, held: NodeLease, *, is_change: bool) -> None:
        """Sends a node the specification of its lease."""
        node, part = self.nodes.get(held.node_id), self._part(held.spec_id, held.node_id)
        if node and part:
            running = self.known[held.spec_id].running
            node.put(part, running=running, generation=held.generation, is_change=is_change)

    def put_all(self, node: NodeClient) -> None:
        """Sends a newly connected node the specifications of all its leases."""
        for spec_leases in self._leases.values():
            for lease in spec_leases:
                if lease.node_id == node.id:
                    self.put(lease, is_change=False)

    def _learn(self, spec_id: str, found: list[NodeLease]) -> None:
        """Stores the current leases of a specification and informs its nodes."""
        before = self.held(spec_id)
        if found == before:
            return
        if found:
            self._leases[spec_id] = found
        else:
            del self._leases[spec_id]
        # If the number of leases changed, each node's share changed too.
        is_change = len(found) != len(before)
        for lease in found:
            self.put(lease, is_change=is_change)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
