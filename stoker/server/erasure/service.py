"""Deletes accounts with everything that belongs to them.

The account's row records that its deletion has begun, and is deleted last. If a server stops during
the deletion, the next one continues: each step can be repeated.
"""

import asyncio
import contextlib
import logging

from stoker.base.errors import CapacityError, NotFoundError
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.artifacts import repository as artifact_rows
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.streaming import KeyedLocks, transfers
from stoker.registry.deployments import repository as deployment_rows
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments import versions
from stoker.server.erasure import repository
from stoker.server.erasure.context import ErasureContext
from stoker.store import db
from stoker.store.tables.agents import Agent
from stoker.store.tables.artifacts import Artifact, UploadStatus
from stoker.store.tables.batches import Batch
from stoker.tenancy.keys import service as keys
from stoker.tenancy.usage.ledger import Ledger
from stoker.workloads.agents import run_service as runs
from stoker.workloads.batches.parts import BLOBS as BATCH_BLOBS

log = logging.getLogger(__name__)

RESUME_S = 30.0
"""Interval in seconds between checks for interrupted deletions."""
_ROUNDS = 5
"""Maximum number of rounds. Requests that were admitted earlier may add data meanwhile, which the
next round erases.
"""
_AT_ONCE = 200
_OTHERS_S = 2.0
"""Seconds after which other servers have ended their transfers into upload sessions."""
_erasing = KeyedLocks()


async def delete(context: ErasureContext, account_id: str) -> None:
    """Erases an account. Continues if the caller is cancelled.

    Raises:
        NotFoundError: the account does not exist or was already deleted.
        CapacityError: the object store does not answer, or work does not end. The deletion
            continues in the background.
    """
    await _close(context, account_id)
    await db.uncut(_erase(context, account_id))


async def resume(context: ErasureContext) -> None:
    """Resumes interrupted deletions."""
    async with context.database.reading() as session:
        account_ids = await repository.deleting(session)
    for account_id in account_ids:
        await _erase(context, account_id)


async def run(context: ErasureContext) -> None:
    """Resume deletions at once and every `RESUME_S`, until cancelled."""
    while True:
        try:
            await resume(context)
        except Exception:
            log.exception("deletion of an account failed; retrying")
        await asyncio.sleep(RESUME_S)


async def _close(context: ErasureContext, account_id: str) -> None:
    """Marks an account as being deleted, revokes its keys and ends its streams."""
    async with context.database.transaction() as session:
        account = await repository.begun(session, account_id)
        if account is None:
            raise NotFoundError("Account not found", code="account_not_found")
        account.deleting_at = account.deleting_at or db.now()
        await keys.revoke_all(session, context.agents.keyring, context.sessions, account_id)
        session.after_commit(lambda: context.broadcast.end_of(account_id))


async def _erase(context: ErasureContext, account_id: str) -> None:
    async with _erasing.hold(account_id):
        with lost_store_reported():
            for _ in range(_ROUNDS):
                if await _round(context, account_id):
                    await context.database.scrub()
                    return
    raise CapacityError(
        "The account's work has not stopped yet. Its keys are revoked and the "
        "deletion continues in the background. Repeat this request to wait for its "
        "end."
    )


async def _round(context: ErasureContext, account_id: str) -> bool:
    """Ends and erases the current data of an account. Returns True if the account is deleted."""
    await _erase_batch_parts(context, account_id)
    async with context.database.transaction() as session:
        # These rows are found by the ids of objects that still exist.
        await repository.erase_idempotency(session, account_id)
        await repository.erase_jobs(session, account_id)
    await _let_go(context)
    await _erase_agents(context, account_id)
    await _erase_deployments(context, account_id)
    await _erase_artifacts(context, account_id)
    await _erase_files(context, account_id)
    async with context.database.transaction() as session:
        # Metering locks the ledger before it refers to accounts.
        ledger = await Ledger.open(session)
        if await repository.begun(session, account_id) is None:
            return True
        if await repository.has_work(session, account_id):
            return False
        await ledger.close(account_id, db.now())
        await repository.erase_all(session, account_id)
        session.after_commit(lambda: context.quotas.forget(account_id))
        session.after_commit(lambda: context.credits.forget(account_id))
    await _let_go(context)
    return True


