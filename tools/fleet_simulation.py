"""A fleet larger than any machine of ours: which calls find their model loaded, how long the others
wait, and what memory that costs. Leases are placed and calls sent by the code that does it in
earnest (`stoker/runtime/nodes/placing.py`); times and sizes are given, and docs/scale.md says where
they were measured.

`python -m tools.fleet_simulation` prints the tables of docs/scale.md.
"""

import argparse
import heapq
import itertools
import json
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stoker.runtime.nodes.placing import Load, Place, chosen, least_busy

GIB = 1 << 30
SCALE_UP_AT = 16
"""Calls a replica, from which on another node is asked for one more."""


@dataclass(frozen=True)
class Kind:
    """A kind of model."""

    name: str
    share: float
    """Of the deployments."""
    bytes: int
    service_s: float
    """Of a call alone."""
    slots: int
    """Calls that share its passes, so that all of them take hardly longer than one."""
    load_s: float
    """From the fork to ready, with the files there."""
    fetch_s: float
    """More, where they come from the store."""


KINDS = (
    Kind("tiny", 0.5, 60 << 20, 0.002, 16, 0.25, 0.1),
    Kind("encoder", 0.35, 700 << 20, 0.04, 8, 0.5, 4.4),
    Kind("chat", 0.15, 900 << 20, 1.1, 16, 1.5, 2.7),
)


@dataclass(frozen=True)
class Scene:
    name: str
    deployments: int = 1000
    nodes: int = 100
    node_bytes: int = 8 * GIB
    calls_per_s: float = 40.0
    zipf: float = 1.0
    """Exponent of the popularity of deployments."""
    warm: int = 0
    """How many, the most popular, stay loaded while memory allows."""
    idle_s: float = 300.0
    most_replicas: int = 4
    seconds: float = 1800.0
    settled_s: float = 600.0
    """What is before does not count: nothing was loaded."""
    lost: int = 0
    """Nodes that go at once, half way through what counts."""
    is_random: bool = False
    """Whether nodes are drawn, in place of chosen."""


@dataclass(eq=False)
class Deployment:
    number: int
    kind: Kind
    is_warm: bool
    replicas: list["Replica"] = field(default_factory=list["Replica"])


@dataclass(eq=False)
class Replica:
    deployment: Deployment
    node: "Node"
    is_ready: bool = False
    running: int = 0
    queue: deque[float] = field(default_factory=deque[float])
    """When each call came."""
    used_at: float = 0.0
    is_gone: bool = False

    @property
    def outstanding(self) -> int:
        return self.running + len(self.queue)


@dataclass(eq=False)
class Node:
    name: str
    budget: int
    claimed: int = 0
    replicas: list[Replica] = field(default_factory=list[Replica])
    waiting: deque[Replica] = field(default_factory=deque[Replica])
    """For memory."""
    files: set[int] = field(default_factory=set[int])
    is_gone: bool = False


@dataclass
class Outcome:
    calls: int = 0
    found_loaded: int = 0
    failed: int = 0
    """On a node that went."""
    waits_s: list[float] = field(default_factory=list[float])
    """Beyond the model's own time."""
    starts: int = 0
    evictions: int = 0
    byte_s: float = 0.0
    after_loss_s: list[float] = field(default_factory=list[float])
    """Waits in the minute after nodes were lost."""


