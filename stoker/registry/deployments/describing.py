"""Builds the response for a deployment: desired values from its row, observed values from the
runtime.
"""

from stoker.registry.deployments import schemas
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.repository import StatusColumns
from stoker.runtime.observed import DeploymentStats, Reason, Status
from stoker.store.tables.deployments import Deployment, Desired


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
        readiness=row.readiness,
        engine=row.engine,
        device=row.device,
        dtype=row.dtype,
        replicas=schemas.Replicas(min=row.min_replicas, max=row.max_replicas),
        idle_timeout_s=row.idle_timeout_s,
        max_queue=row.max_queue,
        keep_s=row.keep_s,
        config=row.config,
        version_id=row.live_version_id,
        traffic=schemas.Traffic.model_construct(**row.traffic) if row.traffic else None,
        desired=Desired(row.desired),
        status=stats.status,
        reason=stats.reason,
        message=stats.message,
        memory=schemas.Memory(
            bytes=row.memory_bytes or stats.memory_bytes, is_measured=row.is_measured
        ),
        device_problem=next(
            (worker.device_problem for worker in stats.replicas if worker.device_problem), ""
        ),
        notices=[schemas.Notice.model_validate(notice) for notice in row.notices],
        workers=[schemas.Worker.model_validate(worker) for worker in stats.replicas],
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _adapter(row: Deployment, base: str) -> schemas.Adapter:
    sharing = "merged" if row.merged_because else "shared"
    return schemas.Adapter(of=base, sharing=sharing, reason=row.merged_because or "")


def observed(context: DeploymentContext, row: Deployment | StatusColumns) -> DeploymentStats:
    running = row.desired == Desired.RUNNING
    live_id = context.directory.live(row.id) if row.shares else row.live_version_id
    if (running or not row.shares) and (live_stats := context.runtime.stats(live_id)):
        return live_stats
    return DeploymentStats(
        status=Status.IDLE if running else Status.STOPPED,
        reason=Reason.CREATED if running or not row.shares else Reason.STOPPED_BY_USER,
        message="Waiting for its first request." if running else "Stopped.",
    )
