"""Deployments: what is wanted is a row; what is observed comes from the runtime."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from sqlalchemy.exc import IntegrityError

from stoker.adapters.lora import ADAPTER
from stoker.artifacts import repository as artifacts
from stoker.deployments import (
    adapters,
    engines,
    estimates,
    repository,
    revisions,
    schemas,
    versions,
)
from stoker.deployments.adapters import Examined
from stoker.deployments.context import DeploymentContext
from stoker.deployments.estimates import SourceFolder
from stoker.deployments.repository import Wanted
from stoker.deployments.specs import source_of, spec_of
from stoker.errors import ConflictError, InvalidRequestError, NotFoundError
from stoker.ids import Prefix, new_id
from stoker.quotas.limits import Quota
from stoker.runtime.interface import DeploymentStats, Readiness, Reason, Status
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact, ArtifactStatus
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentEvent,
    DeploymentVersion,
    Desired,
)
from stoker.tasks.architectures import matching
from stoker.tasks.registry import PIPELINES

log = logging.getLogger(__name__)


def response(context: DeploymentContext, row: Deployment) -> schemas.Deployment:
    base = context.directory.find(row.adapter_of) if row.adapter_of else None
    stats = observed(context, row)
    return schemas.Deployment(
        id=row.id,
        model=row.model,
        pipeline=row.pipeline,
        artifact_id=row.artifact_id,
        source=row.source,
        adapter_of=base.model if base else None,
        adapter=_adapter(row, base.model) if base else None,
        readiness=Readiness(row.readiness),
        engine=row.engine,
        device=row.device,
        dtype=row.dtype,
        replicas=schemas.Replicas(min=row.min_replicas, max=row.max_replicas),
        idle_timeout_s=row.idle_timeout_s,
        max_queue=row.max_queue,
        keep_s=row.keep_s,
        config=row.config,
        version_id=row.live_version_id,
        traffic=schemas.Traffic.model_validate(row.traffic) if row.traffic else None,
        desired=Desired(row.desired),
        status=stats.status,
        reason=stats.reason,
        message=stats.message,
        memory=schemas.Memory(
            bytes=row.memory_bytes or stats.memory_bytes, is_measured=row.is_measured
        ),
        workers=[schemas.Worker.model_validate(worker) for worker in stats.replicas],
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _adapter(row: Deployment, base: str) -> schemas.Adapter:
    sharing = "merged" if row.merged_because else "shared"
    return schemas.Adapter(of=base, sharing=sharing, reason=row.merged_because or "")


def observed(context: DeploymentContext, row: Deployment | Wanted) -> DeploymentStats:
    running = row.desired == Desired.RUNNING
    live_id = context.directory.live(row.id) if row.shares else row.live_version_id
    if (running or not row.shares) and (found := context.runtime.stats(live_id)):
        return found
    return DeploymentStats(
        status=Status.IDLE if running else Status.STOPPED,
        reason=Reason.CREATED if running or not row.shares else Reason.STOPPED_BY_USER,
        message="Waiting for its first request." if running else "Stopped.",
    )


async def folder_of(
    context: DeploymentContext, request: schemas.DeploymentCreate
) -> SourceFolder | None:
    """The operator's folder that is to be deployed, for `create`; none where it is an artifact's.

    Inspecting it takes as long as its disk does: no transaction waits for that.
    """
    if request.source is None:
        return None
    return await estimates.inspected_folder(context.settings, request.source, request.pipeline)


async def create(
    session: Session,
    context: DeploymentContext,
    account_id: str,
    request: schemas.DeploymentCreate,
    *,
    folder: SourceFolder | None,
    base: Examined | None,
) -> Deployment:
    """
    Args:
        folder: that of `folder_of`.
        base: that of `adapters.examined`.
    """
    if await repository.by_model(session, account_id, request.model):
        raise _model_exists(request.model)
    row = Deployment(
        id=new_id(Prefix.DEPLOYMENT),
        live_version_id="",
        account_id=account_id,
        model=request.model,
        readiness=request.readiness.value,
        engine=request.engine,
        device=request.device,
        dtype=request.dtype,
        min_replicas=request.replicas.min,
        max_replicas=request.replicas.max,
        idle_timeout_s=request.idle_timeout_s,
        max_queue=request.max_queue,
        keep_s=request.keep_s,
        config=request.config.model_dump(),
        is_measured=False,
        desired=Desired.RUNNING.value,
        created_at=db.now(),
        updated_at=db.now(),
    )
    if folder is not None:
        row.source, row.pipeline = str(folder.path), folder.inspection.pipeline
        row.memory_bytes = estimates.of_folder(folder.inspection, row.dtype)
    else:
        artifact = await _ready_artifact(session, account_id, str(request.artifact_id))
        row.artifact_id, row.upload_id = artifact.id, artifact.live_upload_id
        if base is not None:
            await _adapt(session, context, row, artifact, base)
        else:
            row.pipeline = _pipeline(request.pipeline, artifact)
            row.memory_bytes = estimates.of_artifact(artifact, row.dtype)
    if row.shares is None:
        engines.check(context.settings, row)
        context.runtime.check_fits(spec_of(row))
    await context.quotas.take(session, account_id, Quota.DEPLOYMENTS)
    session.add(row)
    try:
        await session.flush()
    except IntegrityError as error:
        # On PostgreSQL another transaction may have taken the model id meanwhile.
        raise _model_exists(request.model) from error
    version = await versions.add(session, row, row, is_live=True)
    if row.merged_because:
        session.add(_told_as_merged(row, version))
    await versions.publish(session, context, row)
    return row


def _told_as_merged(row: Deployment, version: DeploymentVersion) -> DeploymentEvent:
    return DeploymentEvent(
        id=new_id(Prefix.EVENT),
        deployment_id=row.id,
        version_id=version.id,
        status=Status.IDLE.value,
        reason=Reason.CREATED.value,
        message=f"It is merged into its base's weights, in replicas of its own. "
        f"{row.merged_because}",
        created_at=db.now(),
    )


async def _adapt(
    session: Session,
    context: DeploymentContext,
    row: Deployment,
    artifact: Artifact,
    examined: Examined,
) -> None:
    """Have an adapter share the replicas of its base, which begin to take any with the first; or
    have it merged into what the base runs now."""
    base = await adapters.base_of(session, row.account_id, examined)
    row.adapter_of, row.pipeline = base.id, base.pipeline
    if examined.why_alone:
        row.merged_because, row.base_source = examined.why_alone, source_of(base)
        for name in versions.FOLLOWED_BY_MERGED:
            setattr(row, name, getattr(base, name))
        row.memory_bytes = base.memory_bytes
        return
    for name in adapters.FOLLOWED:
        setattr(row, name, getattr(base, name))
    row.memory_bytes = int((artifact.inspection or {}).get("weight_bytes", 0))
    row.is_measured = True
    await adapters.place(session, context.folders, row)
    if not base.has_adapters:
        base.has_adapters = True
        await versions.publish(session, context, base)


def _model_exists(model: str) -> ConflictError:
    return ConflictError(
        f"The account has a deployment with the model id '{model}' already.",
        code="model_exists",
        param="model",
    )


async def _ready_artifact(session: Session, account_id: str, artifact_id: str) -> Artifact:
    artifact = await artifacts.get(session, account_id, artifact_id, lock=True)
    if artifact is None:
        raise NotFoundError("Artifact not found", code="artifact_not_found", param="artifact_id")
    if artifact.status != ArtifactStatus.READY:
        raise ConflictError(
            f"The artifact is {artifact.status}, not ready: complete an upload of its files first.",
            code="artifact_not_ready",
            param="artifact_id",
        )
    return artifact


async def artifact_for(session: Session, row: Deployment, artifact_id: str) -> Artifact:
    """A ready artifact that can serve a deployment's pipeline."""
    artifact = await _ready_artifact(session, row.account_id, artifact_id)
    try:
        _pipeline(row.pipeline, artifact)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message, param="artifact_id") from error
    return artifact


