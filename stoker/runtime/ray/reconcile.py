"""What is to be done so that Ray has a placement group for each lease: pure functions.

A placement group is the lease of a node's memory; a row of the table `leases` is what servers and
nodes go by. Rows are what is wanted, groups follow them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.runtime.amounts import in_words

UNIT = 16 << 20
"""What is asked of Ray is a multiple of so many bytes: a measurement that differs by less changes
nothing."""
WAITING_S = 600.0
"""How long a lease waits for room that nothing is to be kept loaded with: whoever has called it is
gone by then, or takes another one."""
MISSING_S = 60.0
"""How long a lease lasts whose node Ray does not have, or has no room on: it may come back, as
after the loss of the head."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A lease as the database has it."""

    generation: int
    spec_id: str
    node_id: str | None
    """None: it waits to be placed."""
    memory_bytes: int
    needs_device: bool = False
    """Whether its node is to have a graphics device."""
    prefers: str | None = None
    may_evict: bool = True
    is_kept: bool = False
    idle_s: float | None = None
    """For how long nobody has called it; None: it may not be taken away."""
    age_s: float = 0.0
    problem: str | None = None

    @property
    def size(self) -> int:
        """What is asked of Ray, bytes."""
        return max(1, math.ceil(self.memory_bytes / UNIT)) * UNIT


@dataclass(frozen=True, kw_only=True)
class Group:
    """A placement group as Ray has it."""

    id: str
    generation: int
    size: int
    node_id: str | None
    """Where it is; None: nowhere, as yet or again."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What Ray may give away of a node."""

    memory_bytes: int
    has_device: bool = False
    """Whether it has a graphics device."""


@dataclass(frozen=True, kw_only=True)
class Place(Machine):
    """A node that Ray has."""

    node_id: str
    is_there: bool
    """Whether its host is at work, and takes leases."""


@dataclass(frozen=True, kw_only=True)
class Create:
    """A group to be made."""

    generation: int
    size: int
    needs_device: bool = False
    on: str | None = None
    """The only node that it may be on."""
    not_on: tuple[str, ...] = ()
    prefers: str | None = None


@dataclass
class Plan:
    create: list[Create] = field(default_factory=list[Create])
    remove: list[str] = field(default_factory=list[str])
    """Groups, by id."""
    place: dict[int, str] = field(default_factory=dict[int, str])
    """Leases that have a node now."""
    drop: list[int] = field(default_factory=list[int])
    """Leases that are lost."""
    evict: list[int] = field(default_factory=list[int])
    """Leases that make room, if they are idle still."""
    problems: dict[int, str] = field(default_factory=dict[int, str])
    """Of leases, where it has changed."""

    @property
    def has_changes(self) -> bool:
        return bool(self.create or self.remove or self.place or self.drop or self.evict)


class Reconciler:
    """Remembers since when what has to be somewhere is missing there."""

    def __init__(self) -> None:
        self._missing_since: dict[int, float] = {}

    def plan(
        self, rows: Sequence[Row], groups: Sequence[Group], places: Sequence[Place], now: float
    ) -> Plan:
        """
        Args:
            now: by a clock that only goes forward, seconds.
        """
        plan, books = Plan(), _Books(rows, groups, places)
        plan.remove += [one.id for one in groups if one.generation not in books.groups]
        missing, waiting = dict[int, float](), list[Row]()
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
        for row in waiting:
            _make_room(plan, row, books)
        return plan


class _Books:
    """Who has what of which node."""

    def __init__(
        self, rows: Sequence[Row], groups: Sequence[Group], places: Sequence[Place]
    ) -> None:
        self.rows = rows
        self.places = {one.node_id: one for one in places}
        self.groups: dict[int, list[Group]] = {one.generation: [] for one in rows}
        """By lease."""
        self.taken: dict[str, set[str]] = {}
        """By specification, the nodes that have a lease of it."""
        for row in rows:
            if row.node_id is not None:
                self.taken.setdefault(row.spec_id, set()).add(row.node_id)
        self.free = {one.node_id: one.memory_bytes for one in places}
        """By node."""
        for group in groups:
            if group.generation in self.groups:
                self.groups[group.generation].append(group)
                if group.node_id in self.free:
                    self.free[group.node_id] -= group.size

    def others(self, row: Row) -> set[str]:
        """Nodes that have a lease of the same specification."""
        return self.taken.get(row.spec_id, set())

    def unfit(self, row: Row) -> set[str]:
        """Those, and where there is another one, those whose hosts are not there."""
        others = self.others(row)
        there = {one.node_id for one in self.places.values() if one.is_there}
        return others | (self.places.keys() - there) if there - others else others

    def idle(self, node_id: str) -> list[Row]:
        """Leases of a node that may be taken away: what is not kept loaded first, then who was
        called longest ago."""
        found = [one for one in self.rows if one.node_id == node_id and one.idle_s is not None]
        return sorted(found, key=lambda one: (one.is_kept, -(one.idle_s or 0.0)))


