"""Creates deployments from an artifact, an operator's folder, or an adapter and its base."""

from sqlalchemy.exc import IntegrityError

from stoker.base.errors import ConflictError
from stoker.base.ids import Prefix, new_id
from stoker.platform.quotas.limits import Quota
from stoker.registry.deployments import (
    adapters,
    engines,
    estimates,
    repository,
    schemas,
    servable,
    split_models,
    versions,
)
from stoker.registry.deployments.adapters import Examined
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.estimates import SourceFolder
from stoker.registry.deployments.events import event_of
from stoker.registry.deployments.specs import source_of, spec_of
from stoker.runtime.observed import Reason, Status
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import (
    Deployment,
    DeploymentEvent,
    DeploymentVersion,
    Desired,
)


async def folder_of(
    context: DeploymentContext, request: schemas.DeploymentCreate
) -> SourceFolder | None:
    """Returns the operator's folder to deploy, for `create`. Returns None if an artifact is
    deployed.

    Inspecting the folder takes as long as its disk does, so no transaction waits for it.
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
        folder: result of `folder_of`.
        base: result of `adapters.examined`.
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
        notices=[],
        desired=Desired.RUNNING.value,
        created_at=db.now(),
        updated_at=db.now(),
    )
    if folder is not None:
        row.source, row.pipeline = str(folder.path), folder.inspection.pipeline
        row.memory_bytes = estimates.of_folder(folder.inspection, row.dtype)
        engines.check_loadable(folder.inspection.engines, row)
        split_models.check(folder.inspection.attention_heads, row)
    else:
        artifact = await servable.ready_artifact(session, account_id, str(request.artifact_id))
        row.artifact_id, row.upload_id = artifact.id, artifact.live_upload_id
        if base is not None:
            await _adapt(session, context, row, artifact, base)
        else:
            row.pipeline = servable.pipeline_of(request.pipeline, artifact)
            row.memory_bytes = estimates.of_artifact(artifact, row.dtype)
            engines.check_loadable((artifact.inspection or {}).get("engines", ()), row)
            split_models.check(split_models.heads_of(artifact), row)
    if row.shares is None:
        engines.check(context.settings, row)
        context.runtime.check_fits(spec_of(row))
    await context.quotas.take(session, account_id, Quota.DEPLOYMENTS)
    session.add(row)
    try:
        await session.flush()
    except IntegrityError as error:
        # On PostgreSQL another transaction may have used the model id in the meantime.
        raise _model_exists(request.model) from error
    version = await versions.add(session, row, row, is_live=True)
    session.add(_created(row, version))
    await versions.publish(session, context, row)
    return row


async def _adapt(
    session: Session,
    context: DeploymentContext,
    row: Deployment,
    artifact: Artifact,
    examined: Examined,
) -> None:
    """Makes an adapter share the replicas of its base, or merges it into the base's current
    weights.

    The base's replicas accept adapters from its first adapter on.
    """
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


def _created(row: Deployment, version: DeploymentVersion) -> DeploymentEvent:
    """Returns the deployment's first event. No runtime reports it, because another server's runtime
    may run the deployment.
    """
    message = "Created."
    if row.merged_because:
        message = (
            "The adapter is merged into its base's weights and has its own replicas. "
            + row.merged_because
        )
    return event_of(row.id, version.id, Status.IDLE, Reason.CREATED, message)


def _model_exists(model: str) -> ConflictError:
    return ConflictError(
        f"The account already has a deployment with the model id '{model}'.",
        code="model_exists",
        param="model",
    )
