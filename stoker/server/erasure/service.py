"""Deletes accounts, with everything that belongs to them.

The account's row says that its deletion has begun, and is the last row that goes. Whatever ends a
server in between, the next one goes on: each step can be repeated.
"""

import asyncio
import contextlib
import logging

from sqlalchemy import delete as deletion
from sqlalchemy import select

from stoker.base.errors import CapacityError, NotFoundError
from stoker.platform.web.outage import lost_store_reported
from stoker.registry.artifacts import repository as artifact_rows
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.streaming import KeyedLocks, transfers
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments import versions
from stoker.server.erasure import tables
from stoker.server.erasure.context import ErasureContext
from stoker.store import db
from stoker.store.tables.agents import Agent
from stoker.store.tables.artifacts import Artifact, UploadStatus
from stoker.store.tables.deployments import Deployment
from stoker.store.tables.files import File
from stoker.tenancy.keys import service as keys
from stoker.tenancy.usage.ledger import Ledger
from stoker.workloads.agents import run_service as runs

log = logging.getLogger(__name__)

RESUME_S = 30.0
"""How often deletions that were cut off are looked for."""
_ROUNDS = 5
"""Requests that were admitted before may add something meanwhile, which the next round erases."""
_AT_ONCE = 200
_OTHERS_S = 2.0
"""Other servers have ended their transfers into sessions after so long."""
_erasing = KeyedLocks()


async def delete(context: ErasureContext, account_id: str) -> None:
    """Erase an account; goes on where the caller is cancelled.

    Raises:
        NotFoundError: there is no such account, or no more.
        CapacityError: the object store does not answer, or work does not end. The deletion goes on
            in the background.
    """
    await _close(context, account_id)
    await db.uncut(_erase(context, account_id))


async def resume(context: ErasureContext) -> None:
    """Go on with the deletions that were cut off."""
    async with context.database.reading() as session:
        found = await tables.deleting(session)
    for account_id in found:
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
    """Have an account refuse everything from now on."""
    async with context.database.transaction() as session:
        account = await tables.begun(session, account_id)
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
    """End and erase what an account has by now; returns whether the account is gone."""
    async with context.database.transaction() as session:
        # By the ids of what there still is.
        await tables.erase_idempotency(session, account_id)
        await tables.erase_jobs(session, account_id)
    await _let_go(context)
    await _erase_agents(context, account_id)
    await _erase_deployments(context, account_id)
    await _erase_artifacts(context, account_id)
    await _erase_files(context, account_id)
    async with context.database.transaction() as session:
        # Metering locks the ledger before it refers to accounts.
        ledger = await Ledger.open(session)
        if await tables.begun(session, account_id) is None:
            return True
        if await tables.has_work(session, account_id):
            return False
        await ledger.close(account_id, db.now())
        await tables.erase_all(session, account_id)
        session.after_commit(lambda: context.quotas.forget(account_id))
        session.after_commit(lambda: context.credits.forget(account_id))
    await _let_go(context)
    return True


async def _let_go(context: ErasureContext) -> None:
    for runner in context.runners:
        await runner.let_go()


async def _erase_agents(context: ErasureContext, account_id: str) -> None:
    while True:
        async with context.database.reading() as session:
            found = await tables.ids(session, Agent, account_id, _AT_ONCE)
        for agent_id in found:
            with contextlib.suppress(NotFoundError):
                await runs.erase_with_agent(context.agents, account_id, agent_id)
        if len(found) < _AT_ONCE:
            return


async def _erase_deployments(context: ErasureContext, account_id: str) -> None:
    deployed = context.deployments
    statement = select(Deployment.id, Deployment.adapter_of).where(
        Deployment.account_id == account_id
    )
    async with context.database.reading() as session:
        found = (await session.execute(statement)).all()
        of_each = {row.id: await versions.all_of(session, row.id) for row in found}
    # Before the rows: a server that is killed in between finds by them what is still to be removed.
    removals = [deployed.runtime.remove(one.id) for some in of_each.values() for one in some]
    await asyncio.gather(*removals)
    # A base can be deleted once its adapters are.
    for row in sorted(found, key=lambda row: row.adapter_of is None):
        with contextlib.suppress(NotFoundError):
            async with context.database.transaction() as session:
                removed = await deployments.delete(session, deployed, account_id, row.id)
            await versions.end(deployed, removed)


async def _erase_artifacts(context: ErasureContext, account_id: str) -> None:
    while True:
        async with context.database.transaction() as session:
            found = await tables.ids(session, Artifact, account_id, _AT_ONCE)
            uploads = [one for each in found for one in await artifact_rows.uploads(session, each)]
            receiving = (UploadStatus.OPEN, UploadStatus.INGESTING)
            is_receiving = any(one.status in receiving for one in uploads)
            for upload in uploads:
                upload.status = UploadStatus.ABANDONED
        if is_receiving and not context.database.is_sqlite:
            await asyncio.sleep(_OTHERS_S)
        for upload in uploads:
            await transfers.end(upload.id, artifacts.upload_closed(UploadStatus.ABANDONED))
        # Bytes before rows: what has no row any more is found by nothing else.
        for artifact_id in found:
            await context.blobs.delete_prefix(f"{artifacts.BLOBS}/{artifact_id}")
        async with context.database.transaction() as session:
            await session.execute(deletion(Artifact).where(Artifact.id.in_(found)))
        if len(found) < _AT_ONCE:
            return


async def _erase_files(context: ErasureContext, account_id: str) -> None:
    while True:
        async with context.database.reading() as session:
            statement = select(File).where(File.account_id == account_id).limit(_AT_ONCE)
            found = (await session.scalars(statement)).all()
        for file in found:
            await context.blobs.remove(file.blob_key)
        ids = [file.id for file in found]
        async with context.database.transaction() as session:
            await session.execute(deletion(File).where(File.id.in_(ids)))
        if len(found) < _AT_ONCE:
            return
