"""Determines which artifacts can be deployed, and as which pipeline."""

from stoker.base.errors import ConflictError, InvalidRequestError, NotFoundError
from stoker.models.adapters.lora import ADAPTER
from stoker.models.tasks.architectures import matching
from stoker.models.tasks.registry import PIPELINES
from stoker.registry.artifacts import repository as artifacts
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact, ArtifactStatus
from stoker.store.tables.deployments import Deployment


async def artifact_for(session: Session, row: Deployment, artifact_id: str) -> Artifact:
    """Returns a ready artifact that can serve a deployment's pipeline."""
    artifact = await ready_artifact(session, row.account_id, artifact_id)
    try:
        pipeline_of(row.pipeline, artifact)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message, param="artifact_id") from error
    return artifact


async def ready_artifact(session: Session, account_id: str, artifact_id: str) -> Artifact:
    """Returns the locked row of an artifact. Raises `NotFoundError`, and `ConflictError` if the
    artifact is not ready.
    """
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


def pipeline_of(wanted: str | None, artifact: Artifact) -> str:
    """Returns the pipeline that an artifact will serve: the requested one, or the one that
    inspection found.

    Raises `InvalidRequestError` if the artifact's architecture cannot serve the requested one.
    """
    pipeline = str(artifact.pipeline)
    if pipeline == ADAPTER:
        raise InvalidRequestError(
            "The artifact is an adapter: give the model id of its base's deployment as "
            "'adapter_of'.",
            param="adapter_of",
        )
    if wanted is None or wanted == pipeline:
        return pipeline
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
