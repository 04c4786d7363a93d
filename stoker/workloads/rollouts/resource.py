"""Rollouts of versions as a resource."""

from stoker.inference.calls import Calls
from stoker.inference.resource import Mirroring, unmirrored_calls
from stoker.platform.parts import ServerParts
from stoker.platform.resource import JobQueue, Resource
from stoker.registry.deployments.context import DeploymentContext
from stoker.store.tables.deployments import DeploymentVersion
from stoker.workloads.evaluation.checks.judges import Judges
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.rollouts.context import VersionContext
from stoker.workloads.rollouts.endpoints import router
from stoker.workloads.rollouts.mirroring import Mirrors
from stoker.workloads.rollouts.work import RolloutJob


def _mirrors(parts: ServerParts) -> Mirrors:
    return Mirrors(unmirrored_calls(parts), parts.get(Comparer))


def _mirroring(parts: ServerParts) -> Mirroring:
    return Mirroring(parts.get(Mirrors).offer)


def _context(parts: ServerParts) -> VersionContext:
    return VersionContext(
        **vars(parts.get(DeploymentContext)),
        calls=parts.get(Calls),
        judges=parts.get(Judges),
        mirrors=parts.get(Mirrors),
    )


RESOURCE = Resource(
    name="rollouts",
    parts=[_mirrors, _mirroring, _context],
    routers=[router],
    tasks={"mirrors": lambda parts: parts.get(Mirrors).run()},
    jobs=JobQueue(
        task="versions",
        kind="version",
        table=DeploymentVersion,
        runner=lambda parts: parts.get(VersionContext).preparing,
        work=lambda parts: RolloutJob(parts.get(VersionContext)),
    ),
)
