"""How deployments become known again when the server starts."""

import logging

from stoker.base.errors import InvalidRequestError
from stoker.registry.deployments import adapters, estimates, repository, versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment

log = logging.getLogger(__name__)


async def restore(context: DeploymentContext) -> None:
    """Make every deployment known, and put right what a server that was killed has left."""
    async with context.database.transaction() as session:
        rows = await repository.everything(session)
        for row in rows:
            if row.memory_bytes is None:
                await _estimate_late(session, context, row)
        found = await versions.everything(session)
        for row in rows:
            for one in found[row.id]:
                if one.id == row.live_version_id:
                    one.memory_bytes = row.memory_bytes
    for row in rows:
        versions.tell(context, row, found[row.id])
    async with context.database.reading() as session:
        await versions.keep_links(session, context.folders)
        await adapters.keep_placed(session, context.folders)


async def _estimate_late(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Of one that was made before estimates were kept."""
    try:
        folder = await estimates.folder_again(context.settings, row)
        row.memory_bytes = await estimates.again(session, row, folder)
    except InvalidRequestError as error:
        log.warning("no estimate: %s", error.message, extra={"deployment": row.id})
