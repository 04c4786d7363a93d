"""Restores the deployments when the server starts."""

import logging

from stoker.base.errors import InvalidRequestError
from stoker.registry.deployments import adapters, estimates, repository, versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment

log = logging.getLogger(__name__)


async def restore(context: DeploymentContext) -> None:
    """Registers every deployment, and cleans up after a server that was killed."""
    async with context.database.transaction() as session:
        rows = await repository.everything(session)
        for row in rows:
            if row.memory_bytes is None:
                await _estimate_late(session, context, row)
        versions_by_deployment = await repository.versions_by_deployment(session)
        for row in rows:
            for version in versions_by_deployment[row.id]:
                if version.id == row.live_version_id:
                    version.memory_bytes = row.memory_bytes
    for row in rows:
        versions.tell(context, row, versions_by_deployment[row.id])
    async with context.database.reading() as session:
        await versions.keep_links(session, context.folders)
        await adapters.keep_placed(session, context.folders)


async def _estimate_late(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Estimates the memory of a deployment that was created before estimates were stored."""
    try:
        folder = await estimates.folder_again(context.settings, row)
        row.memory_bytes = await estimates.again(session, row, folder)
    except InvalidRequestError as error:
        log.warning("no estimate: %s", error.message, extra={"deployment": row.id})
