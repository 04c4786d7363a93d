"""What one gateway knows of the fleet: what is to run, which nodes there are, and the leases."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.base.ids import Prefix, is_a
from stoker.runtime.graphics import graphics_of
from stoker.runtime.nodes import leases
from stoker.runtime.nodes.leases import NodeLease, Watch
from stoker.runtime.nodes.node_client import NodeClient, NodeObserver
from stoker.runtime.nodes.observing import node_of
from stoker.runtime.nodes.placing import Place, chosen, shares, why_none
from stoker.runtime.observed import NodeStats
from stoker.runtime.pool.state import Changes
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.db import Database
from stoker.store.secret import ServerSecret
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two readings of nodes and leases."""
_PLACED_S = (0.005, 0.01, 0.01, 0.02, 0.02, 0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.5)
"""Between looks for what somebody else places."""
SEEK_S = 0.25
"""Between two tries to find a node for what could not be placed: calls that wait ask all the time.
"""
CONNECT_S = 3.0
"""How long the start waits for nodes that are there: a server that is ready can answer."""


@dataclass(eq=False)
class TrackedSpec:
    """What is to run, or to be ready to."""

    spec: DeploymentSpec
    running: bool
    taking: "asyncio.Task[None] | None" = None
    """A lease is being taken."""
    problem: str = ""
    """Why there is none."""
    sought_at: float = 0.0
    """Not enough leases could be had then: it is not tried again at once."""

    @property
    def is_taking(self) -> bool:
        return self.taking is not None and not self.taking.done()

    @property
    def most_nodes(self) -> int:
        """On how many it may run."""
        return max(1, self.spec.max_replicas, self.spec.min_replicas)

    @property
    def least_nodes(self) -> int:
        """On how many it is to stay loaded, as long as that is paid for."""
        spec = self.spec
        least = max(spec.min_replicas, 1 if spec.readiness.stays_loaded else 0)
        return least if self.running else 0


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
            hearer: of what nodes tell, once this has taken it in.
            unfunded: the accounts for which nothing is kept loaded.
            places: leases are of the nodes that are chosen here; else somebody else places them.
        """
        self.nodes: dict[str, NodeClient] = {}
        self.known: dict[str, TrackedSpec] = {}
        self.changes = Changes()
        """Of anything here."""
        self.problem: str | None = None
        """Why nothing can be known of it now."""
        self._database = database
        self._secret = secret
        self._hearer = hearer
        self._unfunded = unfunded
        self._are_wishes = not places
        self._watch = Watch(database)
        self._leases: dict[str, list[NodeLease]] = {}
        self._stays_loaded: set[str] = set()
        """What is to be on some node always."""
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Waits a moment for connections to the nodes that are there."""
        await self._secret.agree(self._database)
        await self.look()
        self._spawn(repeated(self.look, LOOK_S, "reading what nodes there are"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_S
        while any(not one.is_connected for one in self.nodes.values()):
            if (remaining := deadline - loop.time()) <= 0:
                break
            await self.changes.wait(remaining)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self.nodes.values()))
        await self._database.close()

    async def look(self) -> None:
        """Bring nodes and leases up to what the database says."""
        try:
            records, held = await self._watch.look()
        except Exception:
            self.problem = "The database does not tell which nodes there are."
            raise
        self.problem = None
        there = {record.id: record for record in records}
        for node_id, node in [*self.nodes.items()]:
            record = there.get(node_id)
            if record is None or record.certificate != node.record.certificate:
                del self.nodes[node_id]
                await node.close()
        for record in records:
            if record.id in self.nodes:
                self.nodes[record.id].record = record
            else:
                server_id = self._database.server_id
                self.nodes[record.id] = NodeClient(record, self._secret, server_id, self._hearer)
        found: dict[str, list[NodeLease]] = {}
        for one in held:
            found.setdefault(one.spec_id, []).append(one)
        for spec_id in {*self._leases, *found}:
            known = self.known.get(spec_id)
            if known is None or not known.is_taking:
                self._learn(spec_id, found.get(spec_id, []))
        # Not all: of ten thousand deployments, most are neither loaded nor to be.
        for spec_id in self._stays_loaded | self._leases.keys():
            if known := self.known.get(spec_id):
                self._keep_leased(known)
        self.changes.notify_all()

    # --- what is to run ---

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        known = self.known.setdefault(spec.id, TrackedSpec(spec, running))
        known.spec, known.running, known.problem = spec, running, ""
        if known.least_nodes:
            self._stays_loaded.add(spec.id)
        else:
            self._stays_loaded.discard(spec.id)
        # Also where nothing is new: what has failed is tried again then.
        for held in self.held(spec.id):
            self.put(held, is_change=True)
        self._keep_leased(known)
        self.changes.notify_all()

    async def forget(self, spec_id: str) -> list[NodeClient]:
        """It is to run nowhere any more. Returns the nodes that may have it."""
        known = self.known.pop(spec_id, None)
        self._stays_loaded.discard(spec_id)
        if known and known.taking:
            known.taking.cancel()
        self.changes.notify_all()
        leased = {one.node_id for one in self.held(spec_id)}
        there = [
            one
            for one in self.nodes.values()
            if one.is_connected and (one.id in leased or spec_id in one.stats)
        ]
        await leases.revoke(self._database, spec_id)
        self._leases.pop(spec_id, None)
        return there

    async def sweep_strays(self) -> None:
        """Give back leases of deployments that were deleted by whoever was killed before that."""
        deployments = {known.spec.deployment for known in self.known.values()}
        stray = [
            held.generation
            for found in self._leases.values()
            for held in found
            # Another gateway's trial is no deployment: its node gives its lease back.
            if held.deployment_id not in deployments and not is_a(Prefix.TRIAL, held.deployment_id)
        ]
        if stray:
            await leases.give_back(self._database, stray)

    def wanted(self, known: TrackedSpec) -> int:
        """On how many nodes it is to stay loaded."""
        least = known.least_nodes
        return least if least and known.spec.account_id not in self._unfunded() else 0

    # --- leases ---

    def held(self, spec_id: str) -> list[NodeLease]:
        """The leases of a specification, the oldest first."""
        return self._leases.get(spec_id, [])

    def why_waits(self, known: TrackedSpec) -> str:
        """Why it has no lease, in words; nothing where that is not known."""
        told = (one.problem for one in self.held(known.spec.id) if one.problem)
        return known.problem or next(told, "")

    def observed(self) -> list[NodeStats]:
        """The nodes and what they have leases for, as this gateway finds them."""
        found: dict[str, list[NodeLease]] = {node_id: [] for node_id in sorted(self.nodes)}
        for held in itertools.chain.from_iterable(self._leases.values()):
            # One of a node that has come since is told of by the next reading.
            if held.node_id in found:
                found[held.node_id].append(held)
        specs = {one: self.known[one].spec for one in self._leases.keys() & self.known.keys()}
        return [
            node_of(self.nodes[node_id], sorted(held, key=lambda one: one.generation), specs)
            for node_id, held in found.items()
        ]

    def usable(self, spec_id: str) -> list[tuple[NodeClient, NodeLease]]:
        """The nodes that may run it, where this gateway reaches them."""
        return [
            (self.nodes[held.node_id], held) for held in self.held(spec_id) if self._is_usable(held)
        ]

    def _counts(self, held: NodeLease) -> bool:
        """Whether it can be used now, or once it is placed."""
        return not held.node_id or self._is_usable(held)

    def _is_usable(self, held: NodeLease) -> bool:
        node = self.nodes.get(held.node_id)
        return node is not None and node.takes_work

    def _keep_leased(self, known: TrackedSpec) -> None:
        """Take what is missing of what is to stay loaded."""
        wanted, held = min(self.wanted(known), len(self._placeable())), self.held(known.spec.id)
        if sum(self._counts(one) for one in held) < wanted:
            self.take(known, wanted, may_evict=known.spec.readiness is Readiness.HOT)
        waiting = [one for one in held if not one.node_id]
        if waiting and not known.running:
            self._spawn(self._withdraw(leases.give_back, waiting))
        elif kept := [one for one in waiting if one.is_kept and not wanted]:
            self._spawn(self._withdraw(leases.keep_no_more, kept))

    async def _withdraw(
        self, how: Callable[[Database, Sequence[int]], Awaitable[None]], held: Sequence[NodeLease]
    ) -> None:
        """What is asked of whoever places leases, and is not wanted any more."""
        try:
            await how(self._database, [one.generation for one in held])
        except Exception as error:
            # It is wanted no more at the next look, too.
            log.warning("leases could not be revoked: %s", error)

    def take(self, known: TrackedSpec, wanted: int = 1, *, may_evict: bool = True) -> None:
        """Have leases taken until there are so many, by one task for all who wait for it.

        Args:
            may_evict: whether others may have to go for it.
        """
        if not known.is_taking and self._now() - known.sought_at >= SEEK_S:
            known.taking = self._spawn(self._take(known, wanted, may_evict=may_evict))

    async def _take(self, known: TrackedSpec, wanted: int, *, may_evict: bool) -> None:
        spec = known.spec
        need, graphics = spec.memory_bytes, graphics_of(spec)

        def choose(found: Sequence[NodeLease]) -> Sequence[str]:
            taken, picked = {one.node_id for one in found}, list[str]()
            known.problem = ""
            for _ in range(wanted - sum(self._counts(one) for one in found)):
                places = [*self._places(spec, {*taken, *picked})]
                best = chosen(need, places, graphics)
                if self._are_wishes:
                    picked.append(best or "")
                elif best is not None:
                    picked.append(best)
                elif places and not found:
                    known.problem = f"'{spec.model}' {why_none(need, places, graphics)}."
            return picked

        how = {"are_wishes": self._are_wishes, "may_evict": may_evict}
        try:
            found = await leases.take(self._database, spec, choose, **how)
            self._learn(spec.id, found)
            if any(not one.node_id for one in found):
                await self._wait_placed(spec)
            if len(self.usable(spec.id)) < wanted:
                known.sought_at = self._now()
        except Exception as error:
            log.warning("lease could not be acquired: %s", error, extra={"spec": spec.id})
            await asyncio.sleep(LOOK_S)
        self.changes.notify_all()

    async def _wait_placed(self, spec: DeploymentSpec) -> None:
        """Wait a moment: the leases of those who are there are placed at once, where there is room.
        Later ones are found by `look`."""
        await leases.hint(self._database)
        for delay_s in _PLACED_S:
            await asyncio.sleep(delay_s)
            async with self._database.reading() as session:
                found = await leases.leases_of(session, spec.id)
            self._learn(spec.id, found)
            if all(one.node_id for one in found):
                return

    def _placeable(self) -> list[NodeClient]:
        return [one for one in self.nodes.values() if one.takes_work]

    def _places(self, spec: DeploymentSpec, taken: Collection[str]) -> Iterator[Place]:
        """Nodes that can get one more lease, as they will be once they have loaded what they have
        leases for."""
        promised, counts = dict[str, int](), dict[str, int]()
        for spec_id, found in self._leases.items():
            known = self.known.get(spec_id)
            for held in found:
                node = self.nodes.get(held.node_id)
                stats = node.stats.get(spec_id) if node else None
                counts[held.node_id] = counts.get(held.node_id, 0) + 1
                if known and not (stats and stats.replicas):
                    need = promised.get(held.node_id, 0) + known.spec.memory_bytes
                    promised[held.node_id] = need
        for one in self._placeable():
            if one.id not in taken:
                yield Place(
                    node_id=one.id,
                    budget_bytes=one.machine.budget_bytes,
                    claimed_bytes=one.machine.held_bytes + promised.get(one.id, 0),
                    leases=counts.get(one.id, 0),
                    has_files=spec.source in one.sources,
                    devices={
                        device.index: max(0, device.budget_bytes - device.held_bytes)
                        for device in one.machine.devices
                        if device.budget_bytes
                    },
                )

    def reserved_besides(self, node: NodeClient, spec_id: str) -> int:
        """What a node keeps for `hot` deployments but this one, bytes."""
        part = self._part(spec_id, node.id)
        is_counted = part is not None and part.readiness is Readiness.HOT
        own = part.memory_bytes * max(1, part.min_replicas) if part and is_counted else 0
        return max(0, node.machine.reserved_bytes - own)

    def _part(self, spec_id: str, node_id: str) -> DeploymentSpec | None:
        """What a node is to run of a specification: its share of the replicas."""
        known = self.known.get(spec_id)
        ids = [one.node_id for one in self.held(spec_id)]
        if known is None or node_id not in ids:
            return None
        at, spec = ids.index(node_id), known.spec
        return replace(
            spec,
            min_replicas=shares(spec.min_replicas, len(ids))[at],
            max_replicas=max(1, shares(known.most_nodes, len(ids))[at]),
        )

    def put(self, held: NodeLease, *, is_change: bool) -> None:
        """Tell a node what it has a lease for."""
        node, part = self.nodes.get(held.node_id), self._part(held.spec_id, held.node_id)
        if node and part:
            running = self.known[held.spec_id].running
            node.put(part, running=running, generation=held.generation, is_change=is_change)

    def put_all(self, node: NodeClient) -> None:
        """Tell a node that has come all that it has leases for."""
        for found in self._leases.values():
            for held in found:
                if held.node_id == node.id:
                    self.put(held, is_change=False)

    def _learn(self, spec_id: str, found: list[NodeLease]) -> None:
        """The leases of a specification as they are now."""
        before = self.held(spec_id)
        if found == before:
            return
        if found:
            self._leases[spec_id] = found
        else:
            del self._leases[spec_id]
        # Where their number has changed, so has what each is to run.
        is_change = len(found) != len(before)
        for held in found:
            self.put(held, is_change=is_change)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
