"""New versions of deployments: creation, promotion, traffic and rollback."""

import math
from collections.abc import Sequence
from typing import Any

from stoker.base.errors import CapacityError, ConflictError, NotFoundError
from stoker.registry.deployments import (
    adapters,
    engines,
    estimates,
    servable,
    split_models,
    versions,
)
from stoker.registry.deployments import repository as deployment_rows
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.estimates import SourceFolder
from stoker.registry.deployments.schemas import Memory, Traffic
from stoker.registry.deployments.specs import CALLABLE, spec_of
from stoker.runtime.observed import Status
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentVersion,
    Desired,
    VersionStatus,
)
from stoker.store.tables.jobs import JobStatus
from stoker.workloads.rollouts import schemas
from stoker.workloads.rollouts.context import VersionContext
from stoker.workloads.rollouts.tally import Latency


def response(context: VersionContext, row: DeploymentVersion) -> schemas.Version:
    return schemas.Version(
        id=row.id,
        deployment_id=row.deployment_id,
        number=row.number,
        artifact_id=row.artifact_id,
        source=row.source,
        engine=row.engine,
        device=row.device,
        dtype=row.dtype,
        config=row.config,
        status=VersionStatus(row.state),
        reason=row.reason,
        message=row.message,
        note=row.note,
        promote="manual" if row.promote == "manual" else "when_ready",
        strategy="in_place" if row.strategy == "in_place" else "beside",
        progress=context.preparing.shown(row),
        memory=Memory(bytes=row.memory_bytes or 0, is_measured=row.is_measured),
        is_loaded=is_loaded(context, row.id),
        created_at=row.created_at,
        promoted_at=row.promoted_at,
        retired_at=row.retired_at,
    )


def is_loaded(context: VersionContext, version_id: str) -> bool:
    """True if a version could answer at once."""
    stats = context.runtime.stats(version_id)
    return stats is not None and any(replica.status is Status.READY for replica in stats.replicas)


async def folder_of(
    context: VersionContext, account_id: str, deployment_id: str, body: schemas.VersionCreate
) -> SourceFolder | None:
    """Returns the operator's folder for a new version, or None if it uses an artifact.

    Raises `InvalidRequestError`. Runs outside of transactions, so that none waits for it.
    """
    async with context.database.reading() as session:
        row = await deployments.get(session, account_id, deployment_id)
    if body.source is not None:
        return await estimates.inspected_folder(context.settings, body.source, row.pipeline)
    if body.artifact_id is not None:
        return None
    return await estimates.folder_again(context.settings, row)


async def create(
    session: Session,
    context: VersionContext,
    row: Deployment,
    body: schemas.VersionCreate,
    folder: SourceFolder | None,
) -> DeploymentVersion:
    """Creates a version of a deployment that the transaction has locked.

    Raises the errors of deploying, `CapacityError` if the version cannot be loaded with its
    strategy, and `ConflictError`. Nothing has changed in that case.
    """
    adapters.refuse(row, "Deploy the new adapter as a separate deployment.")
    changed = deployments.changed_variant(row, body)
    adapters.check_base(row, changed)
    if body.artifact_id is not None:
        artifact = await servable.artifact_for(session, row, body.artifact_id)
        changed.artifact_id, changed.upload_id = artifact.id, artifact.live_upload_id
        changed.source = None
    elif body.source is not None and folder is not None:
        changed.artifact_id = changed.upload_id = None
        changed.source = str(folder.path)
    engines.check(context.settings, changed)
    await split_models.check_changed(session, changed, folder)
    changed.memory_bytes = await estimates.again(session, changed, folder)
    changed.is_measured, changed.notices = False, []
    spec = spec_of(changed)
    context.runtime.check_fits(spec)
    if body.strategy == "beside":
        context.runtime.check_beside(spec, row.live_version_id)
    version = await versions.add(
        session, row, changed, note=body.note, promote=body.promote, strategy=body.strategy
    )
    session.after_commit(context.preparing.wake)
    return version


async def get(
    session: Session, account_id: str, deployment_id: str, version_id: str
) -> DeploymentVersion:
    await deployments.get(session, account_id, deployment_id)
    return await versions.get(session, deployment_id, version_id)


async def promote(
    session: Session,
    context: VersionContext,
    account_id: str,
    deployment_id: str,
    version_id: str,
) -> DeploymentVersion:
    """Promotes a version.

    The version takes over at once if it is loaded, or if nothing is loaded. Otherwise it is loaded
    and checked first. Raises `ConflictError` for a version that cannot take over.
    """
    row = await deployments.get(session, account_id, deployment_id, lock=True)
    version = await versions.get(session, deployment_id, version_id)
    if version.state == VersionStatus.FAILED:
        raise ConflictError(
            f"Version {version.number} has failed ({version.reason}). Create another version.",
            code="version_failed",
        )
    if version.state not in CALLABLE:
        # The version is in preparation.
        version.promote = "when_ready"
        return version
    is_only = version.id == row.live_version_id and row.traffic is None
    if is_only:
        return version
    live = context.runtime.stats(row.live_version_id)
    nothing_runs = row.desired == Desired.STOPPED or not (live and live.replicas)
    # Later adapters may not fit the version. Its preparation checks them.
    has_adapters = bool(await deployment_rows.adapters_of(session, row.id))
    is_at_once = not has_adapters and (nothing_runs or is_loaded(context, version.id))
    if is_at_once:
        await versions.take_over(session, row, version)
        await versions.publish(session, context, row)
    else:
        _prepare_again(context, row, version)
        session.after_commit(context.preparing.wake)
    return version


