"""Imports from a hub. This module creates them; `work` fetches their files."""

import asyncio
from dataclasses import asdict

from stoker.base.errors import ConflictError, ForbiddenError, NotFoundError, PayloadTooLargeError
from stoker.base.ids import Prefix, new_id
from stoker.registry.artifacts import schemas as artifact_schemas
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.imports import repository
from stoker.registry.artifacts.imports.choosing import chosen
from stoker.registry.artifacts.imports.context import ImportContext
from stoker.registry.artifacts.imports.schemas import ImportCreate
from stoker.registry.artifacts.parts import too_large
from stoker.registry.artifacts.receiving import session_limit
from stoker.registry.hub.client import Snapshot
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.imports import Import
from stoker.store.tables.jobs import JobStatus


def refuse_off(context: ImportContext) -> None:
    if not context.settings.hub_imports:
        raise ForbiddenError(
            "Imports from a hub are disabled on this server (STOKER_HUB_IMPORTS). "
            "Upload the files instead.",
            code="imports_disabled",
        )


async def look(context: ImportContext, body: ImportCreate) -> Snapshot:
    """Fetches a snapshot of the hub's repository, reduced to the files to import.

    Raises the same errors as `Hub.snapshot` and `chosen`, and `PayloadTooLargeError`.
    """
    token = body.token.get_secret_value() if body.token else None
    snapshot = await context.hub.snapshot(body.repo_id, body.revision, token)
    # A repository may have ten thousand files.
    files = await asyncio.to_thread(chosen, snapshot.files, body.gguf)
    if len(files) > context.settings.artifact_files_limit:
        limit = context.settings.artifact_files_limit
        raise PayloadTooLargeError(f"An artifact has at most {limit} files on this server.")
    if sum(file.size for file in files) > session_limit(context.settings):
        raise too_large(session_limit(context.settings))
    return Snapshot(snapshot.commit, files)


async def create(
    session: Session,
    context: ImportContext,
    account_id: str,
    artifact_id: str,
    body: ImportCreate,
    *,
    snapshot: Snapshot,
) -> artifact_schemas.Artifact:
    """Starts an import: opens an upload session sized for the files, and adds a job that fills it.

    Raises the same errors as `artifacts.open_upload`.
    """
    total = sum(file.size for file in snapshot.files)
    artifact, upload = await artifacts.open_upload(session, context, account_id, artifact_id, total)
    upload.origin = {
        "hub": context.hub.endpoint,
        "repo_id": body.repo_id,
        "revision": body.revision,
        "commit": snapshot.commit,
    }
    if earlier := await repository.forget(session, artifact_id):
        session.after_commit(lambda: context.jobs.cancel(earlier))
    sealed = None
    if body.token is not None:
        sealed = context.secret.seal(body.token.get_secret_value().encode())
    row = Import(
        id=new_id(Prefix.IMPORT),
        account_id=account_id,
        artifact_id=artifact_id,
        upload_id=upload.id,
        repo_id=body.repo_id,
        revision=body.revision,
        commit=snapshot.commit,
        files=[asdict(file) for file in snapshot.files],
        bytes_total=total,
        token=sealed,
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=db.now(),
    )
    session.add(row)
    await session.flush()
    (response,) = await artifacts.shown(session, artifact)
    return response


async def cancel(
    session: Session, context: ImportContext, account_id: str, artifact_id: str, import_id: str
) -> None:
    """Restores the artifact to its state before the import. Raises `ConflictError` if the import
    has ended.
    """
    await artifacts.get(session, account_id, artifact_id, lock=True)
    row = await repository.get(session, artifact_id, import_id)
    if row is None:
        raise NotFoundError("Import not found", code="import_not_found")
    if JobStatus(row.status).is_finished:
        raise ConflictError("The import has ended.", code="import_ended")
    await artifacts.abandon(session, context.blobs, account_id, artifact_id, row.upload_id)
    await repository.forget(session, artifact_id)
    session.after_commit(lambda: context.jobs.cancel(import_id))
