"""Changes existing deployments. Their desired state is a row, which this module updates."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from stoker.base.errors import ConflictError, InvalidRequestError, NotFoundError
from stoker.registry.deployments import (
    adapters,
    engines,
    estimates,
    repository,
    revisions,
    schemas,
    split_models,
    versions,
)
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.estimates import SourceFolder
from stoker.registry.deployments.events import untold
from stoker.registry.deployments.specs import spec_of
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment, DeploymentVersion, Desired


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
    """Returns a deployment's operator folder, for an `update` that may change its memory needs."""
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
    """Changes a deployment. A change to how it runs creates a version. The version takes over at
    once if nothing is loaded, otherwise once it has passed its checks.
    """
    row = await get(session, account_id, deployment_id, lock=True)
    if row.shares or request.model_fields_set & {*versions.FOLLOWED_BY_MERGED}:
        adapters.refuse(row, "It runs like its base. Change the base instead.")
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
        await split_models.check_changed(session, changed, folder)
        changed.memory_bytes = await estimates.again(session, changed, folder)
        changed.is_measured, changed.notices = False, []
        await versions.begin(session, context, row, changed, is_checked=True)
    row.updated_at = db.now()
    await versions.publish(session, context, row)
    return row


class RequestedChanges(Protocol):
    """Requested changes to how a deployment runs. None means unchanged."""

    engine: str | None
    device: str | None
    dtype: Any
    config: schemas.Config | None


def changed_variant(row: Deployment, request: RequestedChanges) -> Deployment:
    """Returns a copy of the deployment with the changes, detached from the database."""
    requested = {name: getattr(request, name) for name in ("engine", "device", "dtype")}
    changes: dict[str, Any] = {
        name: value for name, value in requested.items() if value is not None
    }
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
    is_change = row.desired != desired
    row.desired = desired.value
    row.updated_at = db.now()
    if is_change and context.runtime.is_remote and not row.shares:
        event = await untold(session, row)
        if event is not None:
            session.add(event)
    await versions.publish(session, context, row)
    return row


async def delete(
    session: Session, context: DeploymentContext, account_id: str, deployment_id: str
) -> Sequence[DeploymentVersion]:
    """Deletes a deployment. Returns its versions, for `versions.end` after the commit."""
    row = await get(session, account_id, deployment_id, lock=True)
    if shared := await repository.adapters_of(session, row.id):
        names = ", ".join(item.model for item in shared[:5]) + (" …" if len(shared) > 5 else "")
        raise ConflictError(
            f"The deployment is the base of {len(shared)} adapters ({names}). Delete "
            "the adapters first.",
            code="has_adapters",
        )
    removed = await repository.versions(session, row.id)
    await session.delete(row)
    await session.flush()
    if row.shares:
        await _share_no_more(session, context, row.shares)
    revisions.note(session, context.database, row.id)
    session.after_commit(lambda: context.directory.drop(row.id))
    place = (row.shares, row.id) if row.shares else (row.id,)
    session.after_commit(partial(context.folders.drop_adapters, *place))
    for item in removed:
        session.after_commit(partial(context.preparing.cancel, item.id))
    return removed


async def _share_no_more(session: Session, context: DeploymentContext, base_id: str) -> None:
    """Removes the restrictions of sharing from a base once its last adapter is deleted."""
    base = await session.get(Deployment, base_id)
    if base and not await repository.count_sharing(session, base_id):
        base.has_adapters = False
        await versions.publish(session, context, base)
