"""Applies changes of deployments by other servers of the same PostgreSQL to this server."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Generator, Sequence

from sqlalchemy.exc import SQLAlchemyError

from stoker.registry.deployments import adapters, repository, revisions, versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.store.changes import Change
from stoker.store.tables.deployments import Deployment, DeploymentVersion
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

LOOK_S = 1.0
_AT_ONCE = 200


class Following:
    def __init__(self, context: DeploymentContext) -> None:
        self._context = context
        self._seen = 0
        self._rounds = 0
        """Number of times the database was read."""
        self._following = asyncio.Lock()
        self._again: set[str] = set()
        """Ids of changed deployments that could not be applied and are retried."""
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Records the current revision. Must run before all deployments are read for the first
        time.
        """
        async with self._context.database.reading() as session:
            self._seen = await revisions.current(session)

    async def run(self) -> None:
        await repeated(self.follow, LOOK_S, "following the deployments of other servers")

    async def catch_up(self) -> None:
        """Runs `follow` once for all callers that wait for it at the same time."""
        asked_in = self._rounds
        async with self._following:
            if self._rounds == asked_in:
                await self._follow()

    async def follow(self) -> None:
        """Updates the directory and the runtime to the state of the database."""
        async with self._following:
            await self._follow()

    async def _follow(self) -> None:
        context = self._context
        self._rounds += 1
        if await revisions.polled(context.database) == self._seen and not self._again:
            return
        async with context.database.reading() as session:
            revision, changed = await revisions.since(
                session, context.database.server_id, self._seen
            )
            if changed is None:
                existing = [row.id for row in await repository.everything(session)]
                known = [entry.deployment_id for entry in context.directory.entries()]
                changed = [*existing, *known]
        # Bases come before their adapters, which are younger.
        changed = sorted({*changed, *self._again})
        failed: set[str] = set()
        for at in range(0, len(changed), _AT_ONCE):
            failed |= await self._catch_up(changed[at : at + _AT_ONCE])
        self._seen, self._again = revision, failed

    async def _catch_up(self, ids: Sequence[str]) -> set[str]:
        """Applies the changes of these deployments. Returns the ids of failed deployments."""
        context, failed = self._context, set[str]()
        async with context.database.reading() as session:
            for row in await repository.these(session, ids):
                if row.shares:
                    # Copying takes time, so it runs before commits are blocked.
                    with self._kept(row.id, failed):
                        await adapters.place(session, context.folders, row)
        # Blocks this server's commits. Otherwise a newer change could be applied before this older
        # state.
        async with context.database.between_commits(), context.database.reading() as session:
            rows = {row.id: row for row in await repository.these(session, ids)}
            versions_by_deployment = await repository.versions_by_deployment(session, ids)
            for deployment_id in ids:
                with self._kept(deployment_id, failed):
                    self._tell(
                        deployment_id,
                        rows.get(deployment_id),
                        versions_by_deployment.get(deployment_id, ()),
                    )
        return failed

    @contextlib.contextmanager
    def _kept(self, identifier: str, failed: set[str]) -> Generator[None]:
        """Logs a failure and marks it for a retry, so that other deployments are not affected."""
        try:
            yield
        except SQLAlchemyError:
            raise
        except Exception:
            if identifier not in self._again:
                log.exception("a peer server's deployment could not be applied; retrying")
            failed.add(identifier)

    def _tell(
        self, identifier: str, row: Deployment | None, found: Sequence[DeploymentVersion]
    ) -> None:
        context = self._context
        before = context.directory.find(identifier)
        ended = self._unprepared(identifier, found)
        if row is None:
            context.directory.drop(identifier)
            place = (before.base_id, identifier) if before and before.base_id else (identifier,)
            context.folders.drop_adapters(*place)
        else:
            versions.tell(context, row, found)
        after = context.directory.find(identifier)
        if before and not before.base_id:
            current_sources = dict(after.sources) if after else {}
            ended |= {
                version_id: source
                for version_id, source in before.sources
                if version_id not in current_sources
            }
        if ended:
            task = asyncio.create_task(self._end(ended))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._announce(row, before)

    def _unprepared(self, identifier: str, found: Collection[DeploymentVersion]) -> dict[str, str]:
        """Cancels the preparation of versions that were deleted. Returns their ids."""
        existing = {item.id for item in found}
        gone = [
            item for item in self._context.preparing.jobs_of(identifier) if item not in existing
        ]
        for item in gone:
            self._context.preparing.cancel(item)
        return dict.fromkeys(gone, "")

    async def _end(self, ended: dict[str, str]) -> None:
        """Ends the replicas of deleted versions."""
        context = self._context
        try:
            for spec_id in ended:
                await context.runtime.remove(spec_id)
            async with context.database.reading() as session:
                used_sources = await versions.sources(session)
            for source in {*ended.values()} - used_sources - {""}:
                await context.folders.drop(source)
        except Exception:
            log.exception("a deployment that a peer server deleted could not be stopped")

    def _announce(self, row: Deployment | None, before: DirectoryEntry | None) -> None:
        """Announces the change to the watchers of this server."""
        changes = self._context.database.changes
        if not changes.is_heard:
            return
        if row is not None:
            changes.announce([Change(Deployment, row.id, row.account_id, row)])
        elif before is not None:
            gone = Change(Deployment, before.deployment_id, before.account_id, is_deleted=True)
            changes.announce([gone])
