"""Batches as a resource."""

from collections.abc import Collection, Sequence
from datetime import datetime

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import EventObjects, JobQueue, Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.store.db import Session
from stoker.store.tables.batches import Batch
from stoker.workloads.batches import parts as batch_parts
from stoker.workloads.batches import repository, schemas, service
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.endpoints import router
from stoker.workloads.batches.work import BatchJob

_BATCHES_OF_DEPLOYMENT = 4
"""Batches of one deployment that a server works on at the same time. They share its places, so that
a long one does not delay a short one.
"""
_TURN_S = 60.0


def _context(parts: ServerParts) -> BatchContext:
    platform = parts.get(Platform)
    settings = platform.settings
    return BatchContext(
        **vars(platform),
        calls=parts.get(Calls),
        jobs=JobRunner(
            platform.database,
            lease_s=settings.job_lease_s,
            at_once=settings.jobs_at_once,
            # Batches that are not validated have no deployment.
            share=lambda name: _BATCHES_OF_DEPLOYMENT if name else settings.jobs_at_once,
            turn_s=_TURN_S,
        ),
    )


async def _forget_ended(parts: ServerParts, now: datetime) -> None:
    await service.forget_ended(parts.get(Platform), now)


async def _sweep_strays(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    await batch_parts.sweep_strays(platform.database, platform.blobs, now)


async def _read(
    _parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[tuple[Batch, schemas.Batch]]:
    return [(row, service.response(row)) for row in await repository.these(session, ids)]


RESOURCE = Resource(
    name="batches",
    parts=[_context],
    routers=[router],
    jobs=JobQueue(
        task="batches",
        kind="batch",
        table=Batch,
        runner=lambda parts: parts.get(BatchContext).jobs,
        work=lambda parts: BatchJob(parts.get(BatchContext)),
    ),
    upkeep=Upkeep(shared_hourly=_forget_ended, strays=_sweep_strays),
    events=EventObjects(
        kind="batch",
        table=Batch,
        read=_read,
        progress=lambda parts: parts.get(BatchContext).jobs.at_work(),
        is_for_deployment_keys=True,
    ),
)
