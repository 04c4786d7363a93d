"""Plans how Ray gets a placement group for each lease: pure functions.

A placement group is Ray's lease of a node's memory. Servers and nodes rely on the rows of the table
`leases`. Rows are the wanted state, and groups follow them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.runtime.amounts import in_words

UNIT = 16 << 20
"""Unit in bytes of requests to Ray. Measurements that differ by less change nothing."""
WAITING_S = 600.0
"""Maximum seconds that a lease without `is_kept` waits for room. By then its caller has left, or
acquires another lease.
"""
MISSING_S = 60.0
"""Seconds that a lease lasts while Ray does not have its node, or has no room on it. The node may
return, such as after the loss of Ray's head.
"""

OVERDUE_S = 10.0
"""Seconds after which a group is created again that Ray does not place although a node has room.
Ray retries a group that fits no node only when a node joins. It misses the node if an attempt is
under way at that moment.
"""


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """A lease as stored in the database."""

    generation: int
    spec_id: str
    node_id: str | None
    """Id of the node. None while the lease waits to be placed."""
    memory_bytes: int
    needs_device: bool = False
    """True if its node must have a GPU."""
    prefers: str | None = None
    may_evict: bool = True
    is_kept: bool = False
    idle_s: float | None = None
    """Seconds since the last call. None means that the lease may not be withdrawn."""
    age_s: float = 0.0
    problem: str | None = None

    @property
    def size(self) -> int:
        """Bytes that are requested from Ray."""
        return max(1, math.ceil(self.memory_bytes / UNIT)) * UNIT


@dataclass(frozen=True, kw_only=True)
class Group:
    """A placement group as stored in Ray."""

    id: str
    generation: int
    size: int
    node_id: str | None
    """Id of its node. None if it is not placed, or no longer placed."""


@dataclass(frozen=True, kw_only=True)
class NodeResources:
    """Resources of a node that Ray may allocate."""

    memory_bytes: int
    has_device: bool = False
    """True if the node has a GPU."""


@dataclass(frozen=True, kw_only=True)
class RayNode(NodeResources):
    """A node that Ray knows."""

    node_id: str
    is_there: bool
    """True if its node host runs and accepts leases."""


@dataclass(frozen=True, kw_only=True)
class Create:
    """A placement group to create."""

    generation: int
    size: int
    needs_device: bool = False
    on: str | None = None
    """The only node that it may be placed on."""
    not_on: tuple[str, ...] = ()
    prefers: str | None = None


@dataclass
class PlacementPlan:
    create: list[Create] = field(default_factory=list[Create])
    remove: list[str] = field(default_factory=list[str])
    """Ids of groups to remove."""
    place: dict[int, str] = field(default_factory=dict[int, str])
    """Maps each lease that has a node now to that node."""
    drop: list[int] = field(default_factory=list[int])
    """Leases that are lost."""
    evict: list[int] = field(default_factory=list[int])
    """Leases to evict if they are still idle."""
    problems: dict[int, str] = field(default_factory=dict[int, str])
    """Maps leases to their changed problems."""

    @property
    def has_changes(self) -> bool:
        return bool(self.create or self.remove or self.place or self.drop or self.evict)


class Reconciler:
    """Plans changes. Remembers since when leases are missing in Ray, or could be placed."""

    def __init__(self) -> None:
        self._missing_since: dict[int, float] = {}
        self._room_since: dict[int, float] = {}

    def plan(
        self,
        rows: Sequence[LeaseRow],
        groups: Sequence[Group],
        places: Sequence[RayNode],
        now: float,
    ) -> PlacementPlan:
        """
        Args:
            now: time of a monotonic clock in seconds.
        """
        plan, books = PlacementPlan(), _Books(rows, groups, places)
        plan.remove += [one.id for one in groups if one.generation not in books.groups]
        missing, waiting = dict[int, float](), list[LeaseRow]()
        for row in sorted(rows, key=lambda one: one.generation):
            if row.node_id is not None:
                if not _keep(plan, row, row.node_id, books):
                    since = missing[row.generation] = self._missing_since.get(row.generation, now)
                    if now - since > MISSING_S:
                        plan.drop.append(row.generation)
            elif row.age_s > WAITING_S and not row.is_kept:
                plan.drop.append(row.generation)
            elif not _begin(plan, row, books):
                waiting.append(row)
        self._missing_since = missing
        has_room = [row.generation for row in waiting if _make_room(plan, row, books)]
        self._room_since = {
            generation: self._room_since.get(generation, now) for generation in has_room
        }
        for generation, since in list(self._room_since.items()):
            if now - since > OVERDUE_S:
                # The next plan creates the group again.
                plan.remove += [group.id for group in books.groups[generation]]
                del self._room_since[generation]
        return plan


class _Books:
    """Allocation of the nodes' memory."""

    def __init__(
        self, rows: Sequence[LeaseRow], groups: Sequence[Group], places: Sequence[RayNode]
    ) -> None:
        self.rows = rows
        self.places = {one.node_id: one for one in places}
        self.groups: dict[int, list[Group]] = {one.generation: [] for one in rows}
        """Groups by lease."""
        self.taken: dict[str, set[str]] = {}
        """Maps a specification to the nodes that have a lease of it."""
        for row in rows:
            if row.node_id is not None:
                self.taken.setdefault(row.spec_id, set()).add(row.node_id)
        self.free = {one.node_id: one.memory_bytes for one in places}
        """Free bytes by node."""
        for group in groups:
            if group.generation in self.groups:
                self.groups[group.generation].append(group)
                if group.node_id in self.free:
                    self.free[group.node_id] -= group.size

    def others(self, row: LeaseRow) -> set[str]:
        """Returns the nodes that have a lease of the same specification."""
        return self.taken.get(row.spec_id, set())

    def unfit(self, row: LeaseRow) -> set[str]:
        """Returns the nodes that have a lease of the same specification. Adds nodes without a
        running host, if another node is possible.
        """
        other_nodes = self.others(row)
        running = {place.node_id for place in self.places.values() if place.is_there}
        return (
            other_nodes | (self.places.keys() - running) if running - other_nodes else other_nodes
        )

    def idle(self, node_id: str) -> list[LeaseRow]:
        """Returns the leases of a node that may be withdrawn. Leases that are not kept loaded come
        first, then the least recently called ones.
        """
        idle_rows = [row for row in self.rows if row.node_id == node_id and row.idle_s is not None]
        return sorted(idle_rows, key=lambda row: (row.is_kept, -(row.idle_s or 0.0)))


