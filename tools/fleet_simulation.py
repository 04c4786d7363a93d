"""Simulates a fleet that is larger than any available machine. Reports the share of calls that find
their model loaded, the waits of the others, and the memory that this costs. Leases are placed and
calls sent by the production code (`stoker/runtime/nodes/placing.py`). Times and sizes are inputs,
and docs/scale.md says where they were measured.

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
"""Calls per replica from which another node is requested to add one more."""


@dataclass(frozen=True)
class Kind:
    """A kind of model."""

    name: str
    share: float
    """Share of the deployments."""
    bytes: int
    service_s: float
    """Duration of a single call in seconds."""
    slots: int
    """Number of calls that share its passes, so that all of them take hardly longer than one."""
    load_s: float
    """Seconds from the fork until ready, with the files present."""
    fetch_s: float
    """Additional seconds if the files come from the store."""


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
    """Number of most popular deployments that stay loaded while memory allows."""
    idle_s: float = 300.0
    most_replicas: int = 4
    seconds: float = 1800.0
    settled_s: float = 600.0
    """Seconds at the start that do not count, because no model was loaded."""
    lost: int = 0
    """Number of nodes that fail at once, halfway through the time that counts."""
    is_random: bool = False
    """True if nodes are drawn at random instead of chosen."""


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
    """Arrival times of the queued calls."""
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
    """Replicas that wait for memory."""
    files: set[int] = field(default_factory=set[int])
    is_gone: bool = False


@dataclass
class Outcome:
    calls: int = 0
    found_loaded: int = 0
    failed: int = 0
    """Number of calls that failed because their node was lost."""
    waits_s: list[float] = field(default_factory=list[float])
    """Waits in seconds, in addition to the model's own time."""
    starts: int = 0
    evictions: int = 0
    byte_s: float = 0.0
    after_loss_s: list[float] = field(default_factory=list[float])
    """Waits in seconds during the minute after nodes were lost."""


class Simulation:
    def __init__(self, scene: Scene, seed: int = 1) -> None:
        self._scene = scene
        self._random = random.Random(seed)  # noqa: S311 — it draws calls
        self._now = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._nodes = [
            Node(f"node-{number:03d}", scene.node_bytes) for number in range(scene.nodes)
        ]
        self._deployments = self._drawn()
        weights = [1 / (rank**scene.zipf) for rank in range(1, scene.deployments + 1)]
        self._cumulated = list(itertools.accumulate(weights))
        self._claimed = 0
        self._counted_at = 0.0
        self._lost_at = math.inf
        self.outcome = Outcome()

    def run(self) -> Outcome:
        scene = self._scene
        for deployment in self._deployments:
            if deployment.is_warm:
                self._start(deployment, is_needed=False)
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
        kinds = self._random.choices(
            KINDS, [model_kind.share for model_kind in KINDS], k=self._scene.deployments
        )
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
        ready = [replica for replica in deployment.replicas if replica.is_ready]
        if self._counts:
            self.outcome.calls += 1
            self.outcome.found_loaded += bool(ready)
        if not deployment.replicas and self._start(deployment) is None:
            self.outcome.failed += self._counts
            return
        loads = [
            Load(
                node_id=replica.node.name,
                outstanding=replica.outstanding,
                ready=int(replica.is_ready),
            )
            for replica in deployment.replicas
        ]
        name = least_busy(loads)
        picked = next(replica for replica in deployment.replicas if replica.node.name == name)
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
            # The mean is `service_s`, but some calls take much longer.
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
        """Starts a replica. A replica that is not needed now does not evict others."""
        need, used_nodes = (
            deployment.kind.bytes,
            {candidate.node.name for candidate in deployment.replicas},
        )
        open_nodes = [
            candidate
            for candidate in self._nodes
            if not candidate.is_gone and candidate.name not in used_nodes
        ]
        if not open_nodes:
            return None
        node = self._random.choice(open_nodes)
        if not self._scene.is_random:
            name = chosen(need, [self._place(candidate, deployment) for candidate in open_nodes])
            node = next(candidate for candidate in open_nodes if candidate.name == name)
        if not is_needed and self._place(node, deployment).claimed_bytes + need > node.budget:
            return None
        replica = Replica(deployment, node, used_at=self._now)
        deployment.replicas.append(replica)
        node.waiting.append(replica)
        self._make_room(node)
        return replica

    def _place(self, node: Node, deployment: Deployment) -> Place:
        waiting = sum(replica.deployment.kind.bytes for replica in node.waiting)
        return Place(
            node_id=node.name,
            budget_bytes=node.budget,
            claimed_bytes=node.claimed + waiting,
            leases=len(node.replicas) + len(node.waiting),
            has_files=deployment.number in node.files,
        )

    def _make_room(self, node: Node) -> None:
        """Loads waiting replicas. Evicts idle replicas, least recently used first and warm ones
        last.
        """
        while node.waiting:
            need = node.waiting[0].deployment.kind.bytes
            if node.claimed + need > node.budget:
                idle = [
                    candidate
                    for candidate in node.replicas
                    if candidate.is_ready and not candidate.outstanding
                ]
                if not idle:
                    return
                first = min(
                    idle, key=lambda candidate: (candidate.deployment.is_warm, candidate.used_at)
                )
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
        """Ends replicas that were idle for a while."""
        self._at(self._now + 1.0, self._sweep)
        before = self._now - self._scene.idle_s
        for node in self._nodes:
            for entry in [*node.replicas]:
                is_idle = entry.is_ready and not entry.outstanding and entry.used_at < before
                if is_idle and not entry.deployment.is_warm:
                    self._end(entry)
        for entry in self._deployments:
            if entry.is_warm and not entry.replicas:
                self._start(entry, is_needed=False)

    def _lose(self) -> None:
        for node in self._nodes[: self._scene.lost]:
            node.is_gone = True
            for replica in [*node.replicas, *node.waiting]:
                self.outcome.failed += replica.outstanding
                self._end(replica)
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
    arguments = parser.parse_args()
    length = (
        {"seconds": arguments.seconds, "settled_s": arguments.seconds / 3}
        if arguments.seconds
        else {}
    )
    for number, known in enumerate(SCENES):
        scene = replace(known, **length)
        row = told(scene, Simulation(scene, arguments.seed).run())
        if arguments.json:
            sys.stdout.write(json.dumps(row) + "\n")
            continue
        if number == 0:
            sys.stdout.write("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|\n")
        sys.stdout.write("| " + " | ".join(str(cell) for cell in row.values()) + " |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