async def roll_back(
    session: Session,
    context: VersionContext,
    account_id: str,
    deployment_id: str,
    version_id: str | None,
) -> DeploymentVersion:
    """Promotes a version that was live before. Raises as `promote` does."""
    if version_id is None:
        await deployments.get(session, account_id, deployment_id, lock=True)
        version_id = _last(await deployment_rows.versions(session, deployment_id)).id
    return await promote(session, context, account_id, deployment_id, version_id)


def _last(found: Sequence[DeploymentVersion]) -> DeploymentVersion:
    """Returns the version that was live last."""
    retired = [
        version
        for version in found
        if version.state == VersionStatus.RETIRED and version.retired_at
    ]
    if not retired:
        raise ConflictError("No version was live before.", code="no_earlier_version")
    return max(
        retired, key=lambda version: (version.retired_at or version.created_at, version.number)
    )


async def remove(
    session: Session,
    context: VersionContext,
    account_id: str,
    deployment_id: str,
    version_id: str,
) -> DeploymentVersion:
    """Removes a version. The caller must call `versions.end` with it after the commit."""
    row = await deployments.get(session, account_id, deployment_id, lock=True)
    version = await versions.get(session, deployment_id, version_id)
    await versions.remove(session, context, version)
    if row.traffic and version_id in row.traffic["mirror"]:
        traffic = Traffic.model_validate(row.traffic)
        del traffic.mirror[version_id]
        row.traffic = _kept(traffic)
    await versions.publish(session, context, row)
    return version


async def direct(
    session: Session,
    context: VersionContext,
    account_id: str,
    deployment_id: str,
    traffic: Traffic,
) -> Deployment:
    """Distributes calls among versions. Raises for a version that cannot accept calls."""
    row = await deployments.get(session, account_id, deployment_id, lock=True)
    adapters.refuse(row, "Its calls follow the traffic of its base.")
    by_id = {
        version.id: version for version in await deployment_rows.versions(session, deployment_id)
    }
    named = [("weights", name) for name in traffic.weights]
    for field, name in [*named, *(("mirror", name) for name in traffic.mirror)]:
        if name not in by_id:
            raise NotFoundError(
                f"The deployment has no version {name}.",
                code="version_not_found",
                param=f"{field}.{name}",
            )
        if by_id[name].state not in CALLABLE:
            raise ConflictError(
                f"Version {by_id[name].number} is {by_id[name].state} and cannot receive calls.",
                code="version_not_ready",
                param=f"{field}.{name}",
            )
    weights = {name: percent for name, percent in traffic.weights.items() if percent}
    main = max(weights, key=lambda name: (name == row.live_version_id, weights[name]))
    for name in weights:
        if name != main:
            context.runtime.check_beside(spec_of(row, by_id[name]), main)
    if main != row.live_version_id:
        await versions.take_over(session, row, by_id[main])
    now = db.now()
    for name, version in by_id.items():
        if name in weights and version.state != VersionStatus.LIVE:
            version.state, version.promoted_at = VersionStatus.LIVE.value, now
            version.retired_at = None
        elif name not in weights and version.state == VersionStatus.LIVE:
            version.state, version.retired_at = VersionStatus.RETIRED.value, now
    row.traffic = _kept(traffic)
    row.updated_at = now
    await versions.publish(session, context, row)
    return row


def _kept(traffic: Traffic) -> dict[str, Any] | None:
    """Returns the traffic settings without defaults, or None if nothing remains."""
    weights = {name: percent for name, percent in traffic.weights.items() if percent}
    mirror = {name: percent for name, percent in traffic.mirror.items() if percent}
    if len(weights) == 1 and not mirror:
        return None
    stored: dict[str, Any] = {"weights": weights, "sticky": traffic.sticky, "mirror": mirror}
    return stored | ({"examples": True} if traffic.examples else {})


def _prepare_again(context: VersionContext, row: Deployment, version: DeploymentVersion) -> None:
    version.strategy = "beside"
    try:
        context.runtime.check_beside(spec_of(row, version), row.live_version_id)
    except CapacityError:
        version.strategy = "in_place"
    version.promote = "when_ready"
    version.state = VersionStatus.PREPARING.value
    version.status, version.progress = JobStatus.QUEUED.value, 0.0
    version.tries = version.losses = 0
    version.completed_at = version.not_before = None
    version.error_code = version.error_message = None


async def comparison(
    session: Session,
    context: VersionContext,
    account_id: str,
    deployment_id: str,
    version_id: str,
) -> schemas.VersionComparison:
    row = await deployments.get(session, account_id, deployment_id)
    await versions.get(session, deployment_id, version_id)
    whole = await context.mirrors.found(version_id, row.live_version_id)
    tally = whole.tally
    return schemas.VersionComparison(
        deployment_id=deployment_id,
        version_id=version_id,
        live_version_id=row.live_version_id,
        compared=tally.mirror.calls,
        failed=tally.failed,
        dropped=tally.dropped,
        differing=tally.differs,
        measure=tally.measure,
        equal_top_labels=_share(tally.equal_labels, tally.labels),
        equal_texts=_share(tally.equal_texts, tally.texts),
        mean_cosine=_share(tally.cosine_sum, tally.cosines),
        least_cosine=tally.least_cosine if tally.cosines else None,
        difference=tally.difference if math.isfinite(tally.difference) else None,
        live=_latency(tally.live),
        mirror=_latency(tally.mirror),
        examples=[schemas.Example.model_validate(example) for example in whole.examples],
    )


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _latency(found: Latency) -> schemas.Latency:
    mean = _share(found.seconds * 1000, found.calls)
    longest = round(found.longest_s * 1000, 3)
    return schemas.Latency(calls=found.calls, mean_ms=mean, longest_ms=longest)
