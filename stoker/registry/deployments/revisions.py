"""Which deployments were changed by other servers of the same PostgreSQL, and since when."""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert

from stoker.store.db import Database, Session
from stoker.store.tables.servers import DeploymentChange, Revision

REMEMBERED = 1000
"""Revisions: who is further behind reads all deployments anew."""
_FORGET_EVERY = 100
_NAME = "deployments"
_CHANGED = "stoker.changed_deployments"


def note(session: Session, database: Database, deployment_id: str) -> None:
    """This transaction changes what calls of a deployment find, or deletes it."""
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
        raise LookupError("the database counts no revisions of deployments")
    row = insert(DeploymentChange).values(
        [
            {"deployment_id": one, "server_id": server_id, "revision": revision}
            for one in sorted(changed)
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
    """The revision by now, and the deployments that others than this server have changed since one;
    None: too much has happened, all may have changed.
    """
    revision = await current(session)
    if revision == seen:
        return revision, ()
    if not 0 <= revision - seen <= REMEMBERED:
        # Below it where the database was brought back from a copy.
        return revision, None
    statement = select(DeploymentChange.deployment_id).distinct()
    others = DeploymentChange.server_id != server_id
    found = await session.scalars(statement.where(DeploymentChange.revision > seen, others))
    return revision, found.all()
