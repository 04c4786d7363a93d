from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, case, delete, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from stoker.platform.web.lists import Page, PageQuery, fetch_page, ordered
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database, Session
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment, DeploymentEvent, DeploymentVersion
from stoker.store.tables.nodes import Lease
from stoker.store.tables.servers import DeploymentChange, Revision


async def get(
    session: Session, account_id: str, deployment_id: str, *, lock: bool = False
) -> Deployment | None:
    """Returns a deployment of the account. With `lock`, no other transaction can change it in the
    meantime.
    """
    query = select(Deployment).where(
        Deployment.id == deployment_id, Deployment.account_id == account_id
    )
    # SQLite has no row locks, but a writing transaction has exclusive use of the database.
    return await session.scalar(query.with_for_update() if lock else query)


async def by_model(session: Session, account_id: str, model: str) -> Deployment | None:
    return await session.scalar(
        select(Deployment).where(Deployment.model == model, Deployment.account_id == account_id)
    )


async def inspections(
    session: Session, deployment_ids: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """Returns the results of the inspections of deployments' live artifacts, by deployment."""
    statement = (
        select(Deployment.id, Artifact.inspection)
        .join(Artifact, Artifact.id == Deployment.artifact_id)
        .where(Deployment.id.in_(deployment_ids))
    )
    rows = await session.execute(statement)
    return {identifier: inspection for identifier, inspection in rows if inspection}


async def limit_and_origin(
    session: Session, deployment_id: str
) -> tuple[int, Mapping[str, Any] | None]:
    """Returns a deployment's `max_queue`, and the hub of its live artifact, if it has one.

    Raises `NoResultFound` for an unknown deployment.
    """
    statement = (
        select(Deployment.max_queue, Artifact.origin)
        .join_from(Deployment, Artifact, Artifact.id == Deployment.artifact_id, isouter=True)
        .where(Deployment.id == deployment_id)
    )
    max_queue, origin = (await session.execute(statement)).one()
    return max_queue, origin


async def everything(session: Session) -> Sequence[Deployment]:
    return (await session.scalars(select(Deployment))).all()


async def page(
    session: Session, account_id: str, query: PageQuery, search: str | None = None
) -> Page[Deployment]:
    """Returns a page of the account's deployments.

    Args:
        search: text that the name of the model or pipeline contains, in upper or lower case.
    """
    return await fetch_page(session, _sought(account_id, search), Deployment.id, query)


class StatusColumns(NamedTuple):
    """Columns of a deployment that determine its status."""

    id: str
    desired: str
    live_version_id: str
    shares: str | None


async def wanted(
    session: Session, account_id: str, query: PageQuery, search: str | None
) -> list[StatusColumns]:
    """Returns these columns for all matching deployments, from `query.after` on."""
    shares = case((Deployment.merged_because.is_(None), Deployment.adapter_of), else_=null())
    statement = _sought(account_id, search).with_only_columns(
        Deployment.id, Deployment.desired, Deployment.live_version_id, shares
    )
    rows = await session.execute(ordered(statement, Deployment.id, query))
    return [StatusColumns(*row) for row in rows]


async def these(
    session: Session, ids: Collection[str], *, newest_first: bool = False
) -> Sequence[Deployment]:
    """Returns the existing deployments among these ids, ordered by age."""
    by_age = Deployment.id.desc() if newest_first else Deployment.id
    statement = select(Deployment).where(Deployment.id.in_(ids)).order_by(by_age)
    return (await session.scalars(statement)).all()


def _sought(account_id: str, search: str | None) -> Select[Deployment]:
    statement = select(Deployment).where(Deployment.account_id == account_id)
    if search:
        matches = (
            column.icontains(search, autoescape=True)
            for column in (Deployment.model, Deployment.pipeline)
        )
        statement = statement.where(or_(*matches))
    return statement


async def events(session: Session, deployment_id: str, query: PageQuery) -> Page[DeploymentEvent]:
    statement = select(DeploymentEvent).where(DeploymentEvent.deployment_id == deployment_id)
    return await fetch_page(session, statement, DeploymentEvent.id, query)


async def is_leased(session: Session, version_id: str) -> bool:
    """Returns True if a node holds a lease of the version."""
    mine = (Lease.spec_id == version_id) & Lease.node_id.is_not(None)
    return await session.scalar(select(Lease.generation).where(mine).limit(1)) is not None


# --- versions ---


async def versions(session: Session, deployment_id: str) -> Sequence[DeploymentVersion]:
    """Returns the versions of a deployment, ordered by number."""
    statement = select(DeploymentVersion).where(DeploymentVersion.deployment_id == deployment_id)
    return (await session.scalars(statement.order_by(DeploymentVersion.number))).all()


async def all_versions(session: Session) -> Sequence[DeploymentVersion]:
    """Returns the versions of all deployments, in any order."""
    return (await session.scalars(select(DeploymentVersion))).all()


async def versions_by_deployment(
    session: Session, deployment_ids: Collection[str] | None = None
) -> dict[str, list[DeploymentVersion]]:
    """Returns the versions of these deployments, or of all, by deployment id, ordered by number."""
    statement = select(DeploymentVersion)
    if deployment_ids is not None:
        statement = statement.where(DeploymentVersion.deployment_id.in_(deployment_ids))
    by_deployment: dict[str, list[DeploymentVersion]] = {}
    for version in await session.scalars(statement.order_by(DeploymentVersion.number)):
        by_deployment.setdefault(version.deployment_id, []).append(version)
    return by_deployment


async def existing_versions(session: Session, ids: Collection[str]) -> set[str]:
    """Returns the existing version ids among these."""
    statement = select(DeploymentVersion.id).where(DeploymentVersion.id.in_(ids))
    return {*await session.scalars(statement)}


async def write_memory(session: Session, spec: DeploymentSpec) -> None:
    """Stores the memory of a specification as measured in its deployment and version. Rows with
    another engine, device or dtype keep theirs.
    """
    values: dict[str, Any] = {"memory_bytes": spec.memory_bytes, "is_measured": True}
    # The deployment comes first: a deletion locks both in the same order.
    ids = (Deployment.live_version_id, DeploymentVersion.id)
    for table, key in zip((Deployment, DeploymentVersion), ids, strict=True):
        await session.execute(
            update(table)
            .where(
                key == spec.id,
                table.engine == spec.engine,
                table.device == spec.device,
                table.dtype == spec.dtype,
            )
            .values(values)
        )


async def write_notices(session: Session, version_id: str, notices: list[Any]) -> None:
    """Stores notices in a version and in the deployment where it is live, if they differ."""
    # Same lock order as in `write_memory`.
    ids = (Deployment.live_version_id, DeploymentVersion.id)
    for table, key in zip((Deployment, DeploymentVersion), ids, strict=True):
        row = await session.scalar(select(table).where(key == version_id).with_for_update())
        if row is not None and row.notices != notices:
            row.notices = notices


async def clear_merged_bytes(session: Session, version_ids: Collection[str]) -> None:
    """Records that the folders of merged adapters of these versions were removed."""
    await session.execute(
        update(DeploymentVersion)
        .where(DeploymentVersion.id.in_(version_ids))
        .values(merged_bytes=None)
    )


# --- adapters ---


async def count_sharing(session: Session, base_id: str) -> int:
    """Returns the number of deployments that share a base's replicas."""
    statement = select(func.count()).where(
        Deployment.adapter_of == base_id, Deployment.merged_because.is_(None)
    )
    return await session.scalar(statement) or 0


async def adapters_of(session: Session, base_id: str) -> Sequence[Deployment]:
    """Returns all adapters of a base, both shared and merged ones."""
    statement = select(Deployment).where(Deployment.adapter_of == base_id)
    return (await session.scalars(statement)).all()


async def sharing_adapters(session: Session) -> Sequence[Deployment]:
    """Returns all adapters that share the replicas of their base."""
    statement = select(Deployment).where(
        Deployment.adapter_of.is_not(None), Deployment.merged_because.is_(None)
    )
    return (await session.scalars(statement)).all()


async def update_sharing(session: Session, base_id: str, values: Mapping[str, Any]) -> None:
    """Updates columns of the adapters that share a base's replicas."""
    await session.execute(
        update(Deployment)
        .where(Deployment.adapter_of == base_id, Deployment.merged_because.is_(None))
        .values(values)
    )


async def locked_merged(session: Session, base_id: str) -> Sequence[Deployment]:
    """Returns the locked rows of a base's adapters that have their own replicas."""
    statement = select(Deployment).where(
        Deployment.adapter_of == base_id, Deployment.merged_because.is_not(None)
    )
    return (await session.scalars(statement.order_by(Deployment.id).with_for_update())).all()


# --- changes by several servers, on PostgreSQL alone ---


_REVISION = select(Revision.value).where(Revision.name == bindparam("counter"))


async def revision(session: Session, name: str) -> int:
    """Returns the value of a revision counter. 0 if the counter does not exist."""
    return await session.scalar(_REVISION, {"counter": name}) or 0


async def polled_revision(database: Database, name: str) -> int:
    """Returns the value of a revision counter, for a poll. 0 if the counter does not exist."""
    rows = await database.poll(_REVISION, {"counter": name})
    return rows[0].value if rows else 0


async def next_revision(session: Session, name: str) -> int:
    """Increments a revision counter, and locks it until the transaction ends. Returns its new
    value.

    Raises `LookupError` if the counter does not exist.
    """
    value = await session.scalar(
        update(Revision)
        .where(Revision.name == name)
        .values(value=Revision.value + 1)
        .returning(Revision.value)
    )
    if value is None:
        raise LookupError(f"the database has no revision counter for {name}")
    return value


async def write_changes(
    session: Session, deployment_ids: Collection[str], server_id: str, at_revision: int
) -> None:
    """Records that a server changed deployments at a revision."""
    row = insert(DeploymentChange).values(
        [
            {"deployment_id": deployment_id, "server_id": server_id, "revision": at_revision}
            for deployment_id in sorted(deployment_ids)
        ]
    )
    columns = [DeploymentChange.deployment_id, DeploymentChange.server_id]
    await session.execute(
        row.on_conflict_do_update(index_elements=columns, set_={"revision": row.excluded.revision})
    )


async def delete_changes_before(session: Session, before: int) -> None:
    """Deletes the records of changes before a revision."""
    await session.execute(delete(DeploymentChange).where(DeploymentChange.revision < before))


async def changed_by_others(session: Session, server_id: str, seen: int) -> Sequence[str]:
    """Returns the ids of deployments that other servers have changed since revision `seen`."""
    statement = select(DeploymentChange.deployment_id).distinct()
    by_others = DeploymentChange.server_id != server_id
    deployment_ids = await session.scalars(
        statement.where(DeploymentChange.revision > seen, by_others)
    )
    return deployment_ids.all()
