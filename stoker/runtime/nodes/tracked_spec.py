"""Specification that a gateway runs on nodes, with the state of its leases."""

import asyncio
from dataclasses import dataclass

from stoker.runtime.specification import DeploymentSpec

SEEK_S = 0.25
"""Minimum seconds between two attempts to find a node for the same specification. Waiting calls
request one all the time.
"""


@dataclass(eq=False)
class TrackedSpec:
    """Specification that runs or may run, with the state of its leases."""

    spec: DeploymentSpec
    running: bool
    taking: "asyncio.Task[None] | None" = None
    """Task that acquires leases."""
    problem: str = ""
    """Reason that it has no lease."""
    sought_at: float = 0.0
    """Time of the last attempt that found too few leases. The next attempt waits for `SEEK_S`."""

    @property
    def is_taking(self) -> bool:
        return self.taking is not None and not self.taking.done()

    @property
    def most_nodes(self) -> int:
        """Maximum number of nodes that it may run on."""
        return max(1, self.spec.max_replicas, self.spec.min_replicas)

    @property
    def least_nodes(self) -> int:
        """Number of nodes on which it stays loaded, if the account can pay."""
        spec = self.spec
        least = max(spec.min_replicas, 1 if spec.readiness.stays_loaded else 0)
        return least if self.running else 0

    def may_take(self, now: float) -> bool:
        """Returns True if a new attempt to acquire leases may start."""
        return not self.is_taking and now - self.sought_at >= SEEK_S

    def update(self, spec: DeploymentSpec, *, running: bool) -> None:
        self.spec, self.running, self.problem = spec, running, ""

    def begin_taking(self, task: "asyncio.Task[None]") -> None:
        self.taking = task

    def report_problem(self, problem: str) -> None:
        self.problem = problem

    def mark_sought(self, now: float) -> None:
        """Records an attempt that found too few leases."""
        self.sought_at = now