def _pipeline(wanted: str | None, artifact: Artifact) -> str:
    found = str(artifact.pipeline)
    if found == ADAPTER:
        raise InvalidRequestError(
            "The artifact is an adapter: give the model id of its base's deployment as "
            "'adapter_of'.",
            param="adapter_of",
        )
    if wanted is None or wanted == found:
        return found
    architecture = (artifact.inspection or {}).get("architecture", "")
    return _servable(wanted, str(architecture))


def _servable(wanted: str, architecture: str) -> str:
    if wanted not in PIPELINES:
        raise InvalidRequestError(
            f"Unknown pipeline '{wanted}'. Known: {', '.join(PIPELINES)}.", param="pipeline"
        )
    if not matching(architecture, PIPELINES[wanted]):
        fitting = [name for name, patterns in PIPELINES.items() if matching(architecture, patterns)]
        raise InvalidRequestError(
            f"A {architecture} cannot serve '{wanted}'; it can serve: {', '.join(fitting)}.",
            param="pipeline",
        )
    return wanted


async def get(
    session: Session, account_id: str, deployment_id: str, *, lock: bool = False
) -> Deployment:
    row = await repository.get(session, account_id, deployment_id, lock=lock)
    if row is None:
        raise NotFoundError("Deployment not found", code="deployment_not_found")
    return row