def _begin(plan: Plan, row: Row, books: _Books) -> bool:
    """A lease that has no node yet. Returns whether there is nothing that it waits for in vain."""
    own, unfit = books.groups[row.generation], books.unfit(row)
    for group in own:
        # One that was asked for at the same time may be there, too; or its host is about to end.
        if group.node_id is not None and group.node_id not in unfit:
            place = books.places.get(group.node_id)
            if place and place.is_there:
                plan.place[row.generation] = group.node_id
                books.taken.setdefault(row.spec_id, set()).add(group.node_id)
            # Else its host is about to come.
            return True
    right = [one for one in own if one.size == row.size and one.node_id is None]
    plan.remove += [one.id for one in own if one not in right]
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


def _keep(plan: Plan, row: Row, node_id: str, books: _Books) -> bool:
    """A lease that has a node. Returns whether Ray has kept its memory there."""
    own = books.groups[row.generation]
    here = [one for one in own if one.node_id == node_id]
    if here and here[0].size != row.size:
        grown = row.size - here[0].size
        if books.free.get(node_id, 0) >= grown:
            books.free[node_id] -= grown
            plan.create.append(_created_on(row, node_id))
            plan.remove += [one.id for one in own]
            return True
        # There is no room for what it takes now: it keeps what it has.
    if here:
        plan.remove += [one.id for one in own if one is not here[0]]
        return True
    # Ray may have moved it, which the replicas were not: it is to be where they are.
    on_its_way = [one for one in own if one.node_id is None and one.size == row.size]
    plan.remove += [one.id for one in own if one not in on_its_way]
    if not on_its_way:
        plan.create.append(_created_on(row, node_id))
    return False


def _created_on(row: Row, node_id: str) -> Create:
    needs_device = row.needs_device
    return Create(generation=row.generation, size=row.size, needs_device=needs_device, on=node_id)


def _make_room(plan: Plan, row: Row, books: _Books) -> None:
    """For what Ray has no room for, idle leases go: as few as can be, of one node."""
    besides, free = books.others(row), books.free
    possible = [
        one
        for one in books.places.values()
        if one.is_there and one.node_id not in besides and (one.has_device or not row.needs_device)
    ]
    roomy = max(possible, key=lambda one: free[one.node_id], default=None)
    if roomy and free[roomy.node_id] >= row.size:
        # Ray is about to find it.
        free[roomy.node_id] -= row.size
        return
    found: list[tuple[tuple[bool, int, float], str, list[Row]]] = []
    for place in possible:
        if not row.may_evict or place.memory_bytes < row.size:
            continue
        victims, room = list[Row](), free[place.node_id]
        for one in books.idle(place.node_id):
            if room < row.size and one.generation not in plan.evict:
                victims.append(one)
                room += sum(group.size for group in books.groups[one.generation])
        if room >= row.size:
            latest = min(one.idle_s or 0.0 for one in victims)
            cost = (any(one.is_kept for one in victims), len(victims), -latest)
            found.append((cost, place.node_id, victims))
    if found:
        _, node_id, victims = min(found, key=lambda one: one[:2])
        for one in victims:
            free[node_id] += sum(group.size for group in books.groups[one.generation])
        free[node_id] -= row.size
        plan.evict += [one.generation for one in victims]
        return
    problem = _why(row, possible, free)
    if row.problem != problem:
        plan.problems[row.generation] = problem


def _why(row: Row, possible: Sequence[Place], free: Mapping[str, int]) -> str:
    need = in_words(row.size)
    node = "node with a GPU" if row.needs_device else "node"
    if not possible:
        return f"Ray has no {node} that could run it, and has been asked for one."
    largest = max(one.memory_bytes for one in possible)
    if largest < row.size:
        return (
            f"It needs about {need} of memory, and the largest {node} has {in_words(largest)}. Ray "
            "has been asked for a larger one."
        )
    most = max(free[one.node_id] for one in possible)
    return (
        f"It needs about {need} of memory, and no {node} has more than {in_words(max(0, most))} "
        "that nobody uses. Ray has been asked for more."
    )
