"""The versions of a deployment: which there are, and which one is live."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import select, update

from stoker.base.errors import CapacityError, ConflictError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.registry.deployments import adapters, revisions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.folders import ModelFolders
from stoker.registry.deployments.specs import (
    CALLABLE,
    entry_of,
    kept_spec,
    source_of,
    spec_of,
)
from stoker.runtime.observed import Status
from stoker.runtime.specification import DeploymentSpec
from stoker.store import db
from stoker.store.changes import note
from stoker.store.db import Session
from stoker.store.servers import loaded_elsewhere
from stoker.store.tables.deployments import (
    VARIANT,
    Deployment,
    DeploymentVersion,
    Desired,
    Variant,
    VersionStatus,
)
from stoker.store.tables.jobs import JobStatus
from stoker.wire.notices import Notice

KEPT = 50
"""Of a deployment: older ones that are over are forgotten by and by."""
MOST = 100
FOLLOWED_BY_MERGED = ("config", "device", "dtype", "engine")
"""What an adapter that is merged into its base has of it."""
_OVER = (VersionStatus.RETIRED.value, VersionStatus.FAILED.value)

log = logging.getLogger(__name__)


async def all_of(session: Session, deployment_id: str) -> Sequence[DeploymentVersion]:
    """By their numbers."""
    statement = select(DeploymentVersion).where(DeploymentVersion.deployment_id == deployment_id)
    return (await session.scalars(statement.order_by(DeploymentVersion.number))).all()


async def get(session: Session, deployment_id: str, version_id: str) -> DeploymentVersion:
    found = await session.get(DeploymentVersion, version_id)
    if found is None or found.deployment_id != deployment_id:
        raise NotFoundError("Version not found", code="version_not_found")
    return found


async def add(
    session: Session,
    row: Deployment,
    variant: Variant,
    *,
    note: str = "",
    promote: str = "when_ready",
    strategy: str = "beside",
    is_live: bool = False,
) -> DeploymentVersion:
    """A new version of a deployment that the transaction has locked.

    Args:
        variant: what it has of it.
        is_live: it is the first one, or there is nothing that it would have to be proven beside;
            else its job is to be woken for after the commit.
    """
    others = await all_of(session, row.id)
    if len(others) >= MOST:
        raise ConflictError(
            f"The deployment has {MOST} versions: delete some.", code="too_many_versions"
        )
    version = DeploymentVersion(
        **{name: getattr(variant, name) for name in VARIANT},
        id=new_id(Prefix.VERSION),
        account_id=row.account_id,
        deployment_id=row.id,
        number=others[-1].number + 1 if others else 1,
        state=VersionStatus.PREPARING.value,
        reason="",
        message="",
        note=note,
        promote=promote,
        strategy=strategy,
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=db.now(),
    )
    session.add(version)
    if is_live:
        version.status, version.progress = JobStatus.COMPLETED.value, 1.0
        version.completed_at = version.created_at
        await take_over(session, row, version)
    await session.flush()
    return version


async def take_over(session: Session, row: Deployment, version: DeploymentVersion) -> None:
    """Make a version the live one. It is to be published."""
    now = db.now()
    for other in await all_of(session, row.id):
        if other.id != version.id and other.state == VersionStatus.LIVE:
            other.state, other.retired_at = VersionStatus.RETIRED.value, now
    version.state, version.promoted_at = VersionStatus.LIVE.value, now
    version.reason = version.message = ""
    row.live_version_id, row.traffic, row.updated_at = version.id, None, now
    for name in VARIANT:
        setattr(row, name, getattr(version, name))


async def remove(session: Session, context: DeploymentContext, version: DeploymentVersion) -> None:
    """Forget one that is not live; `end` is to be called once it is committed."""
    if version.state == VersionStatus.LIVE:
        raise ConflictError(
            "The version is live: let another one take over first.", code="version_live"
        )
    await session.delete(version)
    revisions.note(session, context.database, version.deployment_id)
    session.after_commit(lambda: context.preparing.cancel(version.id))


async def end(context: DeploymentContext, removed: Sequence[DeploymentVersion]) -> None:
    """Clear up after versions that were removed; waits for the end of their replicas."""
    for one in removed:
        await context.runtime.remove(one.id)
    async with context.database.reading() as session:
        left = await sources(session)
    for source in {source_of(one) for one in removed} - left:
        await context.folders.drop(source)


async def publish(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Once committed, let the directory and the runtime know."""
    if row.has_adapters:
        await adapters.follow(session, row)
    await session.flush()
    for one in await adapters.merged_into(session, row):
        await _follow(session, context, row, one)
    revisions.note(session, context.database, row.id)
    versions = await all_of(session, row.id)
    session.after_commit(lambda: tell(context, row, versions))