def _begin(plan: PlacementPlan, row: LeaseRow, books: _Books) -> bool:
    """Requests a group for a lease without a node. Returns False if the lease is blocked on
    capacity.
    """
    own_groups, unfit = books.groups[row.generation], books.unfit(row)
    for group in own_groups:
        # A lease requested at the same time may be on that node too, or its host is about to end.
        if group.node_id is not None and group.node_id not in unfit:
            place = books.places.get(group.node_id)
            if place and place.is_there:
                plan.place[row.generation] = group.node_id
                books.taken.setdefault(row.spec_id, set()).add(group.node_id)
            # Otherwise its host is about to start.
            return True
    right = [
        candidate
        for candidate in own_groups
        if candidate.size == row.size and candidate.node_id is None
    ]
    plan.remove += [candidate.id for candidate in own_groups if candidate not in right]
    if right:
        return False
    plan.create.append(
        Create(
            generation=row.generation,
            size=row.size,
            needs_device=row.needs_device,
            not_on=tuple(sorted(unfit)),
            prefers=row.prefers if row.prefers in books.places else None,
        )
    )
    return True


def _keep(plan: PlacementPlan, row: LeaseRow, node_id: str, books: _Books) -> bool:
    """Maintains the group of a lease with a node. Returns True if Ray has kept its memory there."""
    own_groups = books.groups[row.generation]
    here = [group for group in own_groups if group.node_id == node_id]
    if here and here[0].size != row.size:
        grown = row.size - here[0].size
        if books.free.get(node_id, 0) >= grown:
            books.free[node_id] -= grown
            plan.create.append(_created_on(row, node_id))
            plan.remove += [group.id for group in own_groups]
            return True
        # No room for the new size: the lease keeps its group.
    if here:
        plan.remove += [group.id for group in own_groups if group is not here[0]]
        return True
    # Ray may have moved the group, but not the replicas. The group must return to their node.
    on_its_way = [group for group in own_groups if group.node_id is None and group.size == row.size]
    plan.remove += [group.id for group in own_groups if group not in on_its_way]
    if not on_its_way:
        plan.create.append(_created_on(row, node_id))
    return False


def _created_on(row: LeaseRow, node_id: str) -> Create:
    needs_device = row.needs_device
    return Create(generation=row.generation, size=row.size, needs_device=needs_device, on=node_id)


def _make_room(plan: PlacementPlan, row: LeaseRow, books: _Books) -> bool:
    """Evicts idle leases of one node, as few as possible, for a lease that Ray has no room for.

    Returns True if a node has room already, so that Ray should place the lease.
    """
    besides, free = books.others(row), books.free
    possible = [
        one
        for one in books.places.values()
        if one.is_there and one.node_id not in besides and (one.has_device or not row.needs_device)
    ]
    roomy = max(possible, key=lambda one: free[one.node_id], default=None)
    if roomy and free[roomy.node_id] >= row.size:
        free[roomy.node_id] -= row.size
        return True
    options: list[tuple[tuple[bool, int, float], str, list[LeaseRow]]] = []
    for place in possible:
        if not row.may_evict or place.memory_bytes < row.size:
            continue
        victims, room = list[LeaseRow](), free[place.node_id]
        for one in books.idle(place.node_id):
            if room < row.size and one.generation not in plan.evict:
                victims.append(one)
                room += sum(group.size for group in books.groups[one.generation])
        if room >= row.size:
            latest = min(one.idle_s or 0.0 for one in victims)
            cost = (any(one.is_kept for one in victims), len(victims), -latest)
            options.append((cost, place.node_id, victims))
    if options:
        _, node_id, victims = min(options, key=lambda one: one[:2])
        for one in victims:
            free[node_id] += sum(group.size for group in books.groups[one.generation])
        free[node_id] -= row.size
        plan.evict += [one.generation for one in victims]
        return False
    problem = _why(row, possible, free)
    if row.problem != problem:
        plan.problems[row.generation] = problem
    return False


def _why(row: LeaseRow, possible: Sequence[RayNode], free: Mapping[str, int]) -> str:
    need = in_words(row.size)
    node = "node with a GPU" if row.needs_device else "node"
    if not possible:
        return f"Ray has no {node} that could run it. A new one was requested."
    largest = max(place.memory_bytes for place in possible)
    if largest < row.size:
        return (
            f"It needs about {need} of memory, but the largest {node} has {in_words(largest)}. "
            "A larger one was requested from Ray."
        )
    most = max(free[place.node_id] for place in possible)
    return (
        f"It needs about {need} of memory, but no {node} has more than "
        f"{in_words(max(0, most))} free. More was requested from Ray."
    )