class Simulation:
    def __init__(self, scene: Scene, seed: int = 1) -> None:
        self._scene = scene
        self._random = random.Random(seed)  # noqa: S311 — it draws calls
        self._now = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._nodes = [Node(f"node-{one:03d}", scene.node_bytes) for one in range(scene.nodes)]
        self._deployments = self._drawn()
        weights = [1 / (rank**scene.zipf) for rank in range(1, scene.deployments + 1)]
        self._cumulated = list(itertools.accumulate(weights))
        self._claimed = 0
        self._counted_at = 0.0
        self._lost_at = math.inf
        self.outcome = Outcome()

    def run(self) -> Outcome:
        scene = self._scene
        for one in self._deployments:
            if one.is_warm:
                self._start(one, is_needed=False)
        self._at(0.0, self._arrive)
        self._at(30.0, self._sweep)
        if scene.lost:
            self._lost_at = (scene.settled_s + scene.seconds) / 2
            self._at(self._lost_at, self._lose)
        while self._events and self._events[0][0] <= scene.seconds:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        self._count_memory()
        return self.outcome

    def _drawn(self) -> list[Deployment]:
        kinds = self._random.choices(KINDS, [one.share for one in KINDS], k=self._scene.deployments)
        return [
            Deployment(number, kind, number < self._scene.warm) for number, kind in enumerate(kinds)
        ]

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happen))

    @property
    def _counts(self) -> bool:
        return self._now >= self._scene.settled_s

    # --- calls ---

    def _arrive(self) -> None:
        self._at(self._now + self._random.expovariate(self._scene.calls_per_s), self._arrive)
        [deployment] = self._random.choices(self._deployments, cum_weights=self._cumulated)
        ready = [one for one in deployment.replicas if one.is_ready]
        if self._counts:
            self.outcome.calls += 1
            self.outcome.found_loaded += bool(ready)
        if not deployment.replicas and self._start(deployment) is None:
            self.outcome.failed += self._counts
            return
        loads = [
            Load(node_id=one.node.name, outstanding=one.outstanding, ready=int(one.is_ready))
            for one in deployment.replicas
        ]
        name = least_busy(loads)
        picked = next(one for one in deployment.replicas if one.node.name == name)
        picked.queue.append(self._now)
        if (
            picked.is_ready
            and picked.outstanding >= SCALE_UP_AT
            and len(deployment.replicas) < self._scene.most_replicas
        ):
            self._start(deployment)
        self._work(picked)

    def _work(self, replica: Replica) -> None:
        kind = replica.deployment.kind
        while replica.is_ready and replica.queue and replica.running < kind.slots:
            came = replica.queue.popleft()
            replica.running += 1
            replica.used_at = self._now
            self._tell(self._now - came)
            # As long as the mean, now and then much longer.
            took = kind.service_s * self._random.lognormvariate(-0.125, 0.5)
            self._at(self._now + took, lambda: self._done(replica))

    def _done(self, replica: Replica) -> None:
        if replica.is_gone:
            return
        replica.running -= 1
        replica.used_at = self._now
        self._work(replica)
        if replica.node.waiting and not replica.outstanding:
            self._make_room(replica.node)

    def _tell(self, waited_s: float) -> None:
        if self._counts:
            self.outcome.waits_s.append(waited_s)
            if self._lost_at <= self._now < self._lost_at + 60:
                self.outcome.after_loss_s.append(waited_s)

    # --- replicas ---

    def _start(self, deployment: Deployment, *, is_needed: bool = True) -> Replica | None:
        """One that is not needed now evicts nobody."""
        need, taken = deployment.kind.bytes, {one.node.name for one in deployment.replicas}
        open_nodes = [one for one in self._nodes if not one.is_gone and one.name not in taken]
        if not open_nodes:
            return None
        node = self._random.choice(open_nodes)
        if not self._scene.is_random:
            name = chosen(need, [self._place(one, deployment) for one in open_nodes])
            node = next(one for one in open_nodes if one.name == name)
        if not is_needed and self._place(node, deployment).claimed_bytes + need > node.budget:
            return None
        replica = Replica(deployment, node, used_at=self._now)
        deployment.replicas.append(replica)
        node.waiting.append(replica)
        self._make_room(node)
        return replica

    def _place(self, node: Node, deployment: Deployment) -> Place:
        waiting = sum(one.deployment.kind.bytes for one in node.waiting)
        return Place(
            node_id=node.name,
            budget_bytes=node.budget,
            claimed_bytes=node.claimed + waiting,
            leases=len(node.replicas) + len(node.waiting),
            has_files=deployment.number in node.files,
        )

    def _make_room(self, node: Node) -> None:
        """Load what waits. For it ends what was used longest ago, what stays loaded last."""
        while node.waiting:
            need = node.waiting[0].deployment.kind.bytes
            if node.claimed + need > node.budget:
                idle = [one for one in node.replicas if one.is_ready and not one.outstanding]
                if not idle:
                    return
                first = min(idle, key=lambda one: (one.deployment.is_warm, one.used_at))
                self.outcome.evictions += self._counts
                self._end(first)
                continue
            replica = node.waiting.popleft()
            kind = replica.deployment.kind
            self._claim(node, kind.bytes)
            node.replicas.append(replica)
            fetch_s = 0.0 if replica.deployment.number in node.files else kind.fetch_s
            node.files.add(replica.deployment.number)
            self.outcome.starts += self._counts
            self._at(self._now + kind.load_s + fetch_s, self._loader(replica))

    def _loader(self, replica: Replica) -> Callable[[], None]:
        def loaded() -> None:
            if not replica.is_gone:
                replica.is_ready, replica.used_at = True, self._now
                self._work(replica)
                if replica.node.waiting:
                    self._make_room(replica.node)

        return loaded

    def _end(self, replica: Replica) -> None:
        replica.is_gone, replica.is_ready = True, False
        replica.deployment.replicas.remove(replica)
        if replica in replica.node.replicas:
            replica.node.replicas.remove(replica)
            self._claim(replica.node, -replica.deployment.kind.bytes)

    def _sweep(self) -> None:
        """End what nobody has called for a while."""
        self._at(self._now + 1.0, self._sweep)
        before = self._now - self._scene.idle_s
        for node in self._nodes:
            for one in [*node.replicas]:
                is_idle = one.is_ready and not one.outstanding and one.used_at < before
                if is_idle and not one.deployment.is_warm:
                    self._end(one)
        for one in self._deployments:
            if one.is_warm and not one.replicas:
                self._start(one, is_needed=False)

    def _lose(self) -> None:
        for node in self._nodes[: self._scene.lost]:
            node.is_gone = True
            for one in [*node.replicas, *node.waiting]:
                self.outcome.failed += one.outstanding
                self._end(one)
            node.waiting.clear()

    def _claim(self, node: Node, size: int) -> None:
        self._count_memory()
        node.claimed += size
        self._claimed += size

    def _count_memory(self) -> None:
        since = max(self._counted_at, self._scene.settled_s)
        self.outcome.byte_s += self._claimed * max(0.0, self._now - since)
        self._counted_at = self._now


