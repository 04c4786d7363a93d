"""Deployments: what is wanted is a row; what is observed comes from the runtime."""

import logging

from sqlalchemy.exc import IntegrityError

from stoker.artifacts import repository as artifacts
from stoker.deployments import engines, estimates, repository, schemas
from stoker.deployments.context import DeploymentContext
from stoker.deployments.directory import Entry
from stoker.deployments.estimates import SourceFolder
from stoker.deployments.folders import FOLDER
from stoker.errors import ConflictError, InvalidRequestError, NotFoundError
from stoker.ids import Prefix, new_id
from stoker.quotas.limits import Quota
from stoker.runtime.interface import DeploymentSpec, DeploymentStats, Readiness, Reason, Status
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact, ArtifactStatus
from stoker.store.tables.deployments import Deployment, Desired
from stoker.tasks.architectures import matching
from stoker.tasks.registry import PIPELINES

log = logging.getLogger(__name__)


def spec_of(row: Deployment) -> DeploymentSpec:
    return DeploymentSpec(
        id=row.id,
        account_id=row.account_id,
        model=row.model,
        pipeline=row.pipeline,
        source=_source(row),
        readiness=Readiness(row.readiness),
        engine=row.engine,
        device=row.device,
        dtype=row.dtype,
        min_replicas=row.min_replicas,
        max_replicas=row.max_replicas,
        idle_timeout_s=row.idle_timeout_s,
        max_queue=row.max_queue,
        memory_bytes=row.memory_bytes or 0,
        config=row.config,
    )


def _source(row: Deployment) -> str:
    return row.upload_id or f"{FOLDER}{row.source}"


def entry_of(row: Deployment) -> Entry:
    return Entry(
        deployment_id=row.id,
        account_id=row.account_id,
        model=row.model,
        pipeline=row.pipeline,
        readiness=row.readiness,
        source=_source(row),
        created_at=row.created_at,
    )


def response(context: DeploymentContext, row: Deployment) -> schemas.Deployment:
    stats = context.runtime.stats(row.id) or DeploymentStats(
        status=Status.IDLE if row.desired == Desired.RUNNING else Status.STOPPED,
        reason=Reason.CREATED,
        message="Waiting for its first request." if row.desired == Desired.RUNNING else "Stopped.",
    )
    return schemas.Deployment(
        id=row.id,
        model=row.model,
        pipeline=row.pipeline,
        artifact_id=row.artifact_id,
        source=row.source,
        readiness=Readiness(row.readiness),
        engine=row.engine,
        device=row.device,
        dtype=row.dtype,
        replicas=schemas.Replicas(min=row.min_replicas, max=row.max_replicas),
        idle_timeout_s=row.idle_timeout_s,
        max_queue=row.max_queue,
        config=row.config,
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
    folder: SourceFolder | None,
) -> Deployment:
    if await repository.by_model(session, account_id, request.model):
        raise _model_exists(request.model)
    row = Deployment(
        id=new_id(Prefix.DEPLOYMENT),
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
        config=request.config.model_dump(),
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
        row.pipeline = _pipeline(request.pipeline, artifact)
        row.memory_bytes = estimates.of_artifact(artifact, row.dtype)
    engines.check(context.settings, row)
    context.runtime.check_fits(spec_of(row))
    await context.quotas.take(session, account_id, Quota.DEPLOYMENTS)
    session.add(row)
    try:
        await session.flush()
    except IntegrityError as error:
        # On PostgreSQL another transaction may have taken the model id meanwhile.
        raise _model_exists(request.model) from error
    _publish(session, context, row)
    return row


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


def _pipeline(wanted: str | None, artifact: Artifact) -> str:
    found = str(artifact.pipeline)
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
    row = await get(session, account_id, deployment_id, lock=True)
    before = spec_of(row)
    given = request.model_dump(exclude_none=True, exclude={"replicas", "config"})
    for name, value in given.items():
        setattr(row, name, value)
    if request.config:
        row.config = row.config | request.config.model_dump(exclude_unset=True)
    engines.check(context.settings, row)
    if request.replicas:
        _set_replicas(row, request.replicas)
    if not before.runs_like(spec_of(row)):
        row.memory_bytes = await estimates.again(session, row, folder)
        row.is_measured = False
    context.runtime.check_fits(spec_of(row))
    row.updated_at = db.now()
    _publish(session, context, row)
    return row


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
    _publish(session, context, row)
    return row


async def delete(
    session: Session, context: DeploymentContext, account_id: str, deployment_id: str
) -> Deployment:
    row = await get(session, account_id, deployment_id, lock=True)
    await session.delete(row)
    session.after_commit(lambda: context.directory.drop(row.id))
    return row


async def end(context: DeploymentContext, row: Deployment) -> None:
    """Clear up after a deployment that was deleted; waits for the end of its replicas."""
    await context.runtime.remove(row.id)
    source = _source(row)
    if source not in context.directory.sources():
        await context.folders.drop(source)


def _publish(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Once committed, let the directory and the runtime know."""
    session.after_commit(lambda: publish(context, row))


def publish(context: DeploymentContext, row: Deployment) -> None:
    context.directory.put(entry_of(row))
    context.runtime.apply(spec_of(row), running=row.desired == Desired.RUNNING)


async def restore(context: DeploymentContext) -> None:
    """At the server's start: make every deployment known again."""
    async with context.database.transaction() as session:
        rows = await repository.everything(session)
        for row in rows:
            if row.memory_bytes is None:
                await _estimate_late(session, context, row)
    for row in rows:
        publish(context, row)
    # What a server that was killed has left.
    await context.folders.keep_only(context.directory.sources())


async def _estimate_late(session: Session, context: DeploymentContext, row: Deployment) -> None:
    """Of one that was made before estimates were kept."""
    try:
        folder = await estimates.folder_again(context.settings, row)
        row.memory_bytes = await estimates.again(session, row, folder)
    except InvalidRequestError as error:
        log.warning("no estimate: %s", error.message, extra={"deployment": row.id})
