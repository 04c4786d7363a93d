"""Estimates a replica's memory from the headers of its model's weights, until the memory was
measured.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.inspection import Inspection, InspectionError, inspect
from stoker.inspection.inspector import MIN_WORKING_BYTES, WORKING_SHARE
from stoker.inspection.readers import FolderReader
from stoker.models.tasks.registry import PIPELINES
from stoker.registry.artifacts import repository as artifacts
from stoker.registry.deployments.folders import source_folder
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment

_SMALL_BYTES = (WORKING_SHARE + 1) * MIN_WORKING_BYTES
"""Estimates up to this size are the weights and `MIN_WORKING_BYTES`."""


@dataclass(frozen=True)
class SourceFolder:
    """An operator's folder and its inspection."""

    path: Path
    inspection: Inspection


async def again(session: Session, row: Deployment, folder: SourceFolder | None) -> int:
    """Returns the estimated memory of a deployment in its current configuration, in bytes.

    Args:
        folder: result of `folder_again`.
    """
    if folder is not None:
        return of_folder(folder.inspection, row.dtype)
    artifact = await artifacts.get(session, row.account_id, str(row.artifact_id))
    return of_artifact(artifact, row.dtype) if artifact else 0


async def folder_again(settings: Settings, row: Deployment) -> SourceFolder | None:
    """Inspects the folder that a deployment was created from. Returns None if it was created from
    an artifact.

    Raises `InvalidRequestError` if the folder no longer exists.
    """
    if row.source is None:
        return None
    return await inspected_folder(settings, row.source, row.pipeline)


def of_artifact(artifact: Artifact, dtype: str) -> int:
    inspection = artifact.inspection or {}
    return _bytes(
        int(inspection.get("memory_bytes", 0)), int(inspection.get("parameters", 0)), dtype
    )


def of_folder(inspection: Inspection, dtype: str) -> int:
    return _bytes(inspection.memory_bytes, inspection.parameters, dtype)


def weight_bytes(estimate: int) -> int:
    """Returns the bytes of the weights that an estimate contains. 0 if they are not known, because
    the model is large: its estimate contains a share of them.
    """
    return max(estimate - MIN_WORKING_BYTES, 0) if estimate <= _SMALL_BYTES else 0


async def inspected_folder(settings: Settings, source: str, pipeline: str | None) -> SourceFolder:
    """Inspects an operator's folder. Raises `InvalidRequestError`."""
    folder = source_folder(settings, source)
    try:
        inspection = await asyncio.to_thread(inspect, FolderReader(folder), pipeline, PIPELINES)
    except InspectionError as error:
        raise InvalidRequestError(error.message, param="source") from error
    return SourceFolder(folder, inspection)


def _bytes(as_stored: int, parameters: int, dtype: str) -> int:
    """Returns the memory in bytes. Weights may be loaded in another number format than they are
    stored in.
    """
    number = 2 if dtype in ("bfloat16", "float16") else 4
    return max(as_stored, parameters * number + MIN_WORKING_BYTES)