SCENES = (
    Scene("all cold"),
    Scene("all cold, nodes drawn by chance", is_random=True),
    Scene("the 100 most popular warm", warm=100),
    Scene("all warm", warm=1000),
    Scene("all cold, 50 nodes", nodes=50),
    Scene("all cold, 25 nodes", nodes=25),
    Scene("all cold, idle for a minute", idle_s=60.0),
    Scene("all cold, 10 of 100 nodes lost", lost=10),
    Scene("the 100 most popular warm, 10 of 100 nodes lost", warm=100, lost=10),
    Scene(
        "ten times of all",
        deployments=10_000,
        nodes=1000,
        calls_per_s=400.0,
    ),
)


def told(scene: Scene, outcome: Outcome) -> dict[str, object]:
    waits = sorted(outcome.waits_s)
    after = sorted(outcome.after_loss_s)
    seconds = scene.seconds - scene.settled_s
    return {
        "scene": scene.name,
        "calls": outcome.calls,
        "found loaded": round(outcome.found_loaded / max(1, outcome.calls), 4),
        "wait p50 ms": round(1e3 * _at_share(waits, 0.5), 1),
        "wait p99 ms": round(1e3 * _at_share(waits, 0.99), 1),
        "wait p99.9 ms": round(1e3 * _at_share(waits, 0.999), 1),
        "starts a minute": round(60 * outcome.starts / seconds, 1),
        "evictions a minute": round(60 * outcome.evictions / seconds, 1),
        "memory held GiB": round(outcome.byte_s / seconds / GIB, 1),
        "failed": outcome.failed,
        "p99 in the minute after the loss, ms": round(1e3 * _at_share(after, 0.99), 1),
    }


def _at_share(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="an object a line")
    parser.add_argument("--seconds", type=float, help="of simulated time, in place of each scene's")
    given = parser.parse_args()
    length = {"seconds": given.seconds, "settled_s": given.seconds / 3} if given.seconds else {}
    for number, known in enumerate(SCENES):
        scene = replace(known, **length)
        found = told(scene, Simulation(scene, given.seed).run())
        if given.json:
            sys.stdout.write(json.dumps(found) + "\n")
            continue
        if number == 0:
            sys.stdout.write("| " + " | ".join(found) + " |\n" + "|---" * len(found) + "|\n")
        sys.stdout.write("| " + " | ".join(str(one) for one in found.values()) + " |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
