"""Deployments of adapters. Each shares the replicas of another deployment, its base.

An adapter that cannot share replicas is merged into the base's weights and has its own replicas.
"""

import asyncio
import logging
from dataclasses import dataclass

from stoker.base.errors import CapacityError, ConflictError, InvalidRequestError, ModelNotFoundError
from stoker.inspection import InspectionError, InspectorError
from stoker.models.adapters.lora import ADAPTER
from stoker.models.engines.catalogue import is_conversion
from stoker.models.engines.record import AUTO, INT8
from stoker.platform.web.outage import store_unavailable
from stoker.registry.artifacts import repository as artifacts
from stoker.registry.artifacts import service as artifact_service
from stoker.registry.deployments import repository, schemas
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.copies import BucketUnreachableError
from stoker.registry.deployments.folders import ModelFolders
from stoker.registry.deployments.specs import spec_of
from stoker.runtime.interface import LoadError
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment

log = logging.getLogger(__name__)

PIPELINES = frozenset(
    {
        *("text-generation", "feature-extraction", "fill-mask", "question-answering"),
        *("text-classification", "text-ranking", "token-classification"),
    }
)
"""Pipelines with models that run one pass over the rows of a batch, so that the adapter of each row
is known.
"""
_OF_THE_BASE = frozenset({"config", "device", "dtype", "engine", "pipeline", "source"})
_OF_REPLICAS = frozenset({"idle_timeout_s", "keep_s", "max_queue", "readiness", "replicas"})
"""Fields that follow the base if its replicas are shared."""
FOLLOWED = ("readiness", "engine", "device", "dtype", "min_replicas", "max_replicas")
"""Fields that a deployment of an adapter copies from its base."""


@dataclass(frozen=True)
class Examined:
    """Base that fits an adapter, in the version that was examined."""

    deployment_id: str
    version_id: str
    why_alone: str = ""
    """Reason why the base's replicas cannot be shared, so that the adapter is merged. Empty if they
    can be shared.
    """


async def examined(
    context: DeploymentContext, account_id: str, request: schemas.DeploymentCreate
) -> Examined | None:
    """Returns the base of an adapter to deploy, for `service.create`. Returns None if the request
    deploys no adapter.

    A worker process reads the headers of both, so no transaction waits for it.

    Raises:
        InvalidRequestError: the artifact is no adapter, or does not fit its base.
        ModelNotFoundError: the base does not exist.
    """
    if request.adapter_of is None:
        return None
    _check_given(request, _OF_THE_BASE)
    async with context.database.reading() as session:
        base = await _base(session, account_id, request.adapter_of)
        artifact = await artifacts.get(session, account_id, str(request.artifact_id))
        if artifact is None or artifact.live_upload_id is None:
            # `create` raises the error that it raises for any missing or unready artifact.
            return Examined(base.id, base.live_version_id)
        if artifact.pipeline != ADAPTER:
            raise InvalidRequestError(
                "The artifact is a whole model, not an adapter. Leave out 'adapter_of'.",
                param="adapter_of",
            )
        upload_id = artifact.live_upload_id
        files = await artifact_service.files_of(session, upload_id)
        spec = spec_of(base)
    try:
        paths = await context.folders.paths(upload_id, files)
        folder = await context.folders.folder(spec)
    except BucketUnreachableError:
        raise store_unavailable() from None
    except LoadError as error:
        raise InvalidRequestError(f"The base cannot be read: {error}", param="adapter_of") from None
    try:
        fit = await context.inspectors.fit(account_id, paths, folder, _why_unshared(base))
    except InspectionError as error:
        raise InvalidRequestError(error.message, param="artifact_id") from error
    except InspectorError as error:
        raise InvalidRequestError(
            "The adapter's files could not be read.", param="artifact_id"
        ) from error
    why, why_alone = fit.why_unfit, fit.why_alone
    if why and why_alone:
        raise InvalidRequestError(
            f"{why_alone} The adapter cannot be merged into the base either: {why}",
            param="artifact_id",
        )
    if why:
        raise InvalidRequestError(f"The adapter is for another base: {why}", param="artifact_id")
    if not why_alone:
        _check_given(request, _OF_REPLICAS)
    return Examined(base.id, base.live_version_id, why_alone)


def _check_given(request: schemas.DeploymentCreate, names: frozenset[str]) -> None:
    if fields := sorted(names & request.model_fields_set):
        raise InvalidRequestError(
            f"'{fields[0]}' cannot be set for an adapter, which runs like its base. Leave it out.",
            param=fields[0],
        )


