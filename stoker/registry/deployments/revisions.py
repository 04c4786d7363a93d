"""Tracks which deployments other servers of the same PostgreSQL changed, and at which revision."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert

from stoker.store.db import Database, Session
from stoker.store.tables.servers import DeploymentChange, Revision

REMEMBERED = 1000
"""Number of revisions that are kept. A server that is further behind reads all deployments
again.
"""
_FORGET_EVERY = 100
_NAME = "deployments"
_CHANGED = "stoker.changed_deployments"


def note(session: Session, database: Database, deployment_id: str) -> None:
    """Records that this transaction deletes a deployment or changes how its calls are routed."""
    if database.is_sqlite:
        return
    changed: set[str] = session.info.setdefault(_CHANGED, set())
    changed.add(deployment_id)
    session.at_the_end(_NAME, partial(_count, session, database.server_id))


async def _count(session: Session, server_id: str) -> None:
    changed: set[str] = session.info.pop(_CHANGED)
    revision = await session.scalar(
        update(Revision)
        .where(Revision.name == _NAME)
        .values(value=Revision.value + 1)
        .returning(Revision.value)
    )
    if revision is None:
        raise LookupError("the database has no revision counter for deployments")
    row = insert(DeploymentChange).values(
        [
            {"deployment_id": deployment_id, "server_id": server_id, "revision": revision}
            for deployment_id in sorted(changed)
        ]
    )
    columns = [DeploymentChange.deployment_id, DeploymentChange.server_id]
    await session.execute(
        row.on_conflict_do_update(index_elements=columns, set_={"revision": row.excluded.revision})
    )
    if revision % _FORGET_EVERY == 0:
        await session.execute(
            delete(DeploymentChange).where(DeploymentChange.revision < revision - REMEMBERED)
        )


async def current(session: Session) -> int:
    return await session.scalar(select(Revision.value).where(Revision.name == _NAME)) or 0


async def since(session: Session, server_id: str, seen: int) -> tuple[int, Sequence[str] | None]:
    """Returns the current revision, and the deployments that other servers have changed since
    revision `seen`.

    Returns None in place of the deployments if too much has changed. All of them may have changed
    then.
    """
    revision = await current(session)
    if revision == seen:
        return revision, ()
    if not 0 <= revision - seen <= REMEMBERED:
        # The revision is lower than `seen` if the database was restored from a backup.
        return revision, None
    statement = select(DeploymentChange.deployment_id).distinct()
    by_others = DeploymentChange.server_id != server_id
    deployment_ids = await session.scalars(
        statement.where(DeploymentChange.revision > seen, by_others)
    )
    return revision, deployment_ids.all()
