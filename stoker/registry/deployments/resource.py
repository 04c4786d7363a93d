"""Deployments as a resource."""

from collections.abc import Collection, Sequence
from datetime import datetime

from stoker.base.config import Settings
from stoker.inspection import Inspectors
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.parts import ServerParts
from stoker.platform.quotas.service import QuotaService
from stoker.platform.resource import EventObjects, Related, Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.deployments import describing, repository, schemas, startup, versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import Directory
from stoker.registry.deployments.endpoints import router
from stoker.registry.deployments.events import EventLog
from stoker.registry.deployments.folders import ModelFolders
from stoker.registry.deployments.loaded import LoadedVersions
from stoker.registry.deployments.peer_updates import Following
from stoker.runtime.listening import RuntimeListener
from stoker.store.blobs import Blobs
from stoker.store.db import Database, Session
from stoker.store.tables.checks import DeploymentChecks
from stoker.store.tables.deployments import Deployment, DeploymentEvent, DeploymentVersion
from stoker.store.tables.trials import Trial

VERSIONS_AT_ONCE = 8
"""Maximum number of concurrent rollouts of all accounts, which take turns."""
EVENT = "deployment"
"""Name of the event that shows a deployment."""
_SHOWN_TABLES = (DeploymentVersion, DeploymentChecks, Trial, DeploymentEvent)
"""Tables with rows that appear in a deployment or in its lists."""


def _directory(_parts: ServerParts) -> Directory:
    return Directory()


def _loaded(_parts: ServerParts) -> LoadedVersions:
    return LoadedVersions()


def _folders(parts: ServerParts) -> ModelFolders:
    return ModelFolders(
        parts.get(Settings),
        parts.get(Database),
        parts.get(Blobs),
        parts.get(QuotaService),
        parts.get(Inspectors),
    )


def _context(parts: ServerParts) -> DeploymentContext:
    platform, folders = parts.get(Platform), parts.get(ModelFolders)
    runtime = platform.runtime
    folders.copies.runs = lambda spec_id: bool((s := runtime.stats(spec_id)) and s.replicas)
    folders.merged.runs = folders.copies.runs
    return DeploymentContext(
        **vars(platform),
        directory=parts.get(Directory),
        folders=folders,
        preparing=JobRunner(
            platform.database,
            lease_s=platform.settings.job_lease_s,
            at_once=VERSIONS_AT_ONCE,
            share=lambda _: 1,
        ),
    )


def _event_log(parts: ServerParts) -> EventLog:
    return EventLog(parts.get(Database))


def _following(parts: ServerParts) -> Following:
    return Following(parts.get(DeploymentContext))


def _listeners(parts: ServerParts) -> Sequence[RuntimeListener]:
    # Events are recorded once, independent of the number of servers that receive them.
    written = [] if parts.get(Platform).runtime.is_remote else [parts.get(EventLog)]
    return [*written, parts.get(LoadedVersions)]


async def _restore(parts: ServerParts) -> None:
    context = parts.get(DeploymentContext)
    if not context.database.is_sqlite:
        following = parts.get(Following)
        await following.open()
        context.directory.catch_up = following.catch_up
    await startup.restore(context)


async def _drop_idle(parts: ServerParts, _now: datetime) -> None:
    await parts.get(ModelFolders).merged.drop_idle()


async def _forget_old(parts: ServerParts, _now: datetime) -> None:
    await versions.forget_old(parts.get(DeploymentContext))


async def _read(
    parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[tuple[Deployment, schemas.Deployment]]:
    context = parts.get(DeploymentContext)
    rows = await repository.these(session, ids)
    return [(row, describing.response(context, row)) for row in rows]


RESOURCE = Resource(
    name="deployments",
    parts=[_directory, _loaded, _folders, _context, _event_log, _following],
    routers=[router],
    restore=_restore,
    tasks={"events of deployments": lambda parts: parts.get(EventLog).run()},
    peer_tasks={"other servers' deployments": lambda parts: parts.get(Following).run()},
    listeners=_listeners,
    upkeep=Upkeep(each_server=_drop_idle, shared_hourly=_forget_old),
    events=EventObjects(
        kind=EVENT,
        table=Deployment,
        read=_read,
        related={table: Related("deployment_id") for table in _SHOWN_TABLES},
    ),
    closing={"copies of models": lambda parts: parts.get(ModelFolders).copies.close()},
)
