"""Videos as a resource."""

from collections.abc import Collection, Sequence
from datetime import datetime

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.resource import EventObjects, JobQueue, Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.deployments.directory import Directory
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import Status
from stoker.store.db import Session
from stoker.store.tables.videos import Video
from stoker.workloads.videos import repository, schemas, service
from stoker.workloads.videos.context import VideoContext
from stoker.workloads.videos.endpoints import router


def _context(parts: ServerParts) -> VideoContext:
    platform, directory = parts.get(Platform), parts.get(Directory)
    settings, runtime = platform.settings, platform.runtime
    return VideoContext(
        **vars(platform),
        calls=parts.get(Calls),
        jobs=JobRunner(
            platform.database,
            lease_s=settings.job_lease_s,
            at_once=settings.jobs_at_once,
            share=lambda deployment_id: _replicas(runtime, directory.live(deployment_id)),
        ),
    )


def _replicas(runtime: Runtime, version_id: str) -> int:
    """Returns the maximum number of concurrent jobs of a deployment: its ready replicas plus one.
    Another replica is started for the additional job if allowed.
    """
    stats = runtime.stats(version_id)
    if stats is None:
        return 1
    ready = sum(replica.status is Status.READY for replica in stats.replicas)
    return min(stats.max_replicas, ready + 1)


async def _forget_ended(parts: ServerParts, now: datetime) -> None:
    await service.forget_ended(parts.get(Platform), now)


async def _read(
    parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[tuple[Video, schemas.Video]]:
    context = parts.get(VideoContext)
    rows = await repository.these(session, ids)
    return [(row, service.response(context, row)) for row in rows]


RESOURCE = Resource(
    name="videos",
    parts=[_context],
    routers=[router],
    jobs=JobQueue(
        task="videos",
        kind="video",
        table=Video,
        runner=lambda parts: parts.get(VideoContext).jobs,
        work=lambda parts: service.VideoJob(parts.get(VideoContext)),
    ),
    upkeep=Upkeep(shared_hourly=_forget_ended),
    events=EventObjects(
        kind="video",
        table=Video,
        read=_read,
        progress=lambda parts: parts.get(VideoContext).jobs.at_work(),
        is_for_deployment_keys=True,
    ),
)
