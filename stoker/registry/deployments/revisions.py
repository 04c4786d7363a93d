"""Tracks which deployments other servers of the same PostgreSQL changed, and at which revision."""

from collections.abc import Sequence
from functools import partial

from stoker.registry.deployments import repository
from stoker.store.db import Database, Session

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
    revision = await repository.next_revision(session, _NAME)
    await repository.write_changes(session, changed, server_id, revision)
    if revision % _FORGET_EVERY == 0:
        await repository.delete_changes_before(session, revision - REMEMBERED)


async def current(session: Session) -> int:
    return await repository.revision(session, _NAME)


async def polled(database: Database) -> int:
    """Returns the current revision, for a poll."""
    return await repository.polled_revision(database, _NAME)


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
    return revision, await repository.changed_by_others(session, server_id, seen)