async def _follow(
    session: Session, context: DeploymentContext, base: Deployment, row: Deployment
) -> None:
    """Have an adapter that is merged into a base get a version as the base is now."""
    others = await all_of(session, row.id)
    wanted = {name: getattr(base, name) for name in FOLLOWED_BY_MERGED}
    wanted["base_source"] = source_of(base)
    if all(getattr(others[-1], name) == value for name, value in wanted.items()):
        return
    for one in others:
        if one.state in (VersionStatus.PREPARING, VersionStatus.CHECKING):
            # It is of what the base was before.
            one.promote = "manual"
    unmeasured: dict[str, Any] = {
        "memory_bytes": base.memory_bytes,
        "is_measured": False,
        "notices": [],
    }
    changed = applied(row, wanted | unmeasured)
    number = (await get(session, base.id, base.live_version_id)).number
    await begin(session, context, row, changed, note=f"As version {number} of its base.")
    row.updated_at = db.now()
    await publish(session, context, row)


async def begin(
    session: Session,
    context: DeploymentContext,
    row: Deployment,
    changed: Deployment,
    *,
    note: str = "",
    is_checked: bool = False,
) -> None:
    """Have a deployment run in another way: at once where nothing is loaded, else when that was
    found right. It is to be published.

    is_checked: raise `CapacityError` where it would take over at once and can never be loaded.
    """
    stats = context.runtime.stats(row.live_version_id)
    # One that is on its way out, as of a version that has failed, answers nobody.
    is_loaded = stats and any(one.status is not Status.STOPPING for one in stats.replicas)
    if not is_loaded and not context.database.is_sqlite:
        own = context.database.server_id
        is_loaded = await loaded_elsewhere(session, own, row.live_version_id)
    is_live = row.desired == Desired.STOPPED or not is_loaded
    strategy = "beside"
    if is_live and is_checked:
        context.runtime.check_fits(spec_of(changed))
    if not is_live:
        try:
            context.runtime.check_beside(spec_of(changed), row.live_version_id)
        except CapacityError:
            strategy = "in_place"
    await add(session, row, changed, note=note, strategy=strategy, is_live=is_live)
    session.after_commit(context.preparing.wake)


def applied(row: Deployment, changes: Mapping[str, Any]) -> Deployment:
    """A copy of a deployment with other values, apart from the database."""
    return Deployment(
        **{column.key: getattr(row, column.key) for column in Deployment.__table__.columns}
        | dict(changes)
    )


def tell(
    context: DeploymentContext, row: Deployment, versions: Sequence[DeploymentVersion]
) -> None:
    """Let the directory and the runtime know of a deployment."""
    context.directory.put(entry_of(row, versions))
    if row.shares:
        # What runs is its base.
        return
    running = row.desired == Desired.RUNNING
    # The live one last: what was kept for its predecessor is free by then.
    for one in sorted(versions, key=lambda one: one.id == row.live_version_id):
        if one.state in CALLABLE:
            spec = spec_of(row, one) if one.state == VersionStatus.LIVE else kept_spec(row, one)
            context.runtime.apply(spec, running=running)


async def forget_old(context: DeploymentContext) -> None:
    """Of deployments that have many versions."""
    async with context.database.transaction() as session:
        removed: list[DeploymentVersion] = []
        for found in (await everything(session)).values():
            over = [one for one in found if one.state in _OVER]
            removed += over[: max(0, len(found) - KEPT)]
        for one in removed:
            await remove(session, context, one)
    if removed:
        await end(context, removed)


async def everything(session: Session) -> dict[str, list[DeploymentVersion]]:
    """Of all deployments, by their ids and numbers."""
    found: dict[str, list[DeploymentVersion]] = {}
    for one in await session.scalars(select(DeploymentVersion).order_by(DeploymentVersion.number)):
        found.setdefault(one.deployment_id, []).append(one)
    return found


async def of_these(session: Session, ids: Collection[str]) -> dict[str, list[DeploymentVersion]]:
    """As `everything`, of these deployments."""
    found: dict[str, list[DeploymentVersion]] = {}
    statement = select(DeploymentVersion).where(DeploymentVersion.deployment_id.in_(ids))
    for one in await session.scalars(statement.order_by(DeploymentVersion.number)):
        found.setdefault(one.deployment_id, []).append(one)
    return found


async def there(session: Session, ids: Collection[str]) -> set[str]:
    """Those of these that there are."""
    statement = select(DeploymentVersion.id).where(DeploymentVersion.id.in_(ids))
    return {*await session.scalars(statement)}


async def keep_links(session: Session, folders: ModelFolders) -> None:
    """Remove the links to files that no version has any more."""
    await folders.keep_only(await sources(session))


async def weighed(session: Session, spec: DeploymentSpec) -> None:
    """Keep what one replica was found to need, unless it is to run in another way by now."""
    values: dict[str, Any] = {"memory_bytes": spec.memory_bytes, "is_measured": True}
    # The deployment first, as whoever deletes it locks both.
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
    note(session, Deployment, spec.deployment, spec.account_id)


async def keep_notices(session: Session, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
    """Writes down the notices of a replica's load, if they are not those of the last load."""
    values = [msgspec.to_builtins(one) for one in notices]
    # In the order of `weighed`.
    ids = (Deployment.live_version_id, DeploymentVersion.id)
    for table, key in zip((Deployment, DeploymentVersion), ids, strict=True):
        row = await session.scalar(select(table).where(key == spec.id).with_for_update())
        if row is not None and row.notices != values:
            row.notices = values


async def sources(session: Session) -> set[str]:
    """Of all versions, as specifications name them."""
    return {source_of(one) for one in await session.scalars(select(DeploymentVersion))}