async def _let_go(context: ErasureContext) -> None:
    for runner in context.runners:
        await runner.let_go()


async def _erase_batch_parts(context: ErasureContext, account_id: str) -> None:
    """Deletes the answers of unfinished batches. Their rows follow, after which no server adds
    more.
    """
    after = ""
    while True:
        async with context.database.reading() as session:
            batch_ids = await repository.ids(session, Batch, account_id, _AT_ONCE, after=after)
        for batch_id in batch_ids:
            await context.blobs.delete_prefix(f"{BATCH_BLOBS}{batch_id}")
        if len(batch_ids) < _AT_ONCE:
            return
        after = batch_ids[-1]


async def _erase_agents(context: ErasureContext, account_id: str) -> None:
    while True:
        async with context.database.reading() as session:
            agent_ids = await repository.ids(session, Agent, account_id, _AT_ONCE)
        for agent_id in agent_ids:
            with contextlib.suppress(NotFoundError):
                await runs.erase_with_agent(context.agents, account_id, agent_id)
        if len(agent_ids) < _AT_ONCE:
            return


async def _erase_deployments(context: ErasureContext, account_id: str) -> None:
    deployed = context.deployments
    async with context.database.reading() as session:
        rows = await repository.deployments(session, account_id)
        of_each = {row.id: await deployment_rows.versions(session, row.id) for row in rows}
    # Runs before the rows are deleted: if the server is killed in between, these rows still show
    # what to remove.
    removals = [
        deployed.runtime.remove(version.id) for some in of_each.values() for version in some
    ]
    await asyncio.gather(*removals)
    # A base can be deleted only after its adapters.
    for row in sorted(rows, key=lambda row: row.adapter_of is None):
        with contextlib.suppress(NotFoundError):
            async with context.database.transaction() as session:
                removed = await deployments.delete(session, deployed, account_id, row.id)
            await versions.end(deployed, removed)


async def _erase_artifacts(context: ErasureContext, account_id: str) -> None:
    while True:
        async with context.database.transaction() as session:
            artifact_ids = await repository.ids(session, Artifact, account_id, _AT_ONCE)
            uploads = [
                row for each in artifact_ids for row in await artifact_rows.uploads(session, each)
            ]
            receiving = (UploadStatus.OPEN, UploadStatus.INGESTING)
            is_receiving = any(row.status in receiving for row in uploads)
            for upload in uploads:
                upload.status = UploadStatus.ABANDONED
        if is_receiving and not context.database.is_sqlite:
            await asyncio.sleep(_OTHERS_S)
        for upload in uploads:
            await transfers.end(upload.id, artifacts.upload_closed(UploadStatus.ABANDONED))
        # Deletes bytes before rows, because bytes without a row cannot be found.
        for artifact_id in artifact_ids:
            await context.blobs.delete_prefix(f"{artifacts.BLOBS}/{artifact_id}")
        async with context.database.transaction() as session:
            await repository.delete_artifacts(session, artifact_ids)
        if len(artifact_ids) < _AT_ONCE:
            return


async def _erase_files(context: ErasureContext, account_id: str) -> None:
    async with context.database.transaction() as session:
        parts = await repository.delete_file_uploads(session, account_id)
    for part in parts:
        await context.blobs.remove(part.blob_key)
    while True:
        async with context.database.reading() as session:
            rows = await repository.files(session, account_id, _AT_ONCE)
        for file in rows:
            await context.blobs.remove(file.blob_key)
        ids = [file.id for file in rows]
        async with context.database.transaction() as session:
            await repository.delete_files(session, ids)
        if len(rows) < _AT_ONCE:
            return
