"""Versions of a deployment, one of which is live."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stoker.base.errors import CapacityError, ConflictError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.registry.deployments import adapters, repository, revisions
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
"""Number of versions kept per deployment. Older retired or failed versions are deleted over
time.
"""
MOST = 100
FOLLOWED_BY_MERGED = ("config", "device", "dtype", "engine")
"""Fields that an adapter copies from the base that it is merged into."""
_OVER = (VersionStatus.RETIRED.value, VersionStatus.FAILED.value)

log = logging.getLogger(__name__)


async def get(session: Session, deployment_id: str, version_id: str) -> DeploymentVersion:
    version = await session.get(DeploymentVersion, version_id)
    if version is None or version.deployment_id != deployment_id:
        raise NotFoundError("Version not found", code="version_not_found")
    return version


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
    """Adds a version to a deployment that the transaction has locked.

    Args:
        variant: source of the version's configuration.
        is_live: True if the version is the first one, or no loaded version exists that it must be
            checked next to. Otherwise wake its job after the commit.
    """
    earlier = await repository.versions(session, row.id)
    if len(earlier) >= MOST:
        raise ConflictError(
            f"The deployment has the maximum of {MOST} versions. Delete some first.",
            code="too_many_versions",
        )
    version = DeploymentVersion(
        **{name: getattr(variant, name) for name in VARIANT},
        id=new_id(Prefix.VERSION),
        account_id=row.account_id,
        deployment_id=row.id,
        number=earlier[-1].number + 1 if earlier else 1,
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
    """Makes a version the live one. The caller must publish the deployment."""
    now = db.now()
    for other in await repository.versions(session, row.id):
        if other.id != version.id and other.state == VersionStatus.LIVE:
            other.state, other.retired_at = VersionStatus.RETIRED.value, now
    version.state, version.promoted_at = VersionStatus.LIVE.value, now
    version.retired_at = None
    version.reason = version.message = ""
    row.live_version_id, row.traffic, row.updated_at = version.id, None, now
    for name in VARIANT:
        setattr(row, name, getattr(version, name))


async def remove(session: Session, context: DeploymentContext, version: DeploymentVersion) -> None:
    """Deletes a version that is not live. The caller must call `end` after the commit."""
    if version.state == VersionStatus.LIVE:
        raise ConflictError(
            "The version is live. Promote another version first.", code="version_live"
        )
    await session.delete(version)
    revisions.note(session, context.database, version.deployment_id)
    session.after_commit(lambda: context.preparing.cancel(version.id))


async def end(context: DeploymentContext, removed: Sequence[DeploymentVersion]) -> None:
    """Cleans up after deleted versions. Waits for the end of their replicas."""
    for version in removed:
        await context.runtime.remove(version.id)
    async with context.database.reading() as session:
        used_sources = await sources(session)
    for source in {source_of(version) for version in removed} - used_sources:
        await context.folders.drop(source)


async def publish(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Updates the directory and the runtime after the commit."""
    if row.has_adapters:
        await adapters.follow(session, row)
    await session.flush()
    for adapter in await repository.locked_merged(session, row.id):
        await _follow(session, context, row, adapter)
    revisions.note(session, context.database, row.id)
    versions = await repository.versions(session, row.id)
    session.after_commit(lambda: tell(context, row, versions))


async def _follow(
    session: Session, context: DeploymentContext, base: Deployment, row: Deployment
) -> None:
    """Adds a version to a merged adapter that matches the base's current configuration."""
    earlier = await repository.versions(session, row.id)
    base_values = {name: getattr(base, name) for name in FOLLOWED_BY_MERGED}
    base_values["base_source"] = source_of(base)
    if all(getattr(earlier[-1], name) == value for name, value in base_values.items()):
        return
    for version in earlier:
        if version.state in (VersionStatus.PREPARING, VersionStatus.CHECKING):
            # The version was made from the base's previous configuration.
            version.promote = "manual"
    unmeasured: dict[str, Any] = {
        "memory_bytes": base.memory_bytes,
        "is_measured": False,
        "notices": [],
    }
    changed = applied(row, base_values | unmeasured)
    number = (await get(session, base.id, base.live_version_id)).number
    await begin(session, context, row, changed, note=f"Follows version {number} of the base.")
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
    """Changes how a deployment runs: at once if nothing is loaded, otherwise once the new version
    has passed its checks. The caller must publish the deployment.

    Args:
        is_checked: True to raise `CapacityError` if the version would take over at once and can
            never be loaded.
    """
    stats = context.runtime.stats(row.live_version_id)
    # A stopping replica, such as one of a failed version, answers no calls.
    is_loaded = stats and any(replica.status is not Status.STOPPING for replica in stats.replicas)
    if not is_loaded and not context.database.is_sqlite:
        server_id = context.database.server_id
        is_loaded = await loaded_elsewhere(session, server_id, row.live_version_id)
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
    """Returns a copy of a deployment with other values, detached from the database."""
    return Deployment(
        **{column.key: getattr(row, column.key) for column in Deployment.__table__.columns}
        | dict(changes)
    )


def tell(
    context: DeploymentContext, row: Deployment, versions: Sequence[DeploymentVersion]
) -> None:
    """Updates the directory and the runtime for a deployment."""
    context.directory.put(entry_of(row, versions))
    if row.shares:
        # The base's replicas serve it.
        return
    running = row.desired == Desired.RUNNING
    # The live version comes last: memory reserved for its predecessor is free then.
    for version in sorted(versions, key=lambda version: version.id == row.live_version_id):
        if version.state in CALLABLE:
            spec = (
                spec_of(row, version)
                if version.state == VersionStatus.LIVE
                else kept_spec(row, version)
            )
            context.runtime.apply(spec, running=running)


async def forget_old(context: DeploymentContext) -> None:
    """Deletes old versions of deployments that have many."""
    async with context.database.transaction() as session:
        removed: list[DeploymentVersion] = []
        for deployment_versions in (await repository.versions_by_deployment(session)).values():
            over = [version for version in deployment_versions if version.state in _OVER]
            removed += over[: max(0, len(deployment_versions) - KEPT)]
        for version in removed:
            await remove(session, context, version)
    if removed:
        await end(context, removed)


async def keep_links(session: Session, folders: ModelFolders) -> None:
    """Removes the links to files that no version uses any more."""
    await folders.keep_only(await sources(session))


async def weighed(session: Session, spec: DeploymentSpec) -> None:
    """Stores the measured memory of a replica, unless its configuration has changed in the
    meantime.
    """
    await repository.write_memory(session, spec)
    note(session, Deployment, spec.deployment, spec.account_id)


async def keep_notices(session: Session, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
    """Stores the notices of a replica's load if they differ from those of the last load."""
    values = [msgspec.to_builtins(notice) for notice in notices]
    await repository.write_notices(session, spec.id, values)


async def sources(session: Session) -> set[str]:
    """Returns the sources of all versions, as specifications name them."""
    return {source_of(version) for version in await repository.all_versions(session)}
