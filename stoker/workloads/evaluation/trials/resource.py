"""Trials of deployments as a resource."""

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import JobQueue, Resource
from stoker.platform.web.context import Platform
from stoker.store.tables.trials import Trial
from stoker.workloads.evaluation.replay.comparer import Comparer
from stoker.workloads.evaluation.trials.context import TrialContext
from stoker.workloads.evaluation.trials.endpoints import router
from stoker.workloads.evaluation.trials.service import TrialJob


def _context(parts: ServerParts) -> TrialContext:
    platform = parts.get(Platform)
    lease_s = platform.settings.job_lease_s
    return TrialContext(
        **vars(platform),
        calls=parts.get(Calls),
        comparer=parts.get(Comparer),
        # Only one at a time, because concurrent trials would distort each other's measurements.
        jobs=JobRunner(platform.database, lease_s=lease_s, at_once=1, share=lambda _: 1),
    )


RESOURCE = Resource(
    name="trials",
    parts=[_context],
    routers=[router],
    jobs=JobQueue(
        task="trials",
        kind="trial",
        table=Trial,
        runner=lambda parts: parts.get(TrialContext).jobs,
        work=lambda parts: TrialJob(parts.get(TrialContext)),
    ),
)