async def _base(session: Session, account_id: str, model: str) -> Deployment:
    """Returns the base's row. Raises `ModelNotFoundError`, and `InvalidRequestError` if the
    deployment cannot be a base.
    """
    row = await repository.by_model(session, account_id, model)
    if row is None:
        raise ModelNotFoundError(
            f"Model not found: '{model}' is not the model id of a deployment of this account.",
            param="adapter_of",
        )
    if row.adapter_of:
        raise InvalidRequestError(
            f"'{model}' is an adapter itself. Use the model id of its base.", param="adapter_of"
        )
    return row


def _why_unshared(row: Deployment) -> str:
    """Returns the reason why the base's replicas accept no adapters. Empty if they accept
    adapters.
    """
    if row.pipeline not in PIPELINES:
        return f"The base serves {row.pipeline}, and batches of that pipeline cannot mix adapters."
    is_shared = row.engine in (AUTO, "torch", "vllm") or is_conversion(row.engine)
    if not is_shared:
        return f"The base runs on {row.engine}, which does not support adapters."
    if row.dtype == INT8:
        return "The base runs in int8, which does not support adapters."
    return ""


async def base_of(session: Session, account_id: str, found: Examined) -> Deployment:
    """Returns the locked row of the base. Raises `ConflictError` if the base has changed since it
    was examined.
    """
    row = await repository.get(session, account_id, found.deployment_id, lock=True)
    is_other = row is None or row.live_version_id != found.version_id
    if row is None or is_other or (_why_unshared(row) and not found.why_alone):
        raise ConflictError(
            "The base changed during the request. Try again.", code="base_changed", retry_after_s=1
        )
    return row


async def check_version(context: DeploymentContext, version: DeploymentSpec) -> None:
    """Raises `ConflictError` if an adapter of the base does not fit another version of the base.

    A worker process reads the headers, so no transaction waits for it.
    """
    async with context.database.reading() as session:
        rows = await repository.adapters_of(session, version.deployment)
        files_by_model = {
            row.model: (
                str(row.upload_id),
                await artifact_service.files_of(session, str(row.upload_id)),
            )
            for row in rows
        }
        merged = {row.model: row.merged_because for row in rows if row.merged_because}
    if not files_by_model:
        return
    try:
        folder = await context.folders.folder(version)
    except BucketUnreachableError:
        raise store_unavailable() from None
    except LoadError as error:
        raise ConflictError(f"The version cannot be read: {error}", code="adapter_misfit") from None
    for model, (upload_id, files) in files_by_model.items():
        try:
            paths = await context.folders.paths(upload_id, files)
            why_alone = merged.get(model, "")
            fit = await context.inspectors.fit(version.account_id, paths, folder, why_alone)
        except (InspectionError, InspectorError, LoadError, OSError) as error:
            # The adapter was deleted in the meantime, or its replica will report the error.
            log.warning("adapter could not be compared: %s", error, extra={"model": model})
            continue
        if fit.why_unfit:
            raise ConflictError(
                f"The adapter '{model}' of this deployment does not fit the version: "
                f"{fit.why_unfit} Delete the adapter, or train it again.",
                code="adapter_misfit",
            )


async def keep_placed(session: Session, folders: ModelFolders) -> None:
    """Updates the adapter folders that replicas read: removes unused ones and adds missing ones."""
    rows = await repository.sharing_adapters(session)
    pairs = {(str(row.adapter_of), row.id) for row in rows}
    await asyncio.to_thread(folders.keep_only_adapters, pairs)
    for row in rows:
        try:
            await place(session, folders, row)
        except (CapacityError, LoadError) as error:
            # The base's replicas do not start without the adapter.
            log.warning("adapter is fetched later: %s", error, extra={"model": row.model})


async def place(session: Session, folders: ModelFolders, row: Deployment) -> None:
    """Makes an adapter's files readable by the replicas of its base."""
    files = await artifact_service.files_of(session, str(row.upload_id))
    upload_id = str(row.upload_id)
    try:
        await folders.put_adapter(str(row.adapter_of), row.id, upload_id, files)
    except BucketUnreachableError:
        raise store_unavailable() from None


async def follow(session: Session, base: Deployment) -> None:
    """Copies the base's current configuration to the adapters that share its replicas."""
    values = {name: getattr(base, name) for name in FOLLOWED}
    await repository.update_sharing(session, base.id, values)


def refuse(row: Deployment, why: str) -> None:
    """Raises `ConflictError` if the deployment is an adapter."""
    if row.adapter_of:
        raise ConflictError(f"'{row.model}' is an adapter. {why}", code="is_adapter")


def check_base(row: Deployment, changed: Deployment) -> None:
    """Raises `InvalidRequestError` if the change would prevent a base with adapters from sharing
    its replicas.
    """
    if row.has_adapters and (why := _why_unshared(changed)):
        raise InvalidRequestError(
            f"The deployment has adapters that share its replicas. {why} Delete the "
            "adapters first.",
            param="engine",
        )