async def folder_again(
    context: DeploymentContext,
    account_id: str,
    deployment_id: str,
    request: schemas.DeploymentUpdate,
) -> SourceFolder | None:
    """The operator's folder of a deployment, for an `update` that may change what it needs."""
    if not request.model_fields_set & {"engine", "device", "dtype", "config"}:
        return None
    async with context.database.reading() as session:
        row = await get(session, account_id, deployment_id)
    return await estimates.folder_again(context.settings, row)


async def update(
    session: Session,
    context: DeploymentContext,
    account_id: str,
    deployment_id: str,
    request: schemas.DeploymentUpdate,
    *,
    folder: SourceFolder | None,
) -> Deployment:
    """Change a deployment. What describes how it runs makes a version, which takes over at once
    where nothing is loaded, and else when it was found right.
    """
    row = await get(session, account_id, deployment_id, lock=True)
    if row.shares or request.model_fields_set & {*versions.FOLLOWED_BY_MERGED}:
        adapters.refuse(row, "It runs as its base does: change that one.")
    for name in ("readiness", "idle_timeout_s", "max_queue", "keep_s"):
        if (value := getattr(request, name)) is not None:
            setattr(row, name, value)
    if request.replicas:
        _set_replicas(row, request.replicas)
    changed = changed_variant(row, request)
    adapters.check_base(row, changed)
    engines.check(context.settings, changed)
    context.runtime.check_fits(spec_of(row))
    if not spec_of(row).runs_like(spec_of(changed)):
        changed.memory_bytes = await estimates.again(session, changed, folder)
        changed.is_measured = False
        await versions.begin(session, context, row, changed, is_checked=True)
    row.updated_at = db.now()
    await versions.publish(session, context, row)
    return row


class Changes(Protocol):
    """What a request says of how a deployment is to run; None: as it does."""

    engine: str | None
    device: str | None
    dtype: Any
    config: schemas.Config | None


def changed_variant(row: Deployment, request: Changes) -> Deployment:
    """The deployment as it would run, apart from the database."""
    given = {name: getattr(request, name) for name in ("engine", "device", "dtype")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if request.config:
        changes["config"] = row.config | request.config.model_dump(exclude_unset=True)
    return versions.applied(row, changes)


def _set_replicas(row: Deployment, wanted: schemas.ReplicasUpdate) -> None:
    if wanted.min is not None:
        row.min_replicas = wanted.min
    if wanted.max is not None:
        row.max_replicas = wanted.max
    if row.min_replicas > row.max_replicas:
        raise InvalidRequestError(
            f"'replicas': min must not be greater than max; they would be {row.min_replicas} and "
            f"{row.max_replicas}.",
            param="replicas",
        )


async def set_desired(
    session: Session,
    context: DeploymentContext,
    account_id: str,
    deployment_id: str,
    desired: Desired,
) -> Deployment:
    row = await get(session, account_id, deployment_id, lock=True)
    row.desired = desired.value
    row.updated_at = db.now()
    await versions.publish(session, context, row)
    return row


async def delete(
    session: Session, context: DeploymentContext, account_id: str, deployment_id: str
) -> Sequence[DeploymentVersion]:
    """Forget a deployment. Returns its versions, for `versions.end` once it is committed."""
    row = await get(session, account_id, deployment_id, lock=True)
    if shared := await adapters.of_base(session, row.id):
        names = ", ".join(one.model for one in shared[:5]) + (" …" if len(shared) > 5 else "")
        raise ConflictError(
            f"It is the base of {len(shared)} adapters ({names}): delete those first.",
            code="has_adapters",
        )
    found = await versions.all_of(session, row.id)
    await session.delete(row)
    await session.flush()
    if row.shares:
        await _share_no_more(session, context, row.shares)
    revisions.note(session, context.database, row.id)
    session.after_commit(lambda: context.directory.drop(row.id))
    place = (row.shares, row.id) if row.shares else (row.id,)
    session.after_commit(partial(context.folders.drop_adapters, *place))
    for one in found:
        session.after_commit(partial(context.preparing.cancel, one.id))
    return found


async def _share_no_more(session: Session, context: DeploymentContext, base_id: str) -> None:
    """Have a base run as it likes again once its last adapter is deleted."""
    base = await session.get(Deployment, base_id)
    if base and not await adapters.count(session, base_id):
        base.has_adapters = False
        await versions.publish(session, context, base)


async def restore(context: DeploymentContext) -> None:
    """At the server's start: make every deployment known again."""
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
    # What a server that was killed has left.
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
